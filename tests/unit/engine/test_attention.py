from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

import numpy as np
import pytest
import torch
from torch import nn

from prefold.engine.attention import attend_to_site
from prefold.errors import InvariantError
from support.attention_cases import BLOCK_SIZE, Heads, Pool, attend_naively, make_prompt

CASES = {
    "one head a key": Heads(num_heads=2, num_kv_heads=2),
    "three heads a key": Heads(),
    "sixteen heads a key": Heads(num_heads=16, num_kv_heads=1),
    "window": Heads(window=37),
    "window of one": Heads(window=1),
    "window over a partition": Heads(window=300),
    "window of exactly a partition": Heads(window=256),
    "soft cap": Heads(softcap=3.0),
    "sinks": Heads(has_sinks=True),
    "other value size": Heads(num_heads=4, num_kv_heads=4, key_size=24, value_size=16),
    "all together": Heads(window=290, softcap=4.0, has_sinks=True, value_size=8),
}


@pytest.mark.parametrize("heads", CASES.values(), ids=CASES.keys())
def test_agrees_with_a_naive_softmax(heads: Heads) -> None:
    prompts = [make_prompt(heads, length, seed=length) for length in (530, 70, 1, 257)]
    pool = Pool(heads, prompts)

    pool.run([(0, 0, 300), (1, 0, 69), (3, 0, 256)])
    second = pool.run([(0, 300, 530), (1, 69, 70), (2, 0, 1), (3, 256, 257)])

    for got, prompt in zip(second, prompts, strict=True):
        expected = attend_naively(heads, prompt)[-len(got) :]
        torch.testing.assert_close(got.double(), expected, rtol=2e-5, atol=2e-5)


def test_reads_keys_from_the_pool_even_if_just_computed() -> None:
    heads = Heads()
    pool = Pool(heads, [make_prompt(heads, 40)])
    [whole] = pool.run([(0, 0, 40)])
    pool.store.value_view(0)[pool.tables[0][0], 0] += 1.0

    [tail] = pool.run([(0, 20, 40)])

    assert not torch.equal(tail, whole[20:])


def test_never_reads_what_lies_behind_a_sequence_or_in_other_blocks() -> None:
    heads = Heads()
    pool = Pool(heads, [make_prompt(heads, 100), make_prompt(heads, 90, seed=1)])
    [expected] = pool.run([(0, 0, 40)])
    for view in (pool.store.key_view(0), pool.store.value_view(0)):
        for blocks in (pool.tables[0][3:], pool.tables[1], [pool.store.scratch_block]):
            view[blocks] = torch.nan
        # A block may still hold, behind what its new owner wrote, what the last one did.
        view[pool.tables[0][2], 40 % BLOCK_SIZE :] = torch.nan

    [again] = pool.run([(0, 30, 40)])

    assert torch.equal(again, expected[30:])


def test_padding_rows_write_to_the_scratch_block_only() -> None:
    heads = Heads()
    pool = Pool(heads, [make_prompt(heads, 16)])

    pool.run([(0, 0, 1)])

    written = pool.store.key_view(0)[pool.tables[0][0]]
    assert written[0].any()
    assert not written[1:].any()


def test_calls_do_not_grow_with_the_context() -> None:
    heads = Heads()

    def count_calls(context: int) -> Counter[str]:
        prompts = [make_prompt(heads, context, seed=i) for i in range(16)]
        pool = Pool(heads, prompts)
        spans = [(i, context - 1, context) for i in range(16)]
        pool.run(spans)
        events: Counter[str] = Counter()

        def count(_frame: FrameType, event: str, _arg: object) -> None:
            events[event] += 1

        sys.setprofile(count)
        try:
            pool.run(spans)
        finally:
            sys.setprofile(None)
        return events

    few, many = count_calls(64), count_calls(2048)

    assert few["call"] == many["call"]
    assert few["c_call"] == many["c_call"]


def test_long_contexts_are_attended_to_in_several_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads = Heads()
    prompts = [make_prompt(heads, 300, seed=i) for i in range(4)]
    pool = Pool(heads, prompts)
    pool.run([(i, 0, 299) for i in range(4)])
    together = pool.run([(i, 299, 300) for i in range(4)])
    monkeypatch.setattr("prefold.engine.attention_plan._GROUP_KEYS", 700)
    monkeypatch.setattr("prefold.engine.attention_plan._TILE_SCORES", 1)

    apart = pool.run([(i, 299, 300) for i in range(4)])

    assert all(torch.equal(a, b) for a, b in zip(apart, together, strict=True))


def test_a_call_outside_a_step_is_a_bug() -> None:
    states = torch.zeros(1, 1, 1, 8)
    with pytest.raises(InvariantError, match="in steps"):
        attend_to_site(nn.Module(), states, states, states, None)


def test_tokens_are_packed_in_the_order_of_the_slices() -> None:
    heads = Heads()
    prompts = [make_prompt(heads, 20, seed=i) for i in range(3)]
    alone = [Pool(heads, [prompt]).run([(0, 0, 20)])[0] for prompt in prompts]

    pool = Pool(heads, prompts)
    pool.run([(1, 0, 19)])
    mixed = pool.run([(2, 0, 20), (1, 19, 20), (0, 0, 20)])

    for got, expected in zip(mixed, (alone[2], alone[1][19:], alone[0]), strict=True):
        assert torch.equal(got, expected)
    assert np.all([len(got) for got in mixed])
