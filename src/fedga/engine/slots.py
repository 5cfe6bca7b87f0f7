"""From chosen clients to a stack that can train: which samples in which order, how they are changed, at which rates."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from fedga.algorithms.base import Algorithm, overrides
from fedga.data.federation import Dataset
from fedga.engine import schedule
from fedga.engine.augment import draw_moves
from fedga.engine.device_data import DeviceData, FederationTable, InputScaling
from fedga.engine.local import Slots, SlotSegment
from fedga.engine.optimizers import scheduled_rate
from fedga.engine.stack.lanes import OWN
from fedga.errors import FedGAError
from fedga.selection.availability import work_shares
from fedga.spec.augmentation import Augmentation
from fedga.spec.settings import TrainingSettings


@dataclass(frozen=True)
class Places:
    """The clients of some lanes that train together, lane by lane: ``[lanes, places]`` each."""

    lanes: slice
    clients: Tensor  # in the table of the federation
    numbers: Tensor  # that key their random draws
    counts: list[int] | None = None  # how many of a lane's clients are there; None: all


class SlotPlanner:
    """Plans local training for lanes that share a data set and the shape of a local step."""

    def __init__(
        self,
        specs: Sequence[TrainingSettings],
        algorithms: Sequence[Algorithm],
        table: FederationTable,
        data: DeviceData,
        scaling: InputScaling,  # a row per lane
        *,
        dtype: torch.dtype,
        fixed_shape: bool = False,  # one shape for all rounds, as a recorded graph needs it
    ) -> None:
        self.specs, self.algorithms, self.table, self.data, self.scaling = specs, algorithms, table, data, scaling
        self.device, self.dtype, self.fixed_shape = data.device, dtype, fixed_shape
        self.lengths = self._epoch_lengths()
        self.longest = int(self.lengths.max())
        self.batch_size = min(specs[0].batch_size, self.longest)  # wider would be padding alone
        self.augmentation = Augmentation.parse("--augment", specs[0].augment)
        if self.augmentation:
            check_pictures(data.dataset, self.augmentation)
        self.needs_samples = any(algorithm.needs_class_features for algorithm in algorithms)
        self.weight_decay = self.per_lane([spec.weight_decay for spec in specs])
        self.clip = self.per_lane([spec.clip or float("inf") for spec in specs])
        self.centralize = self.per_lane([float(spec.centralize) for spec in specs])
        self.stragglers = torch.tensor([spec.stragglers for spec in specs], dtype=torch.float64).to(self.device)

    def per_lane(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def _epoch_lengths(self) -> Tensor:
        """How many samples every client's epoch has, ``[lanes, clients]``: all it holds, unless the algorithm says."""
        lengths = self.table.sizes[self.table.of_lane].clone()
        for lane, algorithm in enumerate(self.algorithms):
            counts = self.table.class_counts[self.table.of_lane[lane]]
            if overrides(algorithm, "class_rates"):
                _check_rates(algorithm, counts)
            if overrides(algorithm, "epoch_length"):
                lengths[lane] = vmap(algorithm.epoch_length)(counts).round().long().clamp(min=1)
        return lengths

    def slots(
        self,
        round_number: int,
        places: Places,
        params: Tensor,
        buffers: Tensor,
        segments: list[SlotSegment],
    ) -> Slots:
        """``params`` and ``buffers`` are ``[slots, ...]`` and may be written to: a client's own part is filled in."""
        lanes, per_lane = places.lanes, places.clients.shape[1]
        which = torch.arange(lanes.start, lanes.stop, device=self.device).repeat_interleave(per_lane)
        flat, specs = places.clients.flatten(), self.specs[lanes]
        rates = [scheduled_rate(each.lr, each.lr_schedule, round_number, each.rounds) for each in specs]
        plan = self._plan(round_number, places, which, flat, segments)
        moves = None
        if self.augmentation:
            keys = self._keys("augment", round_number, places)
            moves = draw_moves(keys, plan.positions.shape[1:], self.augmentation)
        for segment in segments:
            if segment.own is not None:
                params[segment.slots, segment.own.params] = segment.client_state.pop(OWN[0])
                buffers[segment.slots, segment.own.buffers] = segment.client_state.pop(OWN[1])
        return Slots(
            params=params,
            buffers=buffers,
            plan=plan,
            samples=self.table.samples(which, flat, plan.positions),
            moves=moves,
            held=self._held(which, flat) if self.needs_samples else None,
            class_counts=self.table.class_counts[self.table.of_lane[which], flat],
            scaling=self.scaling[which],
            dropout_keys=self._keys("dropout", round_number, places),
            round=torch.full((), float(round_number), dtype=self.dtype, device=self.device),
            lr=self.per_lane(rates).repeat_interleave(per_lane),
            weight_decay=self.weight_decay[which] if any(each.weight_decay for each in specs) else None,
            clip=self.clip[which] if any(each.clip for each in specs) else None,
            centralize=self.centralize[which] if any(each.centralize for each in specs) else None,
            augmentation=self.augmentation,
            segments=segments,
        )

    def _keys(self, purpose: str, round_number: int, places: Places) -> Tensor:
        seeds = [spec.seed for spec in self.specs[places.lanes]]
        return schedule.client_keys(seeds, purpose, round_number, places.numbers).flatten()

    def _plan(
        self, round_number: int, places: Places, which: Tensor, flat: Tensor, segments: Sequence[SlotSegment]
    ) -> schedule.BatchPlan:
        """The mini-batches of the slots: shuffled, drawn by class, or cut short where clients are slow or away."""
        lengths = self.lengths[which, flat]
        plan = schedule.plan_batches(
            self._keys("batches", round_number, places),
            lengths,
            epochs=self.specs[0].local_epochs,
            batch_size=self.batch_size,
            # On a CPU every step that nobody takes is time lost.
            largest=self.longest if self.fixed_shape else int(lengths.max()),
            sampled=self._sampled(which, flat, segments),
        )
        if places.counts is None and not any(spec.stragglers for spec in self.specs[places.lanes]):
            return plan
        shares = work_shares(self._keys("stragglers", round_number, places), self.stragglers[which])
        if places.counts is not None:
            place = torch.arange(places.clients.shape[1], device=self.device)
            there = place < torch.tensor(places.counts, device=self.device)[:, None]
            shares = shares * there.flatten()
        return schedule.cut_short(plan, shares)

    def _sampled(
        self, which: Tensor, flat: Tensor, segments: Sequence[SlotSegment]
    ) -> tuple[Tensor, schedule.ClassDraws] | None:
        """Which slots draw samples by class, and how."""
        hooks = ("class_rates", "epoch_length")
        drawing = [each for each in segments if any(overrides(each.algorithm, hook) for hook in hooks)]
        if not drawing:
            return None
        counts = self.table.class_counts[self.table.of_lane[which], flat]
        rates, drawn = counts.clone(), torch.zeros(len(flat), dtype=torch.bool, device=self.device)
        for segment in drawing:
            asked = vmap(segment.algorithm.class_rates)(counts[segment.slots]).to(rates.dtype)
            rates[segment.slots] = torch.where(counts[segment.slots] > 0, asked, 0.0)
            drawn[segment.slots] = True
        # Classes that come as often as they occur, in an epoch of the usual length: every sample once.
        usual = torch.isclose(rates * counts.sum(1, keepdim=True), counts * rates.sum(1, keepdim=True)).all(1)
        drawn &= ~usual | (self.lengths[which, flat] != self.table.sizes[self.table.of_lane[which], flat])
        held, real = self._held(which, flat)
        labels = torch.where(real > 0, self.data.train_targets[held], self.data.dataset.num_classes)
        return drawn, schedule.ClassDraws(rates, counts, labels.argsort(dim=1, stable=True))

    def _held(self, which: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
        """All samples of each slot's client, ``[slots, samples]``: their places, and 1 for real ones."""
        position = torch.arange(self.table.largest, device=self.device).expand(len(flat), -1)
        real = position < self.table.sizes[self.table.of_lane[which], flat][:, None]
        return self.table.samples(which, flat, torch.where(real, position, 0)), real.to(self.dtype)


def _check_rates(algorithm: Algorithm, counts: Tensor) -> None:
    rates: Tensor = vmap(algorithm.class_rates)(counts)
    nothing = ~(torch.where(counts > 0, rates, 0.0).sum(1) > 0)
    if nothing.any():
        raise FedGAError(
            f"class_rates of {type(algorithm).__name__} draws none of the classes that client "
            f"{int(nothing.nonzero()[0])} holds: give one of them a rate above 0"
        )


def check_pictures(dataset: Dataset, augmentation: Augmentation) -> None:
    """Refuse to change what is no picture, or no longer what it was when it is changed."""
    shape = dataset.input_shape
    augmentation.check_suits(dataset.name)
    if len(shape) != 3:
        raise FedGAError("--augment changes pictures, and these samples are rows of a table: leave it out")
    if augmentation.shift >= min(shape[1:]):
        size = f"{shape[1]}×{shape[2]}"
        raise FedGAError(f"--augment shift:{augmentation.shift} moves {size} pixels out of sight: shift less")
