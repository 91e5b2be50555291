"""A replay and an engine agree, request by request, on the tokens that are hit.

The engine serves real prompts one after another from a pool that is too small for them;
the trace holds the ids of the same prompts' blocks. Each prompt fills its blocks and ends
with one of its own, since a replay knows nothing of what an engine does besides: copies
out of blocks that agree in part, and partial last blocks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import replay
from prefold.engine.config import SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.request import SamplingParams
from prefold.eviction.cost import PRIOR, PrefillCost
from prefold.eviction.registry import POLICIES
from support.fake_engine import FakeEngine
from support.tiny_engines import TinyEngine, load_tiny
from support.tiny_models import make_llama
from support.traces import make_trace

BLOCK_SIZE = 16
#: Block ids below it are common ones, above it a prompt's own.
OWN = 100


def tokens_of(block_id: int) -> list[int]:
    """Return the block's tokens; no two blocks begin with the same four."""
    first = [block_id] if block_id < OWN else [10 + block_id % 50, (block_id - OWN) // 50]
    return first + [(7 * block_id + place) % 60 for place in range(BLOCK_SIZE - len(first))]


def hits_of(engine: Engine, prompts: list[list[int]]) -> list[int]:
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    hits = []
    for prompt in prompts:
        token_ids = [token for block_id in prompt for token in tokens_of(block_id)]
        [output] = engine.generate([token_ids], params)
        hits.append(output.usage.cached_tokens)
    return hits


@st.composite
def own_ended(draw: st.DrawFn) -> list[list[int]]:
    prompts: list[list[int]] = []
    for number in range(draw(st.integers(2, 12))):
        earlier: list[int] = []
        if number > 0 and draw(st.booleans()):
            earlier = draw(st.sampled_from(prompts))
        middle = draw(st.lists(st.integers(0, 3), max_size=4))
        prompts.append([*earlier[:6], *middle, OWN + number])
    return prompts


@given(
    prompts=own_ended(), num_spare=st.integers(1, 8), chunk=st.sampled_from([8, 24, 512])
)
def test_a_replay_agrees_with_an_engine_under_pressure(
    prompts: list[list[int]], num_spare: int, chunk: int
) -> None:
    # The engine wants room for the reply, too.
    num_blocks = max(map(len, prompts)) + num_spare
    engine = FakeEngine(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        scheduler=SchedulerConfig(max_running=1, max_step_tokens=chunk),
        policy="lru",
    )
    result = replay(make_trace(prompts), "lru", num_blocks, PRIOR)
    assert result.hit_tokens.tolist() == hits_of(engine, prompts)
    snapshot = engine.cache.snapshot()
    assert snapshot.num_evicted_blocks == result.num_evicted_blocks


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replay_agrees_with_a_model(
    policy: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What steps really take is another each time.
    monkeypatch.setattr(PrefillCost, "note_step", lambda *_: None)
    rng = np.random.default_rng(5)
    systems = [[0, 1, 2], [1, 1], [2, 0, 3, 3]]
    prompts: list[list[int]] = []
    for number in range(60):
        old = prompts[int(rng.integers(len(prompts)))] if prompts else []
        start = old[:7] if rng.random() < 0.4 else systems[int(rng.integers(3))]
        prompts.append([*start, OWN + number])
    num_blocks = 24
    engine = TinyEngine(
        load_tiny(make_llama(), directory),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        policy=policy,
    )
    # The engine's clock stands still, and what was used at one time goes by its order.
    trace = make_trace(prompts, seconds_apart=0.0)
    result = replay(trace, policy, num_blocks, PRIOR)
    # Or nothing would have been shown.
    assert result.num_evicted_blocks > num_blocks
    assert 0.1 < result.hit_rate < 0.9
    assert result.hit_tokens.tolist() == hits_of(engine, prompts)
