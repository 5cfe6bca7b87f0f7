"""Losses that take a stack of clients at once (see `fedga.algorithms.checking`) are not those of their subclasses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedga.algorithms import Batch
from fedga.algorithms.fedga import FedGA
from fedga.engine.device_data import DeviceData
from tests.engine.runs import make_engine, make_lane


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
