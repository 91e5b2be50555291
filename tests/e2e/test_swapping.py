from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from prefold.cache import ApprovalTerms, ByFingerprint
from prefold.engine.config import EngineConfig, ModelLimits, RequestOptions, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.joint_submission import submit_jointly
from prefold.engine.prepared_model import PreparedModel, prepare_swap, prepare_template
from prefold.engine.request import FinishReason, RequestId, RequestOutput, SamplingParams
from prefold.engine.sequence import SequenceState
from prefold.errors import ConfigError, EngineStoppedError, SwapUnderWayError
from prefold.identity.domain import Domain
from support.fake_engine import VOCAB_SIZE, FakeEngine, FakeRunner, expected_reply
from support.fingerprints import make_fingerprint
from support.sessions import make_session

SIZE = 4
NEW = 1000
#: Of a prompt of five blocks that is there already: the last token is always computed.
HITS = 4 * SIZE
OPTIONS = RequestOptions()


def greedy(max_tokens: int, **changes: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **changes)  # type: ignore[arg-type]


def draw(num_tokens: int, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(t) for t in rng.integers(0, VOCAB_SIZE, num_tokens)]


def prepare(engine: FakeEngine, weights: int = NEW, **changes: object) -> PreparedModel:
    """Return a model of other weights; its fingerprint says which, and ``changes``."""
    runner = engine.parts.runner
    assert isinstance(runner, FakeRunner)
    values = {"block_size": SIZE, "weights": weights.to_bytes(2, "big"), **changes}
    return PreparedModel(
        parts=replace(
            engine.parts,
            runner=runner.successor(weights),
            fingerprint=make_fingerprint(**values),
        ),
        limits=engine.config.limits,
    )


def run_all(engine: Engine) -> dict[RequestId, RequestOutput]:
    """Step until nothing is left; check everything after every step."""
    outputs = {}
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id] = output
        engine.check_invariants()
    return outputs


def assert_idle(engine: Engine) -> None:
    engine.check_invariants()
    counts = engine.cache.counts
    assert (counts.private, counts.shared) == (0, 0)


def assert_reply(
    output: RequestOutput, prompt: Sequence[int], num_tokens: int, weights: int
) -> None:
    assert output.finish_reason is FinishReason.LENGTH
    assert list(output.token_ids) == expected_reply(prompt, num_tokens, weights=weights)


def assert_ended(output: RequestOutput, words: str) -> None:
    assert output.finish_reason is FinishReason.ABORTED
    assert output.error is not None
    assert words in output.error


# -- what is cached --------------------------------------------------------------------


@pytest.mark.parametrize("drain", [True, False])
def test_nothing_of_the_old_model_is_found_by_the_new_one(*, drain: bool) -> None:
    engine = FakeEngine()
    prompt = draw(5 * SIZE)
    engine.generate([prompt], greedy(3))
    assert engine.lookup(prompt).num_hit_tokens == HITS
    num_blocks = engine.cache.counts.idle
    receipt = engine.swap(prepare(engine), drain=drain)
    assert receipt.differing_fields == ("weights",)
    assert receipt.invalidation is not None
    assert receipt.invalidation.num_blocks == num_blocks
    assert receipt.invalidation.num_leased_blocks == 0
    assert engine.parts.fingerprint == receipt.fingerprint
    assert engine.lookup(prompt).num_hit_tokens == 0
    for num_hits in (0, HITS):
        [output] = engine.generate([prompt], greedy(3))
        assert output.usage.cached_tokens == num_hits
        assert_reply(output, prompt, 3, NEW)
    assert_idle(engine)


def test_the_old_fingerprint_is_dropped_even_if_it_comes_back() -> None:
    engine = FakeEngine()
    prompt = draw(5 * SIZE)
    engine.generate([prompt], greedy(3))
    engine.swap(prepare(engine))
    engine.swap(
        PreparedModel(
            parts=replace(
                engine.parts, runner=engine.runner, fingerprint=engine.fingerprint
            ),
            limits=engine.config.limits,
        )
    )
    assert engine.lookup(prompt).num_hit_tokens == 0
    [output] = engine.generate([prompt], greedy(3))
    assert_reply(output, prompt, 3, 0)
    assert_idle(engine)


