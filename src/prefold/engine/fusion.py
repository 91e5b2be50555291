"""Fusion: what several modules do, in one compiled call, for as long as they are there.

A fused call takes the place of a module's ``forward`` on that one module; classes stay as
they are. It gives the bits that its modules give one by one, and steps aside whenever one
of them was replaced, as by an adapter, or has got hooks::

    MLP      down(act(gate(x)) * up(x))
    layer    norm, q, k, v, rotary  |  attention  |  o, + x, norm, MLP, + x
    stack    layer after layer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from types import MethodType

from torch import nn
from torch.nn.modules import module as every_module

from prefold.engine.linear import has_hooks

#: Why something is not fused whose parts are the right ones.
OTHER_BITS = "its parts, one by one, give other bits"

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

#: Hooks of all modules there are, which profilers and tracers set.
_GLOBAL_HOOKS: tuple[Mapping[int, object], ...] = (
    every_module._global_forward_hooks,  # noqa: SLF001 -- torch has no question for them
    every_module._global_forward_pre_hooks,  # noqa: SLF001 -- as above
)


class Intactness:
    """Whether a module's parts are those that it had, and do what their classes say.

    Args:
        module: The whole; its own hooks do not matter, they run around its ``forward``.
        names: Of its parts, with dots.
    """

    __slots__ = ("_forwards", "_holders", "_hooks", "_names", "_parts", "_variables")

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        self._parts = [module.get_submodule(name) for name in names]
        places = [name.rpartition(".") for name in names]
        self._holders = [
            module.get_submodule(parent)._modules  # noqa: SLF001 -- looked at in every call
            for parent, _, _ in places
        ]
        self._names = [name for _, _, name in places]
        self._variables = [vars(part) for part in self._parts]
        self._forwards = [own.get("forward") for own in self._variables]
        self._hooks: tuple[Mapping[int, object], ...] = tuple(
            own[hooks] for own in self._variables for hooks in _HOOKS
        )
        self._hooks += _GLOBAL_HOOKS

    def holds(self) -> bool:
        """Tell whether nothing has changed; takes a tenth of a microsecond for a part.

        In loops of the interpreter's own: a model has hundreds of parts, and is looked at
        in every step.
        """
        return (
            not any(self._hooks)
            and list(map(dict.get, self._holders, self._names)) == self._parts
            and list(map(dict.get, self._variables, repeat("forward"))) == self._forwards
        )


def find_obstacles(module: nn.Module, wanted: Mapping[str, type]) -> Iterator[str]:
    """Say what is in the way of fusing a module.

    Args:
        module: Whose parts are looked at.
        wanted: The class of each part, by its name with dots.
    """
    if has_hooks(module):
        yield "it has hooks"
    if next(module.parameters(recurse=False), None) is not None:
        yield "it has parameters of its own"
    for name, kind in wanted.items():
        part = module.get_submodule(name)
        if type(part) is not kind:
            yield f"its {name} is a {type(part).__name__}"
        if has_hooks(part):
            yield f"its {name} has hooks"


def plain_forward(module: nn.Module) -> Callable[..., object]:
    """Return what a module's class does when it is called."""
    return MethodType(type(module).forward, module)


def set_forward(module: nn.Module, forward: Callable[..., object]) -> None:
    """Let a module do something else when it is called; its class stays as it is."""
    vars(module)["forward"] = forward
