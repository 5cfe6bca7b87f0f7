"""The paper's network for MNIST: one hidden layer of 128 units (784-128-10 has 101,770 parameters)."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: int = 128) -> None:
        super().__init__()
        self.hidden = nn.Linear(prod(input_shape), hidden)
        self.output = nn.Linear(hidden, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.hidden(inputs.flatten(1)).relu())

    def stacked(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Many copies at once, ``[copies, samples, ...]``: the same as ``vmap``, without its copies of the weights."""
        hidden = _linear(inputs.flatten(2), params["hidden.weight"], params["hidden.bias"]).relu()
        return _linear(hidden, params["output.weight"], params["output.bias"])


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)
