"""Packed linear layers: a row's bits, whatever is computed with it, and their errors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefold.engine.native import HAS_KERNELS

if not HAS_KERNELS:
    pytest.skip("the kernels were not built", allow_module_level=True)

from prefold.engine import _kernels
from support.kernels import AMX, FUSED, KERNELS, needs_two_widths

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MOST_ROWS = 300


def open_panels(
    weight: torch.Tensor, bias: torch.Tensor | None, kernel: str
) -> _kernels.Panels:
    outputs, inputs = weight.shape
    num_panels = -(-outputs // 16)
    padded = None
    if bias is not None:
        padded = torch.zeros(num_panels * 16)
        padded[:outputs] = bias
    panels = _kernels.Panels(
        torch.empty(num_panels, inputs, 16, dtype=weight.dtype),
        outputs=outputs,
        bias=padded,
        workspace=_kernels.LinearWorkspace(),
        kernel=kernel,
    )
    panels.pack(weight, num_threads=2)
    return panels


def multiply(
    panels: _kernels.Panels, rows: torch.Tensor, outputs: int, num_threads: int
) -> torch.Tensor:
    out = torch.full((len(rows), outputs), float("nan"), dtype=rows.dtype)
    panels.multiply(rows, out, num_threads=num_threads)
    return out


def naive(
    weight: torch.Tensor, bias: torch.Tensor | None, row: torch.Tensor
) -> torch.Tensor:
    """Add products, steps of 32 and chunks of 128, as the portable kernel rounds."""
    products = (weight.float() * row).numpy()
    total = np.zeros(len(weight), np.float32)
    for first in range(0, products.shape[1], 128):
        steps = []
        for start in range(first, min(first + 128, products.shape[1]), 32):
            step = np.zeros(len(weight), np.float32)
            for number in range(start, min(start + 32, products.shape[1])):
                step += products[:, number]
            steps.append(step)
        chunk = steps[0]
        for step in steps[1:]:
            chunk = chunk + step
        total = chunk if first == 0 else total + chunk
    result = torch.from_numpy(total)
    return result if bias is None else result + bias


#: Which piece of a row is multiplied with which one of the weights, in this order: in every
#: step of a chunk, and then in every step once more.
SMALL, LARGE = ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0)), ((0, 0),)


def pieces(numbers: torch.Tensor) -> list[npt.NDArray[np.float32]]:
    """Split float32 into three bfloat16 that add up to it, as float32."""
    upper = np.uint32(0xFFFF0000)
    whole = numbers.float().numpy()
    first = (whole.view(np.uint32) & upper).view(np.float32)
    rest = whole - first
    second = ((rest.view(np.uint32) + np.uint32(0x8000)) & upper).view(np.float32)
    return [first, second, rest - second]


def naive_pieces(
    weight: torch.Tensor, bias: torch.Tensor | None, row: torch.Tensor
) -> torch.Tensor:
    """Add products of pieces, steps of 32 and chunks of 128, as AMX rounds."""
    inputs, padding = weight.shape[1], -weight.shape[1] % 32
    rows = [np.pad(piece, (0, padding)) for piece in pieces(row)]
    weights = [np.pad(piece, ((0, 0), (0, padding))) for piece in pieces(weight)]
    total = np.zeros(len(weight), np.float32)
    for first in range(0, inputs, 128):
        chunk = np.zeros(len(weight), np.float32)
        starts = range(first, min(first + 128, inputs), 32)
        for products, start in product((SMALL, LARGE), starts):
            step = slice(start, start + 32)
            for i, j in products:
                # A product of two bfloat16 is exact.
                exact = (weights[j][:, step] * rows[i][step]).reshape(-1, 2, 16)
                halves = np.add.accumulate(exact, axis=2)[:, :, -1]
                chunk += halves[:, 0] + halves[:, 1]
        total = chunk if first == 0 else total + chunk
    result = torch.from_numpy(total)
    return result if bias is None else result + bias


@pytest.mark.parametrize("kernel", _kernels.kernel_names())
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_count_and_thread_count_gives_the_same_bits(
    kernel: str, dtype: str
) -> None:
    generator = torch.Generator().manual_seed(1)
    outputs, inputs = 100, 300
    weight = torch.randn(outputs, inputs, generator=generator).to(DTYPES[dtype])
    bias = torch.randn(outputs, generator=generator)
    rows = torch.randn(MOST_ROWS, inputs, generator=generator)
    panels = open_panels(weight, bias, kernel)
    alone = torch.cat([multiply(panels, row[None], outputs, 1) for row in rows])
    assert torch.isfinite(alone).all()
    for count, threads in product(range(1, MOST_ROWS + 1), (1, 2, 3, 4)):
        found = multiply(panels, rows[:count], outputs, threads)
        assert torch.equal(found, alone[:count]), (count, threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A layer and rows for it."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    rows: torch.Tensor


@st.composite
def cases(draw: st.DrawFn, *, most_outputs: int = 300, most_rows: int = 260) -> Case:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    outputs, inputs = draw(st.integers(1, most_outputs)), draw(st.integers(1, 700))
    dtypes = st.sampled_from(sorted(DTYPES))
    num_rows = draw(st.integers(1, most_rows))
    return Case(
        weight=torch.randn(outputs, inputs, generator=generator).to(DTYPES[draw(dtypes)]),
        bias=torch.randn(outputs, generator=generator) if draw(st.booleans()) else None,
        rows=torch.randn(num_rows, inputs, generator=generator).to(DTYPES[draw(dtypes)]),
    )


@pytest.mark.parametrize("kernel", _kernels.kernel_names())
@given(case=cases(), first=st.integers(0, 300), threads=st.integers(1, 4))
def test_a_row_has_the_same_bits_in_every_batch(
    kernel: str, case: Case, first: int, threads: int
) -> None:
    outputs, rows = len(case.weight), case.rows
    panels = open_panels(case.weight, case.bias, kernel)
    found = multiply(panels, rows, outputs, threads)
    cut = min(first, len(rows) - 1)
    for part in (slice(cut, cut + 1), slice(cut, None), slice(0, cut + 1)):
        assert torch.equal(multiply(panels, rows[part], outputs, 1), found[part])
    unpacked = torch.empty_like(case.weight)
    panels.unpack(unpacked, num_threads=threads)
    assert torch.equal(unpacked, case.weight)


@needs_two_widths
@given(case=cases(), threads=st.integers(1, 3))
def test_wider_vectors_give_the_same_bits(case: Case, threads: int) -> None:
    found = [
        multiply(
            open_panels(case.weight, case.bias, kernel),
            case.rows,
            len(case.weight),
            threads,
        )
        for kernel in FUSED
    ]
    assert all(torch.equal(each, found[0]) for each in found[1:])


@given(case=cases(most_outputs=40, most_rows=1))
def test_the_portable_kernel_adds_in_the_order_that_is_promised(case: Case) -> None:
    panels = open_panels(case.weight, case.bias, "portable")
    row = case.rows.float()
    found = multiply(panels, row, len(case.weight), 1)
    assert torch.equal(found[0], naive(case.weight, case.bias, row[0]))


@pytest.mark.skipif(AMX not in KERNELS, reason="the processor multiplies no matrices")
@given(case=cases(most_outputs=40, most_rows=1), is_long=st.booleans())
def test_pieces_are_added_in_the_order_that_is_promised(
    *, case: Case, is_long: bool
) -> None:
    if is_long:
        generator = torch.Generator().manual_seed(len(case.weight))
        case = Case(
            weight=torch.randn(len(case.weight), 1000, generator=generator),
            bias=case.bias,
            rows=torch.randn(1, 1000, generator=generator),
        )
    panels = open_panels(case.weight, case.bias, AMX)
    row = case.rows.float()
    found = multiply(panels, row, len(case.weight), 1)
    assert torch.equal(found[0], naive_pieces(case.weight, case.bias, row[0]))


def test_pieces_lose_nothing() -> None:
    numbers = torch.randn(10_000) * 2.0 ** torch.randint(-60, 60, (10_000,))
    split = pieces(numbers)
    assert all(
        torch.equal(torch.from_numpy(p), torch.from_numpy(p).bfloat16().float())
        for p in split
    )
    assert np.array_equal(split[0] + (split[1] + split[2]), numbers.numpy())


@pytest.mark.parametrize("kernel", _kernels.kernel_names())
@pytest.mark.parametrize("is_first", [True, False])
def test_tiny_numbers_change_no_others(kernel: str, *, is_first: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(40, 96, generator=generator)
    rows = torch.randn(5, 96, generator=generator)
    tiny = 2.0 ** -torch.randint(100, 127, (5, 96), generator=generator)
    # In each step of 32, one half.
    is_tiny = (torch.arange(96) % 32 < 16) == is_first
    rows, expected = torch.where(is_tiny, rows * tiny, rows), rows * ~is_tiny
    for left, right in ((rows, weight), (torch.cat([rows] * 8), weight[:5])):
        found = multiply(open_panels(right, None, kernel), left, len(right), 1)
        exact = expected.repeat(len(left) // 5, 1).double() @ right.double().t()
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)
    found = multiply(open_panels(rows, None, kernel), weight, len(rows), 1)
    exact = weight.double() @ expected.double().t()
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kernel", _kernels.kernel_names())
@pytest.mark.parametrize("inputs", [576, 1536, 4096])
def test_errors_are_no_larger_than_torch_s(kernel: str, inputs: int) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(256, inputs, generator=generator)
    rows = torch.randn(64, inputs, generator=generator)
    exact = rows.double() @ weight.double().t()

    def error(result: torch.Tensor) -> float:
        return float((result - exact).square().mean().sqrt())

    own = error(multiply(open_panels(weight, None, kernel), rows, 256, 2))
    assert own <= error(rows @ weight.t())
