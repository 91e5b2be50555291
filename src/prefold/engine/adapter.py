"""Adapter: the low-rank layers of one version of an adapter, and what tells it apart.

A value: nothing in it ever changes, and whoever uses it keeps it. It fits any model whose
linear layers have its shapes, so it knows none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from prefold.engine.adapter_targets import LinearShape
from prefold.engine.low_rank import LowRank
from prefold.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterHost:
    """What a model offers to adapters.

    Attributes:
        linears: Its layers that can be adapted.
        dtype: Of its weights; adapters are converted to it.
    """

    linears: Mapping[str, LinearShape]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapter:
    """One version of an adapter, ready to be computed with.

    Attributes:
        digest: Of its weights, scales and invocation: all that shapes what it computes.
            Neither a name nor a path is in it.
        shapes: Of the linear layers it adds to.
        dtype: Of its matrices.
        layers: What it adds, by the names of those layers.
        rank: The largest of its layers'.
        num_bytes: Memory of its matrices.
        invocation: Token ids from whose last occurrence in a prompt on it acts; None
            where it acts on all of it.
        is_exact: Whether its rows keep their bits in any batch.
        source: The directory it was loaded from; no part of what it is.
    """

    digest: bytes
    shapes: Mapping[str, LinearShape] = field(repr=False)
    dtype: torch.dtype
    layers: Mapping[str, LowRank] = field(repr=False)
    rank: int
    num_bytes: int
    invocation: tuple[int, ...] | None = field(repr=False)
    is_exact: bool
    source: str = field(default="", repr=False)

    def misfit(self, host: AdapterHost) -> str | None:
        """Say in a sentence why it does not fit a model, or return None."""
        if self.dtype != host.dtype:
            return (
                f"it was loaded for a model of {self.dtype}, and this one has {host.dtype}"
            )
        return find_misfit(self.shapes, host)


def find_misfit(shapes: Mapping[str, LinearShape], host: AdapterHost) -> str | None:
    """Say in a sentence why layers of these shapes are not a model's, or return None."""
    for name, shape in sorted(shapes.items()):
        own = host.linears.get(name)
        if own is None:
            return (
                f"it adapts {name[:120]!r}, which is no linear layer of this model that "
                "every token passes once; load it beside the model it was trained on"
            )
        if own != shape:
            return (
                f"it adapts {name[:120]!r} as a layer of {shape.in_features} inputs and "
                f"{shape.out_features} outputs, which has {own.in_features} and "
                f"{own.out_features} in this model; load it beside the model it was "
                "trained on"
            )
    return None


def check_fits(shapes: Mapping[str, LinearShape], host: AdapterHost) -> None:
    """Refuse what belongs to another model.

    Raises:
        ConfigError: One sentence.
    """
    misfit = find_misfit(shapes, host)
    if misfit is not None:
        raise ConfigError(f"the adapter is for another model: {misfit}")
