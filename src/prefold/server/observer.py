"""Observer: what the HTTP planes tell about themselves.

Its calls come on the event loop, are quick and never raise: a request completes whatever
becomes of its figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from prefold.blocks.table import TokenIds
from prefold.engine.config import RequestOptions
from prefold.engine.request import RequestOutput
from prefold.identity.fingerprint import Fingerprint


class Plane(Enum):
    """Which of the two listeners."""

    PUBLIC = "public"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeId:
    """Which request of a plane.

    Attributes:
        text: What its client was told, in ``x-request-id``; it may have chosen that, and
            the same for other requests.
        serial: The server's own number of it; the later request has the higher one.
        tenant: Whose it is; None before that is known.
    """

    text: str
    serial: int
    tenant: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """One prompt of a request, as the engine took it in.

    Attributes:
        token_ids: Not to be changed.
        options: What it was granted.
        fingerprint: Of the model that it was read for.
    """

    token_ids: TokenIds = field(repr=False)
    options: RequestOptions
    fingerprint: Fingerprint


class HttpObserver(Protocol):
    """Somebody who counts responses. The metrics are one, a test's list is another."""

    def on_response(self, plane: Plane, route: str | None, status: int) -> None:
        """Note a response.

        Args:
            plane: Where.
            route: The route's template, such as ``/v1/models/{model}``; None where no
                route was found. Never the path as the client wrote it.
            status: What was sent first.
        """

    def on_refused(self, tenant: str) -> None:
        """Note a request for tokens that the engine never took in."""

    def on_asked(self, request: ExchangeId, prompts: Sequence[AskedPrompt]) -> None:
        """Note that the engine took a request in."""

    def on_output(self, request: ExchangeId, output: RequestOutput, *, prompt: int) -> None:
        """Note that one choice of a request ended; ``prompt`` is its number there."""
