from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefold.cache import Everything, Lookup
from prefold.engine.batch import StepPlan
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.request import FinishReason, RequestId, RequestOutput, SamplingParams
from prefold.engine.scheduler import PATIENCE_STEPS
from prefold.engine.sequence import Sequence, SequenceState
from prefold.engine.step_draft import StepDraft
from prefold.engine.waiting import STALLED_STEPS
from prefold.errors import InvariantError
from support.fake_engine import FakeEngine, expected_reply, next_digest

ONE = SamplingParams(max_tokens=1)


def tokens(*parts: tuple[int, int]) -> list[int]:
    """(letter, count) pairs to a prompt."""
    return [letter for letter, count in parts for _ in range(count)]


def unlike(number: int, length: int) -> list[int]:
    """A tail that no other number has, in its very first token of every block."""
    return [1 + number % 59] * length


def sequence_of(engine: FakeEngine, request_id: RequestId) -> Sequence:
    return engine._replies[request_id].sequence


def run(engine: FakeEngine, max_steps: int = 2_000) -> dict[RequestId, RequestOutput]:
    outputs: dict[RequestId, RequestOutput] = {}
    for _ in range(max_steps):
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_invariants()
        if not engine.has_work:
            return outputs
    raise AssertionError(f"not all ended within {max_steps} steps")


# -- prefixes that are not cached yet, wanted by several at once ---------------------------


