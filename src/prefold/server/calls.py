"""Calls: one API call from the engine's side: its prompts, their replies, its end.

::

    desk.open(plan) -> limits -> a stream for each prompt -> pumps -> one queue -> reader
                                                                |
                                            a closed connection, a deadline: abort

A pump carries what one stream yields until the stream has ended, whatever becomes of the
reader, and holds the tenant's ticket. So that is not returned before the engine is really
done with the request, and every output is noted once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from starlette.types import Receive

from prefold.blocks.table import TokenIds
from prefold.engine.adapter_shelf import AdapterShelf
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.mixed_prompt import MixedPrompt
from prefold.engine.outbox import NewToken
from prefold.engine.request import FinishReason, RequestOutput, SamplingParams, Usage
from prefold.engine.request_stream import RequestStream
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.server.config import ServerConfig
from prefold.server.credentials import Caller
from prefold.server.errors import HttpError, stopped
from prefold.server.exchange import ClientGoneError, Exchange
from prefold.server.grants import CacheWish
from prefold.server.limits import Ticket
from prefold.server.observer import AskedPrompt, HttpObserver
from prefold.server.permits import Permit, Permits, revoked


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan:
    """One prompt of a call, and how its replies are made.

    Attributes:
        token_ids: One a position; negative where an image is.
        num_reserved_tokens: What the tenant is charged until the real number is known.
        mixed: The prompt, where it has images; None if the tokens are all of it.
    """

    token_ids: TokenIds = field(repr=False)
    params: SamplingParams
    num_reserved_tokens: int
    mixed: MixedPrompt | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """All that is asked of the engine in one call; ``n`` replies to each prompt.

    Attributes:
        fingerprint: Of the model that the prompts were read for, with the adapter.
        adapter: The name of the one that they pass; None for the model as it is.
    """

    prompts: Sequence[PromptPlan]
    wish: CacheWish
    n: int
    fingerprint: Fingerprint
    adapter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEvent:
    """A token of one choice, or its end.

    Attributes:
        choice: Choices are numbered prompt by prompt.
        output: Set exactly at the end of the choice.
    """

    choice: int
    token: NewToken | None
    output: RequestOutput | None


class OpenCall:
    """A call that the engine has taken in. Owned by whoever answers it.

    ``close`` must be called in the end; afterwards it settles by itself.
    """

    __slots__ = (
        "_deadline",
        "_exchange",
        "_is_expired",
        "_n",
        "_num_missing",
        "_observer",
        "_outputs",
        "_permit",
        "_pumps",
        "_queue",
        "_streams",
        "_ticket",
        "_watch",
    )

    def __init__(
        self,
        streams: Sequence[RequestStream],
        permit: Permit,
        n: int,
        exchange: Exchange,
        observer: HttpObserver,
    ) -> None:
        self._streams = streams
        self._ticket = ticket_of(exchange)
        self._permit = permit
        self._n = n
        self._exchange = exchange
        self._observer = observer
        self._outputs: list[RequestOutput | None] = [None] * (n * len(streams))
        self._num_missing = len(self._outputs)
        self._queue: asyncio.Queue[CallEvent | Exception] = asyncio.Queue()
        self._is_expired = False
        self._deadline: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self._pumps: list[asyncio.Task[None]] = []

    def start(self, receive: Receive, timeout_s: float | None) -> None:
        """Begin to carry events, and to watch connection and time."""
        for _ in self._streams:
            self._ticket.hold()
        self._pumps = [
            asyncio.create_task(self._pump(index)) for index in range(len(self._streams))
        ]
        self._watch = asyncio.create_task(self._watch_connection(receive))
        if timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(timeout_s, self._expire)

    async def events(self) -> AsyncIterator[CallEvent]:
        """Yield what happens until every choice has ended well.

        Raises:
            ClientGoneError: Nobody waits for it any more.
            HttpError: A choice could not be finished.
        """
        while self._num_missing:
            event = await self._queue.get()
            if isinstance(event, Exception):
                raise event
            if event.output is not None:
                self._check(event.output)
                self._outputs[event.choice] = event.output
                self._num_missing -= 1
                if not self._num_missing:
                    self._exchange.usage = self.usage()
            yield event

    async def outputs(self) -> list[RequestOutput]:
        """Wait for the end and return every choice's output.

        Raises:
            ClientGoneError: Nobody waits for it any more.
            HttpError: A choice could not be finished.
        """
        async for _ in self.events():
            pass
        return [output for output in self._outputs if output is not None]

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended well."""
        return not self._num_missing

    def usage(self) -> Usage:
        """Return the call's tokens; each prompt counts once, as its first choice met it."""
        outputs = [output for output in self._outputs if output is not None]
        return total_usage(outputs, self._n)

    def close(self) -> None:
        """Abort what has not ended. May be called twice."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._watch is not None:
            self._watch.cancel()
        for stream, pump in zip(self._streams, self._pumps, strict=True):
            if not pump.done():
                stream.abort()

    async def _pump(self, index: int) -> None:
        num_prompt_tokens, num_reply_tokens = 0, 0
        begun: set[int] = set()
        try:
            async for event in self._streams[index].events():
                if event.index not in begun:
                    begun.add(event.index)
                    self._ticket.begin()
                if event.token is not None:
                    num_reply_tokens += 1
                if event.output is not None:
                    # One that was never admitted has used nothing, and no reason to miss.
                    if event.output.miss_reason is not None:
                        num_prompt_tokens = event.output.usage.prompt_tokens
                    self._observer.on_output(
                        self._exchange.request_id, event.output, prompt=index
                    )
                self._queue.put_nowait(
                    CallEvent(
                        choice=index * self._n + event.index,
                        token=event.token,
                        output=event.output,
                    )
                )
        except Exception as error:  # noqa: BLE001 -- raised again where events are read
            self._queue.put_nowait(error)
        finally:
            self._ticket.use(num_prompt_tokens + num_reply_tokens)
            self._ticket.release()

    async def _watch_connection(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._abort()
        self._queue.put_nowait(ClientGoneError())

    def _expire(self) -> None:
        self._is_expired = True
        self._abort()

    def _abort(self) -> None:
        for stream in self._streams:
            stream.abort()

    def _check(self, output: RequestOutput) -> None:
        match output.finish_reason:
            case FinishReason.FAILED:
                raise HttpError(
                    500,
                    f"the request failed: {output.error}; send it again",
                    code="request_failed",
                )
            case FinishReason.ABORTED if self._is_expired:
                raise HttpError(
                    503,
                    "the request took longer than this server allows; ask for fewer "
                    "tokens, or try again when it has less to do",
                    code="timeout",
                    retry_after_s=1.0,
                )
            case FinishReason.ABORTED if self._permit.is_revoked:
                raise revoked()
            case FinishReason.ABORTED if output.error is not None:
                raise HttpError(503, output.error, code="model_replaced", retry_after_s=1.0)
            case FinishReason.ABORTED:
                raise stopped()


class Desk:
    """Takes calls in: limits first, then the engine. One event loop.

    Args:
        engine: Where they go.
        config: Of the server.
        observer: Told about every output.
        permits: Who may use whose KV.
    """

    __slots__ = ("_config", "_engine", "_observer", "_permits")

    def __init__(
        self,
        engine: AsyncEngine,
        config: ServerConfig,
        observer: HttpObserver,
        permits: Permits,
    ) -> None:
        self._engine = engine
        self._config = config
        self._observer = observer
        self._permits = permits

    @property
    def max_n(self) -> int:
        """Replies to one prompt, at most."""
        return self._config.max_n

    @property
    def is_accepting(self) -> bool:
        """Whether the engine takes requests in."""
        return self._engine.is_accepting

    @property
    def is_broken(self) -> bool:
        """Whether it never will again."""
        return self._engine.is_broken

    @property
    def adapters(self) -> AdapterShelf:
        """Those that are loaded; only to be read here, beside the engine's thread."""
        return self._engine.engine.adapters

    def capacity_tokens(self, caller: Caller) -> int:
        """Return how many tokens of cache memory a request of the caller can count on."""
        # Read beside the engine's thread: whole numbers, and what they were a step ago.
        cache = self._engine.engine.cache
        num_pinned = cache.approved.num_pinned_blocks
        num_blocks = cache.room.capacity(Domain(caller.tenant.domain), num_pinned)
        return num_blocks * cache.block_size

    async def open(self, plan: CallPlan, exchange: Exchange, receive: Receive) -> OpenCall:
        """Have the engine take a call in, all of it or nothing.

        Raises:
            HttpError: It asks for what its tenant has not, or the tenant has nothing
                any more.
            PrefoldError: As the limits and the engine raise it.
        """
        permit = self._permits.take(caller_of(exchange), plan.wish)
        ticket = ticket_of(exchange)
        # A call comes again where the model has changed since its prompts were read.
        if not ticket.is_queued:
            ticket.queue(
                len(plan.prompts) * plan.n,
                sum(prompt.num_reserved_tokens for prompt in plan.prompts),
            )
        options = replace(permit.options, adapter=plan.adapter)
        streams = await self._engine.submit_together(
            [
                (prompt.token_ids if prompt.mixed is None else prompt.mixed, prompt.params)
                for prompt in plan.prompts
            ],
            options=options,
            n=plan.n,
            fingerprint=plan.fingerprint,
            guard=lambda _: permit.check(),
        )
        exchange.was_taken = True
        asked = [
            AskedPrompt(
                token_ids=prompt.token_ids,
                options=options,
                fingerprint=plan.fingerprint,
            )
            for prompt in plan.prompts
        ]
        self._observer.on_asked(exchange.request_id, asked)
        call = OpenCall(streams, permit, plan.n, exchange, self._observer)
        call.start(receive, self._config.request_timeout_s)
        return call


def total_usage(outputs: Sequence[RequestOutput], n: int) -> Usage:
    """Add up the tokens of outputs in the order of choices, ``n`` to a prompt."""
    return Usage(
        prompt_tokens=sum(o.usage.prompt_tokens for o in outputs[::n]),
        cached_tokens=sum(o.usage.cached_tokens for o in outputs[::n]),
        completion_tokens=sum(o.usage.completion_tokens for o in outputs),
    )


def ticket_of(exchange: Exchange) -> Ticket:
    """Return the call's ticket. Every route that takes calls is behind the entry."""
    if exchange.ticket is None:
        raise TypeError("a call came in without a ticket")
    return exchange.ticket


def caller_of(exchange: Exchange) -> Caller:
    """Return who asks. Every route that takes calls is behind the gate."""
    if exchange.caller is None:
        raise TypeError("a call came in without a caller")
    return exchange.caller
