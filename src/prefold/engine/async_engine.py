"""Async engine: an engine on a thread of its own, used from one event loop.

::

    event loop                          engine thread
    submit, abort, call  -- commands -->  carried out between two steps
    RequestStream        <-- events ----  tokens and outputs of each step

Only that thread touches the engine. The loop never waits for a step: it is woken when
there is something to read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from prefold.engine.async_adapters import AsyncAdapters
from prefold.engine.async_swaps import AsyncSwaps
from prefold.engine.config import RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.joint_submission import submit_jointly
from prefold.engine.outbox import NewToken
from prefold.engine.prepared_model import (
    DEFAULT_DEADLINE_S,
    prepare_swap,
    prepare_template,
)
from prefold.engine.prompt import Prompt
from prefold.engine.request import RequestId, RequestOutput, SamplingParams
from prefold.engine.request_stream import RequestStream, StreamEvent
from prefold.engine.swapping import SwapReceipt
from prefold.errors import (
    EngineBrokenError,
    EngineStoppedError,
    InvariantError,
)
from prefold.identity.fingerprint import Fingerprint

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: How often a stopping engine is asked whether its requests have ended, in seconds.
_DRAIN_INTERVAL_S = 0.02

#: How long a stopping engine's last step may take, in seconds.
_LAST_STEP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """Something to be done on the engine's thread, or to be refused there."""

    run: Callable[[Engine], None]
    refuse: Callable[[EngineStoppedError], None]


