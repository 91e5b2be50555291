"""Page: the files of ``/ui``, which are the same for everybody and hold no data.

So they need no token: a browser could not send one for them. What they show they ask the
other routes for, with the token that their reader has typed in::

    GET /ui, /ui/*    open     page, scripts, style: this module
    GET /cache/...    token    all that is shown

Their headers let the page run its own scripts and ask its own server, and nothing else:
no text in it can become a script, nobody can frame it, and nothing is sent elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

#: Where the page is.
PAGE_PATH = "/ui"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)

_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    # A page of somebody else's cannot find out by them that a server is here.
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # Kept, and asked about each time: never another version than the server's.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """One file, and how a browser knows whether it has it already."""

    content: bytes = field(repr=False)
    media_type: str
    etag: str


def load_page() -> Mapping[str, PageFile]:
    """Return the page's files by their paths on the server."""
    found: dict[str, PageFile] = {}
    for each in sorted(Path(__file__).with_name("ui").iterdir()):
        if each.suffix not in _TYPES:
            continue
        content = each.read_bytes()
        path = PAGE_PATH if each.name == "index.html" else f"{PAGE_PATH}/{each.name}"
        found[path] = PageFile(
            content=content,
            media_type=_TYPES[each.suffix],
            etag=f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"',
        )
    return found


def page_router(page: Mapping[str, PageFile]) -> APIRouter:
    """Return a route for each file."""
    router = APIRouter(include_in_schema=False)
    for path, file in page.items():
        _add(router, path, file)
    return router


def _add(router: APIRouter, path: str, file: PageFile) -> None:
    @router.api_route(path, methods=["GET", "HEAD"])
    async def read(request: Request) -> Response:
        headers = {**_HEADERS, "etag": file.etag}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)
