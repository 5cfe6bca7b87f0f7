"""Scores of many models on one test split, or on samples held out of training, computed together."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, product
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.engine.device_data import DeviceData, InputScaling
from fedga.engine.stack.budget import MemoryBudget
from fedga.engine.stack.stacked import Head, StackedModel
from fedga.engine.stack.workers import Workers


@dataclass(frozen=True)
class Evaluation:
    """What a set of models did on the test split, or on the samples that a run holds out."""

    confusion: Tensor  # [models, true class, predicted class]: counts
    mean_predictions: Tensor  # [models, true class, class]: mean probability, NaN where the split lacks the true class
    loss: Tensor  # [models]: mean cross-entropy

    def __getitem__(self, which: slice | Tensor) -> Self:
        return type(self)(self.confusion[which], self.mean_predictions[which], self.loss[which])

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        columns = zip(*((part.confusion, part.mean_predictions, part.loss) for part in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))


def evaluate(
    workers: Workers,
    params: Tensor,  # [models, parameters]
    buffers: Tensor,  # [models, buffers]
    data: DeviceData,
    scaling: InputScaling,  # the same for all models
    budget: MemoryBudget,
    head: Callable[[slice], Head | None] | None = None,  # of some of the models; None: the network's own
    places: Tensor | None = None,  # in the training split, [samples]; None: the test split
    shift: Tensor | None = None,  # [classes]: added to the logits of every model
) -> Evaluation:
    """Every model on the whole test split, or on the samples at ``places``."""
    size, classes = budget.models, data.dataset.num_classes
    heads = [None if head is None else head(slice(at, at + size)) for at in range(0, len(params), size)]
    stacks = list(zip(params.split(size), buffers.split(size), heads, strict=True))
    inputs, targets = data.scored_on(places)
    samples = list(zip(inputs.split(budget.samples), targets.split(budget.samples), strict=True))

    def work(
        model: StackedModel, item: tuple[tuple[Tensor, Tensor, Head | None], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, ...]:
        """Sums over some samples: confusion counts, probabilities by true class, cross-entropy."""
        (some, their_buffers, head), (inputs, targets) = item
        logits = model.evaluate(some, their_buffers, scaling.apply(inputs), head)
        log_probs = F.log_softmax(logits if shift is None else logits + shift, dim=-1)
        true = F.one_hot(targets, classes).to(log_probs.dtype)  # [samples, classes]
        predicted = F.one_hot(log_probs.argmax(-1), classes).to(log_probs.dtype)  # [models, samples, classes]
        loss = -(log_probs * true).sum((1, 2), dtype=torch.float64)
        return true.T @ predicted, true.T @ log_probs.exp(), loss

    parts = workers.map(torch.no_grad()(work), product(stacks, samples))
    of_stacks = (zip(*islice(parts, len(samples)), strict=True) for _ in stacks)
    totals = [[torch.stack(column).sum(0) for column in columns] for columns in of_stacks]
    confusion, probability, loss = (torch.cat(column) for column in zip(*totals, strict=True))
    counts = F.one_hot(targets, classes).sum(0)
    return Evaluation(confusion, probability / counts[:, None], (loss / len(targets)).float())
