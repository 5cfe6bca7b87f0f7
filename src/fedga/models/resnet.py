"""ResNet-20 for 32×32 pictures: option A shortcuts, no biases, Kaiming-normal weights.

He, Zhang, Ren and Sun 2016, section 4.2. 269,722 parameters at 10 classes, 275,572 at 100, 282,072 at 200.
"""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from fedga.errors import FedGAError, unknown_name

CHANNELS_PER_GROUP = 8


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        return nn.GroupNorm(channels // CHANNELS_PER_GROUP, channels)
    raise unknown_name("norm", kind, ["batch", "group"])


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def _rectified(features: Tensor) -> Tensor:
    """ReLU. On a CPU in place, where no derivative needs what was there: less memory is moved.

    On a GPU the engine's layers give views, whose derivatives would be copied for it.
    """
    return features.relu() if features.is_cuda else features.relu_()


class Block(nn.Module):
    """Two 3×3 convolutions; where the size halves, the shortcut drops pixels and pads channels with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, outputs, stride), _norm(norm, outputs)
        self.conv2, self.norm2 = _conv(outputs, outputs), _norm(norm, outputs)
        self.stride, self.missing = stride, outputs - inputs

    def forward(self, inputs: Tensor) -> Tensor:
        features = _rectified(self.norm1(self.conv1(inputs)))
        features = self.norm2(self.conv2(features))
        shortcut = inputs
        if self.missing:
            half = self.missing // 2
            shortcut = F.pad(inputs[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return _rectified(features + shortcut if features.is_cuda else features.add_(shortcut))


class ResNet20(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, norm: str = "batch") -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise FedGAError("model resnet20 needs pictures and the samples are rows of a table: use --model mlp")
        self.conv, self.norm = _conv(input_shape[0], 16), _norm(norm, 16)
        widths = [16] * 4 + [32] * 3 + [64] * 3
        blocks = (Block(a, b, 1 if a == b else 2, norm) for a, b in pairwise(widths))
        self.blocks = nn.Sequential(*blocks)
        self.output = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.blocks(_rectified(self.norm(self.conv(inputs))))
        return self.output(features.mean((2, 3)))
