"""The compiled kernel agrees with a naive softmax and with the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.attention_cases import (
    Heads,
    Pool,
    Prompt,
    Way,
    as_stored,
    attend_naively,
    make_prompt,
    share_prefix,
)
from support.kernels import KERNELS, needs_kernels

pytestmark = needs_kernels

CASES = {
    "one head a key": Heads(num_heads=2, num_kv_heads=2, key_size=32, value_size=32),
    "three heads a key": Heads(num_heads=9, num_kv_heads=3, key_size=64, value_size=64),
    "many heads a key": Heads(num_heads=71, num_kv_heads=1, key_size=64, value_size=64),
    "the largest heads": Heads(num_heads=2, num_kv_heads=1, key_size=256, value_size=256),
    "other value size": Heads(num_heads=4, num_kv_heads=4, key_size=96, value_size=128),
    "sizes that fill no vector": Heads(key_size=20, value_size=13),
    "window": Heads(window=37),
    "window of one": Heads(window=1),
    "window over a partition": Heads(window=300),
    "window of exactly a partition": Heads(window=256),
    "soft cap": Heads(softcap=3.0),
    "sinks": Heads(has_sinks=True),
    "all together": Heads(window=290, softcap=4.0, has_sinks=True, value_size=8),
}

WAYS = {
    "float32": Way(),
    "small blocks": Way(block_size=5),
    "large blocks": Way(block_size=48),
    "bfloat16": Way(dtype=torch.bfloat16),
    "float16 in large blocks": Way(dtype=torch.float16, block_size=32),
    "int8": Way(dtype=torch.int8),
    "int8 in small blocks": Way(dtype=torch.int8, block_size=5),
}


def _run_in_chunks(pool: Pool) -> list[torch.Tensor]:
    pool.run([(0, 0, 300), (1, 0, 69), (3, 0, 256)])
    return pool.run([(0, 300, 530), (1, 69, 70), (2, 0, 1), (3, 256, 257)])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_agrees_with_a_naive_softmax_and_the_reference(case: Heads, kernel: str) -> None:
    # As models scale: otherwise large heads have scores that float32 cannot hold better.
    heads = replace(case, scaling=case.key_size**-0.5)
    prompts = [make_prompt(heads, length, seed=length) for length in (530, 70, 1, 257)]

    ours = _run_in_chunks(Pool(heads, prompts, way=Way(kernel=kernel)))
    reference = _run_in_chunks(Pool(heads, prompts))

    for got, other, prompt in zip(ours, reference, prompts, strict=True):
        expected = attend_naively(heads, prompt)[-len(got) :]
        scale = expected.abs().max()
        assert (got - expected).abs().max() <= 1e-5 * scale
        assert (got - other).abs().max() <= 1e-5 * scale


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [12, 64])
def test_weights_that_are_next_to_nothing_change_no_others(kernel: str, size: int) -> None:
    # Scores far apart make weights down to the smallest numbers there are.
    heads = Heads(
        num_heads=6, num_kv_heads=2, key_size=size, value_size=size, scaling=24 / size
    )
    prompt = make_prompt(heads, 300)
    [got] = Pool(heads, [prompt], way=Way(kernel=kernel)).run([(0, 0, 300)])
    expected = attend_naively(heads, prompt)
    # An error of a score's last bit counts for more, the larger the score.
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_capped_score_is_as_exact_as_float32_allows(kernel: str) -> None:
    # Two keys, one of which scores 0: the logarithm of the weights' ratio is the other's
    # score. Averages over many keys would hide a wrong digit of tanh.
    cap = 20.0
    heads = Heads(
        num_heads=64, num_kv_heads=1, key_size=8, value_size=8, softcap=cap, scaling=1.0
    )
    query, key, value = torch.zeros(64, 2, 8), torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)
    query[:, 1, 0] = cap * torch.cat((torch.linspace(-1, 1, 40), torch.linspace(-4, 4, 24)))
    key[0, 0, 0] = value[0, 0, 0] = value[0, 1, 1] = 1.0
    prompt = Prompt(query=query, key=key, value=value)

    [rows] = Pool(heads, [prompt], way=Way(kernel=kernel)).run([(0, 0, 2)])

    weights = rows[1].double()
    scores = (weights[:, 0] / weights[:, 1]).log()
    expected = cap * torch.tanh(query[:, 1, 0].double() / cap)
    assert (scores - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_agrees_with_a_naive_softmax_over_what_is_stored(way: Way, kernel: str) -> None:
    heads = Heads(key_size=64, value_size=40, scaling=0.125)
    prompts = []
    for length in (530, 70, 1, 257):
        prompt = make_prompt(heads, length, seed=length)
        # Rounded once, so that storing rounds nothing.
        key, value = (as_stored(x, way.dtype) for x in (prompt.key, prompt.value))
        prompts.append(type(prompt)(query=prompt.query, key=key, value=value))
    pool = Pool(
        heads,
        prompts,
        way=Way(kernel=kernel, dtype=way.dtype, block_size=way.block_size),
    )

    for got, prompt in zip(_run_in_chunks(pool), prompts, strict=True):
        expected = attend_naively(heads, prompt)[-len(got) :]
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_storing_rounds_as_torch_does(kernel: str, dtype: torch.dtype) -> None:
    heads = Heads(num_heads=1, num_kv_heads=1, key_size=32, value_size=32)
    prompt = make_prompt(heads, 64)
    scale = torch.logspace(-8, 4.5, 64)[:, None]
    values = prompt.value * scale
    values[0, 0, :4] = torch.tensor([0.0, -0.0, 65519.0, 2.0**-25])
    prompt = type(prompt)(query=prompt.query, key=values, value=values)
    pool = Pool(heads, [prompt], way=Way(kernel=kernel, dtype=dtype))
    pool.run([(0, 0, 64)])
    for view in (pool.store.key_view(0), pool.store.value_view(0)):
        stored = view[pool.tables[0]].reshape(64, 32)
        wanted = values[0].to(dtype)
        assert torch.equal(stored.view(torch.int16), wanted.view(torch.int16))


def _hard_numbers() -> torch.Tensor:
    """Return ``[1, 64, 32]``: rows of every size, and ones that are hard to divide."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(1, 64, 32, generator=generator)
    numbers *= torch.logspace(-30, 30, 64)[:, None]
    numbers[0, 0] = 0.0
    # So small that the scale has hardly a bit left, or none.
    numbers[0, 1, 1:], numbers[0, 2, 1:] = 0.0, 0.0
    numbers[0, 1, 0], numbers[0, 2, 0] = 1e-45, -2e-43
    # Halves go to the even side; the largest stays what it is, on either side of zero.
    numbers[0, 3] = torch.arange(32) + 0.5
    numbers[0, 3, 0], numbers[0, 4, :2] = -127.0, torch.tensor([3e38, -3e38])
    numbers[0, 5, 7] = -0.0
    return numbers


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("block_size", [16, 5])
def test_int8_is_stored_as_the_reference_stores_it(kernel: str, block_size: int) -> None:
    heads = Heads(num_heads=1, num_kv_heads=1, key_size=32, value_size=32)
    numbers = _hard_numbers()
    prompt = Prompt(query=torch.ones(1, 64, 32), key=numbers, value=-numbers)
    found = []
    for name in (kernel, None):
        way = Way(kernel=name, dtype=torch.int8, block_size=block_size)
        pool = Pool(heads, [prompt], way=way)
        pool.run([(0, 0, 64)])
        for plane in (pool.store.keys(0), pool.store.values(0)):
            assert plane.scales is not None
            table = pool.tables[0]
            found.append(
                (
                    plane.view[table].reshape(-1, 32)[:64],
                    plane.scales[table].reshape(-1)[:64].view(torch.int32),
                )
            )
    for ours, reference in ((0, 2), (1, 3)):
        for got, wanted in zip(found[ours], found[reference], strict=True):
            assert torch.equal(got, wanted)
    assert found[0][0][3, 1:4].tolist() == [2, 2, 4]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_int8_cannot_make_a_number_of_what_is_none(kernel: str, bad: float) -> None:
    heads = Heads(num_heads=1, num_kv_heads=1, key_size=32, value_size=32)
    prompt = make_prompt(heads, 40)
    prompt.value[0, 7, 3] = bad
    for name in (kernel, None):
        pool = Pool(heads, [prompt], way=Way(kernel=name, dtype=torch.int8))
        pool.run([(0, 0, 40)])
        scales = pool.store.values(0).scales
        assert scales is not None
        written = scales[pool.tables[0]].reshape(-1)[:40]
        assert (~written.isfinite()).nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("kernel", KERNELS)
