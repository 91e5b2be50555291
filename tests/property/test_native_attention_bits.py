"""The kernel gives a row one set of bits, whatever it is computed together with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.attention_cases import (
    Heads,
    Pool,
    Prompt,
    Way,
    make_prompt,
    share_prefix,
)
from support.kernels import AMX, FUSED, KERNELS, needs_kernels, needs_two_widths

pytestmark = needs_kernels

LENGTH = 600

#: Keys of a partition, written down again: moving the cut must not move the test.
PARTITION = 256

OPTIONS = (
    Heads(),
    Heads(window=100),
    Heads(window=300, softcap=3.0, has_sinks=True),
    Heads(num_heads=4, num_kv_heads=4, key_size=24, value_size=12),
    Heads(num_heads=40, num_kv_heads=1, value_size=40),
)

WAYS = tuple(
    Way(kernel=kernel, dtype=dtype, block_size=block_size)
    for kernel in KERNELS
    for dtype, block_size in (
        (torch.float32, 16),
        (torch.float32, 24),
        (torch.bfloat16, 16),
        (torch.float16, 7),
        (torch.int8, 16),
        (torch.int8, 7),
    )
) or (Way(),)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _same_bits(rows: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(rows.view(torch.int32), expected.view(torch.int32))


@given(
    heads=st.sampled_from(OPTIONS),
    way=st.sampled_from(WAYS),
    cuts=st.sets(st.integers(1, LENGTH - 1), max_size=5),
    single=st.integers(0, LENGTH - 1),
    stranger=st.integers(1, 300),
    threads=st.integers(1, 4),
)
@settings(max_examples=40)
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
        assert _same_bits(rows, expected[start:end])
    assert _same_bits(pool.run([(0, single, single + 1)])[0], expected[single : single + 1])


@given(
    heads=st.sampled_from(OPTIONS),
    way=st.sampled_from(WAYS),
    shared=st.integers(0, 1300),
    lengths=st.lists(st.integers(1, 20), min_size=2, max_size=20),
    steps=st.lists(st.integers(1, 17), min_size=1, max_size=3),
    threads=st.integers(1, 4),
)
@settings(max_examples=40)
def test_bits_do_not_depend_on_who_shares_blocks(
    heads: Heads,
    way: Way,
    shared: int,
    lengths: list[int],
    steps: list[int],
    threads: int,
) -> None:
    torch.set_num_threads(threads)
    shared -= shared % way.block_size
    drawn = [make_prompt(heads, shared + n, seed=i) for i, n in enumerate(lengths)]
    prompts = share_prefix(drawn, shared)
    together = Pool(heads, prompts, way=replace(way, shared_tokens=shared))
    if shared:
        together.run([(0, 0, shared)])
    # Sequences advance by different numbers of tokens, so rows of every kind meet.
    done = [shared] * len(prompts)
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    while any(at < prompt.num_tokens for at, prompt in zip(done, prompts, strict=True)):
        spans = []
        for i, prompt in enumerate(prompts):
            end = min(done[i] + steps[i % len(steps)], prompt.num_tokens)
            if end > done[i]:
                spans.append((i, done[i], end))
                done[i] = end
        for (i, _, _), part in zip(spans, together.run(spans), strict=True):
            rows[i].append(part)

    for i, prompt in enumerate(prompts):
        [alone] = Pool(heads, [prompt], way=way).run([(0, 0, prompt.num_tokens)])
        assert _same_bits(torch.cat(rows[i]), alone[shared:])


@needs_two_widths
@given(
    heads=st.sampled_from(OPTIONS),
    way=st.sampled_from(WAYS),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    shared=st.integers(0, 300),
)
@settings(max_examples=40)
def test_wider_vectors_give_the_same_bits(
    heads: Heads, way: Way, lengths: list[int], shared: int
) -> None:
    shared -= shared % way.block_size
    drawn = [make_prompt(heads, shared + n, seed=i) for i, n in enumerate(lengths)]
    prompts = share_prefix(drawn, shared)
    spans = [(i, shared, prompt.num_tokens) for i, prompt in enumerate(prompts)]
    found = []
    for kernel in FUSED:
        pool = Pool(heads, prompts, way=replace(way, kernel=kernel, shared_tokens=shared))
        if shared:
            pool.run([(0, 0, shared)])
        found.append(torch.cat(pool.run(spans)))
    assert all(_same_bits(each, found[0]) for each in found[1:])


@pytest.mark.parametrize("kernel", KERNELS)
def test_prefixes_of_prefixes_are_shared_with_the_same_bits(kernel: str) -> None:
    heads = Heads(num_heads=9, num_kv_heads=3)
    prompts = share_prefix([make_prompt(heads, 700, seed=i) for i in range(6)], 480)
    pool = Pool(heads, prompts, way=Way(kernel=kernel, shared_tokens=480))
    # Three of them go on together, and two of those once more.
    for i, tokens in ((1, 560), (2, 560), (1, 640)):
        pool.tables[i][: tokens // 16] = pool.tables[0][: tokens // 16]
        share = share_prefix([prompts[0], prompts[i]], tokens)
        prompts[i] = share[1]
    alone = [
        Pool(heads, [prompt], way=Way(kernel=kernel)).run([(0, 0, 700)])[0]
        for prompt in prompts
    ]
    for i in range(6):
        pool.run([(i, 0, 699)])

    together = pool.run([(i, 699, 700) for i in range(6)])

    for rows, whole in zip(together, alone, strict=True):
        assert _same_bits(rows, whole[699:])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_parts_are_merged_once_wherever_sequences_part(kernel: str, threads: int) -> None:
    torch.set_num_threads(threads)
    # They part within a partition, at its end, and partitions before their own ends.
    for shared in (256, 272, 512, 768):
        heads = Heads(num_heads=6, num_kv_heads=2)
        drawn = [make_prompt(heads, 1100, seed=i) for i in range(3)]
        prompts = share_prefix(drawn, shared)
        way = Way(kernel=kernel, shared_tokens=shared)
        pool = Pool(heads, prompts, way=way)
        pool.run([(0, 0, shared)])
        alone = [pool.run([(i, shared, 1100)])[0] for i in range(3)]
        for end in (1100, 1099, shared + 1, shared + 2, shared + 300):
            # A step of more partitions, whose sums are of no use to the next one.
            pool.run([(0, 1099, 1100)])
            spans = [(i, end - 1, end) for i in range(3)]
            for i, rows in enumerate(pool.run(spans)):
                assert _same_bits(rows, alone[i][end - 1 - shared : end - shared])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("group", [1, 3, 5, 7])
def test_a_few_tokens_of_sequences_that_share_have_the_bits_of_one_row(
    kernel: str, group: int
) -> None:
    # Whatever fits into tiles of registers, and what is left over.
    shared = 48
    heads = Heads(num_heads=2 * group, num_kv_heads=2, key_size=24, value_size=40)
    drawn = [make_prompt(heads, shared + 16, seed=i) for i in range(3)]
    prompts = share_prefix(drawn, shared)
    way = Way(kernel=kernel, shared_tokens=shared)
    pool = Pool(heads, prompts, way=way)
    pool.run([(0, 0, shared)])
    single = [
        torch.cat([pool.run([(i, at, at + 1)])[0] for at in range(shared, shared + 16)])
        for i in range(3)
    ]
    for count in range(1, 17):
        spans = [(i, shared, shared + count) for i in range(3)]
        for rows, expected in zip(pool.run(spans), single, strict=True):
            assert _same_bits(rows, expected[:count])
        [rows] = pool.run(spans[:1])
        assert _same_bits(rows, single[0][:count])


def _add_in_order(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    added: npt.NDArray[np.float32] = np.add.accumulate(values, axis=0)[-1]
    return added


def _add_in_steps(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Add the sums of steps of 32 keys, each of which has two halves."""
    zeros = np.zeros((-len(values) % 32, values.shape[1]), np.float32)
    steps = np.concatenate((values, zeros)).reshape(-1, 2, 16, values.shape[1])
    halves = np.add.accumulate(steps, axis=2)[:, :, -1]
    return _add_in_order(halves[:, 0] + halves[:, 1])


