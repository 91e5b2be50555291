"""Row tails: functions whose results depend on where in a tensor a number stands.

torch computes a few functions vector by vector, two at a time, and what is left at a
tensor's end by the C library, whose last bit may be another::

    sigmoid of 3 rows of 8      |--- 16 by vectors ---|- 8 by the library -|
    of the same rows in 4       |--- 16 by vectors ---|--- 16 by vectors --|

Rows keep their bits if they are padded to a number that leaves nothing over. Few inputs
show the difference, so the calls are looked at and not their results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.overrides import TorchFunctionMode

#: Functions of which torch's vectors and the C library were seen to differ.
_UNEVEN = frozenset(
    {"sigmoid", "sigmoid_", "silu", "silu_", "softplus", "gelu", "logsigmoid", "mish"}
)

#: Bytes of a vector, by torch's name of the instruction set; the shortest otherwise.
_VECTOR_BYTES = {"AVX512": 64, "AVX2": 32}


class TailWatch(TorchFunctionMode):
    """Looks at what is called while it is entered, on tensors of so many rows.

    Attributes:
        shares: Numbers that a row had in each uneven call, and those that torch takes at
            a time.
    """

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.shares: set[tuple[int, int]] = set()
        self._num_rows = num_rows

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        del types
        if getattr(func, "__name__", "") in _UNEVEN:
            numbers = args[0] if args else None
            if isinstance(numbers, torch.Tensor) and numbers.device.type == "cpu":
                self._note(numbers)
        return func(*args, **(kwargs or {}))

    def allows(self, multiple: int) -> bool:
        """Tell whether batches padded to a multiple leave nothing over in any call."""
        return all(multiple * share % at_once == 0 for share, at_once in self.shares)

    def _note(self, numbers: torch.Tensor) -> None:
        name = torch.backends.cpu.get_cpu_capability()
        at_once = 2 * _VECTOR_BYTES.get(name, 16) // numbers.element_size()
        share, rest = divmod(numbers.numel(), self._num_rows)
        # Of a tensor that is not a number of whole rows nothing is known.
        self.shares.add((1 if rest else share, at_once))
