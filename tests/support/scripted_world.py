"""A world for scripts: both planes and a real engine, stepped by the test, on one thread.

Nothing in it depends on time or on threads: equal scripts give equal worlds. Two worlds
differ only where they are told to: a *mirrored* one writes the victim's own words in
other letters. Nobody else's prompts have those, and the runner takes both for the same,
so that the victim's replies are equal too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefold.cache import PrefixCache
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.config import EngineConfig, ModelLimits, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.parts import EngineParts
from prefold.engine.sampler import Sampler
from prefold.server.admin import make_admin_app
from prefold.server.config import ServerConfig, TenantConfig, tenant_by_domain
from prefold.server.credentials import AdminToken, Authenticator
from prefold.server.keys import KeyFile
from prefold.server.limits import TenantLimits
from prefold.server.metrics import Metrics
from prefold.server.permits import Permits
from prefold.server.public import make_public_app
from prefold.server.served_model import ServedModel
from support.asgi_call import AsgiCall
from support.fingerprints import make_fingerprint
from support.public_plane import BLOCK_SIZE, CHAT, MODEL, TEXT, PlaneRunner
from support.sessions import CHAT_TEMPLATE
from support.settable_clock import SettableClock
from support.tiny_models import VOCAB_SIZE, make_tokenizer

VICTIM, ATTACKER, OTHER, COUSIN = "victim", "attacker", "other", "cousin"

#: What own words are written in, and what their mirror image is written in.
_LETTERS, _MIRRORED = "ABCDEFGH", "IJKLMNOP"
_TO_MIRROR = str.maketrans(_LETTERS, _MIRRORED)


#: Making one takes longer than a script.
_tokenizer = cache(make_tokenizer)


def _written(letters: str, seed: int, length: int) -> str:
    rng = np.random.default_rng(seed)
    return "".join(letters[i] for i in rng.integers(len(letters), size=length))


#: What prompts begin with where it is approved, in letters that own words have not.
OPENINGS = tuple(_written("0123456789", seed, 40) for seed in (1, 2))
#: Whose readers share which of them.
APPROVED_FOR = ("public", "acme")

_STEMS = tuple(_written(_LETTERS, seed, 96) for seed in (11, 12))
_TAILS = tuple(_written(_LETTERS, seed, 24) for seed in (21, 22, 23))


@dataclass(frozen=True, kw_only=True)
class Words:
    """A prompt: so much of an opening, of a stem, and of a tail."""

    opening: int = 0
    num_opening: int = 0
    stem: int = 0
    num_stem: int = 60
    tail: int = 0
    num_tail: int = 4

    def text(self, *, is_mirrored: bool) -> str:
        own = _STEMS[self.stem][: self.num_stem] + _TAILS[self.tail][: self.num_tail]
        own = own.translate(_TO_MIRROR) if is_mirrored else own
        return OPENINGS[self.opening][: self.num_opening] + own


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Somebody sends a prompt."""

    who: str
    words: Words
    is_chat: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Turns:
    """The engine computes so many steps."""

    count: int = 1


@dataclass(frozen=True)
class HangUp:
    """The client of one of the calls goes, if it has not ended."""

    index: int


@dataclass(frozen=True)
class Pass:
    """Time passes."""

    seconds: float


@dataclass(frozen=True)
class Operate:
    """An operator does something: a path of the admin plane, and a body."""

    path: str
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Approve:
    """An operator approves one of the openings."""

    opening: int
    is_pinned: bool = False
    ttl_s: float | None = None


@dataclass(frozen=True)
class Withdraw:
    """An operator withdraws the approval of one of the openings, if it holds."""

    opening: int


@dataclass(frozen=True, kw_only=True)
class ForPrompt:
    """An operator warms, looks up or invalidates what a tenant has of a prompt."""

    path: str
    who: str
    words: Words


