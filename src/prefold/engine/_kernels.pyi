import numpy as np
import numpy.typing as npt
import torch

PARTITION: int
MAX_SIZE: int

def kernel_names() -> list[str]: ...

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
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
        num_threads: int,
    ) -> None: ...
