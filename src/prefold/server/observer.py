"""Observer: what the HTTP planes tell about themselves.

Its calls come on the event loop, are quick and never raise: a request completes whatever
becomes of its figures.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from prefold.engine.request import RequestOutput


class Plane(Enum):
    """Which of the two listeners."""

    PUBLIC = "public"
    ADMIN = "admin"


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

    def on_output(self, request_id: str, output: RequestOutput) -> None:
        """Note that one choice of a request ended; ``request_id`` is ``x-request-id``."""
