"""Astraea: clients whose classes together are even train one after another on one model; rare classes count for more.

Up to γ (``members``) active clients form a mediator: one by one the client joins that brings the labels of all in it
nearest to uniform, in ``KL(labels || uniform)``. They train in turn, in the order of the round's random draws. With C_y
samples of class y among the clients seen so far, mean m and deviation s over classes, ``z_y = (C_y - m) / s`` and
``t_a = -1 / t_d``, a sample of class y counts ``(m - s √(z_y t_a)) / C_y`` fold where ``z_y < t_a``, and
``(m + s √(z_y t_d)) / C_y`` where ``z_y > t_d``. The paper copies samples of the former, augmented, and drops some of
the latter; these are weights in the loss here, the same in the mean, and ``--augment`` changes pictures of all classes.
They begin at 1, and are raised to the power of the share of clients seen.
Duan, Liu, Chen, Liu, Tan and Liang. Self-Balancing Federated Learning with Global Imbalanced Data in Mobile Systems.
IEEE TPDS 32 (1), 2021; with one pass through a mediator in a round.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import (
    Algorithm,
    Batch,
    RoundResult,
    Sent,
    Server,
    Setup,
    Tensors,
    Trained,
    cross_entropy,
    option,
)


@dataclass(frozen=True)
class Astraea(Algorithm):
    members: int = option(5, least=1, largest=10**6)  # γ
    rebalance: float = option(1.0, least=0, most=1)  # power of the weights; 0: none
    threshold: float = option(3.0, above=0, smallest=1e-3, largest=1e3)  # t_d

    citation: ClassVar[str] = "Duan et al. 2021"
    downloads: ClassVar[tuple[Sent, ...]] = (Sent("class_weights", "classes", "how rare each class is overall"),)
    uploads: ClassVar[tuple[Sent, ...]] = (
        Sent("class_counts", "classes", "its class counts (and the next client its trained model)"),
    )

    def groups(self, server: Server, clients: Tensor, class_counts: Tensor) -> Tensor:
        counts, place = class_counts.double(), torch.arange(len(clients), device=clients.device)
        free, group, pool = torch.ones_like(counts[:, 0]), torch.zeros_like(place), torch.zeros_like(counts[0])
        for taken in range(len(clients)):
            pool = pool * (taken % self.members > 0)
            mix = (pool + counts) / (pool + counts).sum(1, keepdim=True)
            uneven = torch.special.xlogy(mix, mix * counts.shape[1]).sum(1) + 1e-9 * place  # of equals, the first
            best = torch.where(free > 0, uneven, torch.inf).argmin() == place
            group, free = torch.where(best, taken // self.members, group), torch.where(best, 0.0, free)
            pool = pool + best.double() @ counts
        return group

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"class_counts": setup.params.new_zeros(setup.num_clients, setup.num_classes)}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        counts = server.state["class_counts"]
        seen = (counts.sum(1) > 0).to(counts.dtype).mean()  # few clients say little about what is rare
        return {"class_weights": self._class_weights(counts.sum(0)) ** (self.rebalance * seen)}

    def _class_weights(self, totals: Tensor) -> Tensor:
        mean, deviation = totals.mean(), totals.std(correction=0)
        z = torch.where(deviation > 0, (totals - mean) / deviation.clamp(min=1e-12), 0.0)
        more = mean - deviation * (z / -self.threshold).clamp(min=0).sqrt()
        fewer = mean + deviation * (z * self.threshold).clamp(min=0).sqrt()
        wanted = torch.where(z < -1 / self.threshold, more, torch.where(z > self.threshold, fewer, totals))
        return torch.where(totals > 0, wanted.clamp(min=0) / totals.clamp(min=1), 1.0)

    def local_loss(self, batch: Batch) -> Tensor:
        return batch.received["class_weights"][batch.targets] * cross_entropy(batch.logits, batch.targets)

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"class_counts": trained.class_counts}, {}

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        return {"class_counts": state["class_counts"].index_copy(0, result.clients, result.reports["class_counts"])}
