from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefold.engine.thread_share import ScratchBuffers, even_length


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@given(length=st.integers(1, 10**6), threads=st.integers(1, 24))
def test_every_share_of_an_even_length_is_whole_vectors(length: int, threads: int) -> None:
    even = even_length(length, threads)
    assert even >= length
    shares = min(threads, -(-even // 32768))
    for number in {shares, threads}:
        assert even % (32 * number) == 0


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_torch_gives_equal_bits_for_equal_elements_of_an_even_length(threads: int) -> None:
    torch.set_num_threads(threads)
    pattern = torch.randn(16) * 3
    for length in (16, 4096, 32784, 65552, 131152, 200000):
        states = pattern.repeat(even_length(length, threads) // 16 + 1)
        states = states[: even_length(length, threads)]
        for function in (torch.exp2, torch.nn.functional.silu, torch.sigmoid):
            rows = function(states)[: length // 16 * 16].view(-1, 16)
            assert torch.equal(rows, rows[:1].expand_as(rows))


def test_a_buffer_is_used_again_and_grows() -> None:
    scratch, like = ScratchBuffers(), torch.zeros(1)
    first = scratch.take("scores", 10, like)
    assert scratch.take("scores", 6, like).data_ptr() == first.data_ptr()
    assert scratch.take("scores", 20, like).numel() == 20
