from __future__ import annotations

import logging

import numpy as np
import pytest

from prefold.cache import NO_CACHE, MissKind
from prefold.engine.batch import SequenceSlice
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.request import FinishReason, RequestId, RequestOutput, SamplingParams
from prefold.errors import (
    CapacityError,
    EngineStoppedError,
    InvariantError,
    QueueFullError,
    RequestError,
)
from prefold.identity.domain import Domain
from support.fake_engine import VOCAB_SIZE, FakeEngine, FakeRunnerError, expected_reply

PROMPT = [1, 2, 3] * 5


def params(max_tokens: int = 6, **others: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **others)  # type: ignore[arg-type]


def assert_nothing_is_held(engine: FakeEngine) -> None:
    engine.check_invariants()
    counts = engine.cache.counts
    assert counts.private == counts.shared == 0
    assert engine.cache.snapshot().num_leases == 0


# -- replies -------------------------------------------------------------------------------


def test_outputs_come_in_the_order_of_the_prompts() -> None:
    engine = FakeEngine()
    prompts = [[n] * length for n, length in enumerate((30, 1, 17, 2))]
    outputs = engine.generate(prompts, [params(n + 1) for n in (8, 1, 5, 3)])
    for prompt, output, num_tokens in zip(prompts, outputs, (9, 2, 6, 4), strict=True):
        assert list(output.token_ids) == expected_reply(prompt, num_tokens)
        assert output.finish_reason is FinishReason.LENGTH
        assert output.usage.prompt_tokens == len(prompt)
        assert output.usage.completion_tokens == num_tokens
    assert_nothing_is_held(engine)


def test_a_second_request_hits_and_answers_the_same() -> None:
    engine = FakeEngine()
    [cold] = engine.generate([PROMPT], params())
    [warm] = engine.generate([PROMPT], params())
    assert cold.token_ids == warm.token_ids
    assert cold.usage.cached_tokens == 0
    assert warm.usage.cached_tokens == 12
    assert cold.miss_reason is not None
    assert cold.miss_reason.kind is MissKind.NEVER_SEEN


def test_without_access_a_request_neither_reads_nor_leaves_anything() -> None:
    engine = FakeEngine()
    options = RequestOptions(access=NO_CACHE)
    [output] = engine.generate([PROMPT], params(), options=options)
    assert engine.cache.counts.free == engine.cache.num_blocks
    engine.warm([PROMPT])
    [again] = engine.generate([PROMPT], params(), options=options)
    assert again.usage.cached_tokens == 0
    assert output.token_ids == again.token_ids


def test_domains_do_not_share() -> None:
    engine = FakeEngine()
    engine.warm([PROMPT], options=RequestOptions(domain=Domain("acme")))
    [other] = engine.generate(
        [PROMPT], params(), options=RequestOptions(domain=Domain("other"))
    )
    assert other.usage.cached_tokens == 0


def test_a_reply_ends_at_a_stop_token_which_it_keeps() -> None:
    stop = expected_reply(PROMPT, 4)[3]
    engine = FakeEngine()
    [output] = engine.generate([PROMPT], params(20, stop_token_ids=(stop,)))
    assert output.finish_reason is FinishReason.STOP
    first = expected_reply(PROMPT, 20).index(stop)
    assert list(output.token_ids) == expected_reply(PROMPT, first + 1)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_reply_ends_at_the_models_own_end_token_unless_told_otherwise(
    *,
    ignore_eos: bool,
) -> None:
    end = expected_reply(PROMPT, 1)[0]
    engine = FakeEngine(eos_token_ids=frozenset({end}))
    [output] = engine.generate([PROMPT], params(5, ignore_eos=ignore_eos))
    assert len(output.token_ids) == (5 if ignore_eos else 1)


def test_a_reply_ends_where_the_model_does() -> None:
    engine = FakeEngine(max_model_len=18)
    [output] = engine.generate([PROMPT], params(10))
    assert len(output.token_ids) == 3
    assert output.finish_reason is FinishReason.LENGTH


def test_logits_are_kept_if_asked_for() -> None:
    engine = FakeEngine()
    [output] = engine.generate([PROMPT], params(5, return_logits=True))
    assert output.logits is not None
    assert output.logits.shape == (5, VOCAB_SIZE)
    assert tuple(output.logits.argmax(dim=1).tolist()) == output.token_ids


