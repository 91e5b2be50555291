"""Row-wise activations: a token's activation does not depend on its neighbours.

torch applies SiLU, GELU and the like by a vector function, and by a scalar one to what
is left over at the end of each thread's share (see ``thread_share``). The scalar one
rounds differently, so an element's last bit would depend on where it lies in the batch.
Here the elements are laid out so that nothing is left over.
"""

from __future__ import annotations

import torch
import transformers.activations
from torch import nn

from prefold.engine.thread_share import even_length

#: The name of this implementation in the numerics.
IMPLEMENTATION = "even-shares"


def _element_wise_types() -> tuple[type[nn.Module], ...]:
    entries = transformers.activations.ACT2CLS.values()
    named = {entry[0] if isinstance(entry, tuple) else entry for entry in entries}
    plain = {
        nn.GELU,
        nn.SiLU,
        nn.Mish,
        nn.Sigmoid,
        nn.Tanh,
        nn.ReLU,
        nn.ReLU6,
        nn.LeakyReLU,
    }
    return tuple(kind for kind in named | plain if isinstance(kind, type))


class RowwiseActivation(nn.Module):
    """An element-wise activation with results that depend on the element alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        length = states.numel()
        even = even_length(length, torch.get_num_threads())
        # A view with gaps is walked in pieces, each with something left over.
        flat = states.contiguous().view(-1)
        if even != length:
            padded = flat.new_zeros(even)
            padded[:length] = flat
            flat = padded
        result: torch.Tensor = self.inner(flat)
        return result[:length].view(states.shape)


def replace_activations(model: nn.Module) -> int:
    """Make a model's activation modules row-wise, in place; return how many there were.

    Ones with parameters of their own are left: they need not be element-wise.
    """
    known = _element_wise_types()
    replaced: dict[int, RowwiseActivation] = {}
    parents = [m for m in model.modules() if not isinstance(m, RowwiseActivation)]
    for parent in parents:
        for name, child in parent.named_children():
            if isinstance(child, known) and next(child.parameters(), None) is None:
                # A module that is used in two places stays one.
                wrapped = replaced.setdefault(id(child), RowwiseActivation(child))
                parent.register_module(name, wrapped)
    return len(replaced)