def test_the_same_model_keeps_everything_and_ends_nothing() -> None:
    engine = FakeEngine()
    prompt = draw(5 * SIZE)
    request_id = engine.submit(prompt, greedy(6))
    engine.step()
    engine.step()
    same = PreparedModel(parts=replace(engine.parts), limits=engine.config.limits)
    receipt = engine.swap(same, drain=False)
    assert receipt.invalidation is None
    assert receipt.differing_fields == ()
    assert (receipt.num_ended, receipt.num_recomputed) == (0, 0)
    assert_reply(run_all(engine)[request_id], prompt, 6, 0)
    assert engine.lookup(prompt).num_hit_tokens == HITS


# -- draining --------------------------------------------------------------------------


def test_who_runs_ends_with_the_old_model_and_who_waits_gets_the_new_one() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=2, max_step_tokens=64))
    prompts = [draw(5 * SIZE, seed) for seed in range(5)]
    requests = [engine.submit(prompt, greedy(4)) for prompt in prompts]
    engine.step()
    running = [s.request_id for s in engine._scheduler.running]
    assert running == requests[:2]
    pending = engine.swapper.begin(prepare(engine), drain=True, deadline_s=1e9)
    assert pending.receipt is None
    late = engine.submit(prompts[0], greedy(4))
    outputs = run_all(engine)
    receipt = pending.done()
    assert (receipt.num_ended, receipt.num_recomputed) == (0, 0)
    for request_id, prompt in zip(requests, prompts, strict=True):
        weights = 0 if request_id in running else NEW
        assert_reply(outputs[request_id], prompt, 4, weights)
    assert_reply(outputs[late], prompts[0], 4, NEW)
    assert outputs[late].usage.cached_tokens == 0
    assert_idle(engine)


def test_what_was_preempted_ends_with_the_old_model_too() -> None:
    engine = FakeEngine(num_blocks=12)
    prompts = [draw(4 * SIZE, seed) for seed in range(3)]
    requests = [engine.submit(prompt, greedy(12)) for prompt in prompts]
    while not engine._scheduler.queue.preempted:
        engine.step()
    begun = {
        reply.sequence.request_id
        for reply in engine._replies.values()
        if reply.sequence.state is not SequenceState.QUEUED
    }
    engine.swapper.begin(prepare(engine), drain=True, deadline_s=1e9)
    outputs = run_all(engine)
    for request_id, prompt in zip(requests, prompts, strict=True):
        assert_reply(outputs[request_id], prompt, 12, 0 if request_id in begun else NEW)
    assert_idle(engine)


def test_forks_of_what_has_begun_end_with_the_old_model() -> None:
    engine = FakeEngine(num_blocks=12)
    prompts = [draw(4 * SIZE, seed) for seed in range(2)]
    requests = [engine.submit(prompt, greedy(14)) for prompt in prompts]
    while not engine._scheduler.queue.preempted:
        engine.step()
    preempted = engine._scheduler.queue.preempted[0]
    assert preempted.has_reply
    [twin] = engine.fork(preempted.request_id)
    engine.swapper.begin(prepare(engine), drain=True, deadline_s=1e9)
    outputs = run_all(engine)
    for request_id in (*requests, twin):
        first = requests[0] if preempted.request_id == requests[0] else requests[1]
        prompt = prompts[requests.index(first if request_id == twin else request_id)]
        assert_reply(outputs[request_id], prompt, 14, 0)
    assert_idle(engine)


def test_at_the_deadline_the_rest_is_aborted_with_a_sentence() -> None:
    engine = FakeEngine()
    prompt = draw(5 * SIZE)
    slow = engine.submit(prompt, greedy(100))
    for _ in range(4):
        engine.step()
    # The clock moves a thousandth of a second with each look.
    pending = engine.swapper.begin(prepare(engine), drain=True, deadline_s=0.1)
    waiting = engine.submit(prompt, greedy(3))
    outputs = run_all(engine)
    assert_ended(outputs[slow], "the model was replaced")
    assert 3 < len(outputs[slow].token_ids) < 100
    assert pending.done().num_ended == 1
    assert_reply(outputs[waiting], prompt, 3, NEW)
    assert_idle(engine)