Event = Ask | Turns | HangUp | Pass | Operate | Approve | Withdraw | ForPrompt


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sizes of a world, and where its attacker is."""

    attacker_domain: str = "globex"
    num_blocks: int = 64
    max_step_tokens: int = 32
    max_running: int = 4
    max_queued: int = 16
    tokens_per_minute: int | None = None
    max_concurrent: int = 16


#: Domains of the tenants but for the attacker's.
DOMAINS = {VICTIM: "acme/search", COUSIN: "acme/ads", OTHER: "initech"}


class MirrorRunner(PlaneRunner):
    """Computes from what is stored, taking mirrored letters for the plain ones.

    Attributes:
        steps: What each step computed, as positions, and how many tokens it copied.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        vocabulary = _tokenizer().get_vocab()
        self._plain = np.arange(VOCAB_SIZE)
        for plain, mirrored in zip(_LETTERS, _MIRRORED, strict=True):
            self._plain[vocabulary[mirrored]] = vocabulary[plain]
        self.steps: list[object] = []

    def execute(self, plan: StepPlan) -> torch.Tensor:
        pieces = [(piece.start, piece.end, piece.num_logits) for piece in plan.slices]
        self.steps.append((pieces, [copy.num_tokens for copy in plan.copies]))
        return super().execute(plan)

    def _compute(self, piece: SequenceSlice) -> list[torch.Tensor]:
        places = np.arange(piece.start, piece.end)
        blocks = piece.block_ids[places // BLOCK_SIZE]
        self._tokens[blocks, places % BLOCK_SIZE] = piece.token_ids
        known = self._plain[self._tokens[piece.block_ids].reshape(-1)[: piece.end]]
        sums = np.cumsum(known * (np.arange(piece.end) % 97 + 1))
        return [self._row(int(total)) for total in sums[piece.end - piece.num_logits :]]


class _NoThread:
    """Stands in for the engine's thread, whose work the test does."""

    ident = None

    def is_alive(self) -> bool:
        return True

    def start(self) -> None:
        pass


#: What is random or the time of day in an answer.
_RANDOM = re.compile(rb'"(id|created)":("[^"]*"|\d+)')


class World:
    """The planes, and what clients saw.

    Attributes:
        seen: By whose request: the turn, the call, and the message as it was sent.
        turn: How many steps the engine was given time for.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        public: ASGIApp,
        admin: ASGIApp,
        keys: Mapping[str, str],
        *,
        is_mirrored: bool,
    ) -> None:
        self.engine = engine
        self._public = public
        self._admin = admin
        self._keys = keys
        self._is_mirrored = is_mirrored
        self.seen: dict[str, list[tuple[int, int, Any]]] = {}
        self.turn = 0
        self._calls: list[AsgiCall] = []
        self._tokenizer = _tokenizer()

    # -- what happens ------------------------------------------------------------------

    async def play(self, event: Event, clock: SettableClock) -> None:
        match event:
            case Ask():
                self._ask(event)
            case Turns(count):
                for _ in range(count):
                    await self.step()
            case HangUp(index):
                if self._calls:
                    self._calls[index % len(self._calls)].disconnect()
            case Pass(seconds):
                clock.advance(seconds)
            case _:
                self._operate_on(event)
        await self._settle()

    async def finish(self) -> None:
        """Let everything end."""
        while self.engine.engine.has_work or self.engine._commands:
            await self.step()
        for call in self._calls:
            await call.wait()
        self.engine.engine.check_invariants()
        cache = self.engine.engine.cache
        assert cache.snapshot().num_leases == cache.counts.private == 0
        # Of approvals that still hold, the pinned ones keep their blocks.
        assert cache.counts.shared == cache.approved.num_pinned_blocks

    async def step(self) -> None:
        """Do what the engine's thread does in one round."""
        self.turn += 1
        assert self.turn < 5000, "the script does not end"
        self.engine._carry_out_commands()
        if self.engine.engine.has_work:
            outputs = self.engine.engine.step()
            self.engine._hand_out(self.engine.engine.take_new_tokens(), outputs)
        await self._settle()

    async def _settle(self) -> None:
        """Let the loop do all that is ready."""
        loop = cast(Any, asyncio.get_running_loop())
        while True:
            await asyncio.sleep(0)
            if not loop._ready:
                return

    def _ask(self, ask: Ask) -> None:
        is_mirrored = ask.who == VICTIM and self._is_mirrored
        text = ask.words.text(is_mirrored=is_mirrored)
        fields = {"model": MODEL, "temperature": 0, "ignore_eos": True, **ask.fields}
        if ask.is_chat:
            messages = [{"role": "user", "content": text}]
            self._send(ask.who, self._public, CHAT, {**fields, "messages": messages})
        else:
            prompt = self._tokenizer.encode(text)
            self._send(ask.who, self._public, TEXT, {**fields, "prompt": prompt})

    def _operate_on(self, event: Operate | Approve | Withdraw | ForPrompt) -> None:
        match event:
            case Operate(path, body):
                self._operate(path, body)
            case Approve(opening, is_pinned, ttl_s):
                self._operate("/cache/approve", _approval(opening, is_pinned, ttl_s))
            case Withdraw(opening):
                self._withdraw(opening)
            case ForPrompt():
                self._for_prompt(event)

    def _for_prompt(self, event: ForPrompt) -> None:
        is_mirrored = event.who == VICTIM and self._is_mirrored
        prompt = event.words.text(is_mirrored=is_mirrored)
        whose = (
            {"domain": DOMAINS[event.who]}
            if event.path == "/cache/invalidate"
            else {"tenant": event.who}
        )
        self._operate(event.path, {"prompt": prompt, **whose})

    def _withdraw(self, opening: int) -> None:
        for approval in self.engine.engine.cache.approved.approvals():
            if approval.label == f"opening {opening}":
                self._operate("/cache/withdraw", {"id": approval.approval_id})

    def _operate(self, path: str, body: Mapping[str, Any]) -> None:
        self._send("operator", self._admin, path, body)

    def _send(self, who: str, app: ASGIApp, path: str, body: Mapping[str, Any]) -> None:
        number = len(self._calls)
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {self._keys[who]}",
            "x-request-id": f"call-{number}",
        }
        call = AsgiCall(self._noted(app, who, number), "POST", path, headers)
        self._calls.append(call.feed(json.dumps(body).encode()).start())

    def _noted(self, app: ASGIApp, who: str, number: int) -> ASGIApp:
        notes = self.seen.setdefault(who, [])

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            async def note(message: Message) -> None:
                notes.append((self.turn, number, _plain(message)))
                await send(message)

            await app(scope, receive, note)

        return noted


