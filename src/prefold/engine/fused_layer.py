"""Fused layer: a decoder layer in two compiled calls, with its attention in between.

Where rows are few, a layer's thirty calls of torch cost as much as reading its weights.
A layer is fused if its parts have the names and types of a Llama layer's, and if a trial
gives, bit for bit, what its own ``forward`` hands to the attention and returns::

    states --- norm, q, k, v, rotary --> attention --- o, + states, norm, MLP, + --> states
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from prefold.engine import _kernels
from prefold.engine.attention import AttentionCall, AttentionSite
from prefold.engine.fused_mlp import fused_mlp_of
from prefold.engine.fusion import Intactness, plain_forward, set_forward
from prefold.engine.linear import has_hooks
from prefold.engine.packed_linear import PackedLinear
from prefold.engine.row_norm import NativeNorm

_NORMS = ("input_layernorm", "post_attention_layernorm")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
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
        module: The layer; ``_obstacle_of`` found nothing against it.
        facts: A call of its attention, for what does not change from call to call.
    """

    __slots__ = (
        "_dtype",
        "_end",
        "_facts",
        "_heads",
        "_intactness",
        "_size",
        "_start",
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

    def __call__(self, *arguments: object, **keywords: object) -> object:
        """Return what the layer's class returns, with the same bits."""
        if len(arguments) == 1:
            states, site = arguments[0], keywords.get("attention_site")
            embeddings = keywords.get("position_embeddings")
            if (
                site is not None
                and isinstance(states, torch.Tensor)
                and type(embeddings) is tuple
                and len(embeddings) == 2  # noqa: PLR2004 -- cosine and sine
                and self._fits(states, *embeddings)
                and all(
                    value is None or value is False or name in _KNOWN
                    for name, value in keywords.items()
                )
                and self._intactness.holds()
            ):
                return self.run(states, embeddings[0], embeddings[1], site)
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
        self._start.run(states, cosine, sine, query, key, value, num_threads=num_threads)
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
        self._end.run(states, attended.contiguous(), out, num_threads=num_threads)
        return out

    def _fits(self, states: torch.Tensor, cosine: object, sine: object) -> bool:
        return (
            states.ndim == 3  # noqa: PLR2004 -- batch, rows, width
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


@torch.inference_mode()
def fuse_layer(module: nn.Module) -> str | None:
    """Fuse a decoder layer in place; return why it is left as it is, or None."""
    obstacle = _obstacle_of(module)
    if obstacle is not None:
        return obstacle
    query = _packed(module.get_submodule("self_attn.q_proj"))
    size = vars(module.get_submodule("self_attn")).get("head_dim")
    dtype = query.panels.dtype
    if not isinstance(size, int):
        return "its heads have no size"
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, _TRIAL_ROWS, query.in_features, generator=generator).to(dtype)
    # No angle has such a cosine and sine: another way to turn heads gives other numbers.
    cosine, sine = torch.randn(2, 1, _TRIAL_ROWS, size, generator=generator).to(dtype)
    own, fused = TrialSite(), TrialSite()
    plain = plain_forward(module)
    try:
        wanted = plain(states, position_embeddings=(cosine, sine), attention_site=own)
    except (TypeError, ValueError, RuntimeError) as exc:
        return f"its forward takes something else ({exc})"
    if not isinstance(wanted, torch.Tensor) or len(own.calls) != 1:
        return "its forward returns something else"
    facts = own.calls[0]
    if facts.query.shape[-1] != size or facts.value.shape[-1] != size:
        return "its heads have several sizes"
    layer = FusedLayer(module, facts)
    found = layer.run(states, cosine, sine, fused)
    asked = fused.calls[0]
    pairs = (
        (facts.query, asked.query),
        (facts.key, asked.key),
        (facts.value, asked.value),
        (wanted, found),
    )
    if not all(torch.equal(one, other) for one, other in pairs):
        return "its parts, one by one, give other bits"
    set_forward(module, layer)
    return None


def is_decoder_layer(module: nn.Module) -> bool:
    """Tell whether a module has an attention and an MLP."""
    return {"self_attn", "mlp"} <= {name for name, _ in module.named_children()}


def _obstacle_of(module: nn.Module) -> str | None:
    if has_hooks(module):
        return "it has hooks"
    if next(module.parameters(recurse=False), None) is not None:
        return "it has parameters of its own"
    children = {name for name, _ in module.named_children()}
    if children != {*_NORMS, "self_attn", "mlp"}:
        return f"its parts are {', '.join(sorted(children))}"
    attention = module.get_submodule("self_attn")
    parts = {name for name, _ in attention.named_children()}
    if parts != set(_PROJECTIONS):
        return f"the parts of its attention are {', '.join(sorted(parts))}"
    if has_hooks(attention):
        return "its attention has hooks"
    if fused_mlp_of(module.get_submodule("mlp")) is None:
        return "its MLP is not fused"
    for name in (*_NORMS, *(f"self_attn.{each}" for each in _PROJECTIONS)):
        part = module.get_submodule(name)
        wanted = NativeNorm if name in _NORMS else PackedLinear
        if type(part) is not wanted:
            return f"its {name} is a {type(part).__name__}"
        if has_hooks(part):
            return f"its {name} has hooks"
    return None


def _packed(module: nn.Module) -> PackedLinear:
    if not isinstance(module, PackedLinear):
        raise TypeError(f"a {type(module).__name__} is no packed layer")
    return module


def _norm(module: nn.Module) -> NativeNorm:
    if not isinstance(module, NativeNorm):
        raise TypeError(f"a {type(module).__name__} is no compiled norm")
    return module