def test_the_one_call_steps_until_the_switch_and_keeps_the_outputs() -> None:
    engine = FakeEngine()
    prompt = draw(5 * SIZE)
    request_id = engine.submit(prompt, greedy(6))
    engine.step()
    receipt = engine.swap(prepare(engine), deadline_s=1e9)
    assert receipt.num_ended == 0
    assert engine.has_work
    assert_reply(run_all(engine)[request_id], prompt, 6, 0)


def test_a_swap_that_is_called_off_changes_nothing() -> None:
    engine = FakeEngine()
    prompts = [draw(5 * SIZE, seed) for seed in range(2)]
    first = engine.submit(prompts[0], greedy(6))
    engine.step()
    pending = engine.swapper.begin(prepare(engine), drain=True, deadline_s=1e9)
    second = engine.submit(prompts[1], greedy(6))
    engine.step()
    engine.swapper.call_off(pending)
    outputs = run_all(engine)
    assert pending.receipt is None
    for request_id, prompt in zip((first, second), prompts, strict=True):
        assert_reply(outputs[request_id], prompt, 6, 0)
    assert engine.parts.fingerprint == engine.fingerprint


def test_an_interrupted_call_calls_the_swap_off() -> None:
    engine = FakeEngine()
    engine.submit(draw(5 * SIZE), greedy(100))
    engine.step()
    engine.runner.interrupts_at = {engine.runner.num_calls + 3}
    with pytest.raises(KeyboardInterrupt):
        engine.swap(prepare(engine), deadline_s=1e9)
    assert not engine.swapper.is_pending
    engine.check_invariants()


# -- without draining ------------------------------------------------------------------


def test_without_draining_who_has_sent_nothing_begins_anew() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=3, max_step_tokens=8))
    short, long = draw(SIZE, 1), draw(9 * SIZE, 2)
    sent = engine.submit(short, greedy(50))
    unsent = engine.submit(long, greedy(4))
    waiting = engine.submit(long, greedy(4, prompt_logprobs=0))
    for _ in range(4):
        engine.step()
    assert engine._replies[sent].sequence.has_reply
    assert engine._replies[unsent].sequence.num_computed > 0
    assert not engine._replies[unsent].sequence.has_reply
    receipt = engine.swap(prepare(engine), drain=False)
    assert receipt.num_ended == 1
    assert receipt.num_recomputed >= 1
    engine.check_invariants()
    assert not engine._scheduler.running
    outputs = run_all(engine)
    assert_ended(outputs[sent], "the model was replaced")
    for request_id in (unsent, waiting):
        assert_reply(outputs[request_id], long, 4, NEW)
    assert outputs[unsent].usage.cached_tokens == 0
    assert_idle(engine)


def test_hits_of_the_old_model_are_not_counted_for_a_reply_of_the_new_one() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=2, max_step_tokens=8))
    prompt = draw(12 * SIZE)
    engine.generate([prompt[: 6 * SIZE]], greedy(1))
    request_id = engine.submit(prompt, greedy(2))
    engine.step()
    assert engine._replies[request_id].sequence.num_cached >= 6 * SIZE
    engine.swap(prepare(engine), drain=False)
    output = run_all(engine)[request_id]
    assert output.usage.cached_tokens == 0
    assert_reply(output, prompt, 2, NEW)


# -- who waits -------------------------------------------------------------------------


def test_who_waits_forgets_what_it_would_have_hit_and_waited_for() -> None:
    engine = FakeEngine(num_blocks=200)
    prompt = draw(140 * SIZE)
    # More than a step computes, after which the second one finds a token to spare.
    first = engine.submit(prompt, greedy(2))
    engine.step()
    second = engine.submit(prompt, greedy(2))
    engine._scheduler._admission.must_wait(engine._replies[second].sequence, 2)
    assert engine._replies[second].sequence.wait is not None
    assert engine._replies[second].sequence.lookup is not None
    engine.swap(prepare(engine), drain=False)
    sequence = engine._replies[second].sequence
    assert sequence.wait is None
    assert sequence.lookup is None
    assert sequence.fingerprint == engine.parts.fingerprint
    outputs = run_all(engine)
    for request_id in (first, second):
        assert_reply(outputs[request_id], prompt, 2, NEW)
    assert_idle(engine)


