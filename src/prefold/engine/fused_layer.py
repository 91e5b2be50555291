"""Fused layer: a decoder layer in two compiled calls, with its attention in between.

Where rows are few, a layer's thirty calls of torch cost as much as reading its weights::

    states --- norm, q, k, v, rotary --> attention --- o, + states, norm, MLP, + --> states
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from prefold.engine import _kernels
from prefold.engine.attention import AttentionCall, AttentionSite
from prefold.engine.fused_mlp import fused_mlp_of
from prefold.engine.fusion import (
    Intactness,
    plain_forward,
)
from prefold.engine.packed_linear import PackedLinear
from prefold.engine.row_norm import NativeNorm
from prefold.errors import InvariantError

NORMS = ("input_layernorm", "post_attention_layernorm")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
LAYER_CLASSES: dict[str, type] = {
    **dict.fromkeys(NORMS, NativeNorm),
    **{f"self_attn.{name}": PackedLinear for name in PROJECTIONS},
}
#: What adapters may add to, in the order of their entries for a layer.
ADAPTED_PARTS = (
    *(f"self_attn.{name}" for name in PROJECTIONS),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)

_MLP_PARTS = ("gate_proj", "up_proj", "down_proj", "act_fn")
PARTS = (
    *NORMS,
    "self_attn",
    *(f"self_attn.{name}" for name in PROJECTIONS),
    "mlp",
    *(f"mlp.{name}" for name in _MLP_PARTS),
)

#: Keywords of a layer that a fused one uses, or that say nothing about its result: the
#: positions are in the rotary embeddings already.
_KNOWN = frozenset({"attention_site", "position_embeddings", "position_ids"})


class LayerInputs(NamedTuple):
    """What a layer is called with.

    Attributes:
        states: ``[1, rows, width]``, without gaps, as are the others.
        cosine: ``[1, rows, size of a head]``.
        sine: As ``cosine``.
        site: Where the attention happens.
    """

    states: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor
    site: AttentionSite


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Room for what a layer's attention takes: as it is computed, and heads first."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    query_heads: torch.Tensor
    key_heads: torch.Tensor
    value_heads: torch.Tensor


class LayerShape(NamedTuple):
    """Sizes and type of a layer; layers of one shape can use the same rows."""

    width: int
    heads: int
    kv_heads: int
    size: int
    dtype: torch.dtype


#: First row, one past the last, and what they pass.
AdaptedLayerRows = list[tuple[int, int, _kernels.LayerAdapter]]


@dataclass(frozen=True, slots=True)
class StackRun:
    """All layers of a model over the rows of a step, of float32.

    Attributes:
        stack: The layers.
        calls: How each calls its attention; the tensors only tell shapes.
        given: What the first layer is called with.
        rows: Room, which the last layer's keys and values are left in.
        out: Where the last layer's states go.
        adapted: Each layer's adapted rows.
    """

    stack: _kernels.Stack
    calls: tuple[AttentionCall, ...]
    given: LayerInputs
    rows: LayerRows
    out: torch.Tensor
    adapted: list[AdaptedLayerRows]


@runtime_checkable
class CompiledSite(Protocol):
    """An attention site that is compiled like the layers."""

    def run_stack(self, run: StackRun) -> None:
        """Run layers with the site's attention, in one call."""
        ...


class Passage(Protocol):
    """A pass through all layers of a model, of which layers know while it is open."""

    @property
    def is_open(self) -> bool:
        """Whether this thread is in it."""
        ...

    def hand_on(
        self, layer: FusedLayer, arguments: tuple[object, ...], keywords: Mapping[str, Any]
    ) -> object:
        """Return what a layer's call returns."""
        ...


