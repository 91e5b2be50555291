"""The live what-if says what engines of other sizes hit, where it follows every block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor.what_if import FACTORS
from prefold.cache import PrefixCache
from prefold.engine.config import SchedulerConfig
from prefold.server.metrics import Metrics
from prefold.server.what_if import LiveWhatIf
from support.fake_engine import FakeEngine
from support.fingerprints import make_fingerprint
from support.own_ended import BLOCK_SIZE, hits_of, own_ended


def observed(cache: PrefixCache) -> Metrics:
    return Metrics(tenants={}, cost=cache.cost, what_if=LiveWhatIf(cache))


@given(
    prompts=own_ended(), num_spare=st.integers(1, 6), chunk=st.sampled_from([8, 24, 512])
)
def test_it_says_what_engines_of_other_sizes_hit(
    prompts: list[list[int]], num_spare: int, chunk: int
) -> None:
    # Every prompt fits into the smallest of them.
    num_blocks = 2 * (max(map(len, prompts)) + num_spare)
    scheduler = SchedulerConfig(max_running=1, max_step_tokens=chunk)
    made: list[Metrics] = []

    def watch(cache: PrefixCache) -> Metrics:
        made.append(observed(cache))
        return made[-1]

    hits = []
    for factor in FACTORS:
        engine = FakeEngine(
            num_blocks=int(num_blocks * factor),
            block_size=BLOCK_SIZE,
            scheduler=scheduler,
            policy="lru",
            observer=watch,
        )
        hits.append(sum(hits_of(engine, prompts)))
    live = made[FACTORS.index(1.0)].what_if
    assert live is not None
    live.check_invariants()
    found = live.read(make_fingerprint(block_size=BLOCK_SIZE))
    num_tokens = BLOCK_SIZE * sum(map(len, prompts))
    assert found.num_requests == len(prompts)
    assert [point.hit_rate for point in found.points] == pytest.approx(
        [count / num_tokens for count in hits]
    )