def test_a_lookup_is_not_taken_for_one_of_a_tree_of_the_same_version() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=1, max_step_tokens=8))
    prompt = draw(5 * SIZE)
    engine.generate([prompt], greedy(1))
    blocker = engine.submit(draw(3, 9), greedy(30))
    engine.step()
    waiting = engine.submit(prompt, greedy(2))
    engine._scheduler._admission._lookup(engine._replies[waiting].sequence)
    prepared = prepare(engine)
    engine.cache._trees.of(prepared.parts.fingerprint).version = engine.cache.version(
        engine.fingerprint
    )
    engine.swap(prepared, drain=False)
    outputs = run_all(engine)
    assert outputs[waiting].usage.cached_tokens == 0
    assert_reply(outputs[waiting], prompt, 2, NEW)
    assert_ended(outputs[blocker], "the model was replaced")


@pytest.mark.parametrize("tokenizer", [b"other", None])
def test_prompts_of_another_tokenizer_are_not_computed(tokenizer: bytes | None) -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=1, max_step_tokens=8))
    prompt = draw(5 * SIZE)
    running = engine.submit(prompt, greedy(4))
    engine.step()
    waiting = engine.submit(prompt, greedy(4))
    prepared = prepare(engine)
    if tokenizer is not None:
        prepared = prepare(engine, tokenizer=tokenizer)
    else:
        # The same tokens, but another number of rows.
        limits = replace(engine.config.limits, vocab_size=VOCAB_SIZE + 1)
        prepared = replace(prepared, limits=limits)
    pending = engine.swapper.begin(prepared, drain=True, deadline_s=1e9)
    outputs = run_all(engine)
    assert_reply(outputs[running], prompt, 4, 0)
    assert_ended(outputs[waiting], "another tokenizer")
    assert pending.done().num_ended == 1
    assert_idle(engine)


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(5, 6), (10, 1), (3, 7)])
def test_who_is_too_long_for_the_new_model_is_told_so(
    num_prompt: int, max_tokens: int
) -> None:
    engine = FakeEngine()
    engine.swapper.begin(prepare(engine), drain=True, deadline_s=0)
    blocker = engine.submit(draw(3), greedy(30))
    engine.step()
    prompt = draw(num_prompt)
    waiting = engine.submit(prompt, greedy(max_tokens))
    shorter = replace(engine.config.limits, max_model_len=10)
    prepared = replace(prepare(engine, NEW + 1), limits=shorter)
    engine.swap(prepared, drain=True, deadline_s=1e9)
    outputs = run_all(engine)
    assert_reply(outputs[blocker], draw(3), 30, NEW)
    if num_prompt + max_tokens > 10:
        assert_ended(outputs[waiting], "takes 10 tokens")
    else:
        assert_reply(outputs[waiting], prompt, max_tokens, NEW + 1)
    with pytest.raises(ValueError, match="max_model_len is 10"):
        engine.submit(draw(10), greedy(1))


def test_end_tokens_are_those_of_the_model_that_computes() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=1, max_step_tokens=8))
    prompt = draw(5 * SIZE)
    params = SamplingParams(max_tokens=20)
    reply = expected_reply(prompt, 20, weights=NEW)
    engine.submit(draw(3), greedy(4))
    engine.step()
    waiting = engine.submit(prompt, params)
    limits = replace(engine.config.limits, eos_token_ids=frozenset({reply[7]}))
    engine.swap(replace(prepare(engine), limits=limits), deadline_s=1e9)
    output = run_all(engine)[waiting]
    assert output.finish_reason is FinishReason.STOP
    assert list(output.token_ids) == reply[: reply.index(reply[7]) + 1]


# -- templates -------------------------------------------------------------------------