def test_never_reads_what_lies_behind_a_sequence_or_in_other_blocks(kernel: str) -> None:
    heads = Heads()
    prompts = [make_prompt(heads, 100), make_prompt(heads, 90, seed=1)]
    pool = Pool(heads, prompts, way=Way(kernel=kernel))
    [expected] = pool.run([(0, 0, 40)])
    for view in (pool.store.key_view(0), pool.store.value_view(0)):
        for blocks in (pool.tables[0][3:], pool.tables[1], [pool.store.scratch_block]):
            view[blocks] = torch.nan
        view[pool.tables[0][2], 40 % 16 :] = torch.nan

    [again] = pool.run([(0, 30, 40)])

    assert torch.equal(again, expected[30:])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_that_is_not_a_number_spoils_its_own_row_only(kernel: str) -> None:
    heads = Heads()
    prompt = make_prompt(heads, 40)
    pool = Pool(heads, [prompt], way=Way(kernel=kernel))
    [expected] = pool.run([(0, 0, 40)])
    prompt.query[:, 7] = torch.nan

    [rows] = pool.run([(0, 0, 40)])

    assert rows[7].isnan().all()
    assert torch.equal(rows[8:], expected[8:])
    assert torch.equal(rows[:7], expected[:7])


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_come_from_the_pool_and_shared_blocks_are_everybodys(kernel: str) -> None:
    heads = Heads()
    prompts = share_prefix([make_prompt(heads, 300, seed=i) for i in range(3)], 272)
    pool = Pool(heads, prompts, way=Way(kernel=kernel, shared_tokens=272))
    pool.run([(0, 0, 272)])
    spans = [(i, 272, 300) for i in range(3)]
    before = pool.run(spans)
    pool.store.value_view(0)[pool.tables[0][3], 0] += 1.0

    after = pool.run(spans)

    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
