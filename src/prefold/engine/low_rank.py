"""Low rank: what one adapter adds to one linear layer, with the same bits for every row.

::

    rows [n, inputs] -> A -> [n, rank] * scale -> B -> [n, outputs], added to the layer's

Both products are compiled layers where there are panels. Otherwise torch multiplies, and
rows are padded to a multiple that a probe found to keep their bits.
"""

from __future__ import annotations

import torch
from torch import nn

#: Row multiples that are tried for torch's products.
_MULTIPLES = (16, 32, 64)

#: Rows of the batches that are compared; those that are a multiple.
_COUNTS = (16, 32, 48, 64, 128, 192)


class LowRank:
    """The two matrices of an adapter for one layer.

    Args:
        down: A linear layer of ``[rank, inputs]``.
        up: A linear layer of ``[outputs, rank]``.
        scale: What the product is multiplied by.
        row_multiple: What rows are padded to a multiple of; 1 where no row matters to
            another.
    """

    __slots__ = ("_down", "_row_multiple", "_scale", "_up")

    def __init__(
        self, down: nn.Module, up: nn.Module, scale: float, row_multiple: int
    ) -> None:
        self._down = down
        self._up = up
        self._scale = scale
        self._row_multiple = row_multiple

    @property
    def layers(self) -> tuple[nn.Module, nn.Module, float]:
        """Both layers, and the factor between them."""
        return self._down, self._up, self._scale

    def add_to(self, outputs: torch.Tensor, rows: torch.Tensor) -> None:
        """Add to ``[n, outputs]``, in place, what ``[n, inputs]`` comes to."""
        num_rows = len(rows)
        rest = -num_rows % self._row_multiple
        if rest:
            rows = nn.functional.pad(rows, (0, 0, 0, rest))
        low = self._down(rows)
        # Apart from both products: a fused one may be rounded once instead of twice.
        low *= self._scale
        outputs += self._up(low)[:num_rows]


@torch.inference_mode()
def find_row_multiple(down: nn.Module, up: nn.Module, inputs: int) -> int | None:
    """Return the smallest tried row multiple at which both layers keep the bits of rows.

    Every row must come out the same in batches of any size, wherever it stands.

    Args:
        down: Of the shape in question, on the device and in the type it is served with.
        up: Its other half.
        inputs: Width of the rows.

    Returns:
        None if none of them does.
    """
    like = next(down.parameters())
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(max(_COUNTS), inputs, generator=generator).to(like)
    for multiple in _MULTIPLES:
        counts = [count for count in _COUNTS if count % multiple == 0]
        wanted = up(down(rows[: counts[0]]))
        if all(_keeps_bits(down, up, rows[: counts[0]], wanted, n) for n in counts):
            return multiple
    return None


def _keeps_bits(
    down: nn.Module, up: nn.Module, rows: torch.Tensor, wanted: torch.Tensor, count: int
) -> bool:
    """Compare with what the same rows come to in a batch of ``count``, turned and not."""
    num_times = -(-count // len(rows))
    for shift in range(len(rows)):
        turned = rows.roll(shift, 0).repeat(num_times, 1)[:count]
        expected = wanted.roll(shift, 0).repeat(num_times, 1)[:count]
        if not torch.equal(up(down(turned)), expected):
            return False
    return True
