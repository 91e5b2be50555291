"""Adapter weights: the matrices in ``adapter_model.safetensors``, paired and checked.

The file is read once and whole, so what is digested is what is computed with, whatever
becomes of the file. Pickled weights are never opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from prefold.engine.adapter_config import AdapterConfig
from prefold.engine.adapter_targets import LinearShape
from prefold.errors import ConfigError
from prefold.identity.encoding import Field, digest

WEIGHTS_NAME = "adapter_model.safetensors"

#: What PEFT wrote before, and what may hold code.
_PICKLED = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")

#: Begins each name; the model inside the one that PEFT wraps.
_PREFIX = "base_model.model."
_DOWN = ".lora_A.weight"
_UP = ".lora_B.weight"

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

#: Part of every digest. Raise it whenever what is computed of equal files changes.
_VERSION = 1

#: What other tensors in the file are for.
_OTHER_KINDS: Mapping[str, str] = {
    "lora_embedding_": "it adapts an embedding",
    "lora_magnitude_vector": "it is a DoRA adapter, which rescales the model's own weights",
    ".bias": "it has biases",
    "lora_": "it has matrices of a kind that is not known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPair:
    """The two matrices of one layer, and the factor of their product.

    Attributes:
        down: ``[rank, inputs]``.
        up: ``[outputs, rank]``.
    """

    down: torch.Tensor = field(repr=False)
    up: torch.Tensor = field(repr=False)
    scale: float

    @property
    def rank(self) -> int:
        return len(self.down)

    @property
    def shape(self) -> LinearShape:
        """Of the layer that they belong to."""
        return LinearShape(in_features=self.down.shape[1], out_features=len(self.up))


def read_pairs(
    directory: Path, config: AdapterConfig, targets: frozenset[str]
) -> Mapping[str, MatrixPair]:
    """Read the matrices of an adapter, by the names of the layers they belong to.

    Args:
        directory: Where PEFT has saved it.
        config: Of the adapter.
        targets: The model's layers that it names, all of which must be there.

    Raises:
        ConfigError: The file is missing, pickled or damaged, or its tensors are not those
            that the configuration announces; one sentence.
    """
    tensors = _read_tensors(directory)
    halves: dict[str, dict[str, torch.Tensor]] = {_DOWN: {}, _UP: {}}
    for name, tensor in tensors.items():
        module, kind = _split_name(name)
        halves[kind][module] = _checked(name, tensor)
    downs, ups = halves[_DOWN], halves[_UP]
    for module in sorted(targets | downs.keys() | ups.keys()):
        for kind, found in halves.items():
            if module not in found:
                raise ConfigError(
                    f"{WEIGHTS_NAME} lacks {module[:120]}{kind}; the file is not complete, "
                    f"or it is not the one that the configuration belongs to"
                )
    pairs = {
        module: MatrixPair(
            down=downs[module], up=ups[module], scale=config.scale_of(module)
        )
        for module in sorted(downs)
    }
    for module, pair in pairs.items():
        _check_pair(module, pair, config)
    return pairs


def digest_adapter(
    pairs: Mapping[str, MatrixPair], invocation: tuple[int, ...] | None
) -> bytes:
    """Return the digest of all that shapes what an adapter computes. Reads every byte."""
    return digest("adapter", _VERSION, invocation, *_fields(pairs))


def _fields(pairs: Mapping[str, MatrixPair]) -> Iterator[Field]:
    for module, pair in sorted(pairs.items()):
        halves = (_tensor_field(pair.down), _tensor_field(pair.up))
        yield (module, pair.scale, *halves)


def _tensor_field(tensor: torch.Tensor) -> Field:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return (str(tensor.dtype), tuple(tensor.shape), data)


def _read_tensors(directory: Path) -> Mapping[str, torch.Tensor]:
    path = directory / WEIGHTS_NAME
    try:
        # Whole: a mapped file could change, or end, under what is computed from it.
        return load(path.read_bytes())
    except FileNotFoundError as error:
        pickled = [name for name in _PICKLED if (directory / name).exists()]
        if pickled:
            raise ConfigError(
                f"{pickled[0]} is pickled, which can run code and is never read; save the "
                "adapter with safe_serialization=True"
            ) from error
        raise ConfigError(
            f"{directory} has no {WEIGHTS_NAME}; save the adapter again"
        ) from error
    except SafetensorError as error:
        raise ConfigError(
            f"{path} is damaged or was cut off ({error}); copy it again"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ConfigError(
            f"{path} cannot be read: {type(error).__name__}; copy it again"
        ) from error


def _split_name(name: str) -> tuple[str, str]:
    """Return the layer that a tensor belongs to, and which half it is."""
    for kind in (_DOWN, _UP):
        if name.startswith(_PREFIX) and name.endswith(kind):
            return name[len(_PREFIX) : -len(kind)], kind
    reason = next(
        (why for part, why in _OTHER_KINDS.items() if part in name),
        "it is not part of a LoRA adapter",
    )
    raise ConfigError(
        f"{WEIGHTS_NAME} has the tensor {name[:120]!r}, which cannot be served: {reason}"
    )


def _checked(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _DTYPES or tensor.ndim != 2 or 0 in tensor.shape:
        raise ConfigError(
            f"{WEIGHTS_NAME} has {name[:120]!r} as {str(tensor.dtype)[6:]} of shape "
            f"{tuple(tensor.shape)}, and it must be a matrix of floating-point numbers"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise ConfigError(
            f"{WEIGHTS_NAME} has values in {name[:120]!r} that are no finite numbers"
        )
    return tensor


def _check_pair(module: str, pair: MatrixPair, config: AdapterConfig) -> None:
    wanted, found = config.rank_of(module), (pair.rank, pair.up.shape[1])
    if found != (wanted, wanted):
        raise ConfigError(
            f"the configuration gives {module[:120]} the rank {wanted}, but its matrices "
            f"in {WEIGHTS_NAME} have {found[0]} and {found[1]}"
        )
    if not config.adapts(module):
        raise ConfigError(
            f"{WEIGHTS_NAME} has matrices for {module[:120]}, which is not among the "
            "target_modules of the configuration"
        )
