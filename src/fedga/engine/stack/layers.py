"""Layers whose result depends on which rows of a padded batch are real, or on a random draw.

Stacked clients share one batch shape, so small batches are padded. Padding must not change a number: batch statistics
are taken over the real rows only, and dropout draws by counter instead of from a global generator.
"""

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedga.common import streams
from fedga.engine.gpu.layers import StackedConv2d, StackedMaxPool2d, normalize, runs_kernels
from fedga.errors import FedGAError


@dataclass
class BatchContext:
    """What the layers of a network need to know about the batch that flows through it."""

    mask: Tensor | None = None  # [samples]: 1 for a sample, 0 for padding
    is_whole: bool = False  # one copy's batch, known to have no padding
    dropout_key: Tensor | None = None  # []: int64
    calls: dict[int, int] = field(default_factory=dict)  # of every dropout layer, within one forward pass
    features: Tensor | None = None  # the head's input in this forward pass, where it is kept
    logits: Tensor | None = None  # its output, with it

    def begin(self, mask: Tensor, dropout_key: Tensor, is_whole: bool = False) -> None:
        """A new batch comes through."""
        self.mask, self.dropout_key, self.is_whole, self.calls = mask, dropout_key, is_whole, {}

    def forget(self) -> None:
        """Hold on to nothing of a batch that is through."""
        self.mask = self.dropout_key = self.features = self.logits = None

    def keep_features(self, head: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        """Note what goes into the head, and what comes out."""
        self.features, self.logits = inputs[0], outputs


class FrozenBatchNorm(nn.Module):
    """Batch normalisation that stands still: by the statistics it came with, in training too."""

    running_mean: Tensor
    running_var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    normalizes = True

    def __init__(self, original: _BatchNorm) -> None:
        super().__init__()
        self._parameters, self._buffers, self.eps = original._parameters, original._buffers, original.eps

    def forward(self, inputs: Tensor) -> Tensor:
        return F.batch_norm(inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class MaskedBatchNorm(nn.Module):
    """Batch normalisation over the real rows of a batch; equal to ``torch.nn.BatchNorm`` on those rows alone."""

    running_mean: Tensor
    running_var: Tensor
    normalizes = True

    def __init__(self, original: _BatchNorm, context: BatchContext) -> None:
        super().__init__()
        if original.momentum is None:
            raise FedGAError("BatchNorm with momentum=None is not supported: give its layers a momentum such as 0.1")
        if not original.track_running_stats:
            raise FedGAError(
                "BatchNorm with track_running_stats=False is not supported, since a test score would depend on how the "
                "test split is cut into batches: leave it at True, or use GroupNorm"
            )
        self.eps, self.momentum, self.context = original.eps, original.momentum, context
        self.weight, self.bias = original.weight, original.bias
        self.register_buffer("running_mean", original.running_mean)
        self.register_buffer("running_var", original.running_var)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            if inputs.device.type == "cpu":  # one pass instead of two
                return F.batch_norm(inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
            return self._scaled(inputs, self.running_mean, self.running_var)
        if self.context.is_whole:
            return self._by_torch(inputs)
        assert self.context.mask is not None
        any_real = self.context.mask.sum() > 0  # a batch of nothing but padding must stay finite
        mask = torch.where(any_real, self.context.mask, 1.0).to(inputs.dtype)
        count = mask.sum() * inputs[0, 0].numel()
        if runs_kernels(inputs):
            outputs, mean, variance = normalize(inputs, mask, self.weight, self.bias, self.eps)
        else:
            mean, variance = _statistics(inputs, mask, count)
            outputs = self._scaled(inputs, mean, variance)
        moved = self.momentum * any_real.to(mean.dtype)
        unbiased = variance.detach() * (count / (count - 1).clamp(min=1))
        self.running_mean = self.running_mean + moved * (mean.detach() - self.running_mean)
        self.running_var = self.running_var + moved * (unbiased - self.running_var)
        return outputs

    def _by_torch(self, inputs: Tensor) -> Tensor:
        """PyTorch's own, which moves statistics in place: ours may lie in somebody else's memory."""
        self.running_mean, self.running_var = self.running_mean.clone(), self.running_var.clone()
        statistics = (self.running_mean, self.running_var)
        return F.batch_norm(inputs, *statistics, self.weight, self.bias, True, self.momentum, self.eps)

    def _scaled(self, inputs: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (inputs.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        return inputs * scale.view(shape) + shift.view(shape)


def _statistics(inputs: Tensor, mask: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every channel over the rows that count."""
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    rows = mask.view(-1, *[1] * (inputs.dim() - 1))
    mean = (inputs * rows).sum(axes) / count
    centred = (inputs - mean.view(1, -1, *[1] * (inputs.dim() - 2))) * rows
    return mean, centred.square().sum(axes) / count


class KeyedDropout(nn.Module):
    """Dropout whose draw is a function of the batch's key, the layer and the position: the same wherever it runs."""

    def __init__(self, probability: float, whole_channels: bool, layer: int, context: BatchContext) -> None:
        super().__init__()
        self.probability, self.whole_channels, self.layer, self.context = probability, whole_channels, layer, context

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return inputs
        if self.probability == 1:
            return inputs * 0
        assert self.context.dropout_key is not None
        before = self.context.calls.get(self.layer, 0)  # one layer may stand in several places of a network
        self.context.calls[self.layer] = before + 1
        shape = inputs.shape[:2] + (1,) * (inputs.dim() - 2) if self.whole_channels else inputs.shape
        positions = torch.arange(shape.numel(), device=inputs.device).view(shape)
        layer = torch.full((), self.layer + (before << 32), device=inputs.device)
        draws = streams.uniform(streams.fold(streams.fold(self.context.dropout_key, layer), positions))
        return torch.where(draws < self.probability, 0.0, inputs / (1 - self.probability))


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def _replace(model: nn.Module, kind: Any, make: Callable[[Any], nn.Module]) -> nn.Module:
    """``model`` itself with every layer of a kind replaced; one that stands in several places stays one layer."""
    made: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, kind):
                if id(child) not in made:
                    made[id(child)] = make(child)
                setattr(parent, name, made[id(child)])
    return model


def prepare_for_padding(model: nn.Module) -> tuple[nn.Module, BatchContext]:
    """A copy of ``model`` with every layer that looks across rows, draws at random or convolves replaced by ours."""
    context, numbers = BatchContext(), itertools.count()

    def keyed(child: Any) -> nn.Module:
        return KeyedDropout(child.p, not isinstance(child, nn.Dropout), next(numbers), context)

    prepared = _replace(copy.deepcopy(model), _DROPOUTS, keyed)
    prepared = _replace(prepared, _BatchNorm, lambda child: MaskedBatchNorm(child, context))
    return _replace(prepared, nn.Conv2d | nn.MaxPool2d, _for_all_copies), context


def _for_all_copies(layer: nn.Module) -> nn.Module:
    for ours in (StackedConv2d, StackedMaxPool2d):
        if ours.takes(layer):
            return ours(layer)
    return layer


def keeps_own_buffers(model: nn.Module) -> bool:
    """Whether a layer that is not ours has a buffer, be it None as yet: a table that stays, or a value that moves."""
    ours = MaskedBatchNorm | FrozenBatchNorm
    return any(module._buffers for module in model.modules() if not isinstance(module, ours))
