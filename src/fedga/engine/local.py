"""Local training of a stack of clients: the hot path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedga.algorithms.base import Algorithm, Batch, Trained
from fedga.common import streams
from fedga.engine.device_data import DeviceData, InputScaling
from fedga.engine.optimizers import LocalOptimizer
from fedga.engine.schedule import BatchPlan
from fedga.engine.stack.stacked import StackedModel


def overrides(algorithm: Algorithm, hook: str) -> bool:
    """Whether an algorithm has a hook of its own, so that what it leaves at its default costs nothing."""
    return getattr(type(algorithm), hook) is not getattr(Algorithm, hook)


@dataclass(frozen=True)
class SlotSegment:
    """Neighbouring slots with the same algorithm."""

    algorithm: Algorithm
    slots: slice
    received: dict[str, Tensor]  # [slots, ...]
    client_state: dict[str, Tensor]  # [slots, ...]
    position: int  # of the segment in the engine
    lanes: Tensor  # [slots]: lane within the segment
    clients: Tensor  # [slots]


@dataclass(frozen=True)
class Slots:
    """A stack of clients about to train; every tensor has one entry per slot."""

    params: Tensor  # [slots, parameters]: the global model each of them received
    buffers: Tensor  # [slots, buffers]
    plan: BatchPlan
    samples: Tensor  # [slots, steps, batch]: places in the training split
    class_counts: Tensor  # [slots, classes]
    pixels: InputScaling  # scale and shift are [slots, channels]
    dropout_keys: Tensor  # [slots]
    lr: Tensor  # [slots]
    weight_decay: Tensor  # [slots]
    clip: Tensor  # [slots]; infinity for none
    decays: bool  # whether any slot has weight decay, or a clip: known to the host, which need not ask the device
    clips: bool
    segments: list[SlotSegment]


@dataclass(frozen=True)
class LocalResult:
    params: Tensor  # [slots, parameters]
    buffers: Tensor  # [slots, buffers]
    reports: list[dict[str, Tensor]]  # per segment, [slots, ...]
    client_states: list[dict[str, Tensor]]


def train_locally(model: StackedModel, data: DeviceData, slots: Slots, optimizer: str, momentum: float) -> LocalResult:
    """All local steps of all slots. Slots with fewer batches than the others stand still in the last steps."""
    mover = LocalOptimizer(optimizer, momentum, slots.weight_decay, slots.clip, slots.decays, slots.clips)
    params, buffers = slots.params.clone(), slots.buffers
    scratch = torch.empty_like(params)
    adds = model.adds_gradients and not any(overrides(part.algorithm, "correct") for part in slots.segments)
    # For all steps at once: in a small network, every operation less in a step counts.
    steps = torch.arange(slots.samples.shape[1], device=params.device)
    rates = torch.where(steps[:, None] < slots.plan.steps, slots.lr, 0.0)
    real = slots.plan.mask.to(params.dtype)
    shares = real / real.sum(2, keepdim=True).clamp(min=1)  # of a sample in its batch's mean
    for step, rate in enumerate(rates):
        into, keep = (mover.accumulator(params) if adds else None) or (scratch, 0.0)
        gradient, buffers = _gradient(model, data, slots, params, buffers, step, shares[:, step], into, keep)
        mover.step(params, gradient, rate)
    reports, client_states = _reports(slots, params)
    return LocalResult(params, buffers, reports, client_states)


def _gradient(
    model: StackedModel,
    data: DeviceData,
    slots: Slots,
    params: Tensor,
    buffers: Tensor,
    step: int,
    shares: Tensor,
    into: Tensor,
    keep: float,
) -> tuple[Tensor, Tensor]:
    places, mask = slots.samples[:, step], slots.plan.mask[:, step]
    inputs, targets = data.batches(places, slots.pixels), data.train_targets[places]
    taught = [_global_logits(model, slots, segment, inputs) for segment in slots.segments]

    def loss(logits: Tensor) -> Tensor:
        parts = zip(slots.segments, taught, strict=True)
        losses = [_loss(slots, part, logits, targets, mask, shares, teacher) for part, teacher in parts]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    keys = slots.dropout_keys
    if model.draws_at_random:
        keys = streams.fold(keys, keys.new_full((), step))
    gradient, buffers = model.gradient(params, buffers, inputs, mask, keys, loss, into, keep)
    for segment in slots.segments:
        part, algorithm = segment.slots, segment.algorithm
        if overrides(algorithm, "penalty"):
            gradient[part] += _penalty_gradient(algorithm, params[part], slots.params[part])
        if overrides(algorithm, "correct"):
            gradient[part] = vmap(algorithm.correct)(gradient[part], segment.client_state, segment.received)
    return gradient, buffers


def _penalty_gradient(algorithm: Algorithm, params: Tensor, global_params: Tensor) -> Tensor:
    """By plain autograd of the sum over slots: `torch.func.grad` would load PyTorch's compiler, which takes seconds."""
    with torch.enable_grad():
        leaf = params.detach().requires_grad_()
        penalties: Any = vmap(algorithm.penalty)(leaf, global_params)
        return torch.autograd.grad(penalties.sum(), leaf)[0]