class AsyncEngine:
    """Runs an engine on its own thread. Used from the loop that ``start`` ran on.

    Every stream gets the output of each of its choices, or an error if the engine
    breaks down: no reader waits for ever.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: For models that were prepared elsewhere.
        self.swaps = AsyncSwaps(self)
        self.adapters = AsyncAdapters(self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(
            target=self._run, name="prefold-engine", daemon=True
        )
        self._wake = threading.Condition()
        self._commands: deque[_Command] = deque()
        self._is_stopping = False
        self._is_accepting = False
        self._is_broken = False
        # On the engine's thread only.
        self._places: dict[RequestId, tuple[RequestStream, int]] = {}

    @property
    def is_accepting(self) -> bool:
        """Whether new requests are taken."""
        return self._is_accepting

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs and has met no bug."""
        return self._thread.is_alive() and not self._is_broken

    @property
    def is_broken(self) -> bool:
        """Whether a bug has ended it."""
        return self._is_broken

    @property
    def engine(self) -> Engine:
        """The engine, to read its sizes, and the parts and limits of this moment."""
        return self._engine

    async def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._is_accepting = True
        self._thread.start()

    async def stop(self, *, drain_s: float) -> None:
        """Take no more requests, give open ones ``drain_s`` seconds, then abort them."""
        self._is_accepting = False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_s
        while self.is_alive and loop.time() < deadline:
            if await self.call(_count_open) == 0:
                break
            await asyncio.sleep(_DRAIN_INTERVAL_S)
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, _LAST_STEP_S)
        if self._thread.is_alive():
            # A daemon, so it cannot keep the process from ending.
            _log.critical("the engine's last step has not ended; it is left behind")

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        options: RequestOptions,
        n: int = 1,
    ) -> RequestStream:
        """Queue a request for ``n`` replies; they share all that is computed once.

        Raises:
            RequestError: It can never be served.
            CapacityError: There is no room for it now.
            EngineStoppedError: No more requests are taken.
        """
        [stream] = await self.submit_together([(prompt, params)], options=options, n=n)
        return stream

    async def submit_together(
        self,
        jobs: Sequence[tuple[Prompt, SamplingParams]],
        *,
        options: RequestOptions,
        n: int = 1,
        fingerprint: Fingerprint | None = None,
        guard: Callable[[Engine], None] = lambda _: None,
    ) -> list[RequestStream]:
        """Queue several requests for ``n`` replies each, between two steps; all or none.

        Args:
            jobs: Prompts, and how their tokens are chosen.
            options: Of all of them.
            n: Replies to each.
            fingerprint: Of the model that their token ids were made for; None for any.
            guard: Called right before, on the engine's thread; nothing is queued if it
                raises.

        Raises:
            Exception: Whatever ``guard`` raises.
            RequestError: One of them can never be served.
            CapacityError: There is no room for all of them now.
            ModelChangedError: Another model is served by now; none was queued.
            EngineStoppedError: No more requests are taken.
        """
        if not self._is_accepting:
            raise self._stopped()

        def begin(engine: Engine) -> list[RequestStream]:
            guard(engine)
            opened = submit_jointly(engine, jobs, options, n, fingerprint)
            return [self._open(request_ids) for request_ids in opened]

        submitted = asyncio.ensure_future(self.call(begin))
        try:
            return await asyncio.shield(submitted)
        except asyncio.CancelledError:
            # Whoever asked has gone; what was queued for it must not run.
            submitted.add_done_callback(_abort_results)
            raise

    async def swap_model(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        drain: bool = True,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> SwapReceipt:
        """As ``Engine.swap_model``; requests are served while the model is loaded.

        Raises:
            ConfigError: It cannot be used, or not without a restart; nothing was changed.
            SwapUnderWayError: Another swap is not done yet.
            EngineStoppedError: The engine stopped before the switch.
        """
        prepare = partial(prepare_swap, self._engine.parts, path)
        return await self.swaps.load(prepare, drain=drain, deadline_s=deadline_s)

    async def reload_template(self, template: str | None = None) -> SwapReceipt:
        """As ``Engine.reload_template``.

        Raises:
            ConfigError: It is no template, or more than it was edited.
            SwapUnderWayError: The model is being replaced.
            EngineStoppedError: The engine has stopped.
        """
        engine = self._engine
        prepare = partial(prepare_template, engine.parts, engine.config.limits, template)
        return await self.swaps.load(prepare, drain=True, deadline_s=DEFAULT_DEADLINE_S)

    def _open(self, request_ids: list[RequestId]) -> RequestStream:
        stream = RequestStream(request_ids, self._abort)
        for index, request_id in enumerate(request_ids):
            self._places[request_id] = (stream, index)
        return stream

    async def call(self, function: Callable[[Engine], _T]) -> _T:
        """Run ``function`` on the engine's thread, between two steps.

        Raises:
            EngineStoppedError: The thread does not run.
            Exception: Whatever ``function`` raises.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def refuse(error: Exception) -> None:
            self._on_loop(_fail, future, error)

        def run(engine: Engine) -> None:
            try:
                result = function(engine)
            except InvariantError:
                refuse(EngineBrokenError("the engine has broken down"))
                raise
            except Exception as error:  # noqa: BLE001 -- the caller's to handle
                refuse(error)
            else:
                self._on_loop(_settle, future, result)

        with self._wake:
            if not self._thread.is_alive() or self._is_broken or self._is_stopping:
                raise self._stopped()
            self._commands.append(_Command(run=run, refuse=refuse))
            self._wake.notify()
        return await future

    def _abort(self, request_ids: list[RequestId]) -> None:
        def run(engine: Engine) -> None:
            for request_id in request_ids:
                engine.abort(request_id)

        with self._wake:
            self._commands.append(_Command(run=run, refuse=_ignore))
            self._wake.notify()

    # -- the engine's thread -------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._carry_out_commands()
                if self._engine.has_work:
                    outputs = self._engine.step()
                    self._hand_out(self._engine.take_new_tokens(), outputs)
            self._engine.close()
        except BaseException as error:  # noqa: BLE001 -- nothing may leave readers waiting
            # The message could hold tokens.
            _log.critical("the engine has broken down: %s", type(error).__name__)
        finally:
            self._break_off()

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._commands or self._is_stopping or self._engine.has_work):
                self._wake.wait()
            return not self._is_stopping

    def _carry_out_commands(self) -> None:
        with self._wake:
            commands, self._commands = self._commands, deque()
        while commands:
            command = commands.popleft()
            try:
                command.run(self._engine)
            except BaseException:
                with self._wake:
                    self._commands.extendleft(reversed(commands))
                raise

    def _hand_out(self, tokens: list[NewToken], outputs: list[RequestOutput]) -> None:
        events: list[tuple[RequestStream, StreamEvent]] = []
        for token in tokens:
            place = self._places.get(token.request_id)
            if place is not None:
                stream, index = place
                events.append((stream, StreamEvent(index=index, token=token, output=None)))
        for output in outputs:
            place = self._places.pop(output.request_id, None)
            if place is not None:
                stream, index = place
                events.append((stream, StreamEvent(index=index, token=None, output=output)))
        if events:
            self._on_loop(_deliver, events)

    def _break_off(self) -> None:
        """Tell everybody who still waits that nothing will come."""
        self._is_accepting = False
        self._is_broken = not self._is_stopping
        error = self._stopped()
        streams = {stream for stream, _ in self._places.values()}
        self._places.clear()
        with self._wake:
            self._is_stopping = True
            commands, self._commands = self._commands, deque()
        for stream in streams:
            self._on_loop(stream.put, error)
        for command in commands:
            command.refuse(error)

    def _stopped(self) -> EngineStoppedError:
        if self._is_broken:
            return EngineBrokenError("the engine has broken down")
        return EngineStoppedError("the engine has stopped")

    def _on_loop(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # Closed meanwhile: there is nobody left to tell.
            _log.debug("the event loop closed before the engine stopped")


def _ignore(error: EngineStoppedError) -> None:
    del error


def _count_open(engine: Engine) -> int:
    return engine.num_open


def _deliver(events: list[tuple[RequestStream, StreamEvent]]) -> None:
    for stream, event in events:
        stream.put(event)


def _settle(future: asyncio.Future[_T], result: _T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[_T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _abort_results(submitted: asyncio.Future[list[RequestStream]]) -> None:
    if submitted.cancelled() or submitted.exception() is not None:
        return
    for stream in submitted.result():
        stream.abort()
