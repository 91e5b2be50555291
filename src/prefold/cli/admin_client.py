"""Admin client: one question to the admin plane of a running server, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from prefold.cli.admin_options import AdminAction
from prefold.errors import ConfigError, InvalidInputError
from prefold.server.credentials import AdminToken

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

#: To connect. An answer may take long: prompts are computed for it.
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminTarget:
    """Whom to ask.

    Attributes:
        url: Of the admin plane, without a path.
        token_file: Holds its token.
    """

    url: str
    token_file: Path


def ask(
    target: AdminTarget, action: AdminAction, path: str, fields: Mapping[str, object]
) -> dict[str, object]:
    """Return the object that the admin plane answers with.

    Args:
        target: Whom to ask.
        action: What for.
        path: What goes on behind the action's path.
        fields: Of the query, or of the body where the method has one.

    Raises:
        ConfigError: Nobody answers there, or who does is no admin plane; or the token
            cannot be read.
        InvalidInputError: It refuses, with a sentence.
    """
    method, base = action.value
    url = _parse(target.url)
    token = AdminToken.load(target.token_file)
    has_body = method == "POST"
    try:
        with httpx2.Client(
            headers={"authorization": token.authorization},
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            # A proxy of the environment has no business with this machine's own server.
            trust_env=url.host not in _LOOPBACK,
        ) as client:
            response = client.request(
                method,
                url.join(f"{base}{path}"),
                json=dict(fields) if has_body else None,
                params=None if has_body else {name: str(it) for name, it in fields.items()},
            )
    except httpx2.HTTPError as exc:
        raise ConfigError(
            f"no admin plane answers at {_shown(url)} ({type(exc).__name__}); start a "
            "server, or give its address with --url or PREFOLD_ADMIN_URL"
        ) from exc
    return _read(response, url)


def _read(response: httpx2.Response, url: httpx2.URL) -> dict[str, object]:
    try:
        document = response.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and response.is_success:
        return document
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise ConfigError(
            f"what answers at {_shown(url)} is no admin plane of Prefold; give its address "
            "with --url or PREFOLD_ADMIN_URL"
        )
    raise InvalidInputError(error["message"])


def _parse(text: str) -> httpx2.URL:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as exc:
        raise InvalidInputError("--url is no address; try http://127.0.0.1:8001") from exc
    if url.scheme not in ("http", "https") or not url.host or url.path not in ("", "/"):
        raise InvalidInputError(
            "--url must be http:// or https:// with a host and no path, such as "
            "http://127.0.0.1:8001"
        )
    return url


def _shown(url: httpx2.URL) -> str:
    return str(url.copy_with(userinfo=b"")) if url.userinfo else str(url)
