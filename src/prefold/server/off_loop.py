"""Off the loop: long computations, which would keep every other client waiting."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")

#: Characters or tokens that are worth a thread: some milliseconds of tokenizing.
_MIN_SIZE = 20_000


async def run_sized(size: int, function: Callable[[], _T]) -> _T:
    """Run a function here if it has little to do, or on a thread.

    Args:
        size: Characters that it reads.
        function: What to run.
    """
    if size < _MIN_SIZE:
        return function()
    return await asyncio.to_thread(_run_uncollected, function)


def _run_uncollected(function: Callable[[], _T]) -> _T:
    with _PAUSE.hold():
        return function()


class CollectionPause:
    """Keeps garbage from being collected while somebody makes very many objects.

    Each collection would look through all of them, with every thread standing still: a
    large reply's log-probabilities would stop the event loop for a second. They are freed
    without it, since nothing in them refers back.

    Invariants: collection is off exactly while somebody holds it, if it was on before.
    """

    __slots__ = ("_lock", "_num_holders", "_was_on")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_holders = 0
        self._was_on = False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold it while the body runs."""
        with self._lock:
            if not self._num_holders:
                self._was_on = gc.isenabled()
                gc.disable()
            self._num_holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_holders -= 1
                if not self._num_holders and self._was_on:
                    gc.enable()


#: Collection belongs to the process, so there is one.
_PAUSE = CollectionPause()
