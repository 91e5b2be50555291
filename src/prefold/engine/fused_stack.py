"""Fused stack: all decoder layers of a model, one after the other, without its own loop.

Between two layers a model's loop, the modules' calls and their checks take as long as a
tenth of the weights: what Python needs has left the caches by then. So the first layer
that the loop calls runs all of them, and the others hand on what they are given::

    loop      layer 0 ------------------------> layer 1 --> layer 2 --> ...
    computed  0: start, attention, end; 1: ...  .           .

That is the same only for a loop that passes states on and does nothing else. A trial
shows it when the model is loaded; in every pass each layer looks whether it was called with
the very tensors of the one before, and if not, the pass is made again, layer by layer:
writing a step's KV twice changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Lock, get_ident
from typing import Any

import torch
from torch import nn

from prefold.engine import _kernels
from prefold.engine.fused_layer import (
    PARTS,
    CompiledSite,
    FusedLayer,
    LayerInputs,
    StackRun,
    fused_layer_of,
)
from prefold.engine.fusion import OTHER_BITS, Intactness, plain_forward, set_forward
from prefold.engine.layer_fusion import TrialSite
from prefold.engine.linear import has_hooks
from prefold.errors import InvariantError

_LOG = logging.getLogger(__name__)

#: Where a model has its layers.
LAYERS = "layers"

#: Keywords of a model that it makes its layers' inputs of, or that say nothing about them.
_KNOWN = frozenset({"attention_site", "input_ids", "inputs_embeds", "position_ids"})

#: Where the loops are that pass states on without a look at their numbers, as far as a
#: trial can tell; a model that brings its own code may do anything.
_KNOWN_LOOPS = "transformers.models."

#: Numbers of rows of the trial: a model may treat a single one in its own way.
_TRIAL_ROWS = (1, 5)


class Detour(Exception):  # noqa: N818 -- no error: the pass is made another way
    """A model's loop did something between two layers."""


class LayerStack:
    """The layers of one model while a pass goes through them.

    One pass at a time: on other threads the layers run one by one meanwhile.

    Args:
        module: The model.
        layers: In the order of its loop.
    """

    __slots__ = (
        "_calls",
        "_intactness",
        "_keywords",
        "_layers",
        "_lock",
        "_native",
        "_place",
        "_result",
        "_thread",
    )

    def __init__(self, module: nn.Module, layers: tuple[FusedLayer, ...]) -> None:
        self._layers = layers
        self._calls = tuple(layer.facts for layer in layers)
        self._native = _kernels.Stack(
            [layer.start for layer in layers], [layer.end for layer in layers]
        )
        names = [f"{LAYERS}.{i}" for i in range(len(layers))]
        parts = [f"{name}.{part}" for name in names for part in PARTS]
        self._intactness = Intactness(module, (LAYERS, *names, *parts))
        self._lock = Lock()
        self._thread: int | None = None
        self._place = 0
        # Those of the first layer's call, which all others have to be given.
        self._keywords: Mapping[str, Any] | None = None
        self._result: torch.Tensor | None = None

    @property
    def is_open(self) -> bool:
        """Whether this thread is in a pass."""
        return self._thread == get_ident()

    def open(self) -> bool:
        """Begin a pass, if there is none: the next call is the first layer's."""
        if not self._lock.acquire(blocking=False):
            return False
        self._thread = get_ident()
        self._place = 0
        return True

    def close(self) -> None:
        """End this thread's pass, if it is in one; each layer runs by itself."""
        if not self.is_open:
            return
        self._keywords = self._result = None
        self._thread = None
        self._lock.release()

    @property
    def is_whole(self) -> bool:
        """Whether the open pass went through no layer, or through all."""
        return self._place in (0, len(self._layers))

    def hand_on(
        self, layer: FusedLayer, arguments: tuple[object, ...], keywords: Mapping[str, Any]
    ) -> object:
        """Return what a layer's call returns: the states behind the last layer.

        Raises:
            Detour: The call is not the one that follows.
        """
        if self._keywords is not None:
            if not self._follows(layer, arguments, keywords):
                raise Detour
        else:
            given = layer.inputs_of(arguments, keywords)
            if (
                given is None
                or layer is not self._layers[0]
                or not self._intactness.holds()
            ):
                self.close()
                return layer(*arguments, **keywords)
            self._result, self._keywords = self._run(given), keywords
        self._place += 1
        return self._result

    def _follows(
        self, layer: FusedLayer, arguments: tuple[object, ...], keywords: Mapping[str, Any]
    ) -> bool:
        first = self._keywords
        return (
            first is not None
            and self._place < len(self._layers)
            and layer is self._layers[self._place]
            and len(arguments) == 1
            and arguments[0] is self._result
            and len(keywords) == len(first)
            and all(first.get(name) is value for name, value in keywords.items())
        )

    def _run(self, given: LayerInputs) -> torch.Tensor:
        states, spare = given.states, None
        rows = self._layers[0].make_rows(states)
        if states.dtype is torch.float32 and isinstance(given.site, CompiledSite):
            adapted = [layer.adapted for layer in self._layers]
            out = torch.empty_like(states)
            run = StackRun(self._native, self._calls, given, rows, out, adapted)
            given.site.run_stack(run)
            return out
        num_threads = torch.get_num_threads()
        for layer in self._layers:
            # What the model gave is left as it is; from then on two tensors take turns.
            out = torch.empty_like(states) if spare is None else spare
            layer.run_into(out, states, given, rows, num_threads)
            spare = None if states is given.states else states
            states = out
        return states

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a pass that is over has left something."""
        has_states = self._keywords is not None or self._result is not None
        if self._thread is None and has_states:
            raise InvariantError("a closed stack of layers holds states")
        if any(layer.stack is not self for layer in self._layers):
            raise InvariantError("a layer of the stack does not know of it")


class FusedDecoder:
    """Takes the place of the ``forward`` of a model whose layers are a stack.

    Args:
        module: Has the layers.
        stack: Of all its layers.

    Attributes:
        plain: The module's own ``forward``.
        stack: The stack; None once a pass has shown that its loop does something else.
    """

    __slots__ = ("plain", "stack")

    def __init__(self, module: nn.Module, stack: LayerStack) -> None:
        self.plain: Callable[..., object] = plain_forward(module)
        self.stack: LayerStack | None = stack

    def __call__(self, *arguments: object, **keywords: object) -> object:
        """Return what the module's class returns, with the same bits."""
        stack = self.stack
        if (
            stack is None
            or arguments
            or not all(
                value is None or value is False or name in _KNOWN
                for name, value in keywords.items()
            )
            or not stack.open()
        ):
            return self.plain(*arguments, **keywords)
        try:
            result = self.plain(**keywords)
            if stack.is_whole:
                return result
        except Detour:
            pass
        finally:
            stack.close()
        _LOG.warning("the model does something between its layers: they run one by one")
        self.stack = None
        return self.plain(**keywords)


