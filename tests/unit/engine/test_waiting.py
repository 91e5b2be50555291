from __future__ import annotations

import numpy as np
import pytest

from prefold.cache import FrontierMatch, Lease, Lookup, MissKind, MissReason, PrefixCache
from prefold.engine.waiting import Wait, find_wait
from prefold.identity.domain import Domain
from support.fake_engine import FakeClock
from support.fingerprints import make_fingerprint

SIZE = 16


def make_lease() -> Lease:
    cache = PrefixCache(num_blocks=4, block_size=SIZE, clock=FakeClock())
    prompt = np.arange(40, dtype=np.int64)
    return cache.acquire(make_fingerprint(block_size=SIZE), Domain("acme"), prompt)


def found(num_matched: int, num_copied: int, common: int | None, owner: Lease) -> Lookup:
    return Lookup(
        num_matched_tokens=num_matched,
        num_hit_tokens=num_matched + num_copied,
        miss=MissReason(kind=MissKind.NEVER_SEEN, at_token=0),
        frontier=(
            None if common is None else FrontierMatch(owner=owner, num_common_tokens=common)
        ),
    )


@pytest.mark.parametrize(
    ("num_matched", "num_copied", "common", "num_tokens", "target"),
    [
        (0, 0, None, 100, None),
        (0, 0, 63, 1_000, None),
        (0, 0, 64, 1_000, 64),
        (0, 0, 79, 1_000, 64),
        (0, 0, 49, 100, None),
        (0, 0, 50, 100, 48),
        (64, 0, 127, 1_000, None),
        (64, 0, 128, 1_000, 128),
        (64, 8, 128, 1_000, None),
        # Less than a whole block to come.
        (32, 0, 47, 48, None),
        (0, 0, 15, 16, None),
    ],
)
def test_waiting_is_worth_64_tokens_or_half_of_what_is_uncached(
    num_matched: int,
    num_copied: int,
    common: int | None,
    num_tokens: int,
    target: int | None,
) -> None:
    owner = make_lease()
    wait = find_wait(found(num_matched, num_copied, common, owner), num_tokens, SIZE, None)
    assert wait == (None if target is None else Wait(owner=owner, num_target_tokens=target))


def test_who_waits_already_goes_on_for_the_rest() -> None:
    owner, other = make_lease(), make_lease()
    current = Wait(owner=owner, num_target_tokens=304)
    assert find_wait(found(288, 0, 310, owner), 1_000, SIZE, None) is None
    assert find_wait(found(288, 0, 310, owner), 1_000, SIZE, current) == current
    assert find_wait(found(288, 0, 310, other), 1_000, SIZE, current) == Wait(
        owner=other, num_target_tokens=304
    )
    # Somebody else who publishes less than what was waited for is a new wait.
    far = Wait(owner=owner, num_target_tokens=640)
    assert find_wait(found(288, 0, 310, other), 1_000, SIZE, far) is None


@pytest.mark.parametrize(
    ("num_published", "is_released", "is_over"),
    [(0, False, False), (1, False, True), (0, True, True)],
)
def test_a_wait_is_over_when_the_blocks_are_there_or_never_will_be(
    num_published: int, *, is_released: bool, is_over: bool
) -> None:
    owner = make_lease()
    owner.num_published = num_published
    owner.is_released = is_released
    assert Wait(owner=owner, num_target_tokens=SIZE).is_over == is_over