def test_times_are_in_order() -> None:
    engine = FakeEngine()
    [output] = engine.generate([PROMPT], params(5))
    timing = output.timing
    assert timing.ttft_s is not None
    assert timing.tpot_s is not None
    assert 0 < timing.queued_s < timing.ttft_s < timing.total_s
    assert 0 < 4 * timing.tpot_s < timing.total_s - timing.queued_s


def test_tokens_are_handed_out_step_by_step() -> None:
    engine = FakeEngine()
    request_id = engine.submit(PROMPT, params(4))
    seen = []
    while engine.has_work:
        engine.step()
        seen += [(new.request_id, new.token_id) for new in engine.take_new_tokens()]
        assert engine.take_new_tokens() == []
    assert seen == [(request_id, token) for token in expected_reply(PROMPT, 4)]


def test_blocks_can_be_found_as_soon_as_they_are_full() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=2, max_step_tokens=6))
    engine.submit(PROMPT, params(20))
    found = []
    for _ in range(9):
        engine.step()
        everything = [*PROMPT, *expected_reply(PROMPT, 20)]
        found.append(engine.lookup(everything).num_matched_tokens)
    # Computed are 6, 12, 15 and then one more each time.
    assert found == [4, 12, 12, 16, 16, 16, 16, 20, 20]


# -- warming and looking -------------------------------------------------------------------


def test_warming_computes_a_prompt_once_and_says_what_is_cached() -> None:
    engine = FakeEngine()
    assert engine.warm([[*PROMPT, 4, 4]]) == [16]
    assert engine.counters.num_computed_tokens == 17
    assert engine.lookup([*PROMPT, 4, 4]).num_hit_tokens == 16
    assert engine.lookup(PROMPT).num_hit_tokens == 12
    [output] = engine.generate([[*PROMPT, 4, 4]], params(1))
    assert output.usage.cached_tokens == 16
    assert engine.counters.num_computed_tokens == 18
    assert_nothing_is_held(engine)


def test_looking_changes_nothing() -> None:
    engine = FakeEngine()
    engine.warm([PROMPT])
    before = engine.cache.snapshot(), engine.cache.version(engine.fingerprint)
    engine.lookup([*PROMPT, 7])
    assert before == (engine.cache.snapshot(), engine.cache.version(engine.fingerprint))


# -- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ([VOCAB_SIZE], "position 0"),
        ([1, -1], "position 1"),
        ([1.5], "whole numbers"),
        ([[1]], "dimensions"),
        ([[1], [1, 2]], "flat list"),
        (["a"], "whole numbers"),
        ([2**70], "whole numbers"),
        (np.array([2**63], dtype=np.uint64), "whole numbers"),
        (np.array([True]), "whole numbers"),
        ("text", "tokenizer"),
        ([1] * 100, "max_model_len is 100"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_in_a_sentence(
    prompt: list[int], words: str
) -> None:
    engine = FakeEngine(max_model_len=100)
    with pytest.raises(RequestError, match=words):
        engine.submit(prompt)
    assert engine.num_open == 0


@pytest.mark.parametrize(
    ("num_prompt_blocks", "num_reply_blocks"), [(70, 1), (60, 10), (63, 1)]
)
def test_what_can_never_fit_is_refused_at_once(
    num_prompt_blocks: int, num_reply_blocks: int
) -> None:
    engine = FakeEngine(num_blocks=64, block_size=16)
    with pytest.raises(
        RequestError, match=r"1024 tokens \(64 blocks of 16\).*cache_memory"
    ):
        engine.submit([1] * (16 * num_prompt_blocks), params(16 * num_reply_blocks))
    assert engine.num_open == 0


def test_what_just_fits_is_served() -> None:
    engine = FakeEngine(num_blocks=64, block_size=16)
    [output] = engine.generate([[1] * (16 * 60)], params(63))
    assert len(output.token_ids) == 63


def test_generate_takes_a_list_and_as_many_parameters() -> None:
    engine = FakeEngine()
    with pytest.raises(RequestError, match="list of prompts"):
        engine.generate("text")
    with pytest.raises(RequestError, match="list of prompts"):
        engine.warm("text")
    with pytest.raises(RequestError, match="1 prompts but 2"):
        engine.generate([PROMPT], [params(), params()])


def test_if_one_prompt_is_refused_none_is_run() -> None:
    engine = FakeEngine()
    with pytest.raises(RequestError):
        engine.generate([PROMPT, [1] * 500], params())
    assert engine.num_open == 0
    assert engine.step() == []
    assert engine.runner.num_calls == 0


def test_a_full_queue_says_so() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_queued=2))
    engine.submit(PROMPT)
    first = engine.submit(PROMPT)
    with pytest.raises(QueueFullError, match=r"no more than 2 requests may wait"):
        engine.submit(PROMPT)
    engine.abort(first)
    engine.submit(PROMPT)


