"""Selection: which of the cache's selectors a request to invalidate means."""

from __future__ import annotations

import math
import time
from types import NoneType
from typing import get_args, get_type_hints

from prefold.blocks.table import TokenIds
from prefold.cache import (
    ApprovalId,
    ByAge,
    ByApproved,
    ByDomain,
    ByField,
    ByPrefix,
    Everything,
    Selector,
)
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.server.config import nearest
from prefold.server.errors import HttpError
from prefold.server.journal import Journal
from prefold.server.sharing_protocol import InvalidateRequest

#: In place of a value: the one of what is served now.
_CURRENT = "current"

#: What the value of each field can be.
_KINDS = {
    name: get_args(kind) or (kind,) for name, kind in get_type_hints(Fingerprint).items()
}

_WORDS = {
    bytes: "hexadecimal digits",
    int: "a whole number",
    str: "a text",
    NoneType: "null",
}


def has_prompt(request: InvalidateRequest) -> bool:
    """Tell whether it selects what begins with a prompt."""
    return request.prompt is not None or request.messages is not None


def check_selection(request: InvalidateRequest) -> None:
    """Check that there is exactly one selector, and nothing that belongs to another.

    Raises:
        HttpError: With what to change.
    """
    is_domain = request.domain is not None and not has_prompt(request)
    given = [
        has_prompt(request),
        is_domain,
        request.everything is not None,
        request.approval is not None,
        request.older_than_s is not None,
        request.field is not None,
    ]
    if sum(given) != 1:
        raise HttpError(
            400,
            f"there {'are several selectors' if any(given) else 'is no selector'}; send "
            "exactly one of everything, domain, approval, prompt, messages, older_than_s, "
            "and field with value",
        )
    sent = request.model_fields_set
    if "below" in sent and not is_domain:
        raise HttpError(400, "below goes with domain alone; leave it out", param="below")
    if ("value" in sent) != (request.field is not None):
        raise HttpError(
            400,
            "field and value go together; the value 'current' is what is served now",
            param="value",
        )
    if request.tools is not None and request.messages is None:
        raise HttpError(400, "tools needs messages", param="tools")


def to_selector(
    request: InvalidateRequest, token_ids: TokenIds | None, current: Fingerprint
) -> Selector:
    """Return what a checked request selects.

    Args:
        request: It has one selector.
        token_ids: Of its prompt, if it has one.
        current: The fingerprint that is served now.

    Raises:
        HttpError: There is no such field, or it can have no such value.
    """
    found: Selector = Everything()
    domain = None if request.domain is None else Domain(request.domain)
    if token_ids is not None:
        found = ByPrefix(fingerprint=current, domain=domain, tokens=token_ids)
    elif domain is not None:
        found = ByDomain(domain=domain, below=request.below)
    elif request.approval is not None:
        found = ByApproved(approval_id=ApprovalId(request.approval))
    elif request.older_than_s is not None:
        found = ByAge(older_than_s=request.older_than_s)
    elif request.field is not None:
        found = _by_field(request.field, request.value, current)
    return found


def _by_field(name: str, sent: str | int | None, current: Fingerprint) -> ByField:
    kinds = _KINDS.get(name)
    if kinds is None:
        raise HttpError(
            400, f"there is no such field; {nearest(name, _KINDS)}", param="field"
        )
    value: str | bytes | int | None = sent
    if sent == _CURRENT:
        value = getattr(current, name)
    elif isinstance(sent, str) and bytes in kinds:
        value = _digest(sent)
    if type(value) not in kinds:
        meant = " or ".join(_WORDS[kind] for kind in kinds)
        raise HttpError(
            400, f"value must be {_CURRENT!r} or {meant} for this field", param="value"
        )
    return ByField(name=name, value=value)


def _digest(text: str) -> bytes | str:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return text  # refused as a text


def forget_selected(journal: Journal, request: InvalidateRequest) -> None:
    """Drop the tokens that were kept to explain what was invalidated now.

    Of a prefix, those of all that its domain asked: more than need be, and never less.
    """
    if request.approval is not None:
        return  # what was approved is nobody's request
    domain = None if request.domain is None else Domain(request.domain)
    before = math.inf
    if request.older_than_s is not None:
        before = time.time() - request.older_than_s
    journal.forget(domain, before)
