"""Adapters that set in somewhere in a prompt: what is before them is the model's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prefold.blocks.table import TOKEN_DTYPE
from prefold.cache import NO_CACHE, ApprovalTerms, ByField
from prefold.engine.activation import find_activation
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.loading import LoadedModel
from prefold.engine.request import RequestOutput, SamplingParams
from prefold.errors import RequestError
from prefold.identity.domain import Domain
from support.tiny_adapters import save_adapter
from support.tiny_engines import (
    TinyEngine,
    assert_equal_outputs,
    greedy,
    load_tiny,
    threads,
)
from support.tiny_models import VOCAB_SIZE, make_llama

pytestmark = pytest.mark.e2e

CALL = [7, 8, 9]
BEFORE = np.random.default_rng(1).integers(10, VOCAB_SIZE, 48).tolist()
AFTER = np.random.default_rng(2).integers(10, VOCAB_SIZE, 20).tolist()
#: Called at 48, a whole number of blocks.
CALLED = [*BEFORE, *CALL, *AFTER]
TWICE = [*CALLED, *CALL, 11, 12]
NEVER = [*BEFORE, *AFTER]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(make_llama(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def paths(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("adapters")
    return {
        "one": save_adapter(loaded, base / "one", seed=1, alora_invocation_tokens=CALL),
        "two": save_adapter(loaded, base / "two", seed=2, alora_invocation_tokens=CALL),
        "plain": save_adapter(loaded, base / "plain", seed=1),
    }


@pytest.fixture
def engine(loaded: LoadedModel, paths: dict[str, Path]) -> TinyEngine:
    return make_engine(loaded, paths)


def make_engine(
    loaded: LoadedModel, paths: dict[str, Path], num_blocks: int = 256, **more: int
) -> TinyEngine:
    engine = TinyEngine(loaded, num_blocks=num_blocks, scheduler=SchedulerConfig(**more))
    for name, path in paths.items():
        engine.adapters.load(name, path)
    return engine


def run(
    engine: TinyEngine, prompt: list[int], name: str | None, num_tokens: int = 6
) -> RequestOutput:
    output = engine.run(prompt, greedy(num_tokens), RequestOptions(adapter=name))
    engine.assert_nothing_is_held()
    return output


def alone(
    loaded: LoadedModel,
    paths: dict[str, Path],
    prompt: list[int],
    name: str | None,
    num_tokens: int = 6,
) -> RequestOutput:
    options = RequestOptions(adapter=name, access=NO_CACHE)
    return make_engine(loaded, paths).run(prompt, greedy(num_tokens), options)


@pytest.mark.parametrize(
    ("tokens", "call", "place"),
    [
        ([1, 2, 3], (1, 2), 0),
        ([1, 2, 1, 2], (1, 2), 2),
        ([1, 1, 1], (1, 1), 1),
        ([1, 2], (1, 2, 3), None),
        ([2, 1], (1, 2), None),
        ([1, 2, 1], (1, 2), 0),
        ([5], (5,), 0),
    ],
)
def test_the_last_call_counts(
    tokens: list[int], call: tuple[int, ...], place: int | None
) -> None:
    assert find_activation(np.array(tokens, TOKEN_DTYPE), call) == place


def test_what_is_before_is_shared_with_the_model_and_what_follows_is_not(
    engine: TinyEngine, loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    base = run(engine, CALLED, None)
    for first in ("one", "two"):
        output = run(engine, CALLED, first)
        assert output.usage.cached_tokens == 48
        assert_equal_outputs(output, alone(loaded, paths, CALLED, first))
        assert output.token_ids != base.token_ids
    for name in (None, "one", "two"):
        again = run(engine, CALLED, name)
        assert again.usage.cached_tokens == len(CALLED) - 1
        assert_equal_outputs(again, alone(loaded, paths, CALLED, name))


def test_the_model_hits_what_an_adapter_computed_before_it_set_in(
    engine: TinyEngine, loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    run(engine, CALLED, "one")
    output = run(engine, CALLED, None)
    assert output.usage.cached_tokens == 48
    assert_equal_outputs(output, alone(loaded, paths, CALLED, None))
    # An adapter that acts everywhere shares with neither.
    assert run(engine, CALLED, "plain").usage.cached_tokens == 0


def test_a_later_call_makes_an_earlier_one_text(
    engine: TinyEngine, loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    run(engine, CALLED, "one")
    output = run(engine, TWICE, "one")
    # The first call's KV is the adapter's, and not what the second one needs.
    assert output.usage.cached_tokens == 48
    assert_equal_outputs(output, alone(loaded, paths, TWICE, "one"))
    # By now the model's own is there up to the second call.
    assert run(engine, CALLED, None).usage.cached_tokens == len(CALLED) - 1


def test_a_prompt_without_a_call_is_the_models(
    engine: TinyEngine,
) -> None:
    base = run(engine, NEVER, None)
    output = run(engine, NEVER, "one")
    # Of the last block too few tokens agree to be worth a copy.
    assert output.usage.cached_tokens == 64
    assert_equal_outputs(output, base)


def test_replies_that_call_do_not_move_the_place(
    engine: TinyEngine, loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    first = run(engine, CALLED, "one", 40)
    # A conversation that goes on hits its own reply.
    more = [*CALLED, *first.token_ids, 5, 6]
    output = run(engine, more, "one")
    assert output.usage.cached_tokens >= len(CALLED) + 39 - 1
    assert_equal_outputs(output, alone(loaded, paths, more, "one"))


def test_any_mixture_in_small_memory_is_as_alone(
    loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    engine = make_engine(loaded, paths, 22, max_step_tokens=24, max_running=6)
    names = (None, "one", "two", "plain")
    jobs = [(p, name) for p in (CALLED, TWICE, NEVER) for name in names]
    wanted = [alone(loaded, paths, p, name, 24) for p, name in jobs]
    for _ in range(2):
        ids = [
            engine.submit(p, greedy(24), options=RequestOptions(adapter=name))
            for p, name in jobs
        ]
        outputs = {}
        while engine.has_work:
            for output in engine.step():
                outputs[output.request_id] = output
            engine.check_invariants()
        for request_id, each in zip(ids, wanted, strict=True):
            assert_equal_outputs(outputs[request_id], each)
    assert engine.counters.num_preemptions > 0
    engine.assert_nothing_is_held()


def test_forks_and_log_probabilities_see_tokens(
    engine: TinyEngine, loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    params = greedy(6, prompt_logprobs=1)
    options = RequestOptions(adapter="one")
    parent = engine.submit(CALLED, params, options=options)
    engine.step()
    [fork] = engine.fork(parent)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    wanted = alone(loaded, paths, CALLED, "one")
    assert {each.request_id for each in outputs} == {parent, fork}
    for each in outputs:
        assert_equal_outputs(each, wanted)
        assert each.prompt_logprobs is not None
        ids = [known.token_id for known in each.prompt_logprobs if known is not None]
        assert ids == CALLED[1:]
    stopped = engine.run(
        CALLED, SamplingParams(max_tokens=6, stop_token_ids=(wanted.token_ids[2],)), options
    )
    assert stopped.token_ids[-1:] == (wanted.token_ids[2],)


def test_what_it_has_cached_is_dropped_by_its_digest_and_nothing_else(
    engine: TinyEngine,
) -> None:
    for name in ("one", "two", None):
        run(engine, CALLED, name)
    digest = engine.adapters.get("one").digest
    running = engine.submit(TWICE, greedy(30), options=RequestOptions(adapter="one"))
    engine.step()
    receipt = engine.cache.invalidate(ByField(name="adapter", value=digest))
    engine.check_invariants()
    assert receipt.num_blocks >= 2
    while engine.has_work:
        assert all(each.request_id == running for each in engine.step())
    assert run(engine, CALLED, "one").usage.cached_tokens == 48
    assert run(engine, CALLED, "two").usage.cached_tokens == len(CALLED) - 1
    assert run(engine, CALLED, None).usage.cached_tokens == len(CALLED) - 1


def test_of_a_run_that_begins_before_the_call_only_that_part_stays(
    engine: TinyEngine,
) -> None:
    # One request leaves one run, in which the adapter sets in after three blocks.
    run(engine, CALLED, "one")
    assert run(engine, CALLED, "one").usage.cached_tokens > len(BEFORE)
    digest = engine.adapters.get("one").digest
    engine.cache.invalidate(ByField(name="adapter", value=digest))
    engine.check_invariants()
    assert run(engine, CALLED, "one").usage.cached_tokens == len(BEFORE)


def test_keys_hold_the_whole_digest(
    engine: TinyEngine, loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    other = make_engine(loaded, {"b": paths["two"], "a": paths["one"]})
    keys = []
    for each, name in ((engine, "one"), (other, "a"), (engine, "two")):
        filed = each._intake.file(each._intake.read(CALLED), name)
        of = each.cache.keys.of
        keys.append(of(filed.fingerprint, Domain("local"), filed.tokens))
        run(each, CALLED, name)
        if each is engine:
            assert each.cache.keys.find(keys[-1][-1]) is not None
    root = engine.cache.keys.of(
        engine.parts.fingerprint, Domain("local"), np.array(CALLED, TOKEN_DTYPE)
    )
    # Before it sets in, all are the model's; after, each adapter has its own.
    assert keys[0][:3] == keys[2][:3] == root[:3]
    assert len({keys[0][3], keys[2][3], root[3]}) == 3
    del other


def test_what_it_adds_cannot_be_approved(engine: TinyEngine) -> None:
    options = RequestOptions(domain=Domain("acme"), adapter="one")
    assert engine.lookup(CALLED, options=options).num_hit_tokens == 0
    terms = ApprovalTerms(label="x", pinned=False, ttl_s=None)
    with pytest.raises(RequestError, match="approve what is before it"):
        engine.submit(CALLED, options=replace(options, approval=terms))