def fused_decoder_of(module: nn.Module) -> FusedDecoder | None:
    """Return what runs a module's layers in one go, if it has been given that."""
    forward = vars(module).get("forward")
    return forward if isinstance(forward, FusedDecoder) else None


def is_fused_throughout(module: nn.Module) -> bool:
    """Tell whether a module has a list of layers, and all of them are fused."""
    layers = dict(module.named_children()).get(LAYERS)
    return isinstance(layers, nn.ModuleList) and bool(_fused_layers(layers))


@torch.inference_mode()
def fuse_stack(module: nn.Module) -> str | None:
    """Let a model's layers run in one go; return why they do not, or None."""
    fused = _fused_layers(module.get_submodule(LAYERS))
    if len({layer.shape for layer in fused}) > 1:
        return "its layers have several shapes"
    if has_hooks(module):
        return "it has hooks"
    if not type(module).__module__.startswith(_KNOWN_LOOPS):
        return "its loop is not one of transformers' own"
    stack = LayerStack(module, fused)
    decoder = FusedDecoder(module, stack)
    for layer in fused:
        layer.stack = stack
    if not _trial_agrees(decoder, fused[0]):
        for layer in fused:
            layer.stack = None
        return OTHER_BITS
    set_forward(module, decoder)
    return None


def _fused_layers(layers: nn.Module) -> tuple[FusedLayer, ...]:
    """Return what each layer has been given; nothing unless all of them have."""
    found = [fused_layer_of(each) for each in layers.children()]
    return tuple(each for each in found if each is not None) if all(found) else ()


def _trial_agrees(decoder: FusedDecoder, layer: FusedLayer) -> bool:
    """Tell whether random rows give the same bits layer by layer and in one go."""
    for num_rows in _TRIAL_ROWS:
        sites = TrialSite(), TrialSite()
        try:
            wanted = _try(decoder.plain, layer, num_rows, sites[0])
            found = _try(decoder, layer, num_rows, sites[1])
        except (TypeError, ValueError, RuntimeError):
            # It is called with something else than a decoder of text.
            return False
        if wanted is None or found is None or decoder.stack is None:
            return False
        if not torch.equal(wanted, found) or not sites[0].saw_the_same(sites[1]):
            return False
    return True


def _try(
    forward: Callable[..., object], layer: FusedLayer, num_rows: int, site: TrialSite
) -> torch.Tensor | None:
    """Return the states that a decoder's forward gives, if it gives any."""
    width, dtype = layer.shape.width, layer.shape.dtype
    generator = torch.Generator().manual_seed(0)
    output = forward(
        inputs_embeds=torch.randn(1, num_rows, width, generator=generator).to(dtype),
        position_ids=torch.arange(num_rows)[None],
        use_cache=False,
        attention_site=site,
    )
    found = dict(output) if isinstance(output, Mapping) else {}
    states = found.pop("last_hidden_state", None)
    # In whatever else comes with them there might be states of other layers.
    is_all = not any(value is not None for value in found.values())
    return states if is_all and isinstance(states, torch.Tensor) else None
