"""Fused layer: a decoder layer in two compiled calls, with its attention in between.

Where rows are few, a layer's thirty calls of torch cost as much as reading its weights.
A layer is fused if its parts have the names and types of a Llama layer's, and if a trial
gives, bit for bit, what its own ``forward`` hands to the attention and returns::

    states --- norm, q, k, v, rotary --> attention --- o, + states, norm, MLP, + --> states
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from prefold.engine import _kernels
from prefold.engine.attention import AttentionCall, AttentionSite
from prefold.engine.fused_mlp import fused_mlp_of
from prefold.engine.fusion import (
    OTHER_BITS,
    Intactness,
    find_obstacles,
    plain_forward,
    set_forward,
)
from prefold.engine.linear import has_hooks
from prefold.engine.packed_linear import PackedLinear
from prefold.engine.row_norm import NativeNorm
from prefold.errors import InvariantError

_NORMS = ("input_layernorm", "post_attention_layernorm")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_CLASSES: dict[str, type] = {
    **dict.fromkeys(_NORMS, NativeNorm),
    **{f"self_attn.{name}": PackedLinear for name in _PROJECTIONS},
}
#: What adapters may add to, in the order of their entries for a layer.
ADAPTED_PARTS = (
    *(f"self_attn.{name}" for name in _PROJECTIONS),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)

_MLP_PARTS = ("gate_proj", "up_proj", "down_proj", "act_fn")
_PARTS = (
    *_NORMS,
    "self_attn",
    *(f"self_attn.{name}" for name in _PROJECTIONS),
    "mlp",
    *(f"mlp.{name}" for name in _MLP_PARTS),
)

#: Keywords of a layer that a fused one uses, or that say nothing about its result: the
#: positions are in the rotary embeddings already.
_KNOWN = frozenset({"attention_site", "position_embeddings", "position_ids"})

#: Rows of the trial.
_TRIAL_ROWS = 5


class TrialSite:
    """Attention that keeps what it was asked for, and answers the same random numbers."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(self, call: AttentionCall) -> torch.Tensor:
        self.calls.append(call)
        _, heads, rows, _ = call.query.shape
        shape = (1, rows, heads, call.value.shape[-1])
        generator = torch.Generator().manual_seed(1)
        return torch.randn(shape, generator=generator).to(call.query.dtype)


class FusedLayer:
    """Takes the place of a decoder layer's ``forward``.

    Args:
        module: The layer; nothing is in the way of fusing it.
        facts: A call of its attention, for what does not change from call to call.

    Attributes:
        adapted: Rows of the step that pass an adapter. Set for a step by whoever runs it,
            where ``takes_adapters``.
    """

    __slots__ = (
        "_dtype",
        "_end",
        "_facts",
        "_heads",
        "_intactness",
        "_size",
        "_start",
        "adapted",
        "plain",
    )

    def __init__(self, module: nn.Module, facts: AttentionCall) -> None:
        attention = module.get_submodule("self_attn")
        query, key, value, out = (
            _packed(attention.get_submodule(name)).native for name in _PROJECTIONS
        )
        first, second = (_norm(module.get_submodule(name)).native for name in _NORMS)
        mlp = fused_mlp_of(module.get_submodule("mlp"))
        if mlp is None:
            raise TypeError("a layer is fused only when its MLP is")
        self._facts = facts
        self._size = facts.query.shape[-1]
        self._heads = (facts.query.shape[1], facts.key.shape[1])
        self._dtype = facts.query.dtype
        self._intactness = Intactness(module, _PARTS)
        self.plain: Callable[..., object] = plain_forward(module)
        self._start = _kernels.LayerStart(
            norm=first, query=query, key=key, value=value, head_size=self._size
        )
        self._end = _kernels.LayerEnd(projection=out, norm=second, mlp=mlp.native)
        self.adapted: list[tuple[int, int, _kernels.LayerAdapter]] = []

    @property
    def takes_adapters(self) -> bool:
        """Whether ``adapted`` is heeded: a layer whose parts have changed runs plainly."""
        return self._dtype is torch.float32 and self._intactness.holds()

    def __call__(self, *arguments: object, **keywords: Any) -> object:
        """Return what the layer's class returns, with the same bits."""
        if len(arguments) == 1:
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
                and self._intactness.holds()
            ):
                return self.run(states, embeddings[0], embeddings[1], site)
        if self.adapted:
            raise InvariantError("a layer with adapters was called as no step calls it")
        return self.plain(*arguments, **keywords)

    def run(
        self,
        states: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        site: AttentionSite,
    ) -> torch.Tensor:
        """Return the layer's new states, ``[1, rows, width]``.

        Args:
            states: ``[1, rows, width]``, without gaps, as are the others.
            cosine: ``[1, rows, size of a head]``.
            sine: As ``cosine``.
            site: Where the attention happens.
        """
        num_threads = torch.get_num_threads()
        rows, facts = states.shape[1], self._facts
        heads, kv_heads = self._heads
        query = states.new_empty((1, rows, heads, self._size))
        key = states.new_empty((1, rows, kv_heads, self._size))
        value = torch.empty_like(key)
        self._start.run(
            states,
            cosine,
            sine,
            query,
            key,
            value,
            num_threads=num_threads,
            adapted=self.adapted,
        )
        attended = site.attend(
            AttentionCall(
                layer=facts.layer,
                query=query.transpose(1, 2),
                key=key.transpose(1, 2),
                value=value.transpose(1, 2),
                scaling=facts.scaling,
                window=facts.window,
                softcap=facts.softcap,
                sinks=facts.sinks,
                is_causal=facts.is_causal,
                other_keywords=facts.other_keywords,
            )
        )
        out = torch.empty_like(states)
        self._end.run(
            states,
            attended.contiguous(),
            out,
            num_threads=num_threads,
            adapted=self.adapted,
        )
        return out

    def _fits(self, states: torch.Tensor, cosine: object, sine: object) -> bool:
        return (
            states.ndim == 3
            and states.shape[0] == 1
            and states.dtype is self._dtype
            and states.is_contiguous()
            and all(
                isinstance(each, torch.Tensor)
                and each.dtype is self._dtype
                and each.shape == (1, states.shape[1], self._size)
                and each.is_contiguous()
                for each in (cosine, sine)
            )
        )


