"""Fixed rotary embeddings: sine and cosine of every position, worked out at load.

The ``dynamic`` and ``longrope`` kinds choose their frequencies anew in each forward
pass, by the largest position in it. In a packed batch that is a neighbour's position,
so a long neighbour would change a short sequence's keys. Asking the module once, for
all positions a sequence may have, makes it choose by the longest possible sequence; the
answers are kept and looked up from then on. That also makes a row's values independent
of the batch they are computed in.

Some models count positions along several axes, and each number of a row follows one of
them. Which one is found by moving along one axis at a time.
"""

from __future__ import annotations

import inspect

import torch
from torch import nn

from prefold.engine.attention_parts import tower_modules
from prefold.errors import ConfigError


class TabulatedRotary(nn.Module):
    """Stands in for a rotary module; looks positions up in its answers.

    The module itself stays, as ``rotary``, because its frequencies are part of what
    identifies a model.
    """

    def __init__(self, rotary: nn.Module, states: torch.Tensor, num_positions: int) -> None:
        """Ask ``rotary`` for positions below ``num_positions``, once for each layer type.

        Args:
            rotary: The module, on its device.
            states: Anything with the dtype and device of the model's hidden states.
            num_positions: Positions that may occur, the offset included.

        Raises:
            ConfigError: Its answer is not one row for each position.
        """
        super().__init__()
        self.rotary = rotary
        positions = torch.arange(num_positions, device=states.device)[None]
        self._tables: dict[str | None, tuple[torch.Tensor, ...]] = {}
        for layer_type in _layer_types(rotary):
            keywords = {} if layer_type is None else {"layer_type": layer_type}
            answer = rotary(states, positions, **keywords)
            tables = (answer,) if isinstance(answer, torch.Tensor) else tuple(answer)
            if any(table.shape[:2] != (1, num_positions) for table in tables):
                raise ConfigError(
                    f"rotary embeddings of type {type(rotary).__name__} are not supported:"
                    " they give no single row for each position"
                )
            self._tables[layer_type] = tuple(table[0] for table in tables)
            self._is_single = isinstance(answer, torch.Tensor)
        self._axis_of = _find_axes(rotary, states)

    def forward(
        self,
        _states: torch.Tensor,
        position_ids: torch.Tensor,
        layer_type: str | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        tables = self._tables[layer_type]
        if position_ids.ndim == 3:
            position_ids = position_ids[self._axis_of].permute(1, 2, 0)
            columns = torch.arange(len(self._axis_of), device=position_ids.device)
            found = tuple(table[position_ids, columns] for table in tables)
        else:
            found = tuple(table[position_ids] for table in tables)
        return found[0] if self._is_single else found


@torch.inference_mode()
def fix_rotary(model: nn.Module, num_positions: int, dtype: torch.dtype) -> int:
    """Replace a decoder's rotary modules in place; return how many there were."""
    others = tower_modules(model)
    found = [
        (parent, name, child)
        for parent in model.modules()
        if parent not in others and not isinstance(parent, TabulatedRotary)
        for name, child in parent.named_children()
        if type(child).__name__.endswith("RotaryEmbedding")
    ]
    device = next(model.parameters()).device
    states = torch.zeros(1, 1, 1, dtype=dtype, device=device)
    tabulated: dict[int, TabulatedRotary] = {}
    for parent, name, child in found:
        if id(child) not in tabulated:
            tabulated[id(child)] = TabulatedRotary(child, states, num_positions)
        parent.register_module(name, tabulated[id(child)])
    return len(tabulated)


def _find_axes(rotary: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Return which axis each number of a row follows; nothing if there is only one."""
    sections = vars(rotary).get("mrope_section")
    if sections is None:
        return torch.zeros(0, dtype=torch.long)
    start = torch.zeros(len(sections), 1, 1, dtype=torch.long, device=states.device)
    there = rotary(states, start)
    axis_of = torch.zeros(there[0].shape[-1], dtype=torch.long, device=states.device)
    for axis in range(len(sections)):
        moved = start.clone()
        moved[axis] = 1
        for now, before in zip(rotary(states, moved), there, strict=True):
            axis_of[(now != before)[0, 0]] = axis
    return axis_of


def _layer_types(rotary: nn.Module) -> list[str | None]:
    """Return the layer types a rotary module tells apart, or ``[None]``."""
    if "layer_type" not in inspect.signature(rotary.forward).parameters:
        return [None]
    rope_types = vars(rotary).get("rope_type")
    if isinstance(rope_types, dict):
        return list(rope_types)
    return [None]
