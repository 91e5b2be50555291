"""Timings: what became of the last requests, by the id that their clients were told."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from prefold.engine.request import FinishReason, RequestOutput, Timing, Usage

#: Requests kept.
MAX_REQUESTS = 1_000

#: Choices kept of one request: an id is the client's to repeat.
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceTiming:
    """One choice's figures: an output without its text and tokens."""

    usage: Usage
    timing: Timing
    finish_reason: FinishReason
    miss: str | None


class RecentTimings:
    """Figures of the last requests. One thread.

    Invariants: at most ``MAX_REQUESTS`` requests, each with 1 to ``MAX_CHOICES`` choices.
    """

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, list[ChoiceTiming]] = OrderedDict()

    def note(self, request_id: str, output: RequestOutput) -> None:
        """Remember the end of one choice, and forget the oldest request if need be."""
        choices = self._by_id.setdefault(request_id, [])
        if len(choices) < MAX_CHOICES:
            choices.append(_timing_of(output))
        if len(self._by_id) > MAX_REQUESTS:
            self._by_id.popitem(last=False)

    def find(self, request_id: str) -> list[ChoiceTiming] | None:
        """Return the ended choices of a request; None if it is not known any more."""
        choices = self._by_id.get(request_id)
        return None if choices is None else list(choices)


def _timing_of(output: RequestOutput) -> ChoiceTiming:
    miss = output.miss_reason
    return ChoiceTiming(
        usage=output.usage,
        timing=output.timing,
        finish_reason=output.finish_reason,
        # A position and a cause; what the tokens are is no part of it.
        miss=None if miss is None else miss.describe(),
    )
