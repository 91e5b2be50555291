"""Exactness on a tiny Llama: whatever is reused, not a bit of the output changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest

from prefold.blocks.table import TOKEN_DTYPE, BlockId, TokenIds
from prefold.cache import READ_WRITE, Access
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.loading import LoadedModel
from prefold.engine.request import FinishReason, RequestOutput
from prefold.errors import PrefoldError
from prefold.identity.domain import Domain
from support.tiny_engines import (
    COLD,
    TinyEngine,
    assert_equal_outputs,
    greedy,
    load_tiny,
    threads,
)
from support.tiny_models import VOCAB_SIZE, make_llama

pytestmark = pytest.mark.e2e

SIZE = 16

#: Finds what is cached and leaves nothing behind.
LOOKING = RequestOptions(access=Access(read=True, write=False))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(make_llama(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture
def engine(loaded: LoadedModel) -> TinyEngine:
    return TinyEngine(loaded)


def draw(num_tokens: int, seed: int = 0) -> TokenIds:
    rng = np.random.default_rng(seed)
    return rng.integers(0, VOCAB_SIZE, num_tokens).astype(TOKEN_DTYPE)


def reusable(common: int) -> int:
    """What is hit of so many common tokens: under four inside a block are computed."""
    return common - common % SIZE if common % SIZE < 4 else common


def run_both(
    engine: TinyEngine, prompt: TokenIds, options: RequestOptions | None = None
) -> RequestOutput:
    """Run without the cache and then with it; assert equal bits; return the latter."""
    cold = engine.run(prompt, options=COLD)
    assert cold.usage.cached_tokens == 0
    warm = engine.run(prompt, options=options)
    assert_equal_outputs(warm, cold)
    return warm


# -- divergence ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_changed_token_leaves_what_stands_before_it(engine: TinyEngine) -> None:
    base = draw(3 * SIZE)
    engine.run(base)
    blocks = cached_blocks(engine, base)
    assert len(set(blocks)) == 3
    before = [engine.store.block_bytes(block) for block in blocks]
    for place in range(3 * SIZE):
        changed = base.copy()
        changed[place] = (changed[place] + 1) % VOCAB_SIZE
        output = run_both(engine, changed, LOOKING)
        assert output.usage.cached_tokens == reusable(place)
        assert [engine.store.block_bytes(block) for block in blocks] == before
    assert cached_blocks(engine, base) == blocks
    engine.assert_nothing_is_held()


def cached_blocks(engine: TinyEngine, tokens: TokenIds) -> list[BlockId]:
    domain = RequestOptions().domain
    keys = engine.cache.keys.of(engine.fingerprint, domain, tokens)
    blocks = [engine.cache.keys.find(key) for key in keys]
    assert None not in blocks
    return [block for block in blocks if block is not None]


def test_continuations_written_after_a_shared_block_do_not_reach_it(
    engine: TinyEngine,
) -> None:
    base = draw(2 * SIZE + 9)
    engine.run(base)
    blocks = cached_blocks(engine, base)
    before = [engine.store.block_bytes(block) for block in blocks]
    for seed in range(6):
        run_both(engine, np.concatenate((base, draw(11 + seed, seed + 1))))
        assert [engine.store.block_bytes(block) for block in blocks] == before
    assert run_both(engine, base).usage.cached_tokens == reusable(len(base) - 1)


def test_equal_text_of_other_tokens_shares_only_the_common_tokens(
    loaded: LoadedModel, engine: TinyEngine
) -> None:
    vocabulary = loaded.tokenizer.get_vocab()

    def tokens(*middle: str) -> TokenIds:
        pieces = [*"onesentence", *middle, *"andso"]
        return np.array([vocabulary[piece] for piece in pieces], dtype=TOKEN_DTYPE)

    merged, split, halves = tokens("abc"), tokens("a", "b", "c"), tokens("ab", "c")
    texts = {loaded.tokenizer.decode(each.tolist()) for each in (merged, split, halves)}
    assert texts == {"onesentenceabcandso"}
    engine.run(merged)
    for each in (split, halves):
        output = run_both(engine, each, LOOKING)
        assert output.usage.cached_tokens == len("onesentence")


# -- answers are not cached ------------------------------------------------------------


def test_one_prompt_with_eight_seeds_gives_eight_answers(engine: TinyEngine) -> None:
    prompt = draw(40)
    engine.run(prompt)
    answers = set()
    for seed in range(8):
        params = greedy(8, temperature=1.0, seed=seed)
        output = engine.run(prompt, params)
        assert output.usage.cached_tokens == len(prompt) - 1
        assert_equal_outputs(output, engine.run(prompt, params, COLD))
        answers.add(output.token_ids)
    assert len(answers) == 8


# -- sharing ---------------------------------------------------------------------------


def test_two_requests_hold_the_same_blocks_of_a_common_prompt(engine: TinyEngine) -> None:
    common = draw(512)
    prompts = [np.concatenate((common, draw(7, seed))) for seed in (1, 2)]
    cold = [engine.run(prompt, options=COLD) for prompt in prompts]
    engine.runner.plans.clear()
    outputs = engine.generate(prompts, greedy())
    for output, reference in zip(outputs, cold, strict=True):
        assert_equal_outputs(output, reference)
    both = [plan for plan in engine.runner.plans if len(plan) == 2]
    assert both
    for one, other in both:
        assert one[:32] == other[:32]
        assert not set(one[32:]) & set(other[32:])
    assert sum(output.usage.cached_tokens for output in outputs) == 512


# -- lengths ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length",
    [1, 2, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE - 1, 2 * SIZE, 2 * SIZE + 1, 10 * SIZE],
)
def test_a_prompt_of_any_length_hits_all_but_its_last_token(
    engine: TinyEngine, length: int
) -> None:
    prompt = draw(length)
    cold = engine.run(prompt, options=COLD)
    for hits in (0, reusable(length - 1), reusable(length - 1)):
        output = engine.run(prompt)
        assert output.usage.cached_tokens == hits
        assert output.usage.prompt_tokens == length
        assert_equal_outputs(output, cold)
    # Not the token that the reply began with, which is cached behind the prompt.
    other = np.array([(cold.token_ids[0] + 1) % VOCAB_SIZE], dtype=TOKEN_DTYPE)
    longer = run_both(engine, np.concatenate((prompt, other)))
    assert longer.usage.cached_tokens == reusable(length)
    engine.assert_nothing_is_held()


@pytest.mark.parametrize("length", [1, 2, SIZE, 3 * SIZE + 5, 10 * SIZE - 1])
def test_a_beginning_of_a_cached_prompt_hits_all_but_its_last_token(
    engine: TinyEngine, length: int
) -> None:
    whole = draw(10 * SIZE)
    engine.run(whole)
    output = run_both(engine, whole[:length])
    assert output.usage.cached_tokens == reusable(length - 1)


def test_a_chain_of_prompts_stays_exact_to_its_end(engine: TinyEngine) -> None:
    prompt = draw(21)
    known = np.empty(0, dtype=TOKEN_DTYPE)
    for link in range(12):
        output = run_both(engine, prompt)
        assert output.usage.cached_tokens == reusable(min(len(known), len(prompt) - 1))
        # As a conversation does: the reply, whose last token has no KV, and something new.
        reply = np.array(output.token_ids, dtype=TOKEN_DTYPE)
        known = np.concatenate((prompt, reply[:-1]))
        prompt = np.concatenate((prompt, reply, draw(5 + link, 100 + link)))
    engine.assert_nothing_is_held()


# -- endings ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", range(9))
def test_aborting_at_any_step_leaks_nothing(loaded: LoadedModel, num_steps: int) -> None:
    config = SchedulerConfig(max_step_tokens=24, max_running=4)
    engine = TinyEngine(loaded, num_blocks=12, scheduler=config)
    prompts = [draw(50), np.concatenate((draw(50)[:37], draw(20, 1))), draw(30, 2)]
    cold = [engine.run(prompt, greedy(3), COLD) for prompt in prompts]
    for victims in ({0}, {1}, {0, 2}, {0, 1, 2}):
        request_ids = [engine.submit(prompt, greedy(3)) for prompt in prompts]
        outputs = {}
        for _ in range(num_steps):
            outputs.update({output.request_id: output for output in engine.step()})
            engine.check_invariants()
        for victim in victims:
            engine.abort(request_ids[victim])
            engine.check_invariants()
        while engine.has_work:
            outputs.update({output.request_id: output for output in engine.step()})
        engine.assert_nothing_is_held()
        assert set(outputs) == set(request_ids)
        for index, request_id in enumerate(request_ids):
            output = outputs[request_id]
            if output.finish_reason is FinishReason.LENGTH:
                assert_equal_outputs(output, cold[index])
            else:
                assert output.finish_reason is FinishReason.ABORTED
                assert index in victims
    for prompt, reference in zip(prompts, cold, strict=True):
        assert_equal_outputs(engine.run(prompt, greedy(3)), reference)


@pytest.mark.slow
def test_500_prompts_pass_through_a_small_pool(loaded: LoadedModel) -> None:
    engine = TinyEngine(loaded, num_blocks=24)
    for seed in range(500):
        engine.run(draw(4 * SIZE, seed), greedy(1, return_logits=False))
        counts = engine.cache.counts
        assert (counts.private, counts.shared) == (0, 0)
    assert engine.cache.snapshot().num_evicted_blocks > 1_900
    engine.assert_nothing_is_held()


@pytest.mark.slow
def test_a_pool_too_small_for_all_preempts_and_stays_exact(loaded: LoadedModel) -> None:
    config = SchedulerConfig(max_step_tokens=64, max_running=8)
    engine = TinyEngine(loaded, num_blocks=11, scheduler=config)
    common = draw(20)
    prompts = [np.concatenate((common, draw(25 + seed, seed))) for seed in range(6)]
    cold = [engine.run(prompt, greedy(24), COLD) for prompt in prompts]
    for _ in range(2):
        outputs = engine.generate(prompts, greedy(24))
        for output, reference in zip(outputs, cold, strict=True):
            assert_equal_outputs(output, reference)
            assert 0 <= output.usage.cached_tokens < output.usage.prompt_tokens
        engine.assert_nothing_is_held()
    assert engine.counters.num_preemptions > 0


# -- silence ---------------------------------------------------------------------------

#: Neither as text nor as token ids may these be seen.
CANARY = "xylophonequartz"


def test_nothing_that_is_logged_or_raised_tells_a_prompt(
    loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = TinyEngine(loaded, num_blocks=16, has_tokenizer=True)
    canary_ids = loaded.tokenizer.encode(CANARY)
    seen: list[str] = []
    options = RequestOptions(domain=Domain("tenant", salt=CANARY.encode()))
    request_id = engine.submit(f"{CANARY} the one", greedy(3), options=options)
    engine.step()
    seen += [repr(engine._scheduler.running), repr(engine.take_new_tokens()), repr(options)]
    lease = engine._scheduler.running[0].held_lease
    seen += [repr(lease), repr(lease.miss), repr(engine.fork(request_id))]
    while engine.has_work:
        seen += [repr(output) for output in engine.step()]
    seen.append(repr(engine.lookup(CANARY)))
    for prompt in (
        CANARY * 40,
        CANARY * 400,
        "",
        [*canary_ids, VOCAB_SIZE],
        [*canary_ids, -1],
        [canary_ids, canary_ids],
        [str(canary_ids)],
    ):
        with pytest.raises(PrefoldError) as caught:
            engine.submit(prompt, greedy(3))  # type: ignore[arg-type]
        seen += [str(caught.value), repr(caught.value.__cause__)]
    seen += [record.getMessage() for record in caplog.records]
    needles = [CANARY, CANARY.encode().hex(), ", ".join(str(i) for i in canary_ids[:4])]
    for text in seen:
        assert not any(needle in text for needle in needles)


def test_a_step_that_fails_tells_nobody_about_the_prompt(
    loaded: LoadedModel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = TinyEngine(loaded)

    def burn(*_: object) -> None:
        raise RuntimeError("the device caught fire")

    monkeypatch.setattr(engine.runner, "execute", burn)
    prompt = draw(20)
    output = engine.run(prompt)
    assert output.finish_reason is FinishReason.FAILED
    monkeypatch.undo()
    engine.assert_nothing_is_held()
    ids = ", ".join(str(token_id) for token_id in prompt[:4].tolist())
    for text in [repr(output), output.error or "", caplog.text]:
        assert ids not in text
    # Nothing of the failed step was kept.
    assert run_both(engine, prompt).usage.cached_tokens == 0


def test_options_of_the_domain_keep_prompts_apart(engine: TinyEngine) -> None:
    prompt = draw(3 * SIZE)
    one, other = (
        RequestOptions(domain=Domain(name), access=READ_WRITE) for name in ("one", "other")
    )
    for options in (one, other):
        assert run_both(engine, prompt, options).usage.cached_tokens == 0
        hits = run_both(engine, prompt, options).usage.cached_tokens
        assert hits == reusable(len(prompt) - 1)