class FusedLayer:
    """Takes the place of a decoder layer's ``forward``.

    Args:
        module: The layer; nothing is in the way of fusing it.
        facts: A call of its attention, for what does not change from call to call.

    Attributes:
        adapted: Rows of the step that pass an adapter. Set for a step by whoever runs it,
            where ``takes_adapters``.
        start: What is computed before its attention.
        end: What is computed after it.
        facts: As given.
        plain: The layer's own ``forward``.
        shape: Its sizes.
        stack: All layers of its model, where they run in one go.
    """

    __slots__ = (
        "_intactness",
        "adapted",
        "end",
        "facts",
        "plain",
        "shape",
        "stack",
        "start",
    )

    def __init__(self, module: nn.Module, facts: AttentionCall) -> None:
        attention = module.get_submodule("self_attn")
        query, key, value, out = (
            packed_of(attention.get_submodule(name)) for name in PROJECTIONS
        )
        first, second = (norm_of(module.get_submodule(name)).native for name in NORMS)
        mlp = fused_mlp_of(module.get_submodule("mlp"))
        if mlp is None:
            raise TypeError("a layer is fused only when its MLP is")
        self.facts = facts
        self.shape = LayerShape(
            width=query.in_features,
            heads=facts.query.shape[1],
            kv_heads=facts.key.shape[1],
            size=facts.query.shape[-1],
            dtype=facts.query.dtype,
        )
        self._intactness = Intactness(module, PARTS)
        self.plain: Callable[..., object] = plain_forward(module)
        self.start = _kernels.LayerStart(
            norm=first,
            query=query.native,
            key=key.native,
            value=value.native,
            head_size=self.shape.size,
        )
        self.end = _kernels.LayerEnd(projection=out.native, norm=second, mlp=mlp.native)
        self.adapted: AdaptedLayerRows = []
        self.stack: Passage | None = None

    @property
    def is_intact(self) -> bool:
        """Whether its parts are those it had, without hooks."""
        return self._intactness.holds()

    @property
    def takes_adapters(self) -> bool:
        """Whether ``adapted`` is heeded: a layer whose parts have changed runs plainly."""
        return self.shape.dtype is torch.float32 and self.is_intact

    def __call__(self, *arguments: object, **keywords: Any) -> object:
        """Return what the layer's class returns, with the same bits."""
        if self.stack is not None and self.stack.is_open:
            return self.stack.hand_on(self, arguments, keywords)
        given = self.inputs_of(arguments, keywords)
        if given is not None and self.is_intact:
            return self.run(*given)
        if self.adapted:
            raise InvariantError("a layer with adapters was called as no step calls it")
        return self.plain(*arguments, **keywords)

    def inputs_of(
        self, arguments: tuple[object, ...], keywords: Mapping[str, Any]
    ) -> LayerInputs | None:
        """Return what a call gives, or None if it is not one of those that are fused."""
        if len(arguments) != 1:
            return None
        states, site = arguments[0], keywords.get("attention_site")
        embeddings = keywords.get("position_embeddings")
        if (
            site is not None
            and isinstance(states, torch.Tensor)
            and type(embeddings) is tuple
            and len(embeddings) == 2
            and self._fits(states, *embeddings)
            and all(
                value is None or value is False or name in _KNOWN
                for name, value in keywords.items()
            )
        ):
            return LayerInputs(states, embeddings[0], embeddings[1], site)
        return None

    def run(
        self,
        states: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        site: AttentionSite,
    ) -> torch.Tensor:
        """Return the layer's new states, ``[1, rows, width]``; for what, see its inputs."""
        given = LayerInputs(states, cosine, sine, site)
        out = torch.empty_like(states)
        self.run_into(out, states, given, self.make_rows(states), torch.get_num_threads())
        return out

    def make_rows(self, states: torch.Tensor) -> LayerRows:
        """Return room for as many rows as there are states."""
        shape, count = self.shape, states.shape[1]
        query = states.new_empty((1, count, shape.heads, shape.size))
        key = states.new_empty((1, count, shape.kv_heads, shape.size))
        value = torch.empty_like(key)
        turned = (each.transpose(1, 2) for each in (query, key, value))
        return LayerRows(query, key, value, *turned)

    def run_into(
        self,
        out: torch.Tensor,
        states: torch.Tensor,
        given: LayerInputs,
        rows: LayerRows,
        num_threads: int,
    ) -> None:
        """Write the layer's new states for ``states``, which need not be those given."""
        facts = self.facts
        self.start.run(
            states,
            given.cosine,
            given.sine,
            rows.query,
            rows.key,
            rows.value,
            num_threads=num_threads,
            adapted=self.adapted,
        )
        attended = given.site.attend(
            AttentionCall(
                layer=facts.layer,
                query=rows.query_heads,
                key=rows.key_heads,
                value=rows.value_heads,
                scaling=facts.scaling,
                window=facts.window,
                softcap=facts.softcap,
                sinks=facts.sinks,
                is_causal=facts.is_causal,
                other_keywords=facts.other_keywords,
            )
        )
        self.end.run(
            states,
            attended.contiguous(),
            out,
            num_threads=num_threads,
            adapted=self.adapted,
        )

    def _fits(self, states: torch.Tensor, cosine: object, sine: object) -> bool:
        dtype, size = self.shape.dtype, self.shape.size
        return (
            states.ndim == 3
            and states.shape[0] == 1
            and states.dtype is dtype
            and states.is_contiguous()
            and all(
                isinstance(each, torch.Tensor)
                and each.dtype is dtype
                and each.shape == (1, states.shape[1], size)
                and each.is_contiguous()
                for each in (cosine, sine)
            )
        )


def fused_layer_of(module: nn.Module) -> FusedLayer | None:
    """Return the fused calls that a layer has been given, if it has any."""
    forward = vars(module).get("forward")
    return forward if isinstance(forward, FusedLayer) else None


def packed_of(module: nn.Module) -> PackedLinear:
    """Return a module that is a packed layer.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(module, PackedLinear):
        raise TypeError(f"a {type(module).__name__} is no packed layer")
    return module


def norm_of(module: nn.Module) -> NativeNorm:
    """Return a module that is a compiled norm.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(module, NativeNorm):
        raise TypeError(f"a {type(module).__name__} is no compiled norm")
    return module