def _global_logits(model: StackedModel, slots: Slots, segment: SlotSegment, inputs: Tensor) -> Tensor | None:
    if not segment.algorithm.needs_global_logits:
        return None
    part = segment.slots
    return model.evaluate_each(slots.params[part], slots.buffers[part], inputs[part])


def _loss(
    slots: Slots,
    segment: SlotSegment,
    logits: Tensor,
    targets: Tensor,
    mask: Tensor,
    shares: Tensor,
    global_logits: Tensor | None,
) -> Tensor:
    """Sum over the segment's slots of the mean loss of their real samples."""
    part, algorithm = segment.slots, segment.algorithm
    if vars(type(algorithm)).get("stacks", False):
        counts = slots.class_counts[part].unsqueeze(1)
        batch = Batch(logits[part], targets[part], mask[part], counts, global_logits, segment.received)
        losses = algorithm.local_loss(batch)
    else:
        losses = per_sample(algorithm.local_loss)(
            logits[part], targets[part], mask[part], slots.class_counts[part], global_logits, segment.received
        )
    return torch.where(mask[part] > 0, losses * shares[part], 0.0).sum()


def per_sample(hook: Callable[[Batch], Tensor]) -> Callable[..., Tensor]:
    """A hook of one client's batch as a function of stacked batches: ``[slots, samples, ...] -> [slots, samples]``."""

    def stacked(
        logits: Tensor,
        targets: Tensor,
        mask: Tensor,
        class_counts: Tensor,
        global_logits: Tensor | None,
        received: dict[str, Tensor],
    ) -> Tensor:
        given: list[Any] = [logits, targets, mask, class_counts, received]
        axes: list[int | None] = [0] * len(given)

        def one(
            logits: Tensor,
            targets: Tensor,
            mask: Tensor,
            class_counts: Tensor,
            received: dict[str, Tensor],
            global_logits: Tensor | None = None,
        ) -> Tensor:
            return hook(Batch(logits, targets, mask, class_counts, global_logits, received))

        if global_logits is not None:
            given.append(global_logits)
            axes.append(0)
        return vmap(one, in_dims=tuple(axes))(*given)

    return stacked


def _reports(slots: Slots, params: Tensor) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    reports: list[dict[str, Tensor]] = []
    states: list[dict[str, Tensor]] = []
    for segment in slots.segments:
        report, state = {}, segment.client_state
        if overrides(segment.algorithm, "report"):
            part = segment.slots

            def one(*values: Any, algorithm: Algorithm = segment.algorithm) -> Any:
                return algorithm.report(Trained(*values))

            report, state = vmap(one)(
                params[part],
                slots.params[part],
                segment.client_state,
                segment.received,
                slots.plan.steps[part].float(),
                slots.lr[part],
                slots.class_counts[part],
            )
        reports.append(report)
        states.append(state)
    return reports, states
