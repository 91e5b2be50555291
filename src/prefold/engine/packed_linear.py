"""Packed linear: a linear layer over panels, with the same bits for every row.

An output is summed over the inputs in one fixed order, whatever else is computed with it,
so batches need no padding. The weights are read once for a few rows.
"""

from __future__ import annotations

import torch
from torch import nn

from prefold.engine.panels import PanelMaker


class PackedLinear(nn.Module):
    """A linear layer over panels.

    Args:
        maker: Of the model's panels.
        panels: Of the weights; shared with whatever else is given them.
        out_features: Outputs of the layer.
        bias: ``[out_features]``, or None.

    Attributes:
        native: What computes with the panels.
    """

    def __init__(
        self,
        maker: PanelMaker,
        panels: nn.Parameter,
        out_features: int,
        bias: nn.Parameter | None,
    ) -> None:
        super().__init__()
        self.in_features = panels.shape[1]
        self.out_features = out_features
        self.panels = panels
        self.bias = bias
        self.native = maker.open(panels, out_features, bias)

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the weights, ``[out_features, in_features]``; made at each access.

        For code that looks at its type, or computes with it rarely. What would change it
        in place raises ``RuntimeError``: the change would be lost.
        """
        # Outside of inference mode such a tensor cannot be changed in place.
        with torch.inference_mode():
            weight = self.panels.new_empty(self.out_features, self.in_features)
            self.native.unpack(weight, num_threads=torch.get_num_threads())
        return weight

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return ``[..., out_features]`` for ``[..., in_features]``, in the same type.

        Raises:
            ValueError: The states are neither float32 nor bfloat16, or of another width.
        """
        states = states.contiguous()
        out = states.new_empty((*states.shape[:-1], self.out_features))
        self.native.multiply(states, out, num_threads=torch.get_num_threads())
        return out

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the weights of the outputs ``[...]``, ``[..., in_features]``.

        Raises:
            ValueError: There is no such output.
        """
        rows = self.panels.new_empty((*ids.shape, self.in_features))
        self.native.look_up(
            ids.long().reshape(-1), rows, num_threads=torch.get_num_threads()
        )
        return rows

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
