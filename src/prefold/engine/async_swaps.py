"""Async swaps: another model for an engine on its own thread, while it serves.

::

    a thread         loads and checks the model
    engine thread    begins the swap, goes on stepping, switches between two steps
    event loop       asks now and then whether that has happened
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from prefold.engine.engine import Engine
from prefold.engine.prepared_model import PreparedModel
from prefold.engine.swapping import PendingSwap, SwapReceipt
from prefold.errors import EngineStoppedError, SwapUnderWayError

_T = TypeVar("_T")

#: How often a draining engine is asked whether the swap has happened, in seconds.
_INTERVAL_S = 0.02


class EngineThread(Protocol):
    """The engine, reached from an event loop."""

    @property
    def engine(self) -> Engine:
        """What runs there; to be read only."""
        ...

    async def call(self, function: Callable[[Engine], _T]) -> _T:
        """Run ``function`` there, between two steps."""
        ...


class AsyncSwaps:
    """Replaces the model of a running engine; one swap at a time. Used on one loop."""

    __slots__ = ("_is_loading", "_thread")

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self._is_loading = False

    async def load(
        self, prepare: Callable[[], PreparedModel], *, drain: bool, deadline_s: float
    ) -> SwapReceipt:
        """Prepare a model on a thread, and swap to it.

        Raises:
            ConfigError: As ``prepare``; nothing was changed.
            SwapUnderWayError: Another swap is not done yet.
            EngineStoppedError: As ``swap``.
        """
        # Asked before loading: two models beside the running one are one too many.
        if self._is_loading or self._thread.engine.swapper.is_pending:
            raise SwapUnderWayError(
                "the model is being replaced already; wait until that is done"
            )
        self._is_loading = True
        loading = asyncio.ensure_future(asyncio.to_thread(prepare))
        try:
            prepared = await asyncio.shield(loading)
            return await self._swap(
                prepared, self._note_begun, drain=drain, deadline_s=deadline_s
            )
        finally:
            # The thread goes on if nobody waits for it any more.
            if loading.done():
                self._is_loading = False
            else:
                loading.add_done_callback(self._forget)

    async def swap(
        self, prepared: PreparedModel, *, drain: bool, deadline_s: float
    ) -> SwapReceipt:
        """Swap to a prepared model; if it is cancelled before the switch, call it off.

        Raises:
            ConfigError: As ``Engine.swap``.
            SwapUnderWayError: As ``Engine.swap``.
            EngineStoppedError: The engine stopped before the switch.
        """
        return await self._swap(prepared, lambda: None, drain=drain, deadline_s=deadline_s)

    async def _swap(
        self,
        prepared: PreparedModel,
        on_begun: Callable[[], None],
        *,
        drain: bool,
        deadline_s: float,
    ) -> SwapReceipt:
        begun: list[PendingSwap] = []

        def begin(engine: Engine) -> PendingSwap:
            begun.append(engine.swapper.begin(prepared, drain=drain, deadline_s=deadline_s))
            return begun[0]

        def call_off(engine: Engine) -> None:
            # Comes behind ``begin``, whether or not anybody heard of that.
            for pending in begun:
                engine.swapper.call_off(pending)

        try:
            pending = await self._thread.call(begin)
            on_begun()
            while pending.receipt is None:
                await asyncio.sleep(_INTERVAL_S)
                # Raises if there is nobody left to switch.
                await self._thread.call(_do_nothing)
        except asyncio.CancelledError:
            with suppress(EngineStoppedError):
                await self._thread.call(call_off)
            raise
        return pending.done()

    def _note_begun(self) -> None:
        # From here on the engine says so itself.
        self._is_loading = False

    def _forget(self, loading: asyncio.Future[PreparedModel]) -> None:
        self._is_loading = False
        if not loading.cancelled():
            # Nobody is left to hear why it failed.
            loading.exception()


def _do_nothing(engine: Engine) -> None:
    del engine