def _sum_in_partitions(
    values: npt.NDArray[np.float32], position: int, window: int | None, kernel: str | None
) -> npt.NDArray[np.float32]:
    """Add the values a row sees: in order inside a partition, then part by part."""
    low = 0 if window is None else max(position + 1 - window, 0)
    add = _add_in_steps if kernel == AMX else _add_in_order
    # What a row does not see counts as nothing, and steps are cut where they would be.
    seen = np.concatenate((np.zeros_like(values[:low]), values[low:]))
    total: npt.NDArray[np.float32] | None = None
    for start in range(low // PARTITION * PARTITION, position + 1, PARTITION):
        added = add(seen[start : min(start + PARTITION, position + 1)])
        total = added if total is None else total + added
    assert total is not None
    return total / np.float32(position + 1 - low)


@given(
    way=st.sampled_from(WAYS),
    window=st.none() | st.integers(1, 700),
    start=st.integers(0, 890),
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_sums_are_cut_at_multiples_of_the_partition_counted_from_position_0(
    way: Way, window: int | None, start: int, count: int, seed: int
) -> None:
    # Queries of zero weigh every key the same, and exactly; numbers of very different
    # size then show where a sum was cut, and in which order it was made.
    way = replace(way, dtype=torch.float32)
    heads = Heads(num_heads=2, num_kv_heads=1, value_size=8, window=window)
    end = start + count
    generator = np.random.default_rng(seed)
    values = generator.integers(-3, 4, (end, 8)) * 2.0 ** generator.integers(
        0, 26, (end, 8)
    )
    prompt = Prompt(
        query=torch.zeros(2, end, 16),
        key=torch.ones(1, end, 16),
        value=torch.from_numpy(values.astype(np.float32))[None],
    )
    pool = Pool(heads, [prompt], way=way)
    if start:
        pool.run([(0, 0, start)])

    [rows] = pool.run([(0, start, end)])

    for position in range(start, end):
        expected = _sum_in_partitions(prompt.value[0].numpy(), position, window, way.kernel)
        assert np.array_equal(rows[position - start, 0].numpy(), expected)
        assert np.array_equal(rows[position - start, 1].numpy(), expected)
