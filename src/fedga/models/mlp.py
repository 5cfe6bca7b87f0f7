"""The paper's network for MNIST: one hidden layer of 128 units (784-128-10 has 101,770 parameters)."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from fedga.models.on_cpu import product, takes_products


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
        keep: float = 0.0,
    ) -> None:
        """Make ``gradient`` its ``keep``-th part plus the derivative; ``loss_gradient`` gives that by the logits."""
        hidden = self._hidden(params, inputs)
        by_logits = loss_gradient(_linear(hidden, params["output.weight"], params["output.bias"]))
        by_hidden = torch.ops.aten.threshold_backward(torch.bmm(by_logits, params["output.weight"]), hidden, 0)
        gradient["output.weight"].baddbmm_(by_logits.mT, hidden, beta=keep)
        _add_products(by_hidden, inputs.flatten(2), gradient["hidden.weight"], keep)
        _add_sum(by_logits, gradient["output.bias"], keep)
        _add_sum(by_hidden, gradient["hidden.bias"], keep)

    def _hidden(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        weight, bias, inputs = params["hidden.weight"], params["hidden.bias"], inputs.flatten(2)
        if not takes_products(inputs):
            return _linear(inputs, weight, bias).relu_()
        return torch.stack([product(*copy, "relu") for copy in zip(inputs, weight, bias, strict=True)])


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)


def _add_products(by_outputs: Tensor, inputs: Tensor, total: Tensor, keep: float) -> None:
    """``total`` becomes its ``keep``-th part plus ``by_outputs.mT @ inputs``."""
    if not takes_products(inputs):
        total.baddbmm_(by_outputs.mT, inputs, beta=keep)
        return
    for each, by_output, rows in zip(total, by_outputs, inputs, strict=True):
        found = product(by_output.T, rows.T)
        if keep:
            each.mul_(keep).add_(found)
        else:
            each.copy_(found)


def _add_sum(values: Tensor, total: Tensor, keep: float) -> None:
    """``total`` becomes its ``keep``-th part plus the sum over samples; with 0 it may hold anything before."""
    if keep:
        total.mul_(keep).add_(values.sum(1))
    else:
        torch.sum(values, 1, out=total)