def test_a_new_template_lets_who_runs_go_on_and_leave_nothing_behind() -> None:
    engine = FakeEngine(num_blocks=12)
    prompts = [draw(4 * SIZE, seed) for seed in range(4)]
    requests = [engine.submit(prompt, greedy(12)) for prompt in prompts]
    while not engine._scheduler.queue.preempted:
        engine.step()
    edited = PreparedModel(
        parts=replace(
            engine.parts, fingerprint=replace(engine.fingerprint, chat_template=b"other")
        ),
        limits=engine.config.limits,
    )
    receipt = engine.swap(edited, drain=False)
    assert receipt.differing_fields == ("chat_template",)
    assert receipt.invalidation is not None
    assert receipt.num_ended == 0
    running = {sequence.request_id for sequence in engine._scheduler.running}
    assert running
    outputs = run_all(engine)
    for request_id, prompt in zip(requests, prompts, strict=True):
        assert_reply(outputs[request_id], prompt, 12, 0)
        if request_id in running:
            assert engine.lookup(prompt).num_hit_tokens == 0
    assert_idle(engine)


def test_a_template_as_text_and_what_is_none() -> None:
    session, _ = make_session()
    engine, tokenizer = session.engine, session.tokenizer
    before = engine.parts.fingerprint
    engine.generate(["some text that is long enough for a block"], greedy(2))
    text = "{{ messages[0]['content'] }}!"
    receipt = engine.reload_template(text)
    assert receipt.differing_fields == ("chat_template",)
    assert receipt.invalidation is not None
    assert receipt.invalidation.num_blocks > 0
    assert engine.parts.tokenizer is not None
    assert engine.parts.tokenizer.chat_template == text
    # Whoever writes a prompt at this moment goes on with the template it has begun with.
    assert tokenizer.chat_template != text
    assert engine.parts.fingerprint.chat_template != before.chat_template
    assert engine.reload_template(text).invalidation is None
    after = engine.parts
    for template, words in (
        ("{% for %}", "template cannot be read"),
        (None, "next version"),
    ):
        with pytest.raises(ConfigError, match=words):
            engine.reload_template(template)
    assert engine.parts is after


def test_without_a_tokenizer_there_is_no_template() -> None:
    engine = FakeEngine()
    with pytest.raises(ConfigError, match="without a tokenizer"):
        prepare_template(engine.parts, engine.config.limits, "text")


# -- refused ---------------------------------------------------------------------------


def test_a_second_swap_is_refused_while_one_waits() -> None:
    engine = FakeEngine()
    engine.submit(draw(5), greedy(50))
    engine.step()
    pending = engine.swapper.begin(prepare(engine), drain=True, deadline_s=1e9)
    for drain in (True, False):
        with pytest.raises(SwapUnderWayError, match="already"):
            engine.swap(prepare(engine, NEW + 1), drain=drain)
    run_all(engine)
    assert pending.done().fingerprint == engine.parts.fingerprint
    assert engine.swap(prepare(engine, NEW + 1)).invalidation is not None


@pytest.mark.parametrize("deadline_s", [-1, float("nan"), True, "soon", None])
def test_a_deadline_that_is_no_time_is_refused(deadline_s: object) -> None:
    engine = FakeEngine()
    with pytest.raises(ConfigError, match="deadline_s"):
        engine.swap(prepare(engine), deadline_s=deadline_s)  # type: ignore[arg-type]
    assert engine.parts.fingerprint == engine.fingerprint


def test_what_was_prepared_for_another_engine_is_refused() -> None:
    engine = FakeEngine()
    with pytest.raises(ConfigError, match="another engine"):
        engine.swap(prepare(FakeEngine()))
    assert engine.parts.fingerprint == engine.fingerprint


def test_a_model_that_came_from_nowhere_has_no_next_version() -> None:
    with pytest.raises(ConfigError, match="did not come from"):
        prepare_swap(FakeEngine().parts)


def test_a_closed_engine_is_not_swapped() -> None:
    engine = FakeEngine()
    engine.submit(draw(5), greedy(50))
    engine.step()
    engine.swapper.begin(prepare(engine), drain=True, deadline_s=1e9)
    engine.close()
    with pytest.raises(EngineStoppedError):
        engine.swap(prepare(engine))


# -- at random -------------------------------------------------------------------------


def _swap_waiting(engine: FakeEngine, weights: int) -> None:
    if not engine.swapper.is_pending:
        deadline_s = 0.05 if weights % 2 else 1e9
        engine.swapper.begin(prepare(engine, weights), drain=True, deadline_s=deadline_s)


