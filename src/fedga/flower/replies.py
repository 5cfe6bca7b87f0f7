"""Reading what clients send: whatever is not as declared is refused in words, and spoils nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from flwr.app import Message, MetricRecord
from torch import Tensor

from fedga.algorithms.base import Algorithm
from fedga.errors import FedGAError
from fedga.flower import wire
from fedga.simulation.stacked import StackedModel

SCORES = ("accuracy", "loss")
_FLOAT = 4


@dataclass(frozen=True)
class Reply:
    """A client's answer to a round of training."""

    client: int
    params: Tensor  # [parameters]
    buffers: Tensor  # [buffers]
    examples: float
    report: dict[str, Tensor]

    @property
    def is_finite(self) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in (self.params, self.buffers, *self.report.values()))


def vectors(model: StackedModel, named: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """A model by name as parameter and buffer vector."""
    for name, shape in (model.params.shapes | model.buffers.shapes).items():
        if name not in named or named[name].shape != shape:
            found = f"shape {tuple(named[name].shape)}" if name in named else "no entry"
            raise FedGAError(f"{found} for {name}, which has shape {tuple(shape)} here: use the same model")
    return model.params.flatten(named).to(model.dtype), model.buffers.flatten(named).to(model.dtype)


def read_training(model: StackedModel, algorithm: Algorithm, classes: int, client: int, message: Message) -> Reply:
    params, buffers = vectors(model, wire.arrays_of(message.content, wire.ARRAYS))
    report = wire.arrays_of(message.content, wire.REPORT)
    declared = {sent.name: sent for sent in algorithm.uploads if sent.name != "survey"}
    if set(report) != set(declared):
        raise FedGAError(f"it reports {sorted(report)} where {sorted(declared)} is declared")
    for name, tensor in report.items():
        size = declared[name].bytes(classes, model.params.total) // _FLOAT
        if tensor.numel() != size:
            raise FedGAError(f"its {name} has {tensor.numel()} numbers where {size} are declared")
    examples = _number(wire.metrics_of(message), wire.EXAMPLES)
    if not examples > 0:
        raise FedGAError(f"it counts {examples:g} samples")
    return Reply(client, params, buffers, examples, {name: each.to(model.dtype) for name, each in report.items()})


def read_survey(message: Message) -> Tensor:
    value = wire.arrays_of(message.content, wire.REPORT).get("survey")
    if value is None or value.numel() != 1:
        raise FedGAError("it does not answer with one number")
    return value.reshape(()).to(torch.get_default_dtype())


def read_scores(message: Message) -> MetricRecord:
    """A client's scores on the samples it holds out; it may hold out none."""
    row = wire.metrics_of(message)
    if _number(row, wire.EXAMPLES) > 0:
        for name in SCORES:
            _number(row, name)
    return row


def _number(row: MetricRecord, name: str) -> float:
    if name not in row or isinstance(row[name], list):
        raise FedGAError(f"it has no number {name}")
    return wire.number(row, name)
