"""The task: a network, the samples of one client, a training loop and an evaluation, all in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedga.data import load_dataset, make_federation


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(images.flatten(1))))


def load_client(partition: int, clients: int) -> tuple[DataLoader[tuple[Tensor, ...]], Tensor]:
    """The samples of one client, whose classes are skewed, and how many of each class it has."""
    dataset = load_dataset("digits")
    federation = make_federation(dataset, clients=clients, seed=0, alpha=0.1)
    places = federation.client(partition)
    images = torch.from_numpy(dataset.train_inputs[places]).float() / dataset.input_scale
    labels = torch.from_numpy(dataset.train_targets[places])
    batches = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    return batches, torch.from_numpy(federation.class_counts[partition])


def load_test() -> DataLoader[tuple[Tensor, ...]]:
    dataset = load_dataset("digits")
    images = torch.from_numpy(dataset.test_inputs).float() / dataset.input_scale
    return DataLoader(TensorDataset(images, torch.from_numpy(dataset.test_targets)), batch_size=256)


def train(
    net: nn.Module,
    batches: DataLoader[tuple[Tensor, ...]],
    criterion: Callable[[Tensor, Tensor], Tensor],
    epochs: int,
    rate: float,
) -> float:
    optimizer = torch.optim.SGD(net.parameters(), rate)
    total = 0.0
    for _ in range(epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(batches))


@torch.no_grad()
def test(net: nn.Module, batches: DataLoader[tuple[Tensor, ...]]) -> tuple[float, float]:
    """Mean loss and accuracy."""
    loss, right, seen = 0.0, 0, 0
    for images, labels in batches:
        logits = net(images)
        loss += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        right += int((logits.argmax(1) == labels).sum())
        seen += len(labels)
    return loss / seen, right / seen