def _swap_at_once(engine: FakeEngine, weights: int) -> None:
    if not engine.swapper.is_pending:
        engine.swapper.begin(prepare(engine, weights), drain=False, deadline_s=0)


@pytest.mark.parametrize("swap", [_swap_waiting, _swap_at_once])
@pytest.mark.parametrize("seed", range(4))
def test_no_reply_is_ever_of_two_models(
    seed: int, swap: Callable[[FakeEngine, int], None]
) -> None:
    rng = np.random.default_rng(seed)
    engine = FakeEngine(
        num_blocks=24, scheduler=SchedulerConfig(max_running=5, max_step_tokens=12)
    )
    base = draw(10 * SIZE, seed)
    prompts: dict[RequestId, list[int]] = {}
    outputs: dict[RequestId, RequestOutput] = {}
    versions = [0]
    for _ in range(300):
        if rng.random() < 0.4:
            prompt = base[: int(rng.integers(1, len(base)))] + draw(3, int(rng.integers(9)))
            prompts[engine.submit(prompt, greedy(int(rng.integers(1, 12))))] = prompt
        if rng.random() < 0.05:
            versions.append(len(versions) * 10 + seed)
            swap(engine, versions[-1])
        for output in engine.step():
            outputs[output.request_id] = output
        engine.check_invariants()
    outputs |= run_all(engine)
    assert outputs.keys() == prompts.keys()
    used = set()
    for request_id, output in outputs.items():
        replies = {
            version: expected_reply(
                prompts[request_id], len(output.token_ids), weights=version
            )
            for version in versions
        }
        matching = [v for v in versions if replies[v] == list(output.token_ids)]
        assert matching
        used.add(matching[0])
        assert (output.error is None) == (output.finish_reason is FinishReason.LENGTH)
    assert len(used) > 2
    assert_idle(engine)


def test_limits_alone_change_nothing_of_what_is_cached() -> None:
    engine = FakeEngine()
    prompt = draw(5 * SIZE)
    engine.generate([prompt], greedy(1))
    limits = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=50)
    receipt = engine.swap(PreparedModel(parts=replace(engine.parts), limits=limits))
    assert receipt.invalidation is None
    assert engine.config == EngineConfig(limits=limits, scheduler=engine.config.scheduler)
    assert engine.lookup(prompt).num_hit_tokens == HITS
    engine.cache.invalidate(ByFingerprint(fingerprint=engine.fingerprint))
    assert engine.lookup(prompt, options=OPTIONS).num_hit_tokens == 0


# -- answers of several replies ------------------------------------------------------------


def steps(engine: Engine, until: Callable[[], bool]) -> dict[RequestId, RequestOutput]:
    """Step until something has happened; return who has ended by then."""
    outputs: dict[RequestId, RequestOutput] = {}
    while not until():
        outputs.update((output.request_id, output) for output in engine.step())
        engine.check_invariants()
    return outputs


@pytest.mark.parametrize("when", ["waiting for a frontier", "first one has ended"])
@pytest.mark.parametrize("num_prompts", [1, 2])
def test_an_answer_that_has_begun_ends_with_the_model_that_began_it(
    num_prompts: int, when: str
) -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=1, max_step_tokens=8))
    prompts = [draw(5 * SIZE, seed) for seed in range(num_prompts)]
    jobs = [(prompt, greedy(3)) for prompt in prompts]
    groups = submit_jointly(engine, jobs, OPTIONS, 2 if num_prompts == 1 else 1, None)
    own = [request_id for group in groups for request_id in group]
    other = engine.submit(draw(3 * SIZE, 9), greedy(3))
    is_first = when == "waiting for a frontier"
    outputs = steps(
        engine, lambda: bool(engine.counters.num_steps) if is_first else engine.num_open < 3
    )
    pending = engine.swapper.begin(prepare(engine), drain=True, deadline_s=1e9)
    outputs |= run_all(engine)
    for number, request_id in enumerate(own):
        assert_reply(outputs[request_id], prompts[number % num_prompts], 3, 0)
    # Who has nothing to do with it gets the new one.
    assert_reply(outputs[other], draw(3 * SIZE, 9), 3, NEW)
    assert pending.done().num_ended == 0
    assert_idle(engine)


