"""Any mixture of adapters, budgets and orders gives every request the bits it has alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.loading import LoadedModel
from prefold.engine.request import RequestOutput
from support.tiny_adapters import ATTENTION, save_adapter
from support.tiny_engines import (
    COLD,
    TinyEngine,
    assert_equal_outputs,
    greedy,
    load_tiny,
    threads,
)
from support.tiny_models import make_llama

#: Two adapters, and a third that is the first under another name.
NAMES = ("a", "b", "same")

#: Few tokens, so that prompts agree in much; long enough for a block and a part.
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=40)
JOBS = st.lists(
    st.tuples(PROMPTS, st.sampled_from([None, *NAMES]), st.booleans()),
    min_size=1,
    max_size=6,
)

#: Each is some steps of a model; fewer than the profile's.
_NUM_EXAMPLES = settings().max_examples // 4

Key = tuple[tuple[int, ...], str | None]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def loaded(directory: Path) -> LoadedModel:
    return load_tiny(make_llama(num_hidden_layers=1), directory / "model")


@pytest.fixture(scope="module")
def paths(loaded: LoadedModel, directory: Path) -> dict[str, Path]:
    first = save_adapter(loaded, directory / "a", seed=1)
    second = save_adapter(
        loaded, directory / "b", seed=2, rank=3, targets=(*ATTENTION, "up_proj")
    )
    return {"a": first, "b": second, "same": first}


@pytest.fixture(scope="module")
def alone() -> dict[Key, RequestOutput]:
    return {}


def make_engine(
    loaded: LoadedModel, paths: dict[str, Path], budget: int = 512
) -> TinyEngine:
    engine = TinyEngine(
        loaded,
        num_blocks=24,
        scheduler=SchedulerConfig(max_step_tokens=budget, max_running=min(6, budget - 1)),
    )
    for name, path in paths.items():
        engine.adapters.load(name, path)
    return engine


def content_of(name: str | None) -> str | None:
    return "a" if name == "same" else name


def num_shared(one: list[int], other: list[int]) -> int:
    """Return how many whole-block or copyable tokens a later prompt may hit of another."""
    common = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        common += 1
    return common


@settings(max_examples=_NUM_EXAMPLES)
@given(JOBS, st.sampled_from([7, 16, 64]))
def test_every_request_has_the_bits_it_has_alone(
    loaded: LoadedModel,
    paths: dict[str, Path],
    alone: dict[Key, RequestOutput],
    jobs: list[tuple[list[int], str | None, bool]],
    budget: int,
) -> None:
    engine = make_engine(loaded, paths, budget)
    done: list[tuple[list[int], str | None]] = []
    while jobs:
        # Jobs up to the next pause run together.
        pause = next((i for i, job in enumerate(jobs) if job[2]), len(jobs) - 1)
        group, jobs = jobs[: pause + 1], jobs[pause + 1 :]
        ids = [
            engine.submit(prompt, greedy(3), options=RequestOptions(adapter=name))
            for prompt, name, _ in group
        ]
        outputs = {}
        while engine.has_work:
            for output in engine.step():
                outputs[output.request_id] = output
        engine.check_invariants()
        for request_id, (prompt, name, _) in zip(ids, group, strict=True):
            key = (tuple(prompt), name)
            if key not in alone:
                fresh = make_engine(loaded, {} if name is None else {name: paths[name]})
                options = RequestOptions(adapter=name, access=COLD.access)
                alone[key] = fresh.run(prompt, greedy(3), options)
            assert_equal_outputs(outputs[request_id], alone[key])
            # Only what the same content has computed can have been of use.
            of_same = [p for p, n in done if content_of(n) == content_of(name)]
            of_group = [p for p, n, _ in group if content_of(n) == content_of(name)]
            longest = max(
                (num_shared(prompt, [*p, *_replies(alone, p, name)]) for p in of_same),
                default=0,
            )
            if len(of_group) == 1:
                assert outputs[request_id].usage.cached_tokens <= longest
        done += [(prompt, name) for prompt, name, _ in group]


def _replies(
    alone: dict[Key, RequestOutput], prompt: list[int], name: str | None
) -> list[int]:
    """Return what was said to a prompt, which is cached behind it."""
    names = [n for n in (None, *NAMES) if content_of(n) == content_of(name)]
    known = [alone[tuple(prompt), n] for n in names if (tuple(prompt), n) in alone]
    return list(known[0].token_ids) if known else []


def test_both_ways_of_multiplying_agree(
    directory: Path, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = []
    for linear in ("torch", "cpu"):
        monkeypatch.setenv("PREFOLD_LINEAR", linear)
        loaded = load_tiny(make_llama(num_hidden_layers=1), directory / linear)
        engine = make_engine(loaded, paths)
        output = engine.run([1, 2] * 9, greedy(1), RequestOptions(adapter="b"))
        assert output.logits is not None
        logits.append(output.logits)
    one, other = logits
    assert torch.allclose(one, other, atol=1e-4)
