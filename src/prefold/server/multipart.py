"""Multipart forms: the fields of a body of the type ``multipart/form-data`` (RFC 7578).

Only what forms with one file need: each part's name and bytes. Anything else in the
headers of a part, such as the name or the type of the file, is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from prefold.server.errors import HttpError

#: Parts of a form, at most.
_MAX_PARTS = 8
_MAX_HEAD = 4_096

_BOUNDARY = re.compile(r'boundary="?([0-9A-Za-z\'()+_,./:=? -]{1,70})"?', re.ASCII)
_NAME = re.compile(
    rb'^content-disposition:\s*form-data\s*;.*?\bname="([a-z]{1,32})"',
    re.IGNORECASE | re.MULTILINE,
)


def read_form(content_type: str, body: bytes) -> Mapping[str, bytes]:
    """Return the fields of a form by name; the first of each name counts. O(body).

    Raises:
        HttpError: It is no form, or one of another kind.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    found = _BOUNDARY.search(content_type)
    if media_type != "multipart/form-data" or found is None:
        raise HttpError(
            415,
            "send a form, multipart/form-data, with the fields purpose and file",
        )
    delimiter = b"\r\n--" + found[1].encode("ascii")
    # What stands before the first delimiter and behind the last is no part.
    pieces = (b"\r\n" + body).split(delimiter)[1:]
    if not pieces or not pieces[-1].startswith(b"--") or len(pieces) > _MAX_PARTS + 1:
        raise HttpError(400, "the form is cut off, or has too many parts")
    fields: dict[str, bytes] = {}
    for piece in pieces[:-1]:
        head, blank, content = piece.partition(b"\r\n\r\n")
        name = _NAME.search(head[:_MAX_HEAD])
        if not blank or name is None:
            raise HttpError(400, "a part of the form has no name")
        fields.setdefault(name[1].decode("ascii"), content)
    return fields
