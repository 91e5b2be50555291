"""Uploaded files: bounded by tenant, forgotten in time, read as forms."""

from __future__ import annotations

import pytest

from prefold.server.errors import HttpError
from prefold.server.images_config import ImagesConfig
from prefold.server.multipart import read_form
from prefold.server.shown_tokens import show_tokens
from prefold.server.uploads import UploadStore


def test_each_tenant_has_its_own_room_and_files() -> None:
    now = [0.0]
    config = ImagesConfig(max_uploads=2, max_upload_bytes=10, upload_ttl_s=5)
    store = UploadStore(config, lambda: now[0])
    first = store.add("acme", b"12345678")
    assert store.find("acme", first.file_id) == b"12345678"
    assert store.find("other", first.file_id) is None
    assert not store.delete("other", first.file_id)
    with pytest.raises(HttpError):
        store.add("acme", b"123")
    store.add("other", b"1234567890")
    store.check_invariants()
    now[0] = 5.0
    assert store.find("acme", first.file_id) is None
    store.add("acme", b"1")
    store.add("acme", b"2")
    with pytest.raises(HttpError):
        store.add("acme", b"3")
    with pytest.raises(HttpError, match="empty"):
        store.add("acme", b"")
    store.check_invariants()


def form(*parts: bytes, end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + end


def test_a_forms_fields_are_the_bytes_that_were_sent() -> None:
    content = b"\r\n--y\x00\xff\r\n\r\nlast\r"
    body = form(
        b'Content-Disposition: form-data; name="purpose"\r\n\r\nvision',
        b'Content-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + content,
    )
    fields = read_form('multipart/form-data; boundary="x"', body)
    assert fields == {"purpose": b"vision", "file": content}


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", form()),
        ("multipart/form-data", form()),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", form(b"a", end=b"")),
        ("multipart/form-data; boundary=x", form(b"no head")),
        ("multipart/form-data; boundary=x", form(*[b'a: name="b"\r\n\r\n'] * 20)),
    ],
)
def test_what_is_no_form_is_refused(content_type: str, body: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        read_form(content_type, body)
    assert caught.value.status in (400, 415)


def test_contents_are_shown_as_a_sign() -> None:
    text = show_tokens([1, 2, -5, -6, 3, -1], lambda ids: "".join(map(str, ids)))
    assert text == "12[image]3[image]"
