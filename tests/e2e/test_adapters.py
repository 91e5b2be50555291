"""Adapters on a tiny Llama: each row is computed as alone, and as by merged weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prefold.cache import NO_CACHE
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.engine.native import HAS_KERNELS
from prefold.engine.prepared_model import PreparedModel
from prefold.engine.request import FinishReason, RequestId, RequestOutput
from support.tiny_adapters import ATTENTION, save_adapter, save_merged
from support.tiny_engines import (
    TinyEngine,
    assert_equal_outputs,
    greedy,
    load_tiny,
    threads,
)
from support.tiny_models import VOCAB_SIZE, make_llama, make_mixtral

pytestmark = pytest.mark.e2e

ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
NAMES = [None, *(f"a{number}" for number in range(8))]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(
    params=[
        "torch",
        pytest.param(
            "cpu", marks=pytest.mark.skipif(not HAS_KERNELS, reason="no kernels were built")
        ),
    ],
)
def loaded(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LoadedModel:
    monkeypatch.setenv("PREFOLD_LINEAR", request.param)
    return load_tiny(make_llama(), tmp_path / "model")


@pytest.fixture
def paths(loaded: LoadedModel, tmp_path: Path) -> dict[str, Path]:
    """Eight adapters of several ranks and targets."""
    return {
        name: save_adapter(
            loaded,
            tmp_path / name,
            seed=number,
            rank=(1, 4, 8, 17)[number % 4],
            targets=(ATTENTION, ALL, ("q_proj",), ("down_proj", "o_proj"))[number % 4],
        )
        for number, name in enumerate(NAMES)
        if name is not None
    }


def make_engine(loaded: LoadedModel, paths: dict[str, Path], **more: object) -> TinyEngine:
    engine = TinyEngine(loaded, **more)  # type: ignore[arg-type]
    for name, path in paths.items():
        engine.adapters.load(name, path)
    return engine


def drain(engine: TinyEngine) -> dict[RequestId, RequestOutput]:
    outputs = {}
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id] = output
    engine.assert_nothing_is_held()
    return outputs


def draw_prompts(num: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    # Half of them begin alike, so that what is shared could be shared wrongly.
    common = rng.integers(0, VOCAB_SIZE, 40).tolist()
    return [
        [*(common if index % 2 else []), *rng.integers(0, VOCAB_SIZE, 9 + index).tolist()]
        for index in range(num)
    ]


def test_eight_adapters_and_the_model_in_one_batch_are_each_as_alone(
    loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    prompts = draw_prompts(16)
    jobs = [(prompt, NAMES[index % 9]) for index, prompt in enumerate(prompts)]
    wide = SchedulerConfig(max_step_tokens=2048)
    engine = make_engine(loaded, paths, scheduler=wide)
    for access in (RequestOptions().access, NO_CACHE):
        ids = [
            engine.submit(p, greedy(8), options=RequestOptions(adapter=name, access=access))
            for p, name in jobs
        ]
        engine.step()
        # All in one packed batch, base rows among those of adapters.
        assert len(engine.runner.plans[-1]) == 16
        outputs = drain(engine)
        for request_id, (prompt, name) in zip(ids, jobs, strict=True):
            own = {} if name is None else {name: paths[name]}
            fresh = make_engine(loaded, own)
            alone = fresh.run(prompt, greedy(8), RequestOptions(adapter=name))
            assert alone.usage.cached_tokens == 0
            assert_equal_outputs(outputs[request_id], alone)
            warm = fresh.run(prompt, greedy(8), RequestOptions(adapter=name))
            assert warm.usage.cached_tokens >= len(prompt) - 1 - 16
            assert_equal_outputs(warm, alone)


def test_adapters_survive_chunks_preemption_and_eviction(
    loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    jobs = [(p, NAMES[index % 9]) for index, p in enumerate(draw_prompts(6))]
    small = SchedulerConfig(max_step_tokens=24, max_running=6)
    engine = make_engine(loaded, paths, num_blocks=10, scheduler=small)
    roomy = make_engine(loaded, paths)
    for _ in range(2):
        ids = [
            engine.submit(p, greedy(40), options=RequestOptions(adapter=name))
            for p, name in jobs
        ]
        outputs = drain(engine)
        for request_id, (prompt, name) in zip(ids, jobs, strict=True):
            options = RequestOptions(adapter=name, access=NO_CACHE)
            assert_equal_outputs(
                outputs[request_id], roomy.run(prompt, greedy(40), options)
            )
    assert engine.counters.num_preemptions > 0


def test_an_adapter_is_what_merged_weights_are(loaded: LoadedModel, tmp_path: Path) -> None:
    path = save_adapter(loaded, tmp_path / "a", targets=ALL, size=0.1, lora_alpha=6)
    merged = save_merged(tmp_path / "model", path, tmp_path / "merged", 6 / 4)
    loaded.tokenizer.save_pretrained(merged)
    prompt = draw_prompts(1)[0]
    engine = make_engine(loaded, {"a": path})
    plain = engine.run(prompt, greedy(6))
    ours = engine.run(prompt, greedy(6), RequestOptions(adapter="a"))
    theirs = TinyEngine(load_model(merged, LoadOptions())).run(prompt, greedy(6))
    assert ours.logits is not None
    assert theirs.logits is not None
    assert plain.logits is not None
    assert ours.token_ids == theirs.token_ids
    assert float((ours.logits - theirs.logits).abs().max()) < 1e-4
    assert float((ours.logits[0] - plain.logits[0]).abs().max()) > 0.1


def test_layers_of_experts_are_not_adapted_and_others_are(tmp_path: Path) -> None:
    loaded = load_tiny(make_mixtral(), tmp_path / "mixtral")
    assert {name.rpartition(".")[2] for name in loaded.linears} <= set(ATTENTION)
    path = save_adapter(loaded, tmp_path / "a")
    engine = make_engine(loaded, {"a": path})
    prompts = draw_prompts(4)
    ids = [
        engine.submit(p, greedy(4), options=RequestOptions(adapter=name))
        for p, name in zip(prompts, (None, "a", None, "a"), strict=True)
    ]
    outputs = drain(engine)
    for request_id, prompt, name in zip(ids, prompts, (None, "a", None, "a"), strict=True):
        fresh = make_engine(loaded, {"a": path})
        alone = fresh.run(prompt, greedy(4), RequestOptions(adapter=name))
        assert_equal_outputs(outputs[request_id], alone)


def test_a_swap_keeps_adapters_that_fit_and_hits_nothing_of_before(
    loaded: LoadedModel, paths: dict[str, Path], tmp_path: Path
) -> None:
    path = paths["a0"]
    other = load_tiny(make_llama(tie_word_embeddings=True), tmp_path / "other")
    engine = make_engine(loaded, {"a0": path})
    options = RequestOptions(adapter="a0")
    prompt = draw_prompts(1)[0] * 4
    engine.run(prompt, greedy(4), options)
    running = engine.submit(prompt, greedy(4), options=options)
    engine.step()
    queued = engine.submit(prompt, greedy(4), options=options)
    fresh = make_engine(other, {"a0": path})
    parts = replace(
        fresh.parts,
        cache=engine.cache,
        fingerprint=replace(engine.parts.fingerprint, weights=b"other"),
    )
    engine.swap(PreparedModel(parts=parts, limits=engine.config.limits), drain=False)
    engine.check_invariants()
    outputs = drain(engine)
    wanted = fresh.run(prompt, greedy(4), options)
    assert engine.adapters.names == ("a0",)
    assert outputs[running].finish_reason is FinishReason.ABORTED
    assert_equal_outputs(outputs[queued], wanted)
    assert outputs[queued].usage.cached_tokens == 0
    assert_equal_outputs(engine.run(prompt, greedy(4), options), wanted)


def test_a_swap_ends_requests_whose_adapter_does_not_fit(
    loaded: LoadedModel, paths: dict[str, Path]
) -> None:
    engine = make_engine(loaded, {"a0": paths["a0"]})
    queued = engine.submit(draw_prompts(1)[0], options=RequestOptions(adapter="a0"))
    host = replace(engine.adapters.needed_host(), linears={})
    parts = replace(
        engine.parts,
        adapter_host=host,
        fingerprint=replace(engine.parts.fingerprint, weights=b"other"),
    )
    engine.swap(PreparedModel(parts=parts, limits=engine.config.limits), drain=False)
    output = drain(engine)[queued]
    assert output.finish_reason is FinishReason.ABORTED
    assert output.error is not None
    assert "adapter does not fit" in output.error
    assert engine.adapters.names == ()
