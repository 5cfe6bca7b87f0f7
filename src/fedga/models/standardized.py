"""Weight standardisation: layers whose weights are used with mean 0 and one length per output, whatever they are.

``ŵ = √2 (w - mean w) / ||w - mean w||`` for the weights w of every output: Kaiming's variance ``2 / inputs``, so that a
network without normalisation layers keeps its scale. Local training then cannot move the mean or the length of w.
Qiao, Wang, Liu, Shen and Yuille. Weight Standardization. 2019. In federations: Kim, Kim, Kim, Ji and Lee. FedWSQ:
Efficient Federated Learning with Weight Standardization and Distribution-Aware Non-Uniform Quantization. ICCV 2025.
"""

from math import sqrt
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def standardized(weight: Tensor) -> Tensor:
    """``[outputs, ...]``."""
    flat = weight.flatten(1)
    return sqrt(2) * F.normalize(flat - flat.mean(1, keepdim=True), dim=1).view_as(weight)


class StandardizedConv2d(nn.Conv2d):
    def forward(self, inputs: Tensor) -> Tensor:
        return self._conv_forward(inputs, standardized(self.weight), self.bias)


class StandardizedLinear(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, standardized(self.weight), self.bias)


_KINDS: dict[type, Any] = {nn.Conv2d: StandardizedConv2d, nn.Linear: StandardizedLinear}


def standardize_weights(model: nn.Module) -> int:
    """Make convolutions and linear layers of ``model`` standardised, all but its head; how many there are."""
    head = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1:]
    plain = [layer for layer in model.modules() if type(layer) in _KINDS and layer not in head]
    for layer in plain:
        layer.__class__ = _KINDS[type(layer)]
    return len(plain)