# -- ends before the end -------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", range(6))
def test_an_aborted_request_ends_once_and_leaves_what_it_computed(num_steps: int) -> None:
    engine = FakeEngine(
        scheduler=SchedulerConfig(max_running=2, max_step_tokens=8),
    )
    request_id = engine.submit(PROMPT, params(50))
    for _ in range(num_steps):
        assert engine.step() == []
    assert engine.abort(request_id)
    assert not engine.abort(request_id)
    assert_nothing_is_held(engine)
    [output] = engine.step()
    assert output.finish_reason is FinishReason.ABORTED
    assert list(output.token_ids) == expected_reply(PROMPT, max(0, num_steps - 1))
    num_computed = engine.counters.num_computed_tokens
    assert num_computed == [0, 8, 15, 16, 17, 18][num_steps]
    found = engine.lookup([*PROMPT, *output.token_ids, 0]).num_matched_tokens
    assert found == num_computed // 4 * 4


def test_an_unknown_request_cannot_be_aborted() -> None:
    assert not FakeEngine().abort(RequestId("request-7"))


def test_a_failed_steps_message_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    engine = FakeEngine()
    engine.submit(PROMPT, params())
    engine.runner.fails_at = {1}
    engine.step()
    assert "FakeRunnerError" in caplog.text
    assert "caught fire" not in caplog.text


def test_a_failed_step_fails_its_requests_and_publishes_nothing_of_it() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=2, max_step_tokens=8))
    request_id = engine.submit(PROMPT, params())
    engine.step()
    late = engine.submit([9] * 3, params(2), options=RequestOptions(tenant="late"))
    engine.runner.fails_at = {2}
    outputs = {output.request_id: output for output in engine.step()}
    failed = outputs[request_id]
    assert failed.finish_reason is FinishReason.FAILED
    assert failed.error == "the step failed with FakeRunnerError"
    assert engine.lookup(PROMPT).num_hit_tokens == 8
    assert_nothing_is_held(engine) if late in outputs else engine.check_invariants()
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
    assert outputs.keys() == {request_id, late}
    [again] = engine.generate([PROMPT], params())
    assert list(again.token_ids) == expected_reply(PROMPT, 6)
    assert engine.counters.num_failed_steps == 1


def test_a_bug_is_not_taken_for_a_failed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()

    def break_down(_: object) -> None:
        raise InvariantError("a bug")

    monkeypatch.setattr(engine.runner, "execute", break_down)
    with pytest.raises(InvariantError, match="a bug"):
        engine.generate([PROMPT])


def test_bad_logits_fail_their_request_only() -> None:
    engine = FakeEngine()

    def is_other(piece: SequenceSlice) -> bool:
        return int(piece.token_ids[0]) == 9

    engine.runner.spoils = is_other
    good, bad = engine.generate([PROMPT, [9] * 10], params())
    assert list(good.token_ids) == expected_reply(PROMPT, 6)
    assert bad.finish_reason is FinishReason.FAILED
    assert bad.error is not None
    assert "logits" in bad.error
    assert engine.lookup([9] * 10).num_hit_tokens == 0
    assert_nothing_is_held(engine)


def test_an_interruption_leaves_nothing_behind_and_the_engine_usable() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=2, max_step_tokens=8))
    other = engine.submit([7] * 3, params(2))
    engine.runner.interrupts_at = {3}
    with pytest.raises(KeyboardInterrupt):
        engine.generate([PROMPT, [9] * 10], params())
    engine.check_invariants()
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert [output.request_id for output in outputs] == [other]
    assert_nothing_is_held(engine)
    [again] = engine.generate([PROMPT], params())
    assert list(again.token_ids) == expected_reply(PROMPT, 6)


