"""Losses that take a stack of clients at once, and those of others, which are mapped over them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fedga.algorithms import ALGORITHMS, Batch, make_algorithm
from fedga.algorithms.fedga import FedGA
from fedga.simulation.device_data import DeviceData
from tests.simulation.runs import make_engine, make_lane

STACKING = [name for name, kind in ALGORITHMS.items() if vars(kind).get("stacks")]


@pytest.mark.parametrize("name", STACKING)
def test_a_stack_is_what_its_clients_are_one_by_one(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, teacher = torch.randn(2, 3, 5, 4, dtype=torch.float64, generator=generator)
    targets = torch.randint(0, 4, (3, 5), generator=generator)
    mask = (torch.rand(3, 5, generator=generator) < 0.7).double()
    counts = torch.randint(0, 9, (3, 4), generator=generator).double()
    algorithm = make_algorithm(name)
    stacked = algorithm.local_loss(Batch(logits, targets, mask, counts.unsqueeze(1), teacher))
    for k in range(3):
        alone = algorithm.local_loss(Batch(logits[k], targets[k], mask[k], counts[k], teacher[k]))
        torch.testing.assert_close(stacked[k], alone, rtol=0, atol=1e-14)


@dataclass(frozen=True)
class OfOneClient(FedGA):
    """A user's subclass, written for one client as the guide says: it must not be handed a stack."""

    def local_loss(self, batch: Batch) -> Tensor:
        assert batch.logits.dim() == 2
        return super().local_loss(batch)


def test_a_subclass_is_mapped_unless_it_says_that_it_stacks(pictures_data: DeviceData) -> None:
    lane = make_lane(pictures_data.dataset, algorithm="fedga")
    plain, mapped = (
        make_engine([lane], pictures_data),
        make_engine([replace(lane, algorithm=OfOneClient())], pictures_data),
    )
    plain.run_round()
    mapped.run_round()
    torch.testing.assert_close(mapped.stack.params, plain.stack.params)