def _plain(message: Message) -> object:
    """Return what a client can make of a message."""
    if message["type"] == "http.response.start":
        return message["status"], sorted(message["headers"])
    return _RANDOM.sub(rb'"\1":0', message.get("body", b"")), message.get("more_body")


def _approval(opening: int, is_pinned: bool, ttl_s: float | None) -> dict[str, Any]:  # noqa: FBT001
    return {
        "prompt": OPENINGS[opening],
        "domain": APPROVED_FOR[opening],
        "label": f"opening {opening}",
        "pinned": is_pinned,
        "ttl_s": ttl_s,
    }


@dataclass(frozen=True)
class Keys:
    """Who is let in, made once: worlds have them in common."""

    path: Path
    texts: Mapping[str, str]
    token: AdminToken

    @classmethod
    def make(cls, path: Path) -> Keys:
        key_file = KeyFile(path)
        texts = {name: key_file.create(name).text for name in (*DOMAINS, ATTACKER)}
        return cls(path, texts, AdminToken.generate())


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the attacker saw, and what the steps were from which its times come."""

    messages: list[tuple[int, int, Any]]
    steps: list[object]


@asynccontextmanager
async def open_world(
    setting: Setting, keys: Keys, clock: SettableClock, *, is_mirrored: bool
) -> AsyncIterator[tuple[World, MirrorRunner]]:
    """Make a world; nothing runs but what the test steps."""
    runner = MirrorRunner(setting.num_blocks)
    tokenizer = _tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    fingerprint = make_fingerprint(block_size=BLOCK_SIZE)
    parts = EngineParts(
        cache=PrefixCache(
            num_blocks=setting.num_blocks, block_size=BLOCK_SIZE, clock=clock
        ),
        runner=runner,
        sampler=Sampler(VOCAB_SIZE),
        fingerprint=fingerprint,
        tokenizer=tokenizer,
        # How long steps really take is what a policy learns from, and no two runs' same.
        clock=clock,
    )
    model_limits = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=512)
    model = ServedModel(
        name=MODEL,
        created=1,
        tokenizer=tokenizer,
        limits=model_limits,
        fingerprint=fingerprint,
    )
    scheduler = SchedulerConfig(
        max_step_tokens=setting.max_step_tokens,
        max_running=setting.max_running,
        max_queued=setting.max_queued,
    )
    config = ServerConfig(max_queued=setting.max_queued)
    tenants = [TenantConfig(name=name, domain=path) for name, path in DOMAINS.items()]
    tenants.append(
        TenantConfig(
            name=ATTACKER,
            domain=setting.attacker_domain,
            tokens_per_minute=setting.tokens_per_minute,
            max_concurrent=setting.max_concurrent,
        )
    )
    permits = Permits(Authenticator(tenants, KeyFile(keys.path)))
    metrics = Metrics(tenants=tenant_by_domain(tenants), cost=parts.cache.cost)
    engine = AsyncEngine(
        Engine(parts, EngineConfig(limits=model_limits, scheduler=scheduler), metrics)
    )
    engine._thread = _NoThread()  # type: ignore[assignment]
    await engine.start()
    limits = TenantLimits(max_queued=setting.max_queued, clock=clock)
    public = make_public_app(engine, model, permits, limits, config, metrics)
    admin = make_admin_app(engine, model, keys.token, metrics, config, permits)
    texts = {**keys.texts, "operator": keys.token.authorization.removeprefix("Bearer ")}
    yield World(engine, public, admin, texts, is_mirrored=is_mirrored), runner


def run_world(
    script: Sequence[Event], setting: Setting, keys: Keys, *, is_mirrored: bool
) -> tuple[Seen, World]:
    """Play a script to its end, and return what the attacker saw."""

    async def main() -> tuple[Seen, World]:
        clock = SettableClock()
        async with open_world(setting, keys, clock, is_mirrored=is_mirrored) as opened:
            world, runner = opened
            for event in script:
                await world.play(event, clock)
            await world.finish()
            return Seen(messages=world.seen.get(ATTACKER, []), steps=runner.steps), world

    return asyncio.run(asyncio.wait_for(main(), 120))
