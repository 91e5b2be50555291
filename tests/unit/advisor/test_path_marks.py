"""Marks of paths: equal for equal beginnings, and spread as if by chance."""

from __future__ import annotations

import itertools

import numpy as np

from prefold.advisor.path_marks import path_marks
from prefold.blocks.table import TOKEN_DTYPE


def marks(*block_marks: int, seed: int = 1) -> list[int]:
    return [
        int(mark) for mark in path_marks(np.array(block_marks, dtype=TOKEN_DTYPE), seed)
    ]


def test_equal_beginnings_have_equal_marks() -> None:
    assert marks(5, 6, 7)[:2] == marks(5, 6, 8)[:2]
    assert marks(5, 6, 7)[2] != marks(5, 6, 8)[2]
    assert marks() == []


def test_no_two_small_paths_have_a_mark_in_common() -> None:
    # Order, repetition and length all count, and so does who asks.
    paths = [
        path
        for length in (1, 2, 3, 4)
        for path in itertools.product((0, 1, 2), repeat=length)
    ]
    found = [marks(*path, seed=seed)[-1] for path in paths for seed in (0, 1, 3, -1)]
    assert len(set(found)) == len(found) == 4 * len(paths)


def test_a_limit_samples_its_share_of_very_regular_paths() -> None:
    # Ids that count up, as traces have them.
    found = path_marks(np.arange(100_000, dtype=TOKEN_DTYPE), seed=3)
    for share in (0.5, 0.1, 0.01):
        sampled = (found < np.uint64(int(share * 2**64))).mean()
        assert abs(sampled - share) < 4 * np.sqrt(share / len(found))
