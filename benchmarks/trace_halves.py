"""Trace halves: A, on which parameters may be chosen, and B, which is held out.

A conversation's trace is cut in the middle of its requests; where requests name their
session by a number, even sessions are A and odd ones B, so that both last as long.
"""

from __future__ import annotations

import dataclasses

from prefold.advisor import Trace, TraceRequest


def cut_in_halves(trace: Trace) -> list[Trace]:
    """Return the halves A and B, named after the trace."""
    middle = len(trace.requests) // 2
    halves: tuple[list[TraceRequest], list[TraceRequest]] = ([], [])
    for number, request in enumerate(trace.requests):
        is_later = (
            number >= middle if request.session is None else int(request.session) % 2 == 1
        )
        halves[is_later].append(request)
    return [
        dataclasses.replace(trace, name=f"{trace.name} {half}", requests=requests)
        for half, requests in zip("AB", halves, strict=True)
    ]
