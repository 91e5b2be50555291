"""A token's attention has one set of bits, whatever it is computed together with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefold.engine.thread_share import ScratchBuffers, even_length
from support.attention_cases import Heads, Pool, Way, make_prompt

LENGTH = 600

OPTIONS = (
    Heads(),
    Heads(window=100),
    Heads(window=300, softcap=3.0, has_sinks=True),
    Heads(num_heads=4, num_kv_heads=4, key_size=24, value_size=8),
)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


WAYS = (Way(), Way(dtype=torch.int8), Way(dtype=torch.bfloat16, block_size=7))


@given(
    heads=st.sampled_from(OPTIONS),
    way=st.sampled_from(WAYS),
    cuts=st.sets(st.integers(1, LENGTH - 1), max_size=5),
    single=st.integers(0, LENGTH - 1),
    stranger=st.integers(1, 300),
    threads=st.integers(1, 4),
)
@settings(max_examples=25)
def test_bits_do_not_depend_on_chunks_neighbours_or_threads(
    heads: Heads, way: Way, cuts: set[int], single: int, stranger: int, threads: int
) -> None:
    prompts = [make_prompt(heads, LENGTH), make_prompt(heads, stranger, seed=1)]
    torch.set_num_threads(2)
    [expected] = Pool(heads, prompts, way=way).run([(0, 0, LENGTH)])

    torch.set_num_threads(threads)
    pool = Pool(heads, prompts, seed=1, way=way)
    edges = sorted({0, LENGTH} | cuts)
    for number, (start, end) in enumerate(pairwise(edges)):
        company = [(1, 0, stranger)] if number % 2 else []
        rows = pool.run([*company, (0, start, end)])[-1]
        assert torch.equal(rows, expected[start:end])
    assert torch.equal(
        pool.run([(0, single, single + 1)])[0], expected[single : single + 1]
    )


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("heads", OPTIONS, ids=str)
def test_every_row_computed_alone_has_the_bits_of_the_whole(
    heads: Heads, threads: int
) -> None:
    torch.set_num_threads(threads)
    prompts = [make_prompt(heads, LENGTH)]
    pool = Pool(heads, prompts)
    [expected] = pool.run([(0, 0, LENGTH)])
    for start in (*range(0, LENGTH, 37), 255, 256, 257, 511, 512):
        for size in (1, 2, 17):
            end = min(start + size, LENGTH)
            [rows] = pool.run([(0, start, end)])
            assert torch.equal(rows, expected[start:end])


def test_scores_are_laid_out_so_that_no_thread_share_cuts_a_vector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A last bit of one weight among hundreds seldom shows, so the lengths are looked at.
    lengths = []
    take = ScratchBuffers.take

    def spy(
        scratch: ScratchBuffers, name: str, length: int, like: torch.Tensor
    ) -> torch.Tensor:
        if name == "scores":
            lengths.append(length)
        return take(scratch, name, length, like)

    monkeypatch.setattr(ScratchBuffers, "take", spy)
    torch.set_num_threads(3)
    heads = Heads(num_heads=5, num_kv_heads=5)
    Pool(heads, [make_prompt(heads, LENGTH)]).run([(0, 0, LENGTH)])

    assert len(lengths) > 1
    assert all(length == even_length(length, 3) for length in lengths)


def test_many_partitions_are_merged_in_one_order() -> None:
    heads = Heads(num_heads=2, num_kv_heads=2)
    length = 4120
    pool = Pool(heads, [make_prompt(heads, length)])
    pool.run([(0, 0, length)])
    for edge in range(1024, length, 256):
        # The tile's first rows have one partition less than its last ones.
        [together] = pool.run([(0, edge - 8, edge + 8)])
        alone = [pool.run([(0, at, at + 1)])[0] for at in range(edge - 8, edge + 8, 3)]
        assert torch.equal(torch.cat(alone), together[::3])


def test_bits_would_notice_another_cut_of_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [make_prompt(Heads(), LENGTH)]
    pool = Pool(Heads(), prompts)
    [expected] = pool.run([(0, 0, LENGTH)])

    monkeypatch.setattr("prefold.engine.attention_plan.PARTITION", 240)
    [moved] = pool.run([(0, LENGTH - 9, LENGTH)])

    torch.testing.assert_close(moved, expected[-9:], rtol=1e-5, atol=1e-5)
    assert not torch.equal(moved, expected[-9:])
