"""Timings: what became of the last requests, by the id that their clients were told.

That id is the client's to choose and to repeat. So requests are told apart by a number of
the server's, and by tenant: of equal ids of one tenant the latest request is kept, and
those of different tenants are never one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from prefold.engine.request import FinishReason, RequestOutput, Timing, Usage
from prefold.server.observer import ExchangeId

#: Requests kept.
MAX_REQUESTS = 1_000

#: Choices kept of one request.
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceTiming:
    """One choice's figures: an output without its text and tokens."""

    usage: Usage
    timing: Timing
    finish_reason: FinishReason
    miss: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    serial: int
    choices: list[ChoiceTiming]


class RecentTimings:
    """Figures of the last requests. One thread.

    Invariants: at most ``MAX_REQUESTS`` requests, each with 1 to ``MAX_CHOICES`` choices;
    the one that a choice was noted of last is the last.
    """

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        #: By tenant and the client's id.
        self._latest: OrderedDict[tuple[str | None, str], _Request] = OrderedDict()

    def note(self, request: ExchangeId, output: RequestOutput) -> None:
        """Remember the end of one choice, and forget the oldest request if need be."""
        key = (request.tenant, request.text)
        known = self._latest.get(key)
        if known is None or known.serial < request.serial:
            known = _Request(serial=request.serial, choices=[])
            self._latest[key] = known
        elif known.serial > request.serial:
            return  # a later one of that id has ended already
        self._latest.move_to_end(key)
        if len(known.choices) < MAX_CHOICES:
            known.choices.append(_timing_of(output))
        if len(self._latest) > MAX_REQUESTS:
            self._latest.popitem(last=False)

    def tenants_of(self, text: str) -> list[str]:
        """Return the tenants that requests of that id are known of, in alphabetical order.

        Looks at every request kept.
        """
        found = {tenant for tenant, own in self._latest if own == text}
        return sorted(tenant for tenant in found if tenant is not None)

    def find(self, text: str, tenant: str) -> list[ChoiceTiming] | None:
        """Return the ended choices of a tenant's latest request of that id.

        None if it is not known any more.
        """
        known = self._latest.get((tenant, text))
        return None if known is None else list(known.choices)


def _timing_of(output: RequestOutput) -> ChoiceTiming:
    miss = output.miss_reason
    return ChoiceTiming(
        usage=output.usage,
        timing=output.timing,
        finish_reason=output.finish_reason,
        # A position and a cause; what the tokens are is no part of it.
        miss=None if miss is None else miss.describe(),
    )
