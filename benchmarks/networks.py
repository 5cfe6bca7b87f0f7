"""The networks as anyone would write them in PyTorch, for the contenders that train with it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
import work
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(784, 128), nn.Linear(128, work.CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(F.relu(self.hidden(inputs.flatten(1))))


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, work.CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        features = F.max_pool2d(F.relu(self.conv1(inputs)), 2)
        features = F.max_pool2d(F.relu(self.conv2(features)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(features.flatten(1))))))


class Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.padding = (1, 0) if before == after else (2, (after - before) // 2)
        self.conv1 = nn.Conv2d(before, after, 3, self.stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(inputs)))))
        if self.padding:
            inputs = F.pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(features + inputs)


class ResNet20(nn.Module):
    """He et al. 2016, section 4.2, with shortcuts that have no parameters (option A)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(*(Block(*widths) for widths in pairwise([16] * 4 + [32] * 3 + [64] * 3)))
        self.output = nn.Linear(64, work.CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.blocks(F.relu(self.norm(self.conv(inputs)))).mean((2, 3)))


NETWORKS: dict[str, type[nn.Module]] = {"mlp": MLP, "lenet": LeNet, "resnet20": ResNet20}


def build(model: str) -> nn.Module:
    """The network with the weights that everybody starts from."""
    network = NETWORKS[model]()
    network.load_state_dict({name: torch.from_numpy(value) for name, value in work.initial_weights(model).items()})
    return network


def client_tensors(data: work.Data, k: int) -> tuple[Tensor, Tensor]:
    own = data.client(k)
    return torch.from_numpy(own.inputs).float() / 255, torch.from_numpy(own.targets)


@torch.no_grad()
def accuracy(data: work.Data, network: nn.Module) -> float:
    was_training = network.training
    network.eval()

    def predict(inputs: np.ndarray) -> np.ndarray:
        return network(torch.from_numpy(inputs)).argmax(1).numpy()

    reached = work.accuracy(data, predict)
    network.train(was_training)
    return reached