def test_outputs_of_other_requests_are_kept_while_generating() -> None:
    engine = FakeEngine()
    other = engine.submit([7] * 3, params(2))
    engine.generate([PROMPT], params())
    assert [output.request_id for output in engine.step()] == [other]


def test_a_closed_engine_holds_nothing_and_takes_nothing() -> None:
    engine = FakeEngine()
    engine.submit(PROMPT, params(50))
    engine.step()
    engine.submit([9] * 3)
    engine.close()
    engine.close()
    assert_nothing_is_held(engine)
    with pytest.raises(EngineStoppedError):
        engine.submit(PROMPT)
    with pytest.raises(EngineStoppedError):
        engine.step()


# -- forks ---------------------------------------------------------------------------------


def test_forks_go_on_from_where_their_parent_is() -> None:
    engine = FakeEngine()
    parent = engine.submit(PROMPT, params(8))
    for _ in range(3):
        engine.step()
    before = engine.counters.num_computed_tokens
    twins = engine.fork(parent, 2)
    engine.check_invariants()
    outputs: dict[RequestId, RequestOutput] = {}
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_invariants()
    assert outputs.keys() == {parent, *twins}
    for output in outputs.values():
        assert list(output.token_ids) == expected_reply(PROMPT, 8)
    assert engine.counters.num_computed_tokens == before + 3 * 5
    assert [outputs[twin].usage.cached_tokens for twin in twins] == [15, 15]


def test_forks_draw_differently() -> None:
    engine = FakeEngine()
    parent = engine.submit(PROMPT, params(20, temperature=100.0, seed=1))
    engine.step()
    twins = engine.fork(parent, 3)
    outputs: dict[RequestId, RequestOutput] = {}
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
    replies = [outputs[i].token_ids for i in (parent, *twins)]
    assert len(set(replies)) == 4
    assert len({reply[0] for reply in replies}) == 1


def test_a_queued_request_can_be_forked() -> None:
    engine = FakeEngine()
    parent = engine.submit(PROMPT, params(3))
    [twin] = engine.fork(parent)
    outputs: dict[RequestId, RequestOutput] = {}
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
    assert outputs[parent].token_ids == outputs[twin].token_ids


def test_forks_without_room_change_nothing() -> None:
    engine = FakeEngine(num_blocks=6)
    parent = engine.submit([1] * 17, params(3))
    engine.step()
    with pytest.raises(CapacityError, match="2 forks need 2 blocks"):
        engine.fork(parent, 2)
    engine.check_invariants()
    assert engine.num_open == 1
    few = FakeEngine(scheduler=SchedulerConfig(max_running=2))
    parent = few.submit(PROMPT, params(3))
    few.step()
    with pytest.raises(CapacityError, match="max_running"):
        few.fork(parent, 2)


def test_if_a_forks_copy_fails_there_is_no_fork_and_nothing_of_it_is_cached() -> None:
    engine = FakeEngine(block_size=8)
    parent = engine.submit(PROMPT, params(8))
    engine.step()
    engine.runner.fails_copies = True
    with pytest.raises(FakeRunnerError):
        engine.fork(parent, 2)
    engine.check_invariants()
    assert engine.num_open == 1
    assert engine.lookup([*PROMPT, 9]).num_hit_tokens == 8
    engine.abort(parent)
    [output] = engine.generate([[*PROMPT, 9]], params(8))
    assert list(output.token_ids) == expected_reply([*PROMPT, 9], 8)


def test_only_open_requests_can_be_forked() -> None:
    engine = FakeEngine()
    with pytest.raises(RequestError, match="no open request"):
        engine.fork(RequestId("request-1"))
    with pytest.raises(RequestError, match="at least 1"):
        engine.fork(engine.submit(PROMPT), 0)


# -- the long run --------------------------------------------------------------------------


def test_hundreds_of_different_prompts_pass_through_a_small_pool() -> None:
    engine = FakeEngine(num_blocks=64, block_size=16)
    for number in range(500):
        prompt = [number % 61, number // 61, *([3] * 98)]
        [output] = engine.generate([prompt], params(4))
        assert output.finish_reason is FinishReason.LENGTH
        counts = engine.cache.counts
        assert counts.private == counts.shared == 0
    assert engine.cache.snapshot().num_evictions > 0
    engine.check_invariants()
