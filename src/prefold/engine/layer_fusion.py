"""Layer fusion: which decoder layers are fused.

A layer is fused if its parts have the names and types of a Llama layer's, and if a trial
gives, bit for bit, what its own ``forward`` hands to the attention and returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from prefold.engine.attention import AttentionCall
from prefold.engine.fused_layer import (
    LAYER_CLASSES,
    NORMS,
    PROJECTIONS,
    FusedLayer,
    packed_of,
)
from prefold.engine.fused_mlp import fused_mlp_of
from prefold.engine.fusion import OTHER_BITS, find_obstacles, plain_forward, set_forward
from prefold.engine.linear import has_hooks

#: Rows of the trial.
_TRIAL_ROWS = 5


class TrialSite:
    """Attention that keeps what it was asked for, and answers the same random numbers."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(self, call: AttentionCall) -> torch.Tensor:
        # A layer may use the same memory again.
        self.calls.append(
            replace(
                call,
                query=call.query.clone(),
                key=call.key.clone(),
                value=call.value.clone(),
            )
        )
        _, heads, rows, _ = call.query.shape
        shape = (1, rows, heads, call.value.shape[-1])
        generator = torch.Generator().manual_seed(1)
        return torch.randn(shape, generator=generator).to(call.query.dtype)

    def saw_the_same(self, other: TrialSite) -> bool:
        """Tell whether both were asked for the same, bit for bit."""
        return len(self.calls) == len(other.calls) and all(
            torch.equal(getattr(one, name), getattr(two, name))
            for one, two in zip(self.calls, other.calls, strict=True)
            for name in ("query", "key", "value")
        )


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
        query = packed_of(module.get_submodule("self_attn.q_proj"))
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
        (module, {*NORMS, "self_attn", "mlp"}),
        (attention, PROJECTIONS),
    ):
        names = {name for name, _ in whole.named_children()}
        if names != set(wanted):
            yield f"the parts of its {type(whole).__name__} are {', '.join(sorted(names))}"
    yield from find_obstacles(module, LAYER_CLASSES)
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
