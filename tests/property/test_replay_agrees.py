"""A replay and an engine agree, request by request, on the tokens that are hit.

The engine serves real prompts one after another from a pool that is too small for them;
the trace holds the ids of the same prompts' blocks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import replay
from prefold.engine.config import SchedulerConfig
from prefold.eviction.cost import PRIOR, PrefillCost
from prefold.eviction.registry import POLICIES
from support.fake_engine import FakeEngine
from support.own_ended import BLOCK_SIZE, OWN, hits_of, own_ended
from support.tiny_engines import TinyEngine, load_tiny
from support.tiny_models import make_llama
from support.traces import make_trace


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
