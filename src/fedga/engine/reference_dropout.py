"""Dropout of the plain loop (`fedga.engine.reference`): by counter, written for an ordinary module."""

import torch
from torch import Tensor, nn

from fedga.common import streams


class _Dropout(nn.Module):
    """Dropout that draws from the counter stream of a batch: by layer, call and position."""

    def __init__(self, probability: float, whole_channels: bool, layer: int) -> None:
        super().__init__()
        self.probability, self.whole_channels, self.layer = probability, whole_channels, layer
        self.key = self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return inputs
        if self.probability == 1:
            return inputs * 0
        layer = self.layer + (self.calls << 32)
        self.calls += 1
        shape = inputs.shape[:2] + (1,) * (inputs.dim() - 2) if self.whole_channels else inputs.shape
        key = streams.fold(torch.tensor(self.key), torch.tensor(layer))
        draws = streams.uniform(streams.fold(key, torch.arange(shape.numel()).view(shape)))
        return torch.where(draws < self.probability, 0.0, inputs / (1 - self.probability))


def with_keyed_dropout(model: nn.Module) -> nn.Module:
    made: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
                if id(child) not in made:
                    made[id(child)] = _Dropout(child.p, not isinstance(child, nn.Dropout), len(made))
                setattr(parent, name, made[id(child)])
    return model


def set_dropout_key(model: nn.Module, key: int) -> None:
    for module in model.modules():
        if isinstance(module, _Dropout):
            module.key, module.calls = key, 0