def test_at_the_deadline_all_of_an_answer_ends() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=1, max_step_tokens=8))
    jobs = [(draw(5 * SIZE, seed), greedy(30)) for seed in range(3)]
    groups = submit_jointly(engine, jobs, OPTIONS, 1, None)
    steps(engine, lambda: bool(engine.counters.num_sampled_tokens))
    engine.swap(prepare(engine), deadline_s=0)
    outputs = run_all(engine)
    for [request_id] in groups:
        assert_ended(outputs[request_id], "the model was replaced")
    assert_idle(engine)


@pytest.mark.parametrize("has_token", [True, False])
def test_without_draining_an_answer_begins_anew_as_a_whole_or_ends(
    *, has_token: bool
) -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=1, max_step_tokens=8))
    jobs = [(draw(5 * SIZE, seed), greedy(3)) for seed in range(3)]
    groups = submit_jointly(engine, jobs, OPTIONS, 1, None)
    counters = engine.counters
    count = "num_sampled_tokens" if has_token else "num_steps"
    steps(engine, lambda: bool(getattr(counters, count)))
    receipt = engine.swap(prepare(engine), drain=False)
    outputs = run_all(engine)
    assert (receipt.num_ended, receipt.num_recomputed) == ((3, 0) if has_token else (0, 1))
    for (prompt, _), [request_id] in zip(jobs, groups, strict=True):
        if has_token:
            assert_ended(outputs[request_id], "the model was replaced")
        else:
            assert_reply(outputs[request_id], prompt, 3, NEW)
    assert_idle(engine)


# -- approvals, and what is left behind ----------------------------------------------------


def edit_template(engine: FakeEngine) -> PreparedModel:
    fingerprint = replace(engine.parts.fingerprint, chat_template=b"other")
    parts = replace(engine.parts, fingerprint=fingerprint)
    return PreparedModel(parts=parts, limits=engine.config.limits)


@pytest.mark.parametrize("state", ["queued", "running", "preempted"])
@pytest.mark.parametrize("way", ["template", "weights"])
def test_what_was_to_be_approved_under_another_model_is_not(state: str, way: str) -> None:
    engine = FakeEngine(
        num_blocks=16, scheduler=SchedulerConfig(max_running=2, max_step_tokens=8)
    )
    terms = ApprovalTerms(label="rules", pinned=True)
    options = RequestOptions(domain=Domain("acme"), approval=terms)
    approving = engine.submit(draw(8 * SIZE), greedy(1), options=options)
    if state != "queued":
        engine.step()
    if state == "preempted":
        [sequence] = engine._scheduler.running
        engine._scheduler.preempt(sequence)
    prepared = edit_template(engine) if way == "template" else prepare(engine)
    receipt = engine.swap(prepared, drain=False)
    assert receipt.num_ended == 1
    assert_ended(run_all(engine)[approving], "before the prefix was approved")
    assert engine.cache.approved.approvals() == ()
    assert engine.cache.approved.num_pinned_blocks == 0
    assert_idle(engine)


def test_who_goes_on_under_an_old_template_leaves_nothing_there() -> None:
    engine = FakeEngine(num_blocks=12)
    prompts = [draw(4 * SIZE, seed) for seed in range(4)]
    for prompt in prompts:
        engine.submit(prompt, greedy(12))
    while not engine._scheduler.queue.preempted:
        engine.step()
    before = engine.parts
    engine.swap(edit_template(engine), drain=False)
    run_all(engine)
    # The old template comes back, and with it its fingerprint.
    engine.swap(PreparedModel(parts=before, limits=engine.config.limits), drain=False)
    assert [engine.lookup(prompt).num_hit_tokens for prompt in prompts] == [0] * 4
    assert_idle(engine)


def test_a_model_that_was_prepared_for_another_one_is_refused() -> None:
    engine = FakeEngine()
    late = replace(edit_template(engine), base=engine.parts.fingerprint)
    engine.swap(replace(prepare(engine), base=engine.parts.fingerprint))
    fingerprint = engine.parts.fingerprint
    with pytest.raises(ConfigError, match="not served any more; prepare it again"):
        engine.swap(late)
    assert engine.parts.fingerprint == fingerprint
    engine.check_invariants()
