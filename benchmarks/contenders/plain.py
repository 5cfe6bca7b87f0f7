"""What one writes without a library: a module, an optimiser, a loop. Arguments: sliced or loader."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable

import networks
import torch
import torch.nn.functional as F
import work
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from turns import Turns


def batches(inputs: Tensor, targets: Tensor, loader: bool) -> Iterable[tuple[Tensor, ...]]:
    if loader:
        return DataLoader(TensorDataset(inputs, targets), work.BATCH, shuffle=True)
    return ((inputs[part], targets[part]) for part in torch.randperm(work.SAMPLES).split(work.BATCH))


def train(network: nn.Module, inputs: Tensor, targets: Tensor, rate: float, loader: bool) -> None:
    optimizer = torch.optim.SGD(network.parameters(), rate, work.MOMENTUM)
    for _ in range(work.EPOCHS):
        for some_inputs, some_targets in batches(inputs, targets, loader):
            optimizer.zero_grad()
            F.cross_entropy(network(some_inputs), some_targets).backward()
            optimizer.step()


def mean(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    def of(values: list[Tensor]) -> Tensor:
        return torch.stack(values).mean(0) if values[0].is_floating_point() else values[0]

    return {name: of([state[name] for state in states]) for name in states[0]}


def main(model: str, threads: str, way: str) -> None:
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    data, network = work.load_data(model), networks.build(model)

    def trained(k: int) -> dict[str, Tensor]:
        local = copy.deepcopy(network)
        train(local, *networks.client_tensors(data, k), work.RATES[model], loader=way == "loader")
        return local.state_dict()

    for _ in Turns("torch").rounds(lambda: networks.accuracy(data, network)):
        chosen = torch.randperm(work.CLIENTS)[: work.ACTIVE].tolist()
        network.load_state_dict(mean([trained(k) for k in chosen]))


if __name__ == "__main__":
    main(*sys.argv[1:])
