"""Scores of many models on one test split, computed together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.simulation.device_data import DeviceData, Pixels
from fedga.simulation.memory import Appetite
from fedga.simulation.stacked import StackedModel


@dataclass(frozen=True)
class Evaluation:
    """What a set of models did on the test split."""

    confusion: Tensor  # [models, true class, predicted class]: counts
    mean_predictions: Tensor  # [models, true class, class]: mean probability, NaN where the split lacks the true class
    loss: Tensor  # [models]: mean cross-entropy

    def __getitem__(self, which: slice | Tensor) -> Evaluation:
        return Evaluation(self.confusion[which], self.mean_predictions[which], self.loss[which])

    @staticmethod
    def join(parts: list[Evaluation]) -> Evaluation:
        return Evaluation(
            torch.cat([part.confusion for part in parts]),
            torch.cat([part.mean_predictions for part in parts]),
            torch.cat([part.loss for part in parts]),
        )


@torch.no_grad()
def evaluate(
    model: StackedModel,
    params: Tensor,  # [models, parameters]
    buffers: Tensor,  # [models, buffers]
    data: DeviceData,
    pixels: Pixels,  # the same for all models
    appetite: Appetite,
) -> Evaluation:
    """Every model on the whole test split."""
    stacks = zip(params.split(appetite.models), buffers.split(appetite.models), strict=True)
    return Evaluation.join([_evaluate_together(model, *stack, data, pixels, appetite.samples) for stack in stacks])


def _evaluate_together(
    model: StackedModel, params: Tensor, buffers: Tensor, data: DeviceData, pixels: Pixels, samples_at_once: int
) -> Evaluation:
    classes = data.dataset.num_classes
    shape = (len(params), classes, classes)
    confusion, probability = params.new_zeros(shape), params.new_zeros(shape)
    loss = params.new_zeros(len(params), dtype=torch.float64)
    targets = data.test_targets
    for inputs, truth in zip(data.test_inputs.split(samples_at_once), targets.split(samples_at_once), strict=True):
        log_probs = F.log_softmax(model.evaluate(params, buffers, pixels.apply(inputs)), dim=-1)
        true = F.one_hot(truth, classes).to(log_probs.dtype)  # [samples, classes]
        predicted = F.one_hot(log_probs.argmax(-1), classes).to(log_probs.dtype)  # [models, samples, classes]
        confusion += true.T @ predicted
        probability += true.T @ log_probs.exp()
        loss -= (log_probs * true).sum((1, 2), dtype=torch.float64)
    counts = F.one_hot(targets, classes).sum(0)
    return Evaluation(confusion, probability / counts[:, None], (loss / len(targets)).float())