def fused_layer_of(module: nn.Module) -> FusedLayer | None:
    """Return the fused calls that a layer has been given, if it has any."""
    forward = vars(module).get("forward")
    return forward if isinstance(forward, FusedLayer) else None


@torch.inference_mode()
def fuse_layer(module: nn.Module) -> str | None:
    """Fuse a decoder layer in place; return why it is left as it is, or None."""
    obstacle = next(_find_obstacles(module), None)
    if obstacle is not None:
        return obstacle
    trial = _Trial(module)
    try:
        wanted = trial.run_plain(plain_forward(module))
    except (TypeError, ValueError, RuntimeError) as exc:
        return f"its forward takes something else ({exc})"
    difference = _find_difference(trial.site.calls, wanted, trial.size)
    if difference is not None:
        return difference
    layer = FusedLayer(module, trial.site.calls[0])
    if not trial.agrees(layer, wanted):
        return OTHER_BITS
    set_forward(module, layer)
    return None


class _Trial:
    """Random rows for a layer, and what its attention was asked for them."""

    def __init__(self, module: nn.Module) -> None:
        query = _packed(module.get_submodule("self_attn.q_proj"))
        self.size: int = vars(module.get_submodule("self_attn"))["head_dim"]
        dtype = query.panels.dtype
        generator = torch.Generator().manual_seed(0)
        shape = (1, _TRIAL_ROWS, query.in_features)
        self._states = torch.randn(shape, generator=generator).to(dtype)
        # No angle has such a cosine and sine: another way to turn heads differs.
        turns = torch.randn(2, 1, _TRIAL_ROWS, self.size, generator=generator).to(dtype)
        self._cosine, self._sine = turns.unbind()
        self.site = TrialSite()

    def run_plain(self, forward: Callable[..., object]) -> object:
        """Return the new states that a layer's own ``forward`` gives."""
        return forward(
            self._states,
            position_embeddings=(self._cosine, self._sine),
            attention_site=self.site,
        )

    def agrees(self, layer: FusedLayer, wanted: object) -> bool:
        """Tell whether a fused layer asks and gives the same, bit for bit."""
        site = TrialSite()
        found = layer.run(self._states, self._cosine, self._sine, site)
        [asked], [other] = self.site.calls, site.calls
        pairs = (
            (asked.query, other.query),
            (asked.key, other.key),
            (asked.value, other.value),
            (wanted, found),
        )
        return all(
            isinstance(one, torch.Tensor) and torch.equal(one, two) for one, two in pairs
        )


def is_decoder_layer(module: nn.Module) -> bool:
    """Tell whether a module has an attention and an MLP."""
    return {"self_attn", "mlp"} <= {name for name, _ in module.named_children()}


def _find_obstacles(module: nn.Module) -> Iterator[str]:
    """Say what is in the way of fusing a layer; in the order of asking."""
    attention = module.get_submodule("self_attn")
    for whole, wanted in (
        (module, {*_NORMS, "self_attn", "mlp"}),
        (attention, _PROJECTIONS),
    ):
        names = {name for name, _ in whole.named_children()}
        if names != set(wanted):
            yield f"the parts of its {type(whole).__name__} are {', '.join(sorted(names))}"
    yield from find_obstacles(module, _CLASSES)
    if has_hooks(attention):
        yield "its attention has hooks"
    if not isinstance(vars(attention).get("head_dim"), int):
        yield "its heads have no size"
    if fused_mlp_of(module.get_submodule("mlp")) is None:
        yield "its MLP is not fused"


def _find_difference(
    calls: Sequence[AttentionCall], result: object, size: int
) -> str | None:
    """Say what else a layer's own ``forward`` does than ask for attention and return."""
    if len(calls) != 1 or not isinstance(result, torch.Tensor):
        return "its forward returns something else"
    if not calls[0].query.shape[-1] == calls[0].value.shape[-1] == size:
        return "its heads have several sizes"
    return None


def _packed(module: nn.Module) -> PackedLinear:
    if not isinstance(module, PackedLinear):
        raise TypeError(f"a {type(module).__name__} is no packed layer")
    return module


def _norm(module: nn.Module) -> NativeNorm:
    if not isinstance(module, NativeNorm):
        raise TypeError(f"a {type(module).__name__} is no compiled norm")
    return module
