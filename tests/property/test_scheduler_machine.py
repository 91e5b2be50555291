"""Random lives of an engine against what a request gets that is alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, target
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from prefold.cache import NO_CACHE, READ_WRITE, Everything
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.request import FinishReason, RequestId, RequestOutput, SamplingParams
from prefold.errors import CapacityError, RequestError
from prefold.identity.domain import Domain
from support.fake_engine import VOCAB_SIZE, FakeEngine, expected_reply

BLOCK_SIZE = 4

#: Prompts are bits and tails of one another, so that nearly all of them share something.
LETTERS = st.integers(0, 1)

OPTIONS = st.builds(
    RequestOptions,
    domain=st.sampled_from([Domain("acme"), Domain("acme"), Domain("other")]),
    access=st.sampled_from([READ_WRITE, READ_WRITE, READ_WRITE, NO_CACHE]),
    tenant=st.sampled_from(["red", "blue"]),
    priority=st.sampled_from([0, 0, 1]),
)


@dataclass
class Open:
    prompt: list[int]
    max_tokens: int


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.open: dict[RequestId, Open] = {}
        self.ended: set[RequestId] = set()
        self.prompts: list[list[int]] = [[0]]

    @initialize(
        num_blocks=st.integers(5, 14),
        max_running=st.integers(1, 5),
        spare_tokens=st.integers(1, 12),
    )
    def start(self, num_blocks: int, max_running: int, spare_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.engine = FakeEngine(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            scheduler=SchedulerConfig(
                max_running=max_running, max_step_tokens=max_running + spare_tokens
            ),
        )

    @rule(
        data=st.data(),
        tails=st.lists(st.lists(LETTERS, max_size=14), min_size=1, max_size=4),
        max_tokens=st.integers(1, 16),
        options=OPTIONS,
    )
    def submit(
        self,
        data: st.DataObject,
        tails: list[list[int]],
        max_tokens: int,
        options: RequestOptions,
    ) -> None:
        known = data.draw(st.sampled_from(self.prompts))
        head = known[: data.draw(st.integers(0, len(known)))]
        for tail in tails:
            self._submit(head + tail, max_tokens, options)

    def _submit(self, prompt: list[int], max_tokens: int, options: RequestOptions) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        if not prompt or -(-(len(prompt) + max_tokens + 1) // BLOCK_SIZE) > self.num_blocks:
            with pytest.raises(RequestError):
                self.engine.submit(prompt, params, options=options)
            return
        request_id = self.engine.submit(prompt, params, options=options)
        self.open[request_id] = Open(prompt, max_tokens)
        self.prompts.append(prompt)

    @rule(num_steps=st.integers(1, 4))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._step()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        assert self.engine.abort(request_id)
        assert not self.engine.abort(request_id)
        self._take(self.engine.step())

    @precondition(lambda self: self.open)
    @rule(data=st.data(), num_forks=st.integers(1, 2), fails=st.booleans())
    def fork(self, data: st.DataObject, num_forks: int, *, fails: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        self.engine.runner.fails_copies = fails
        try:
            twins = self.engine.fork(request_id, num_forks)
        except CapacityError:
            return
        except RuntimeError:
            assert fails
            return
        finally:
            self.engine.runner.fails_copies = False
        assert len(twins) == num_forks
        for twin in twins:
            self.open[twin] = self.open[request_id]

    @rule(mishap=st.sampled_from(["failure", "interrupt", "bad logits", "invalidation"]))
    def go_wrong(self, mishap: str) -> None:
        runner = self.engine.runner
        next_call = {runner.num_calls + 1}
        match mishap:
            case "failure":
                runner.fails_at = next_call
                self._step()
            case "interrupt" if self.open:
                runner.interrupts_at = next_call
                with pytest.raises(KeyboardInterrupt):
                    self._step()
            case "bad logits":
                rows = itertools.count()
                runner.spoils = lambda _: next(rows) == 0
                self._step()
            case "invalidation":
                self.engine.cache.invalidate(Everything())
        runner.fails_at = runner.interrupts_at = set()
        runner.spoils = lambda _: False

    @precondition(lambda self: not self.open)
    @rule(data=st.data())
    def warm(self, data: st.DataObject) -> None:
        prompt = data.draw(st.sampled_from(self.prompts))
        [num_cached] = self.engine.warm([prompt])
        # As many as there can be, up to a copy too short to be worth it.
        assert len(prompt) - 4 <= num_cached < len(prompt)

    def _step(self) -> None:
        num_calls = self.engine.runner.num_calls
        had_open = self.engine.num_open > 0
        outputs = self.engine.step()
        # Whatever is open, something advances in every step.
        assert self.engine.runner.num_calls == num_calls + had_open
        self._take(outputs)

    def _take(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            assert output.request_id not in self.ended, "a request ended twice"
            self.ended.add(output.request_id)
            request = self.open.pop(output.request_id)
            reply = list(output.token_ids)
            assert reply == expected_reply(request.prompt, len(reply))
            assert (output.error is not None) == (
                output.finish_reason is FinishReason.FAILED
            )
            if output.finish_reason is FinishReason.LENGTH:
                assert len(reply) == request.max_tokens
                self.prompts.append(request.prompt + reply)
            assert output.usage.prompt_tokens == len(request.prompt)
            assert 0 <= output.usage.cached_tokens <= len(request.prompt)
        assert self.engine.num_open == len(self.open)

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        work = sum(len(r.prompt) + r.max_tokens for r in self.open.values())
        # Every step computes at least one token, and what is preempted is computed
        # again, but never what the oldest has.
        bound = 4 * work + 40 * (len(self.open) + 1)
        for _ in range(bound):
            if not self.open:
                break
            self._step()
            self.engine.check_invariants()
        assert not self.open, f"not all ended within {bound} steps"
        counts = self.engine.cache.counts
        assert counts.private == counts.shared == 0
        assert self.engine.cache.snapshot().num_leases == 0
        assert all(token < VOCAB_SIZE for prompt in self.prompts for token in prompt)


TestScheduler = SchedulerMachine.TestCase


@st.composite
def _crowds(draw: st.DrawFn) -> list[tuple[int, list[int], int, RequestOptions]]:
    """Requests with the step they arrive in; heads are shared, tails are not."""
    heads = draw(
        st.lists(st.lists(LETTERS, min_size=4, max_size=16), min_size=1, max_size=2)
    )
    each = st.tuples(
        st.integers(0, 20),
        st.builds(list.__add__, st.sampled_from(heads), st.lists(LETTERS, max_size=12)),
        st.integers(1, 24),
        OPTIONS,
    )
    return draw(st.lists(each, min_size=4, max_size=14))


@given(
    crowd=_crowds(),
    spare_blocks=st.integers(0, 6),
    max_running=st.integers(2, 8),
    spare_tokens=st.integers(1, 16),
)
def test_a_crowd_in_a_small_pool_ends(
    crowd: list[tuple[int, list[int], int, RequestOptions]],
    spare_blocks: int,
    max_running: int,
    spare_tokens: int,
) -> None:
    needed = max(len(prompt) + max_tokens + 1 for _, prompt, max_tokens, _ in crowd)
    engine = FakeEngine(
        num_blocks=-(-needed // BLOCK_SIZE) + spare_blocks,
        block_size=BLOCK_SIZE,
        scheduler=SchedulerConfig(
            max_running=max_running, max_step_tokens=max_running + spare_tokens
        ),
    )
    work = sum(len(prompt) + max_tokens for _, prompt, max_tokens, _ in crowd)
    expected: dict[RequestId, list[int]] = {}
    outputs: list[RequestOutput] = []
    for step in range(21 + 4 * work + 40 * len(crowd)):
        for arrival, prompt, max_tokens, options in crowd:
            if arrival == step:
                params = SamplingParams(max_tokens=max_tokens)
                request_id = engine.submit(prompt, params, options=options)
                expected[request_id] = expected_reply(prompt, max_tokens)
        outputs += engine.step()
        engine.check_invariants()
        if len(outputs) == len(crowd):
            break
    target(float(engine.counters.num_preemptions), label="preemptions")
    assert {o.request_id: list(o.token_ids) for o in outputs} == expected
    assert engine.cache.counts.private == engine.cache.counts.shared == 0
