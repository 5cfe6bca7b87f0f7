"""One client's half of a round: the engine's own local training, for a stack of one."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, Tensors
from fedga.data.federation import Federation
from fedga.engine.device_data import DeviceData, FederationTable, InputScaling
from fedga.engine.local import Slots, SlotSegment, final_reports, stacked_head, train_locally
from fedga.engine.slots import Places, SlotPlanner
from fedga.engine.stack.lanes import Own
from fedga.engine.stack.stacked import StackedModel
from fedga.engine.stack.workers import computing_in
from fedga.flower.replies import Declaration
from fedga.spec.settings import TrainingSettings

EVALUATED_AT_ONCE = 1000


@dataclass(frozen=True)
class ClientData:
    data: DeviceData
    places: Tensor  # [samples]: in the training split of `data`
    scaling: InputScaling
    validation: Tensor | None = None  # [samples]: there, held out by all clients, to score on; None: the test split

    @property
    def held_out(self) -> bool:
        """Whether there are samples that are kept from training."""
        return len(self.data.test_targets) > 0

    @property
    def class_counts(self) -> Tensor:
        return torch.bincount(self.data.train_targets[self.places], minlength=self.data.dataset.num_classes)


@dataclass(frozen=True)
class Received:
    """The global model as the server sends it, or as trained here, with what the algorithm's server sends beside it."""

    params: Tensor  # [parameters]
    buffers: Tensor  # [buffers]
    beside: Tensors


@dataclass(frozen=True)
class Participant:
    """A client of a run, with the network it trains."""

    spec: TrainingSettings
    algorithm: Algorithm
    model: StackedModel
    client_data: ClientData
    number: int  # of this client in the federation: it keys the order of its batches
    declaration: Declaration

    @torch.no_grad()
    def train(self, round_number: int, received: Received, kept: Tensors) -> tuple[Received, Tensors, Tensors]:
        """Local training from the received model: the trained one, what is reported with it, and what stays here.

        ``kept`` is what stayed here after the last round.
        """
        slots = self._slots(round_number, received, kept)
        with computing_in(self.spec.precision):
            result = train_locally(self.model, self.client_data.data, slots, self.spec.optimizer, self.spec.momentum)
        [report], [stays] = result.reports, result.client_states
        trained = replace(received, params=result.params[0], buffers=result.buffers[0])
        own = slots.segments[0].own
        mine = {} if own is None else own.of_model(trained.params, trained.buffers)
        return trained, _only(report), _only(stays) | mine

    @torch.no_grad()
    def final_report(self, round_number: int, received: Received, kept: Tensors) -> dict[str, Tensor]:
        slots = self._slots(round_number, received, kept)
        with computing_in(self.spec.precision):
            return _only(final_reports(self.model, self.client_data.data, slots))

    def _slots(self, round_number: int, received: Received, kept: Tensors) -> Slots:
        """A stack of one client."""
        data, places = self.client_data.data, self.client_data.places
        federation = Federation(data.dataset, places.cpu().numpy(), np.array([0, len(places)]))
        scaling = self.client_data.scaling[None]
        table = FederationTable([federation], data.device, self.model.dtype)
        planner = SlotPlanner([self.spec], [self.algorithm], table, data, scaling, dtype=self.model.dtype)
        only = torch.zeros(1, 1, dtype=torch.int64, device=data.device)
        tensors = (_stacked(received.beside), _stacked(kept))
        own = Own.of(self.algorithm, self.model, data.device)
        segment = SlotSegment(self.algorithm, slice(0, 1), *tensors, 0, only[0], only[0], own)
        who = Places(slice(0, 1), only, torch.full_like(only, self.number))
        return planner.slots(
            round_number, who, received.params[None].clone(), received.buffers[None].clone(), [segment]
        )

    def _logits(self, received: Received, inputs: Tensor) -> Tensor:
        head = stacked_head(self.model, self.algorithm, _stacked(received.beside))
        inputs = self.client_data.scaling.apply(inputs)
        return self.model.evaluate_each(received.params[None], received.buffers[None], inputs[None], head)[0]

    @torch.no_grad()
    def survey(self, received: Received, asking: Algorithm | None = None) -> Tensor:
        """Mean over this client's samples of what the algorithm asks about the received model, or another, ``[]``."""
        asking = asking or self.algorithm
        data, total = self.client_data.data, received.params.new_zeros((), dtype=torch.float64)
        for places in self.client_data.places.split(EVALUATED_AT_ONCE):
            logits, targets = self._logits(received, data.gather(places)), data.train_targets[places]
            batch = Batch(logits, targets, torch.ones_like(logits[:, 0]), torch.full_like(logits[0], torch.nan))
            total += asking.survey(batch).double().sum()
        return (total / len(self.client_data.places)).to(received.params.dtype)

    @torch.no_grad()
    def evaluate(self, received: Received) -> tuple[Tensor, float]:
        """Confusion ``[true class, predicted class]`` and mean loss on the samples this client holds out.

        Where it holds out none, they are those on the samples it trains on.
        """
        data, dataset, held_out = self.client_data.data, self.client_data.data.dataset, self.client_data.held_out
        inputs, targets = data.scored_on(self.client_data.validation if held_out else self.client_data.places)
        confusion = torch.zeros(dataset.num_classes, dataset.num_classes, dtype=torch.float64)
        loss = 0.0
        for some, labels in zip(inputs.split(EVALUATED_AT_ONCE), targets.split(EVALUATED_AT_ONCE), strict=True):
            logits = self._logits(received, some)
            loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
            cells = labels * dataset.num_classes + logits.argmax(-1)
            confusion += torch.bincount(cells, minlength=confusion.numel()).view_as(confusion).cpu()
        return confusion, loss / len(targets)


def _only(tensors: Tensors) -> dict[str, Tensor]:
    """Of the stack's one client."""
    return {name: tensor[0] for name, tensor in tensors.items()}


def _stacked(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor[None] for name, tensor in tensors.items()}
