"""Gradient alignment for dense prediction: one class per pixel, voxel or token.

The loss of :mod:`fedga.losses.calibration`, in the layout of :func:`torch.nn.functional.cross_entropy`, classes
second. The counts are those of one client, so the weights a_i = N_i^γ are the same for all its pixels, and the loss is

    loss = -log p_y + λ (sum_i a_i p_i / a_y - 1)

A map of logits is read where it lies, and nothing of its size is kept for the backward pass but the map itself.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedga.errors import FedGAError
from fedga.losses import checks
from fedga.losses.calibration import CountedLoss, Reduction, at_least_float32, batch_class_counts, reduced, result_dtype


def dense_ga_loss(
    logits: Tensor,
    targets: Tensor,
    class_counts: Tensor | Sequence[float],
    *,
    ignore_index: int | None = -100,
    strength: float = 1.0,
    reduction: Reduction = "mean",
    power: float = 1.0,
) -> Tensor:
    """Cross-entropy against the calibrated labels of Eq. (10), pixel by pixel: a scalar, or [batch, ...] unreduced.

    logits: [batch, classes, ...] or [classes], targets: [batch, ...] or [] class indices, class_counts: [classes], how
    many pixels of each class the client holds.

    Equals :func:`fedga.ga_loss` on the pixels whose target is not ``ignore_index`` (None: on all). The others count
    for nothing: not in the mean, and with a gradient of exactly 0 even where their logits are NaN. If every pixel is
    ignored the loss is 0, where torch's cross-entropy is NaN: one unlabelled picture must not spoil a client's round.

    >>> logits = torch.tensor([[[2.0, 0.5], [0.0, 1.0], [-1.0, 0.0]]])
    >>> dense_ga_loss(logits, torch.tensor([[0, 2]]), [10, 0, 5])
    tensor(0.7578)
    >>> dense_ga_loss(logits, torch.tensor([[0, 255]]), [10, 0, 5], ignore_index=255)
    tensor(0.0346)
    """
    # Values of tensors stay unread: no wait for a GPU, no graph break.
    classes = checks.check_targets("logits", logits, targets, 1, "[batch, classes, ...]")
    if not isinstance(class_counts, Tensor) and not torch.compiler.is_compiling():
        class_counts = checks.counts_to_keep(class_counts)
    counts = torch.as_tensor(class_counts, device=logits.device)
    if list(counts.shape) != [classes]:
        shape = list(counts.shape)
        raise FedGAError(f"class_counts must be one number for each of the {classes} classes, but has shape {shape}")
    counts = counts.to(at_least_float32(logits))
    kept = kept_targets(targets, ignore_index)
    places = torch.where(kept, targets.long(), 0)
    maps = logits.reshape(1, -1, 1) if logits.ndim == 1 else logits.unsqueeze(-1).flatten(2)
    flat = (maps.shape[0], maps.shape[2])
    weights = counts**power
    own = torch.where(counts > 0, counts, 1.0) ** power  # a true class that was counted zero times counts as one
    tables = (weights, strength / own, strength * (1 - weights / own))
    loss = _PixelLoss.apply(maps, places.reshape(flat), kept.reshape(flat), *tables).reshape(targets.shape)
    return reduced(torch.where(kept, loss - strength, 0.0), reduction, kept).to(result_dtype(logits))


class DenseGALoss(CountedLoss):
    """:func:`dense_ga_loss` as a module, in place of ``nn.CrossEntropyLoss(ignore_index=...)``.

    Called with logits [batch, classes, ...] and targets [batch, ...]. class_counts: [classes], how many pixels of each
    class the client holds, such as ``torch.bincount(masks[masks != 255], minlength=classes)``. They move with the
    module and are not in its ``state_dict``. Without them the pixels of each call are counted, ignored ones left out.

    >>> criterion = DenseGALoss([10, 0, 5], ignore_index=255)
    >>> criterion(torch.zeros(1, 3, 2, 2), torch.tensor([[[0, 2], [255, 0]]]))
    tensor(0.7653)
    """

    ignore_index: int | None

    def __init__(
        self,
        class_counts: Tensor | Sequence[float] | None = None,
        *,
        ignore_index: int | None = -100,
        strength: float = 1.0,
        reduction: Reduction = "mean",
        power: float = 1.0,
    ) -> None:
        counts = None if class_counts is None else checks.counts_to_align(class_counts)
        super().__init__(counts, ignore_index=ignore_index, strength=strength, reduction=reduction, power=power)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        counts = self.class_counts
        if counts is None:
            labels = targets.reshape(-1)
            kept = kept_targets(labels, self.ignore_index)
            counts = batch_class_counts(labels, logits.shape[min(1, logits.ndim - 1)], kept)
        return dense_ga_loss(logits, targets, counts, **self.settings)


def kept_targets(targets: Tensor, ignore_index: int | None) -> Tensor:
    """Which targets count: bool of their shape."""
    return torch.ones_like(targets, dtype=torch.bool) if ignore_index is None else targets != ignore_index


class _PixelLoss(torch.autograd.Function):
    """-log p_y + scale_y sum_i a_i p_i + spare_y p_y of every pixel: [batch, pixels].

    maps: [batch, classes, pixels], places: [batch, pixels] class indices, kept: [batch, pixels]; weights a, scale and
    spare: [classes]. The softmax is computed again in the backward pass, which is what keeps the memory at that of
    cross-entropy; that pass is itself differentiable.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, places: Tensor, kept: Tensor, weights: Tensor, scale: Tensor, spare: Tensor) -> Tensor:
        log_p = torch.log_softmax(maps, 1, dtype=weights.dtype)
        log_p_y = checks.of_target(log_p.movedim(1, -1), places.unsqueeze(-1)).squeeze(-1)
        mass = (log_p.exp_() * weights[:, None]).sum(1)
        return scale[places] * mass + spare[places] * log_p_y.exp() - log_p_y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        maps, places, kept, weights, scale, spare = ctx.saved_tensors
        index = places.unsqueeze(1)
        p = torch.softmax(maps, 1, dtype=weights.dtype)
        spared = spare[index] * p.gather(1, index)
        mass = (p * weights[:, None]).sum(1, keepdim=True)
        slope = slope.unsqueeze(1)
        everywhere = slope * (1 - scale[index] * mass - spared)
        gradient = torch.addcmul(everywhere, slope * scale[index], weights[:, None]).mul_(p)
        gradient = gradient.scatter_add_(1, index, slope * (spared - 1))
        return gradient.masked_fill_(~kept.unsqueeze(1), 0.0).to(maps.dtype), None, None, None, None, None
