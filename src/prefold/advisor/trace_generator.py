"""Trace generator: made-up traces of the shapes that recorded ones have.

For tests, and for who has no trace of their own. They show how policies differ in kind;
how much they differ on a real load only a real trace shows.

Equal arguments give equal traces. Ids are chained: a new one for every block, so an id
stands for all that comes before it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prefold.advisor.trace import Trace, TraceRequest, make_runs
from prefold.errors import InvalidInputError

Pairs = list[list[int]]


def chat_trace(
    *,
    seed: int,
    num_requests: int,
    block_size: int = 16,
    requests_per_s: float = 4.0,
    num_system_prompts: int = 4,
) -> Trace:
    """Return conversations of several turns between requests that never come again.

    Every conversation begins with one of a few system prompts, some of which are far more
    usual than others. A turn repeats all before it, the replies included. Users think
    for half a minute or so, and a quarter of all prompts are one-offs.

    Raises:
        InvalidInputError: A count is below 1, or the rate is not above 0.
    """
    _check(num_requests, block_size, num_system_prompts, rate=requests_per_s)
    rng = np.random.default_rng(seed)
    maker = _Maker(block_size, rng)
    systems = [maker.new_blocks(20, 60) for _ in range(num_system_prompts)]
    weights = 1 / np.arange(1, num_system_prompts + 1)
    weights /= weights.sum()
    # About three turns a conversation, and a quarter of requests besides.
    num_starts = num_requests
    for at in _poisson(rng, num_starts, requests_per_s / 2.5):
        if rng.random() < 0.4:
            maker.send(at, maker.new_blocks(4, 120))
            continue
        prompt = list(systems[int(rng.choice(num_system_prompts, p=weights))])
        maker.converse(at, prompt, num_turns=int(rng.geometric(0.3)), median_gap_s=30.0)
    return maker.trace(f"chat-{seed}", num_requests)


def agent_trace(
    *,
    seed: int,
    num_requests: int,
    block_size: int = 64,
    requests_per_s: float = 2.0,
) -> Trace:
    """Return sessions of a tool-using agent: long prompts that grow by a little each time.

    All sessions begin with one system prompt. The gaps inside a session are seconds, and
    sessions are long, so many run at once. Now and then a session's prompt is cut back to
    an earlier length and goes on differently.

    Raises:
        InvalidInputError: As ``chat_trace``.
    """
    _check(num_requests, block_size, rate=requests_per_s)
    rng = np.random.default_rng(seed)
    maker = _Maker(block_size, rng)
    system = maker.new_blocks(150, 300)
    mean_turns = 20
    for at in _poisson(rng, num_requests, requests_per_s / mean_turns):
        num_turns = int(rng.geometric(1 / mean_turns))
        maker.converse(at, list(system), num_turns=num_turns, median_gap_s=8.0, cuts=0.05)
        if maker.num_sent > 4 * num_requests:
            break
    return maker.trace(f"agent-{seed}", num_requests)


def few_shot_trace(
    *,
    seed: int,
    num_requests: int,
    block_size: int = 16,
    requests_per_s: float = 8.0,
    num_tasks: int = 20,
) -> Trace:
    """Return questions that each follow one of a few sets of examples, in any order.

    Raises:
        InvalidInputError: As ``chat_trace``.
    """
    _check(num_requests, block_size, num_tasks, rate=requests_per_s)
    rng = np.random.default_rng(seed)
    maker = _Maker(block_size, rng)
    examples = [maker.new_blocks(15, 60) for _ in range(num_tasks)]
    for at in _poisson(rng, num_requests, requests_per_s):
        task = examples[int(rng.integers(num_tasks))]
        maker.send(at, task + maker.new_blocks(1, 10))
    return maker.trace(f"few-shot-{seed}", num_requests)


@dataclass(slots=True)
class _Maker:
    """Makes blocks and requests; sorts the requests at the end."""

    block_size: int
    rng: np.random.Generator
    num_ids: int = 0
    num_sessions: int = 0
    requests: list[TraceRequest] = field(default_factory=list)

    @property
    def num_sent(self) -> int:
        return len(self.requests)

    def new_blocks(self, least: int, most: int) -> Pairs:
        count = int(self.rng.integers(least, most + 1))
        first, self.num_ids = self.num_ids, self.num_ids + count
        return [[first, count]]

    def converse(
        self,
        at: float,
        prompt: Pairs,
        *,
        num_turns: int,
        median_gap_s: float,
        cuts: float = 0.0,
    ) -> None:
        session = str(self.num_sessions)
        self.num_sessions += 1
        num_shared = len(prompt)
        for _ in range(num_turns):
            if len(prompt) > num_shared + 2 and self.rng.random() < cuts:
                del prompt[int(self.rng.integers(num_shared + 1, len(prompt))) :]
            prompt += self.new_blocks(1, 12)
            self.send(at, prompt, session)
            at += float(self.rng.lognormal(np.log(median_gap_s), 1.0))

    def send(self, at: float, prompt: Pairs, session: str | None = None) -> None:
        num_blocks = sum(count for _, count in prompt)
        rest = int(self.rng.integers(self.block_size))
        self.requests.append(
            TraceRequest(
                arrival_s=round(at, 3),
                num_prompt_tokens=num_blocks * self.block_size + rest,
                num_output_tokens=int(self.rng.integers(1, 400)),
                runs=make_runs(prompt),
                session=session,
            )
        )

    def trace(self, name: str, num_requests: int) -> Trace:
        in_order = sorted(self.requests, key=lambda request: request.arrival_s)
        return Trace(
            name=name, block_size=self.block_size, requests=in_order[:num_requests]
        )


def _poisson(rng: np.random.Generator, count: int, per_s: float) -> list[float]:
    times: list[float] = np.cumsum(rng.exponential(1 / per_s, count)).tolist()
    return times


def _check(*counts: int, rate: float) -> None:
    if min(counts) < 1:
        raise InvalidInputError(f"counts must be at least 1, got {min(counts)}")
    if not rate > 0:
        raise InvalidInputError(f"a rate must be above 0, got {rate}")
