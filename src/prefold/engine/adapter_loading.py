"""Adapter loading: from a directory that PEFT has saved to layers that can be computed.

Touches nothing that steps use, so it may take its time on another thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from prefold.engine.adapter import Adapter, AdapterHost, check_fits
from prefold.engine.adapter_config import CONFIG_NAME, read_adapter_config
from prefold.engine.adapter_weights import (
    WEIGHTS_NAME,
    MatrixPair,
    digest_adapter,
    read_pairs,
)
from prefold.engine.low_rank import LowRank, find_row_multiple
from prefold.engine.native import HAS_KERNELS
from prefold.engine.panels import PACKABLE_DTYPES, PanelMaker, wants_panels
from prefold.errors import ConfigError

if HAS_KERNELS:
    from prefold.engine.packed_linear import PackedLinear

_log = logging.getLogger(__name__)

_MAX_PATH_LENGTH = 4096

#: Makes a linear layer of a matrix ``[outputs, inputs]``.
_Maker = Callable[[torch.Tensor], nn.Module]


def load_adapter(path: str | os.PathLike[str], host: AdapterHost) -> Adapter:
    """Load the adapter in a directory for a model.

    Args:
        path: With ``adapter_config.json`` and ``adapter_model.safetensors``.
        host: What the model offers.

    Raises:
        ConfigError: It cannot be read, is no plain LoRA, or is for another model; one
            sentence.
    """
    directory = _directory(path)
    config = read_adapter_config(directory)
    targets = frozenset(name for name in host.linears if config.adapts(name))
    pairs = read_pairs(directory, config, targets)
    if not pairs:
        raise ConfigError(
            f"{WEIGHTS_NAME} has no matrices for any layer of this model; load the adapter "
            "beside the model it was trained on"
        )
    check_fits({name: pair.shape for name, pair in pairs.items()}, host)
    adapter = build_adapter(pairs, config.invocation, host)
    return replace(adapter, source=str(directory))


def build_adapter(
    pairs: Mapping[str, MatrixPair], invocation: tuple[int, ...] | None, host: AdapterHost
) -> Adapter:
    """Return an adapter of matrices that fit a model.

    Raises:
        ConfigError: A matrix holds numbers that the model's type has not.
    """
    converted = {name: _convert(name, pair, host) for name, pair in pairs.items()}
    layers, is_exact = _make_layers(converted, host)
    if not is_exact:
        _log.warning(
            "rows of an adapter's products have other bits in other batches; exactness is "
            "not promised for its requests"
        )
    return Adapter(
        digest=digest_adapter(pairs, invocation),
        shapes={name: pair.shape for name, pair in pairs.items()},
        dtype=host.dtype,
        layers=layers,
        rank=max(pair.rank for pair in pairs.values()),
        num_bytes=sum(
            half.numel() * half.itemsize
            for pair in converted.values()
            for half in (pair.down, pair.up)
        ),
        invocation=invocation,
        is_exact=is_exact,
    )


def _directory(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if not text or len(text) > _MAX_PATH_LENGTH or "\0" in text:
        raise ConfigError("an adapter is named by the path of its directory")
    directory = Path(text)
    if not directory.is_dir():
        raise ConfigError(
            f"{directory} is no directory; give the one with {CONFIG_NAME} and "
            f"{WEIGHTS_NAME}"
        )
    return directory


def _convert(name: str, pair: MatrixPair, host: AdapterHost) -> MatrixPair:
    halves = [
        half.to(device=host.device, dtype=host.dtype).contiguous()
        for half in (pair.down, pair.up)
    ]
    if not all(bool(torch.isfinite(half).all()) for half in halves):
        raise ConfigError(
            f"the matrices for {name[:120]} hold numbers too large for "
            f"{str(host.dtype)[6:]}"
        )
    return MatrixPair(down=halves[0], up=halves[1], scale=pair.scale)


def _make_layers(
    pairs: Mapping[str, MatrixPair], host: AdapterHost
) -> tuple[dict[str, LowRank], bool]:
    """Return the layers, and whether their rows keep their bits."""
    if wants_panels(host.device) and host.dtype in PACKABLE_DTYPES:
        make: _Maker = partial(_pack, PanelMaker())
        return {
            name: LowRank(make(pair.down), make(pair.up), pair.scale, 1)
            for name, pair in pairs.items()
        }, True
    layers: dict[str, LowRank] = {}
    #: By the sizes of both products, which decide how they are computed.
    multiples: dict[tuple[int, int, int], int | None] = {}
    for name, pair in pairs.items():
        down, up = _plain(pair.down), _plain(pair.up)
        sizes = (pair.down.shape[1], pair.rank, len(pair.up))
        if sizes not in multiples:
            multiples[sizes] = find_row_multiple(down, up, sizes[0])
        # Without a multiple that keeps bits, there is no need to pad.
        layers[name] = LowRank(down, up, pair.scale, multiples[sizes] or 1)
    return layers, None not in multiples.values()


def _pack(maker: PanelMaker, matrix: torch.Tensor) -> nn.Module:
    return PackedLinear(maker, maker.pack(matrix), len(matrix), None)


def _plain(matrix: torch.Tensor) -> nn.Module:
    layer = nn.Linear(matrix.shape[1], len(matrix), bias=False, device="meta")
    layer.weight = nn.Parameter(matrix.clone(), requires_grad=False)
    return layer
