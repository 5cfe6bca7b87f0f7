"""Local training of a stack of clients: the hot path."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedga.algorithms.base import Algorithm, Batch, Client, Trained, overrides, trains_on_features
from fedga.algorithms.parameters import Layout
from fedga.common import streams
from fedga.engine.device_data import DeviceData, InputScaling
from fedga.engine.optimizers import LocalOptimizer
from fedga.engine.schedule import BatchPlan
from fedga.engine.stack.lanes import Own
from fedga.engine.stack.stacked import Head, Outputs, StackedModel
from fedga.errors import FedGAError
from fedga.spec.augmentation import Augmentation


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
    own: Own | None  # what of the model stays at them


@dataclass(frozen=True)
class Slots:
    """A stack of clients about to train; every tensor has one entry per slot, but for ``round``."""

    params: Tensor  # [slots, parameters]: the model each of them received, its own part filled in
    buffers: Tensor  # [slots, buffers]
    plan: BatchPlan
    samples: Tensor  # [slots, steps, batch]: places in the training split
    moves: Tensor | None  # [slots, steps, batch]: how every picture is changed, where pictures are
    held: tuple[Tensor, Tensor] | None  # [slots, samples] places of all samples, and 1 for real ones: for class sums
    class_counts: Tensor  # [slots, classes]
    scaling: InputScaling  # scale and shift are [slots, channels]
    dropout_keys: Tensor  # [slots]
    round: Tensor  # []
    lr: Tensor  # [slots]
    weight_decay: Tensor | None  # [slots]; this one and those below are None where no slot has any
    clip: Tensor | None  # [slots]; infinity for none
    centralize: Tensor | None  # [slots]: 1 where gradients are centralised
    augmentation: Augmentation
    segments: list[SlotSegment]


@dataclass(frozen=True)
class LocalResult:
    params: Tensor  # [slots, parameters]
    buffers: Tensor  # [slots, buffers]
    reports: list[dict[str, Tensor]]  # per segment, [slots, ...]
    client_states: list[dict[str, Tensor]]


def train_locally(model: StackedModel, data: DeviceData, slots: Slots, optimizer: str, momentum: float) -> LocalResult:
    """All local steps of all slots. Slots with fewer batches than the others stand still in the last steps."""
    mover, stack = LocalOptimizer(optimizer, momentum, slots.weight_decay, slots.clip), _ClientStack(model, data, slots)
    params, buffers = stack.starts(), slots.buffers
    scratch = torch.empty_like(params)
    adds = model.adds_gradients and slots.centralize is None and not stack.changes_gradients
    # For all steps at once: in a small network, every operation less in a step counts.
    steps = torch.arange(slots.samples.shape[1], device=params.device)
    rates = torch.where(steps[:, None] < slots.plan.steps, slots.lr, 0.0)
    real = slots.plan.mask.to(params.dtype)
    shares = real / real.sum(2, keepdim=True).clamp(min=1)  # of a sample in its batch's mean
    for number, rate in enumerate(rates):
        into, keep = (mover.accumulator(params) if adds else None) or (scratch, 0.0)
        # A step has no name: while it had one, its inputs kept the next ones out of the memory that is in the cache.
        given = (stack, number, real[:, number], shares[:, number])
        gradient, buffers = _Step(*given).gradient(params, buffers, into, keep)
        if slots.centralize is not None:
            _centralize(model.params, gradient, slots.centralize)
        mover.step(params, gradient, rate)
    answers = [stack.answers(segment, params, buffers) for segment in slots.segments]
    return LocalResult(params, buffers, [report for report, _ in answers], [state for _, state in answers])


def final_reports(model: StackedModel, data: DeviceData, slots: Slots) -> dict[str, Tensor]:
    """What clients say of the final model, ``[slots, ...]``; all slots have one algorithm."""
    [segment] = slots.segments
    stack = _ClientStack(model, data, slots)
    return stack.after_training(segment.algorithm.final_report, segment, slots.params, slots.buffers)


@dataclass(frozen=True)
class _ClientStack:
    """A stack of clients, with the network and the samples they train on: what their hooks are given."""

    model: StackedModel
    data: DeviceData
    slots: Slots

    @cached_property
    def asks_for_gradients(self) -> bool:
        return any(overrides(segment.algorithm, "gradient") for segment in self.slots.segments)

    @cached_property
    def changes_gradients(self) -> bool:
        return self.asks_for_gradients or any(overrides(each.algorithm, "correct") for each in self.slots.segments)

    @cached_property
    def earlier(self) -> dict[int, Tensor]:
        """Parameters of the models that losses ask for beside the received ones, by segment."""
        asking = [segment for segment in self.slots.segments if overrides(segment.algorithm, "earlier")]
        return {segment.position: self.mapped(segment.algorithm.earlier, segment) for segment in asking}

    def starts(self) -> Tensor:
        params = self.slots.params.clone()
        for segment in self.slots.segments:
            if overrides(segment.algorithm, "start"):
                params[segment.slots] = self.mapped(segment.algorithm.start, segment)
        return params

    def mapped(self, hook: Callable[..., Any], segment: SlotSegment, *more: Any) -> Any:
        """A hook of a `Client`, which comes last, mapped over the slots of a segment; ``more`` are ``[slots, ...]``."""
        slots, part = self.slots, segment.slots

        def one(given: Sequence[Any], *more: Any) -> Any:
            params, counts, lr, state, received = given
            return hook(*more, Client(params, state, received, counts, slots.round, lr, self.model.params))

        own = (slots.params[part], slots.class_counts[part], slots.lr[part])
        given: Any = (*own, segment.client_state, segment.received)
        return vmap(one)(given, *more)

    def answers(self, segment: SlotSegment, params: Tensor, buffers: Tensor) -> tuple[dict[str, Tensor], ...]:
        """What the clients of a segment report, and what they keep."""
        if not overrides(segment.algorithm, "report"):
            return {}, segment.client_state
        return self.after_training(segment.algorithm.report, segment, params, buffers)

    def after_training(self, hook: Callable[..., Any], segment: SlotSegment, params: Tensor, buffers: Tensor) -> Any:
        """A hook of a `Trained` client, mapped over the slots of a segment."""

        def one(params: Tensor, steps: Tensor, sums: dict[str, Any], client: Client) -> Any:
            return hook(Trained(**vars(client), params=params, steps=steps, **sums))

        part = segment.slots
        sums = self._class_sums(segment.algorithm, part, params[part], buffers[part])
        return self.mapped(one, segment, params[part], self.slots.plan.steps[part].to(params.dtype), sums)

    def _class_sums(self, algorithm: Algorithm, part: slice, params: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """Sums of features by class, and of their outer products, over the samples that each client holds."""
        slots, data = self.slots, self.data
        if not algorithm.needs_class_features or slots.held is None:
            return {}
        classes, width = slots.class_counts.shape[1], slots.samples.shape[2]
        sums: dict[str, Tensor] = {}
        for places, real in zip(*(tensor[part].split(width, 1) for tensor in slots.held), strict=True):
            inputs = data.batches(places, slots.scaling[part])
            _, features = self.model.evaluate_with_features(params, buffers, inputs)
            features = vmap(algorithm.embed)(features) * real[..., None]
            labels = F.one_hot(data.train_targets[places], classes).to(features.dtype)
            found = {"class_features": labels.mT @ features}
            if algorithm.needs_second_moment:
                found["second_moment"] = features.mT @ features
            if algorithm.needs_class_moments:
                by_class = [(features * of_class[..., None]).mT @ features for of_class in labels.unbind(2)]
                found["class_moments"] = torch.stack(by_class, 1)
            sums = {name: value + sums[name] if sums else value for name, value in found.items()}
        return sums


def _centralize(parameters: Layout, gradient: Tensor, which: Tensor) -> None:
    """As `fedga.algorithms.parameters.centralize`, in place, for the slots in ``which``: two passes over matrices."""
    for part in parameters.views(gradient).values():
        if part.dim() > 2:
            flat = part.flatten(2)
            flat.sub_(flat.mean(2, keepdim=True) * which[:, None, None])


class _GradientAt(torch.autograd.Function):
    """The gradient at any parameters, as a function that `vmap` maps over clients by computing all at once."""

    @staticmethod
    def forward(params: Tensor, stacked: Callable[[Tensor], Tensor]) -> Tensor:
        return stacked(params.unsqueeze(0)).squeeze(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise FedGAError("the gradient that a hook gets from `at` cannot be differentiated again: call `at` twice")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], params: Tensor, stacked: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, int]:
        rows = params.expand(info.batch_size, -1) if in_dims[0] is None else params.movedim(in_dims[0], 0)
        return stacked(rows.contiguous()), 0


class _Step:
    """One local step of all slots: its batch, and gradients on it."""

    def __init__(self, stack: _ClientStack, number: int, mask: Tensor, shares: Tensor) -> None:
        self.stack, self.model, self.slots, self.mask, self.shares = stack, stack.model, stack.slots, mask, shares
        slots, data, places = stack.slots, stack.data, stack.slots.samples[:, number]
        moves = None if slots.moves is None else slots.moves[:, number]
        self.inputs = data.batches(places, slots.scaling, moves, slots.augmentation)
        self.targets = data.train_targets[places]
        self.keys = slots.dropout_keys
        if stack.model.draws_at_random:
            self.keys = streams.fold(self.keys, self.keys.new_full((), number))
        self.teachers = {segment.position: self._teachers(segment) for segment in slots.segments}

    def _teachers(self, segment: SlotSegment) -> dict[str, Tensor]:
        """Logits and features of the received model, and of an earlier one, where the algorithm asks for them."""
        found: dict[str, Tensor] = {}
        if segment.algorithm.needs_global_logits:
            found |= self._outputs("global", segment, self.slots.params[segment.slots])
        if segment.position in self.stack.earlier:
            found |= self._outputs("earlier", segment, self.stack.earlier[segment.position])
        return found

    def _outputs(self, whose: str, segment: SlotSegment, params: Tensor) -> dict[str, Tensor]:
        algorithm, part = segment.algorithm, segment.slots
        head = stacked_head(self.model, algorithm, segment.received)
        given = (params, self.slots.buffers[part], self.inputs[part])
        if not algorithm.needs_features:
            return {f"{whose}_logits": self.model.evaluate_each(*given, head)}
        logits, features = self.model.evaluate_with_features(*given, head)
        return {f"{whose}_logits": logits, f"{whose}_features": features}

    def gradient(self, params: Tensor, buffers: Tensor, into: Tensor, keep: float) -> tuple[Tensor, Tensor]:
        """What every slot follows, and its buffers afterwards."""
        segments = self.slots.segments
        if self.stack.asks_for_gradients:
            after = buffers.clone()
            for segment in segments:
                part = segment.slots
                into[part], after[part] = self._asked(segment, params, buffers, into)
            gradient, buffers = into, after
        else:
            gradient, buffers = self._at(params, buffers, slice(0, len(params)), segments, into, keep)
        if not self.stack.changes_gradients:
            return gradient, buffers
        for segment in segments:
            if overrides(segment.algorithm, "correct"):
                part = segment.slots
                gradient[part] = self.stack.mapped(segment.algorithm.correct, segment, gradient[part])
        self._stand_still(gradient)
        return gradient, buffers

    def _stand_still(self, gradient: Tensor) -> None:
        """Slots without a batch of their own have a gradient of 0, by whose norm a hook may have divided."""
        idle = ~self.mask.any(1)
        if idle.is_cuda or idle.any():
            gradient.masked_fill_(idle[:, None], 0.0)

    def _asked(self, segment: SlotSegment, params: Tensor, buffers: Tensor, into: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of an algorithm that says itself where it is taken; buffers are those of its first pass."""
        part, passes = segment.slots, []

        def stacked(at: Tensor) -> Tensor:
            gradient, after = self._at(at, buffers[part], part, [segment], torch.empty_like(into[part]), 0.0)
            passes.append(after)
            return gradient

        def at(params: Tensor) -> Tensor:
            return _GradientAt.apply(params, stacked)

        def hook(params: Tensor, client: Client) -> Tensor:
            return segment.algorithm.gradient(at, params, client)

        found = self.stack.mapped(hook, segment, params[part])
        return found, passes[0] if passes else buffers[part]

    def _at(
        self, params: Tensor, buffers: Tensor, part: slice, segments: Sequence[SlotSegment], into: Tensor, keep: float
    ) -> tuple[Tensor, Tensor]:
        """The gradient of loss and penalty of the slots in ``part``, at ``params``."""
        features = any(trains_on_features(segment.algorithm) for segment in segments)

        def loss(outputs: Outputs) -> Tensor:
            losses = [self._loss(segment, outputs, part.start) for segment in segments]
            return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

        given = (self.inputs[part], self.mask[part], self.keys[part])
        gradient, buffers = self.model.gradient(params, buffers, *given, loss, into, keep, features)
        for segment in segments:
            if overrides(segment.algorithm, "penalty"):
                here = slice(segment.slots.start - part.start, segment.slots.stop - part.start)
                received = self.slots.params[segment.slots]
                gradient[here] += _penalty_gradient(segment.algorithm, params[here], received)
        return gradient, buffers

    def _loss(self, segment: SlotSegment, outputs: Outputs, offset: int) -> Tensor:
        """Sum over the segment's slots of the mean loss of their real samples."""
        slots, part, algorithm = self.slots, segment.slots, segment.algorithm
        here = slice(part.start - offset, part.stop - offset)
        logits, features, mask = outputs.logits[here], None, self.mask[part]
        if outputs.features is not None and outputs.params is not None:
            features = outputs.features[here]
            head = stacked_head(self.model, algorithm, segment.received)
            logits = logits if head is None else head(features, outputs.params[here])
            features = features if algorithm.needs_features else None
        counts, targets = slots.class_counts[part], self.targets[part]
        stacks = vars(type(algorithm)).get("stacks", False)
        seen = (logits, targets, mask, counts.unsqueeze(1) if stacks else counts)
        others = self.teachers[segment.position]
        batch = Batch(*seen, received=segment.received, features=features, round=slots.round, **others)
        losses = algorithm.local_loss(batch) if stacks else per_sample(algorithm.local_loss, batch)
        return torch.where(mask > 0, losses * self.shares[part], 0.0).sum()


def stacked_head(model: StackedModel, algorithm: Algorithm, received: dict[str, Tensor]) -> Head | None:
    """An algorithm's head for a stack of models; None where the network's own is used. ``received [copies, ...]``."""
    if not overrides(algorithm, "head"):
        return None

    def head(features: Tensor, params: Tensor) -> Tensor:
        return vmap(algorithm.head)(features, model.params.views(params), received)

    return head


def _penalty_gradient(algorithm: Algorithm, params: Tensor, global_params: Tensor) -> Tensor:
    """By plain autograd of the sum over slots: `torch.func.grad` would load PyTorch's compiler, which takes seconds."""
    with torch.enable_grad():
        leaf = params.detach().requires_grad_()
        penalties: Any = vmap(algorithm.penalty)(leaf, global_params)
        return torch.autograd.grad(penalties.sum(), leaf)[0]


def per_sample(hook: Callable[[Batch], Tensor], stacked: Batch) -> Tensor:
    """A hook of one client's batch on batches of many: ``[slots, samples, ...] -> [slots, samples]``."""
    given = {name: value for name, value in vars(stacked).items() if name != "round" and value is not None}
    return vmap(lambda given: hook(Batch(**given, round=stacked.round)))(given)
