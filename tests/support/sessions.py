"""Sessions for command tests: a real engine and tokenizer over a runner of no weights.

The next token depends on every token before it, read from where the cache says they are,
so a hit that brings wrong blocks shows in the reply as it would with a model.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch

from prefold.blocks.table import BlockCopy
from prefold.cache import PrefixCache
from prefold.cli.console import Screen
from prefold.cli.opening import Facts, Session
from prefold.cli.options import ModelOptions
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.config import EngineConfig, ModelLimits
from prefold.engine.engine import Engine
from prefold.engine.parts import EngineParts
from prefold.engine.sampler import Sampler
from support.fingerprints import make_fingerprint
from support.tiny_models import VOCAB_SIZE, make_tokenizer

BLOCK_SIZE = 16
BLOCK_BYTES = 1000 * BLOCK_SIZE

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>\n{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


class ChainRunner:
    """Stores tokens as their own KV.

    Attributes:
        interrupts_at: The call, counted from 1, that Ctrl-C interrupts.
        fails_at: The call that fails.
        skews: Whether a slice that begins inside a sequence gets wrong logits.
    """

    def __init__(self, num_blocks: int, letters: Sequence[int]) -> None:
        self.interrupts_at: int | None = None
        self.fails_at: int | None = None
        self.skews: Callable[[SequenceSlice], bool] = lambda _: False
        self._letters = letters
        self._tokens = np.zeros((num_blocks, BLOCK_SIZE), dtype=np.int64)
        self._num_calls = 0

    def execute(self, plan: StepPlan) -> torch.Tensor:
        self._num_calls += 1
        if self._num_calls == self.interrupts_at:
            os.kill(os.getpid(), signal.SIGINT)
        if self._num_calls == self.fails_at:
            raise RuntimeError("the device caught fire")
        self.copy_blocks(plan.copies)
        rows = [row for piece in plan.slices for row in self._compute(piece)]
        return torch.stack(rows) if rows else torch.empty(0, VOCAB_SIZE)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            source, end = self._tokens[copy.source], copy.num_tokens
            self._tokens[copy.target, :end] = source[:end]

    def _compute(self, piece: SequenceSlice) -> list[torch.Tensor]:
        end = piece.start + len(piece.token_ids)
        places = np.arange(piece.start, end)
        blocks = piece.block_ids[places // BLOCK_SIZE]
        self._tokens[blocks, places % BLOCK_SIZE] = piece.token_ids
        if not piece.num_logits:
            return []
        known = self._tokens[piece.block_ids].reshape(-1)[:end]
        digest = int((known * (np.arange(end) % 97 + 1)).sum())
        row = torch.full((VOCAB_SIZE,), -1.0)
        row[self._letters[digest % len(self._letters)]] = 1.0 + digest % 1000 / 1000
        if self.skews(piece):
            row[0] += 1e-6
        return [row]


def make_session(
    *, num_blocks: int = 4096, max_model_len: int = 8192, is_exact: bool = True
) -> tuple[Session, ChainRunner]:
    """Return a session with a chat template, and its runner."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    letters = [tokenizer.get_vocab()[letter] for letter in "abcdefghijklmno"]
    runner = ChainRunner(num_blocks, letters)
    engine = Engine(
        EngineParts(
            cache=PrefixCache(
                num_blocks=num_blocks, block_size=BLOCK_SIZE, clock=time.monotonic
            ),
            runner=runner,
            sampler=Sampler(VOCAB_SIZE),
            fingerprint=make_fingerprint(block_size=BLOCK_SIZE),
            tokenizer=tokenizer,
        ),
        EngineConfig(
            limits=ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=max_model_len)
        ),
    )
    facts = Facts(
        name="chain",
        num_parameters=0,
        weight_bytes=0,
        dtype="float32",
        device="cpu",
        num_threads=1,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        block_bytes=BLOCK_BYTES,
        attention="none",
        is_exact=is_exact,
        exactness="Exact by construction.",
    )
    return Session(engine=engine, tokenizer=tokenizer, facts=facts, load_s=0.0), runner


Opener = Callable[[ModelOptions, Screen], AbstractContextManager[Session]]


def opener_of(session: Session) -> Opener:
    """Return what stands in for ``open_session``; it closes the engine as that does."""

    @contextmanager
    def open_session(_options: ModelOptions, _screen: Screen) -> Iterator[Session]:
        try:
            yield session
        finally:
            session.engine.close()

    return open_session
