"""LeNet as the paper uses it for CIFAR-10 and SVHN: ReLU and max pooling (62,006 parameters for 3×32×32, 10 classes).

LeCun, Bottou, Bengio and Haffner 1998.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedga.errors import FedGAError
from fedga.models.on_cpu import by_halves, convolution_gradient, halves, pool_halves

LANES = 16  # channels that a processor's convolution computes at once


class LeNet(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 16:
            shape = "×".join(map(str, input_shape))
            small = f"of at least 16×16 pixels and the samples are {shape}"
            raise FedGAError(f"model lenet needs pictures {small}: use --model mlp")
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        after_pools = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        self.fc1 = nn.Linear(16 * after_pools[0] * after_pools[1], 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        # The larger of two values passes ReLU as the larger: pooling first leaves a quarter of the work to ReLU.
        features = self.pool(self.conv1(inputs)).relu()
        features = self.pool(self.conv2(features)).relu()
        features = self.fc1(features.flatten(1)).relu()
        return self.fc3(self.fc2(features).relu())

    # A training step on a CPU, where autograd's share of it is a fifth, and convolution and pooling together are a
    # third faster than one after the other. Elsewhere the engine differentiates `forward`.

    gradient_on_cpu_only = True

    def stacked_gradient(
        self,
        params: dict[str, Tensor],
        inputs: Tensor,
        loss_gradient: Callable[[Tensor], Tensor],
        gradient: dict[str, Tensor],
        keep: float = 0.0,
    ) -> None:
        """Make ``gradient`` its ``keep``-th part plus the derivative; ``loss_gradient`` gives that by the logits."""
        copies = [
            _Step({name: each[copy] for name, each in params.items()}, inputs[copy]) for copy in range(len(inputs))
        ]
        by_logits = loss_gradient(torch.stack([copy.logits for copy in copies]))
        for number, copy in enumerate(copies):
            for name, derivative in copy.gradient(by_logits[number]).items():
                total = gradient[name][number]
                if keep:
                    total.mul_(keep).add_(derivative)
                else:
                    total.copy_(derivative)


class _Step:
    """One copy's forward pass, and what its backward pass needs of it."""

    def __init__(self, params: dict[str, Tensor], inputs: Tensor) -> None:
        self.params = params
        self.pictures = [_Pooled.of(inputs, params["conv1.weight"], params["conv1.bias"])]
        self.pictures.append(_Pooled.of(self.pictures[0].outputs, params["conv2.weight"], params["conv2.bias"]))
        self.rows = [self.pictures[1].outputs.flatten(1)]
        for layer in ("fc1", "fc2"):
            self.rows.append(F.linear(self.rows[-1], params[f"{layer}.weight"], params[f"{layer}.bias"]).relu_())
        self.logits = F.linear(self.rows[-1], params["fc3.weight"], params["fc3.bias"])

    def gradient(self, by_rows: Tensor) -> dict[str, Tensor]:
        found = {}
        for layer, rows in zip(("fc3", "fc2", "fc1"), reversed(self.rows), strict=True):
            found[f"{layer}.weight"], found[f"{layer}.bias"] = by_rows.T @ rows, by_rows.sum(0)
            by_rows = torch.ops.aten.threshold_backward(by_rows @ self.params[f"{layer}.weight"], rows, 0)
        second = self.pictures[1].gradient(by_rows.view_as(self.pictures[1].outputs))
        found["conv2.weight"], found["conv2.bias"] = second[1:]
        by_first = torch.ops.aten.threshold_backward(second[0], self.pictures[0].outputs, 0)
        found["conv1.weight"], found["conv1.bias"] = self.pictures[0].gradient(by_first, by_inputs=False)[1:]
        return found


class _Pooled(NamedTuple):
    """Convolution, pooling of windows of 2×2 and ReLU, and what their derivative needs.

    Few channels leave most lanes empty. Left and right columns of the windows are then two sets of channels, by weights
    that are shifted by one column: twice the channels at half of the places, which come as pooling wants them.
    """

    inputs: Tensor
    weight: Tensor
    height: int  # of the convolution's output
    is_paired: bool
    outputs: Tensor
    is_below: Tensor
    is_right: Tensor

    @classmethod
    def of(cls, inputs: Tensor, weight: Tensor, bias: Tensor) -> "_Pooled":
        channels, height = len(weight), inputs.shape[-2] - weight.shape[-2] + 1
        is_paired = 2 * channels <= LANES
        if is_paired:
            weight = torch.cat([F.pad(weight, (0, 1)), F.pad(weight, (1, 0))])
            both = F.conv2d(inputs, weight, torch.cat([bias, bias]), (1, 2))[..., : height // 2 * 2, :]
            left, right = both[:, :channels], both[:, channels:]
        else:
            left, right = halves(F.conv2d(inputs, weight, bias))
        outputs, is_below, is_right = pool_halves(left, right)
        return cls(inputs, weight, height, is_paired, outputs.relu_(), is_below, is_right)

    def gradient(self, by_outputs: Tensor, by_inputs: bool = True) -> tuple[Tensor | None, Tensor, Tensor]:
        """Derivatives by inputs, weight and bias; ``by_outputs`` is that before ReLU."""
        left, right = by_halves(by_outputs, self.is_below, self.is_right)
        missing = self.height - left.shape[-2]
        if self.is_paired:
            both = torch.cat([left, right], 1)
            both = F.pad(both, (0, 0, 0, missing)) if missing else both
            x, weights, biases = convolution_gradient(
                both, self.inputs, self.weight, (1, 2), wanted=(by_inputs, True, True)
            )
            assert weights is not None
            assert biases is not None
            channels = len(biases) // 2
            weight = weights[:channels, ..., :-1] + weights[channels:, ..., 1:]
            return x, weight, biases[:channels] + biases[channels:]
        by_y = torch.view_as_real(torch.complex(left, right)).flatten(-2)
        width = self.inputs.shape[-1] - self.weight.shape[-1] + 1
        if missing or width > by_y.shape[-1]:
            by_y = F.pad(by_y, (0, width - by_y.shape[-1], 0, missing))
        x, by_weight, by_bias = convolution_gradient(by_y, self.inputs, self.weight, wanted=(by_inputs, True, True))
        assert by_weight is not None
        assert by_bias is not None
        return x, by_weight, by_bias
