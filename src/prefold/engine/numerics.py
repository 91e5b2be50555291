"""Numerics: what may move the last bit of a result, put in words.

Two processes whose numerics are equal, on one kind of machine, compute the same KV from
the same tokens; KV of unequal ones must not be mixed.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

import torch

from prefold.engine.activations import describe_activations
from prefold.engine.attention_plan import PARTITION
from prefold.engine.loading import LoadedModel
from prefold.engine.native import describe_attention
from prefold.engine.row_layers import describe_experts, describe_linear
from prefold.engine.row_norm import describe_norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The implementations, libraries and settings behind a model's results.

    Attributes:
        attention: Implementation of attention, with its kernel and version.
        partition_tokens: Keys it reduces at a time.
        linear: Implementations of linear layers.
        activation: Implementations of activations.
        norm: Implementation of root-mean-square norms.
        experts: Implementations of experts.
        device: Kind of device.
        instruction_set: What torch dispatches to on the CPU.
        blas: Library behind matrix products.
        torch_version: Of torch.
        torch_build: Digest of how torch was built.
        num_threads: Threads of torch.
        row_multiple: What rows are padded to.
    """

    attention: str
    partition_tokens: int
    linear: str
    activation: str
    norm: str
    experts: str
    device: str
    instruction_set: str
    blas: str
    torch_version: str
    torch_build: str
    num_threads: int
    row_multiple: int

    def describe(self) -> dict[str, str | int]:
        """Return every field under its name."""
        return asdict(self)


def read_numerics(loaded: LoadedModel, *, row_multiple: int) -> Numerics:
    """Return the numerics of a model in this process, as its threads are set now."""
    build = torch.__config__.show()
    is_cpu = loaded.device.type == "cpu"
    return Numerics(
        attention=describe_attention(loaded.attention),
        partition_tokens=PARTITION,
        linear=describe_linear(loaded.model),
        activation=describe_activations(loaded.model) if is_cpu else "torch",
        norm=describe_norms(loaded.model),
        experts=describe_experts(loaded.model),
        device=loaded.device.type if is_cpu else torch.cuda.get_device_name(loaded.device),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        # torch leaves this call without annotations.
        blas="mkl" if torch.backends.mkl.is_available() else "other",  # type: ignore[no-untyped-call]
        torch_version=torch.__version__,
        torch_build=hashlib.blake2b(build.encode(), digest_size=16).hexdigest(),
        num_threads=torch.get_num_threads(),
        row_multiple=row_multiple,
    )
