"""One client's half of a round: the engine's own local training, for a stack of one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, Tensors
from fedga.engine import schedule
from fedga.engine.device_data import DeviceData, InputScaling
from fedga.engine.local import Slots, SlotSegment, train_locally
from fedga.engine.optimizers import scheduled_rate
from fedga.engine.precision import computing_in
from fedga.engine.stack.stacked import StackedModel
from fedga.flower.replies import Declaration
from fedga.measures.scores import recall
from fedga.spec.settings import RunSpec

EVALUATED_AT_ONCE = 1000


@dataclass(frozen=True)
class ClientData:
    """The samples of one client."""

    data: DeviceData
    places: Tensor  # [samples]: in the training split of `data`
    pixels: InputScaling

    @property
    def class_counts(self) -> Tensor:
        return torch.bincount(self.data.train_targets[self.places], minlength=self.data.dataset.num_classes)


@dataclass(frozen=True)
class TrainResult:
    """What local training gives: a model, what is reported with it, and what stays."""

    params: Tensor  # [parameters]
    buffers: Tensor  # [buffers]
    report: dict[str, Tensor]
    kept: dict[str, Tensor]


@dataclass(frozen=True)
class Participant:
    """A client of a run, with the network it trains."""

    spec: RunSpec
    algorithm: Algorithm
    model: StackedModel
    client_data: ClientData
    number: int  # of this client in the federation: it keys the order of its batches
    declaration: Declaration

    @torch.no_grad()
    def train(
        self, round_number: int, params: Tensor, buffers: Tensor, received: Tensors, kept: Tensors
    ) -> TrainResult:
        """Local training from the received model; ``kept`` is what the algorithm left here after the last round."""
        slots = self._slots(round_number, params, buffers, received, kept)
        with computing_in(self.spec.precision):
            result = train_locally(self.model, self.client_data.data, slots, self.spec.optimizer, self.spec.momentum)
        [report], [stays] = result.reports, result.client_states
        return TrainResult(
            result.params[0],
            result.buffers[0],
            {name: value[0] for name, value in report.items()},
            {name: value[0] for name, value in stays.items()},
        )

    def first_kept(self, params: Tensor) -> dict[str, Tensor]:
        return self.algorithm.client_state(params)

    def _slots(self, round_number: int, params: Tensor, buffers: Tensor, received: Tensors, kept: Tensors) -> Slots:
        spec, places = self.spec, self.client_data.places
        device = places.device
        who, size = torch.tensor([[self.number]], device=device), len(places)
        keys = schedule.client_keys([spec.seed], "batches", round_number, who)[0]
        sizes = torch.tensor([size], device=device)
        batch_size = min(spec.batch_size, size)
        plan = schedule.plan_batches(keys, sizes, epochs=spec.local_epochs, batch_size=batch_size, largest=size)
        rate = scheduled_rate(spec.lr, spec.lr_schedule, round_number, spec.rounds)

        def one(value: float) -> Tensor:
            return params.new_tensor([value])

        segment = SlotSegment(
            self.algorithm, slice(0, 1), _stacked(received), _stacked(kept), 0, who[0].new_zeros(1), who[0]
        )
        return Slots(
            params=params[None],
            buffers=buffers[None],
            plan=plan,
            samples=places[plan.positions],
            class_counts=self.client_data.class_counts.float()[None],
            pixels=InputScaling(self.client_data.pixels.scale[None], self.client_data.pixels.shift[None]),
            dropout_keys=schedule.client_keys([spec.seed], "dropout", round_number, who)[0],
            lr=one(rate),
            weight_decay=one(spec.weight_decay),
            clip=one(spec.clip or float("inf")),
            decays=bool(spec.weight_decay),
            clips=bool(spec.clip),
            segments=[segment],
        )

    @torch.no_grad()
    def survey(self, params: Tensor, buffers: Tensor) -> Tensor:
        """Mean over this client's samples of what the algorithm asks about the received model, ``[]``."""
        data, total = self.client_data.data, params.new_zeros((), dtype=torch.float64)
        for places in self.client_data.places.split(EVALUATED_AT_ONCE):
            inputs, targets = self.client_data.pixels.apply(data.gather(places)), data.train_targets[places]
            logits = self.model.forward_one(params, buffers, inputs)
            batch = Batch(logits, targets, torch.ones_like(logits[:, 0]), logits.new_zeros(logits.shape[-1]))
            total += self.algorithm.survey(batch).double().sum()
        return (total / len(self.client_data.places)).to(params.dtype)

    @torch.no_grad()
    def look(self, params: Tensor, buffers: Tensor) -> LocalEvaluation:
        """The model on the samples this client holds out, or, where it holds out none, on those it trains on."""
        data, dataset = self.client_data.data, self.client_data.data.dataset
        held_out = len(data.test_targets) > 0
        inputs = data.test_inputs if held_out else data.gather(self.client_data.places)
        targets = data.test_targets if held_out else data.train_targets[self.client_data.places]
        confusion = torch.zeros(dataset.num_classes, dataset.num_classes, dtype=torch.float64)
        loss = 0.0
        for some, labels in zip(inputs.split(EVALUATED_AT_ONCE), targets.split(EVALUATED_AT_ONCE), strict=True):
            logits = self.model.forward_one(params, buffers, self.client_data.pixels.apply(some))
            loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
            cells = labels * dataset.num_classes + logits.argmax(-1)
            confusion += torch.bincount(cells, minlength=confusion.numel()).view_as(confusion).cpu()
        return LocalEvaluation(confusion, loss / len(targets), held_out)


@dataclass(frozen=True)
class LocalEvaluation:
    """What a model does on a client's samples."""

    confusion: Tensor  # [true class, predicted class]
    loss: float
    held_out: bool  # whether the samples were kept from training

    @property
    def samples(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        return (self.confusion.trace() / self.confusion.sum()).item()

    @property
    def recall(self) -> Tensor:
        """Per class; NaN where there is no sample of it."""
        return recall(self.confusion)


def _stacked(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor[None] for name, tensor in tensors.items()}
