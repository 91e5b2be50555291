from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

PARTITION: int
MAX_SIZE: int

def kernel_names() -> list[str]: ...
def have_numbers(keys: torch.Tensor, values: torch.Tensor) -> bool: ...

class Step:
    def __init__(
        self,
        blocks: npt.NDArray[np.int32],
        table_lengths: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        *,
        block_size: int,
    ) -> None: ...
    @property
    def num_rows(self) -> int: ...

class Pool:
    def __init__(
        self, numbers: torch.Tensor, *, block_numbers: int, kernel: str
    ) -> None: ...
    def attend(
        self,
        step: Step,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        *,
        key_offset: int,
        value_offset: int,
        key_scale_offset: int | None,
        value_scale_offset: int | None,
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
        num_threads: int,
    ) -> None: ...

class AttentionSite:
    def __init__(
        self,
        pool: Pool,
        *,
        heads: int,
        kv_heads: int,
        key_size: int,
        value_size: int,
        key_offset: int,
        value_offset: int,
        key_scale_offset: int | None,
        value_scale_offset: int | None,
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> None: ...
    def attend(
        self,
        step: Step,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        *,
        num_threads: int,
    ) -> None: ...

PANEL_OUTPUTS: int

class LinearWorkspace:
    def __init__(self) -> None: ...

class Panels:
    def __init__(
        self,
        numbers: torch.Tensor,
        *,
        outputs: int,
        bias: torch.Tensor | None,
        workspace: LinearWorkspace,
        kernel: str,
    ) -> None: ...
    def pack(self, weight: torch.Tensor, *, num_threads: int) -> None: ...
    def unpack(self, weight: torch.Tensor, *, num_threads: int) -> None: ...
    def look_up(
        self, ids: torch.Tensor, out: torch.Tensor, *, num_threads: int
    ) -> None: ...
    def multiply(
        self, rows: torch.Tensor, out: torch.Tensor, *, num_threads: int
    ) -> None: ...

class Activation:
    def __init__(self, function: str, *, kernel: str) -> None: ...
    def apply(
        self, numbers: torch.Tensor, out: torch.Tensor, *, num_threads: int
    ) -> None: ...

class RowNorm:
    def __init__(self, weight: torch.Tensor, *, epsilon: float, kernel: str) -> None: ...
    def apply(self, rows: torch.Tensor, out: torch.Tensor, *, num_threads: int) -> None: ...

class Mlp:
    def __init__(
        self, *, gate: Panels, up: Panels, down: Panels, function: str
    ) -> None: ...
    def run(self, rows: torch.Tensor, out: torch.Tensor, *, num_threads: int) -> None: ...

class LayerAdapter:
    def __init__(
        self, low_ranks: Sequence[tuple[Panels, Panels, float] | None]
    ) -> None: ...

#: First row, one past the last, and what is added to their products.
_Adapted: TypeAlias = list[tuple[int, int, LayerAdapter]]

class LayerStart:
    def __init__(
        self, *, norm: RowNorm, query: Panels, key: Panels, value: Panels, head_size: int
    ) -> None: ...
    def run(
        self,
        states: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        num_threads: int,
        adapted: _Adapted = ...,
    ) -> None: ...

class LayerEnd:
    def __init__(self, *, projection: Panels, norm: RowNorm, mlp: Mlp) -> None: ...
    def run(
        self,
        states: torch.Tensor,
        attended: torch.Tensor,
        out: torch.Tensor,
        *,
        num_threads: int,
        adapted: _Adapted = ...,
    ) -> None: ...

class Stack:
    def __init__(self, starts: list[LayerStart], ends: list[LayerEnd]) -> None: ...
    def run(
        self,
        step: Step,
        sites: list[AttentionSite],
        states: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attended: torch.Tensor,
        spare: torch.Tensor,
        out: torch.Tensor,
        *,
        adapted: list[_Adapted],
        num_threads: int,
    ) -> bool: ...