def watch_waits(engine: FakeEngine, num_common: int) -> None:
    """Fail if anybody waits in a step in which all whole common blocks are there."""
    execute = engine.runner.execute

    def watched(plan: StepPlan) -> object:
        for sequence in engine._scheduler.queue.sequences():
            if sequence.wait is not None and not sequence.wait.is_over:
                found = engine.lookup(sequence.tokens, options=sequence.options)
                if found.num_matched_tokens >= num_common // 16 * 16:
                    raise InvariantError("a request waits for what is there")
        return execute(plan)

    engine.runner.execute = watched  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    ("num_common", "num_tokens"), [(1_024, 1_056), (300, 700), (64, 130), (40, 75)]
)
@settings(max_examples=12)
@given(
    order=st.permutations(range(16)),
    arrivals=st.lists(st.integers(0, 5), min_size=16, max_size=16),
    max_step_tokens=st.sampled_from([64, 512, 2_048]),
)
def test_a_common_prefix_is_computed_once(
    num_common: int,
    num_tokens: int,
    order: list[int],
    arrivals: list[int],
    max_step_tokens: int,
) -> None:
    engine = FakeEngine(
        num_blocks=1_000,
        block_size=16,
        scheduler=SchedulerConfig(max_step_tokens=max_step_tokens, max_running=32),
    )
    watch_waits(engine, num_common)
    common = [0] * num_common
    expected: dict[RequestId, list[int]] = {}
    outputs: dict[RequestId, RequestOutput] = {}
    for step in range(6):
        for number in order:
            if arrivals[number] == step:
                prompt = common + unlike(number, num_tokens - num_common)
                request_id = engine.submit(prompt, SamplingParams(max_tokens=2))
                expected[request_id] = expected_reply(prompt, 2)
        outputs |= {output.request_id: output for output in engine.step()}
    outputs |= run(engine)
    digest = 0
    for position in range(num_common // 16 * 16):
        digest = next_digest(digest, 0)
        assert engine.runner.computed[digest] == 1, position
    assert {i: list(o.token_ids) for i, o in outputs.items()} == expected


def three_that_share() -> tuple[FakeEngine, list[RequestId], list[list[int]]]:
    """An old stranger, an owner under way, and two requests that wait for it."""
    engine = FakeEngine(
        num_blocks=200,
        block_size=16,
        scheduler=SchedulerConfig(max_step_tokens=1_024, max_running=8),
    )
    prompts = [[9] * 3, *([0] * 320 + unlike(n, 20) for n in range(3))]
    ids = [engine.submit(p, SamplingParams(max_tokens=40)) for p in prompts]
    # The step is planned and never carried out.
    engine.runner.interrupts_at = {1}
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert [sequence_of(engine, i).state for i in ids[1:]] == [
        SequenceState.RUNNING,
        SequenceState.QUEUED,
        SequenceState.QUEUED,
    ]
    assert all(sequence_of(engine, i).wait is not None for i in ids[2:])
    return engine, ids, prompts


def fail_alone(engine: FakeEngine, owner: RequestId) -> None:
    reply = engine._replies[owner]
    engine._stepper.end(reply, FinishReason.FAILED, "a reason")


def preempt(engine: FakeEngine, owner: RequestId) -> None:
    scheduler = engine._scheduler
    victim = scheduler._preempt_one(StepDraft(scheduler._num_plans, 1, 16))
    assert victim is sequence_of(engine, owner)
    # As if the step that it gave way in were the next one.
    victim.queued_step += 1


VANISH: dict[str, Callable[[FakeEngine, RequestId], object]] = {
    "abort": lambda engine, owner: engine.abort(owner),
    "failure": fail_alone,
    "preemption": preempt,
    "invalidation": lambda engine, _: engine.cache.invalidate(Everything()),
}


@pytest.mark.parametrize("how", VANISH)
def test_when_an_owner_vanishes_the_first_that_waits_takes_over_in_the_same_step(
    how: str,
) -> None:
    engine, ids, prompts = three_that_share()
    VANISH[how](engine, ids[1])
    outputs = {output.request_id: output for output in engine.step()}
    first, second = (sequence_of(engine, i) for i in ids[2:])
    assert first.state is SequenceState.RUNNING
    assert second.state is SequenceState.QUEUED
    assert second.wait is not None
    assert second.wait.owner is first.lease
    outputs |= run(engine)
    assert outputs.keys() == set(ids)
    for request_id, prompt in zip(ids, prompts, strict=True):
        if outputs[request_id].finish_reason is FinishReason.LENGTH:
            assert list(outputs[request_id].token_ids) == expected_reply(prompt, 40)


def test_when_an_owner_finishes_the_others_go_on_from_what_it_published() -> None:
    engine = FakeEngine(
        num_blocks=200,
        block_size=16,
        scheduler=SchedulerConfig(max_step_tokens=32, max_running=8),
    )
    owner = engine.submit([0] * 96, ONE)
    others = [engine.submit([0] * 96 + unlike(n, 96), ONE) for n in range(2)]
    outputs = run(engine)
    assert outputs[owner].usage.cached_tokens == 0
    assert [outputs[i].usage.cached_tokens for i in others] == [96, 96]


def test_nobody_waits_for_an_owner_that_gets_no_tokens() -> None:
    engine, ids, _ = three_that_share()
    owner = sequence_of(engine, ids[1])
    owner.last_step = engine._scheduler._num_plans - STALLED_STEPS + 1
    draft_number = engine._scheduler._num_plans + 1
    waiting = sequence_of(engine, ids[2])
    assert engine._scheduler._admission.must_wait(waiting, draft_number)
    owner.last_step -= 1
    assert not engine._scheduler._admission.must_wait(waiting, draft_number)


def test_a_request_that_waits_lets_later_ones_pass() -> None:
    engine, ids, _ = three_that_share()
    stranger = engine.submit([7] * 5, ONE)
    engine.step()
    assert stranger not in engine._replies
    assert sequence_of(engine, ids[2]).state is SequenceState.QUEUED


def test_little_agreement_is_not_waited_for() -> None:
    engine = FakeEngine(
        num_blocks=200,
        block_size=16,
        scheduler=SchedulerConfig(max_step_tokens=512, max_running=8),
    )
    for number in range(2):
        engine.submit([0] * 48 + unlike(number, 150), ONE)
    engine.step()
    assert engine.runner.steps == [(198, 198)]
    assert engine.counters.num_waits == 0


# -- liveness ------------------------------------------------------------------------------


def crowded(num_blocks: int = 16, max_running: int = 4) -> FakeEngine:
    return FakeEngine(
        num_blocks=num_blocks,
        block_size=4,
        scheduler=SchedulerConfig(max_step_tokens=16, max_running=max_running),
    )


def test_the_youngest_gives_way_and_comes_back_with_its_first_hit_figures() -> None:
    engine = crowded()
    engine.warm([[3] * 9])
    old = engine.submit([5] * 20, SamplingParams(max_tokens=30))
    young = engine.submit([3] * 9 + [4] * 11, SamplingParams(max_tokens=30))
    outputs = run(engine)
    assert engine.counters.num_preemptions > 0
    assert outputs[young].usage.cached_tokens == 8
    assert outputs[old].timing.total_s < outputs[young].timing.total_s
    assert list(outputs[young].token_ids) == expected_reply([3] * 9 + [4] * 11, 30)


def preempted_ids(engine: FakeEngine) -> set[RequestId]:
    return {sequence.request_id for sequence in engine._scheduler.queue.preempted}


def test_lower_priorities_give_way_first_but_never_the_oldest_of_all() -> None:
    engine = crowded(num_blocks=24)
    ids = [
        engine.submit(
            [5 + n] * 20,
            SamplingParams(max_tokens=16),
            options=RequestOptions(priority=priority),
        )
        for n, priority in enumerate([0, 1, 0, 1])
    ]
    seen: list[RequestId] = []
    while engine.has_work:
        engine.step()
        engine.check_invariants()
        seen += preempted_ids(engine)
    assert ids[0] not in seen
    assert seen[0] == ids[2]


def test_a_preempted_request_is_not_starved_by_a_stream_of_small_ones() -> None:
    engine = crowded(num_blocks=17, max_running=6)
    first = engine.submit([5] * 12, SamplingParams(max_tokens=12))
    large = engine.submit([6] * 40, SamplingParams(max_tokens=16))
    longest_wait = 0
    ended: set[RequestId] = set()
    for step in range(200):
        for number in range(2):
            engine.submit([20 + (2 * step + number) % 40] * 3, SamplingParams(max_tokens=9))
        ended |= {output.request_id for output in engine.step()}
        engine.check_invariants()
        if large in ended:
            break
        sequence = sequence_of(engine, large)
        if sequence.state is SequenceState.PREEMPTED:
            waited = engine._scheduler._num_plans - sequence.queued_step
            longest_wait = max(longest_wait, waited)
    assert {first, large} <= ended
    # In the next step it was admitted.
    assert longest_wait == PATIENCE_STEPS - 1, "this was meant to need patience"


def test_who_has_waited_long_holds_up_everything_younger_in_every_tenant() -> None:
    engine = crowded(num_blocks=17, max_running=6)
    engine.submit([5] * 4, SamplingParams(max_tokens=60))
    large = engine.submit([6] * 40, SamplingParams(max_tokens=16))
    sequence = sequence_of(engine, large)
    # By whether the large one has lost its patience.
    num_admissions = {False: 0, True: 0}
    waited = 0
    for step in range(60):
        engine.submit(
            [20 + step % 40] * 3,
            SamplingParams(max_tokens=5),
            options=RequestOptions(tenant=f"tenant {step % 3}"),
        )
        before = engine.counters.num_admissions
        engine.step()
        engine.check_invariants()
        if sequence.state is SequenceState.PREEMPTED:
            waited = engine._scheduler._num_plans - sequence.queued_step
            num_new = engine.counters.num_admissions - before
            num_admissions[waited >= PATIENCE_STEPS] += num_new
    assert num_admissions[False] > 0
    assert waited > PATIENCE_STEPS, "this was meant to need patience"
    assert num_admissions[True] == 0
    assert large in run(engine)


def test_a_large_new_request_is_not_starved_by_a_stream_of_small_ones() -> None:
    engine = crowded(num_blocks=16, max_running=6)
    engine.submit([5] * 3, SamplingParams(max_tokens=12))
    large = engine.submit(
        [6] * 50, SamplingParams(max_tokens=4), options=RequestOptions(tenant="red")
    )
    for step in range(200):
        for number in range(2):
            engine.submit(
                [20 + (2 * step + number) % 40] * 3,
                SamplingParams(max_tokens=9),
                options=RequestOptions(tenant=f"tenant {number}"),
            )
        if large in {output.request_id for output in engine.step()}:
            return
    raise AssertionError("the large request did not end")


def test_a_request_of_exactly_the_capacity_that_diverges_inside_a_block_ends() -> None:
    engine = FakeEngine(
        num_blocks=4,
        block_size=8,
        scheduler=SchedulerConfig(max_step_tokens=64, max_running=2),
    )
    engine.warm([[0] * 24])
    prompt = [0] * 13 + [1] * 12
    assert engine.lookup(prompt).num_hit_tokens == 13
    [output] = engine.generate([prompt], SamplingParams(max_tokens=6))
    assert list(output.token_ids) == expected_reply(prompt, 6)
    engine.check_invariants()


def test_a_sequence_that_does_not_fit_alone_is_a_bug() -> None:
    engine = crowded(num_blocks=4)
    engine.submit([5] * 4, SamplingParams(max_tokens=11))
    engine.step()
    # What the check would find before anything else does.
    engine.check_invariants = lambda: None  # type: ignore[method-assign]
    # Somebody else holds blocks of the pool, which the capacity check knows nothing of.
    engine.cache._pool.allocate(engine.cache._pool.num_free)
    with pytest.raises(InvariantError, match="although it is alone"):
        run(engine)


# -- order and cost ------------------------------------------------------------------------


def test_tenants_take_turns() -> None:
    engine = FakeEngine(
        num_blocks=400, scheduler=SchedulerConfig(max_step_tokens=8, max_running=1)
    )
    ids = {
        engine.submit([n] * 3, ONE, options=RequestOptions(tenant=tenant)): tenant
        for n, tenant in enumerate(["red"] * 5 + ["blue"] * 3 + ["green"])
    }
    order = []
    while engine.has_work:
        order += [ids[output.request_id] for output in engine.step()]
    assert order == ["red", "blue", "green", "red", "blue", "red", "blue", "red", "red"]


def test_running_sequences_decode_before_prompts_advance() -> None:
    engine = FakeEngine(
        num_blocks=400, scheduler=SchedulerConfig(max_step_tokens=8, max_running=4)
    )
    engine.submit([1] * 3, SamplingParams(max_tokens=20))
    engine.step()
    engine.submit([2] * 30, SamplingParams(max_tokens=20))
    for _ in range(3):
        engine.step()
    assert engine.runner.steps[1:] == [(1, 7)] * 3


def count_calls(engine: FakeEngine) -> Counter[str]:
    counts: Counter[str] = Counter()

    def note(_: object, event: str, __: object) -> None:
        counts[event] += 1

    # A collection that falls into the step may call back whoever asked for it.
    gc.disable()
    sys.setprofile(note)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counts


def decoding(context: int, num_queued: int, *, is_pool_full: bool) -> FakeEngine:
    size = 16
    num_blocks = 16 * (-(-(context + 12) // size))
    engine = FakeEngine(
        # The first sixteen are above the watermark, and nobody else is.
        num_blocks=num_blocks + 15 if is_pool_full else 2 * num_blocks,
        block_size=size,
        scheduler=SchedulerConfig(
            max_step_tokens=20_000, max_running=32 if is_pool_full else 16
        ),
    )
    for number in range(16):
        engine.submit(unlike(number, context), SamplingParams(max_tokens=11))
    engine.step()
    assert len(engine._scheduler.running) == 16
    for number in range(num_queued):
        engine.submit(unlike(20 + number, 20), ONE)
    engine.step()
    engine.step()
    assert len(engine._scheduler.running) == 16
    return engine


@pytest.mark.parametrize("is_pool_full", [False, True])
def test_the_cost_of_a_decode_step_does_not_depend_on_context_or_queue(
    *,
    is_pool_full: bool,
) -> None:
    counts = [
        count_calls(decoding(context, num_queued, is_pool_full=is_pool_full))
        for context in (35, 1_027)
        for num_queued in (20, 2_000)
    ]
    assert counts[0]["call"] > 0
    assert len({count["call"] for count in counts}) == 1, counts
    assert len({count["c_call"] for count in counts}) == 1, counts


def test_a_running_request_skips_what_others_have_published_meanwhile() -> None:
    engine = FakeEngine(
        num_blocks=200,
        block_size=16,
        scheduler=SchedulerConfig(max_step_tokens=200, max_running=8),
    )
    # Too little in common to wait for; the second one gets four tokens at first.
    first, second = ([0] * 48 + unlike(n, 148) for n in range(2))
    ids = [engine.submit(prompt, ONE) for prompt in (first, second)]
    outputs = run(engine)
    assert engine.runner.steps == [(196, 4), (148,)]
    assert outputs[ids[1]].usage.cached_tokens == 44
    assert outputs[ids[1]].token_ids == tuple(expected_reply(second, 1))


def count_lookups(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    lookups: list[int] = []
    lookup = engine.cache.lookup

    def counted(*args: object, **options: object) -> Lookup:
        lookups.append(1)
        return lookup(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.cache, "lookup", counted)
    return lookups


def test_a_step_looks_at_sixteen_requests_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(
        num_blocks=200,
        block_size=16,
        scheduler=SchedulerConfig(max_step_tokens=1_024, max_running=64),
    )
    for number in range(40):
        engine.submit([0] * 320 + unlike(number, 20), ONE)
    lookups = count_lookups(engine, monkeypatch)
    engine.step()
    assert len(lookups) == 16
    assert engine.counters.num_waits == 15


def test_a_lookup_is_kept_while_it_cannot_change(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = decoding(35, 20, is_pool_full=True)
    lookups = count_lookups(engine, monkeypatch)
    engine.step()
    assert lookups == []


def test_a_preempted_request_comes_back_when_all_it_had_fits() -> None:
    engine = crowded(num_blocks=17)
    first = engine.submit([5] * 12, SamplingParams(max_tokens=20))
    large = engine.submit([6] * 40, SamplingParams(max_tokens=16))
    while sequence_of(engine, large).state is not SequenceState.PREEMPTED:
        engine.step()
    sequence = sequence_of(engine, large)
    num_needed = -(-sequence.num_tokens // 4)
    while first in engine._replies:
        assert engine.cache.room.num_available(sequence.options.domain) < num_needed
        assert sequence.state is SequenceState.PREEMPTED
        engine.step()
    engine.step()
    assert sequence.state is SequenceState.RUNNING
    assert len(sequence.held_lease.block_ids) >= num_needed
    run(engine)


def test_running_and_preempted_sequences_are_checked() -> None:
    engine = crowded()
    engine.submit([5] * 20, SamplingParams(max_tokens=30))
    engine.submit([6] * 3, SamplingParams(max_tokens=30))
    engine.step()
    engine.step()
    scheduler = engine._scheduler
    engine.check_invariants()
    first = scheduler.running[0]
    first.num_computed += 30
    with pytest.raises(InvariantError, match="out of order"):
        engine.check_invariants()
    first.num_computed -= 30
    scheduler.running.reverse()
    with pytest.raises(InvariantError, match="order of arrival"):
        engine.check_invariants()
    scheduler.running.reverse()
    forgotten = scheduler.running.pop()
    with pytest.raises(InvariantError, match="disagree"):
        engine.check_invariants()
    del scheduler._owners[forgotten.held_lease]
    with pytest.raises(InvariantError, match="no running sequence holds"):
        engine.check_invariants()


def test_what_a_victim_held_is_used_in_the_same_step_only_without_the_victim() -> None:
    engine = crowded(num_blocks=14)
    submit = [(20, 0), (8, 0), (8, 1)]
    _, victim, _ = (
        engine.submit(
            [5 + number] * length,
            SamplingParams(max_tokens=20),
            options=RequestOptions(priority=priority),
        )
        for number, (length, priority) in enumerate(submit)
    )
    plans: list[StepPlan] = []
    execute = engine.runner.execute

    def watched(plan: StepPlan) -> object:
        plans.append(plan)
        return execute(plan)

    engine.runner.execute = watched  # type: ignore[method-assign, assignment]
    held: set[int] = set()
    sequence = sequence_of(engine, victim)
    while sequence.state is not SequenceState.PREEMPTED:
        if sequence.lease is not None:
            held = set(sequence.lease.block_ids.tolist())
        engine.step()
    # The block that was needed came from the victim, which had been planned before.
    used = {int(block) for piece in plans[-1].slices for block in piece.block_ids}
    assert len(plans[-1].slices) == 2
    assert used & held


def test_who_found_no_room_is_the_next_one_even_behind_one_that_waits() -> None:
    engine = FakeEngine(
        num_blocks=64,
        block_size=16,
        scheduler=SchedulerConfig(max_step_tokens=1_024, max_running=8),
    )
    red, blue = RequestOptions(tenant="red"), RequestOptions(tenant="blue")
    for number in range(2):
        engine.submit([0] * 320 + unlike(number, 20), ONE, options=red)
    engine.submit([7] * 900, ONE, options=red)
    for number in range(4):
        engine.submit(unlike(20 + number, 3), ONE, options=blue)
    # Both steps are planned and never carried out, so the second request goes on waiting.
    engine.runner.interrupts_at = {1, 2}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        assert [sequence.arrival for sequence in engine._scheduler.running] == [1, 4, 5]
    run(engine)


# -- copies of partly agreeing blocks ------------------------------------------------------


def with_a_block_to_copy(num_blocks: int) -> FakeEngine:
    engine = FakeEngine(
        num_blocks=num_blocks,
        block_size=8,
        scheduler=SchedulerConfig(max_step_tokens=64, max_running=8),
    )
    engine.warm([[0] * 16])
    return engine


DIVERGING = [0] * 13 + [1] * 11


def test_what_agrees_inside_a_block_is_copied_once() -> None:
    engine = with_a_block_to_copy(20)
    request_id = engine.submit(DIVERGING, SamplingParams(max_tokens=6))
    engine.step()
    assert engine.runner.steps[1] == (11,)
    # What it was copied from is not held any longer.
    assert sequence_of(engine, request_id).held_lease.copy_source is None
    output = run(engine)[request_id]
    assert list(output.token_ids) == expected_reply(DIVERGING, 6)
    assert output.usage.cached_tokens == 13


def test_a_request_with_a_copy_that_finds_no_room_stays_queued() -> None:
    engine = with_a_block_to_copy(8)
    old = engine.submit([5] * 3, SamplingParams(max_tokens=9))
    engine.step()
    prompt = [0] * 13 + [1] * 36
    late = engine.submit(prompt, SamplingParams(max_tokens=6))
    # By what is available it would fit, but not once its own hits are pinned. That is
    # known before anything is touched: an attempt would count as a use of its prefix.
    sequence = sequence_of(engine, late)
    num_admissions = engine.counters.num_admissions
    version = engine.cache.version(engine.fingerprint)
    engine.step()
    assert engine.cache.version(engine.fingerprint) == version
    assert engine.counters.num_admissions == num_admissions
    assert sequence.lookup is not None
    assert engine.cache.room.num_idle_on(sequence.lookup) > 0
    assert sequence_of(engine, late).state is SequenceState.QUEUED
    outputs = run(engine)
    assert list(outputs[old].token_ids) == expected_reply([5] * 3, 9)
    assert list(outputs[late].token_ids) == expected_reply(prompt, 6)


def test_a_copy_dropped_before_it_was_carried_out_is_computed_instead() -> None:
    engine = with_a_block_to_copy(8)
    old = [engine.submit([5 + n] * 6, SamplingParams(max_tokens=9)) for n in range(2)]
    engine.step()
    copying = engine.submit(DIVERGING, SamplingParams(max_tokens=3))
    engine.runner.interrupts_at = {engine.runner.num_calls + 1}
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    lease = sequence_of(engine, copying).held_lease
    assert lease.num_hit_tokens == 13
    # These take every block there is, and at last the one to be copied from.
    engine.fork(old[0], 2)
    engine.fork(old[1], 1)
    assert lease.num_matched_tokens == lease.num_hit_tokens
    outputs = run(engine)
    assert list(outputs[copying].token_ids) == expected_reply(DIVERGING, 3)
