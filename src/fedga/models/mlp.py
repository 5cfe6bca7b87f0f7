"""The paper's network for MNIST: one hidden layer of 128 units (784-128-10 has 101,770 parameters)."""

from __future__ import annotations

from collections.abc import Callable
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

    # The same network for many copies at once, ``[copies, samples, ...]``. `vmap` and autograd would do it as well, but
    # copy the weights on the way in and the gradients on the way out, which costs as much as the products themselves.

    def stacked(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Logits of all copies."""
        return _linear(self._hidden(params, inputs), params["output.weight"], params["output.bias"])

    def stacked_gradient(
        self,
        params: dict[str, Tensor],
        inputs: Tensor,
        loss_gradient: Callable[[Tensor], Tensor],
        gradient: dict[str, Tensor],
    ) -> None:
        """Fill ``gradient``; ``loss_gradient`` gives the derivative of the loss by the logits it is handed."""
        hidden = self._hidden(params, inputs)
        by_logits = loss_gradient(_linear(hidden, params["output.weight"], params["output.bias"]))
        by_hidden = torch.ops.aten.threshold_backward(torch.bmm(by_logits, params["output.weight"]), hidden, 0)
        torch.bmm(by_logits.mT, hidden, out=gradient["output.weight"])
        torch.sum(by_logits, 1, out=gradient["output.bias"])
        torch.bmm(by_hidden.mT, inputs.flatten(2), out=gradient["hidden.weight"])
        torch.sum(by_hidden, 1, out=gradient["hidden.bias"])

    def _hidden(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return _linear(inputs.flatten(2), params["hidden.weight"], params["hidden.bias"]).relu_()


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)
