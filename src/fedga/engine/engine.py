"""The vectorised engine: the clients of a round, of many runs at once, as one leading axis.

A *lane* is a whole run. Lanes that share data set, model and batch shape stack: the active clients of all of them form
one axis of *slots*, through which every local step runs at once. What differs between lanes (seed, α, algorithm, rates,
server optimiser, pixels) is a tensor with one entry per lane, or a segment of the axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fedga.engine import schedule
from fedga.engine.device_data import DeviceData, FederationTable, InputScaling
from fedga.engine.evaluation.evaluate import Evaluation
from fedga.engine.evaluation.evaluator import ClientEvaluator
from fedga.engine.gpu.graphs import GraphCache
from fedga.engine.gpu.layers import why_not_fast
from fedga.engine.local import Slots, SlotSegment, per_sample, train_locally
from fedga.engine.optimizers import scheduled_rate
from fedga.engine.precision import computing_in
from fedga.engine.profile import (
    AGGREGATION,
    ASKING,
    DATA,
    DIAGNOSIS,
    EVALUATION,
    LOCAL_TRAINING,
    NO_PROFILE,
    Profile,
)
from fedga.engine.server import LaneRound, ServerSide, lane_sums
from fedga.engine.stack.budget import MemoryBudget, is_out_of_memory
from fedga.engine.stack.lanes import Lane, LaneStack, LaneState, Segment, stacking_key
from fedga.engine.stack.stacked import StackedModel
from fedga.engine.stack.workers import Workers


class Chunk(NamedTuple):
    """Slots that train together: some places among the active clients of some lanes."""

    lanes: slice
    places: slice


@dataclass(frozen=True)
class TrainedChunk:
    """What is left of a chunk: sums over the slots of each lane, and what its clients say and keep."""

    chunk: Chunk
    update: Tensor  # [lanes, parameters]
    buffers: Tensor  # [lanes, buffers]
    segments: list[SlotSegment]
    reports: list[dict[str, Tensor]]
    client_states: list[dict[str, Tensor]]
    local_models: tuple[Tensor, Tensor] | None  # parameters and buffers of every slot, where they are examined


class Engine:
    """Trains lanes round by round; the caller loops over `run_round`. Lanes come in the order of `in_engine_order`."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        data: DeviceData,
        *,
        round_number: int = 0,
        states: Sequence[LaneState] | None = None,
        budget: MemoryBudget | None = None,
        workers: Workers | None = None,
        profile: Profile = NO_PROFILE,
    ) -> None:
        if len({stacking_key(lane) for lane in lanes}) > 1:
            raise ValueError("these runs cannot be stacked: group them by `stacking_key` first")
        self.lanes, self.data, self.device, self.round = list(lanes), data, data.device, round_number
        self.profile = profile
        self.model = StackedModel(lanes[0].model).to(self.device) if workers is None else workers.model
        if workers is None:
            self.model.check(data.dataset.input_shape)
        self.stack = LaneStack(lanes, self.model, data, states)
        self.table = FederationTable([lane.federation for lane in lanes], self.device)
        self.batch_size = min(lanes[0].spec.batch_size, self.table.largest)  # wider would be padding alone
        self.budget = budget or MemoryBudget.for_model(
            self.model, self.device, data.dataset.input_shape, self.batch_size
        )
        self.workers = workers or Workers(self.model, self.device, profile)
        if workers is None and self.model.has_convolutions and (reason := why_not_fast(self.device)):
            self.budget.notices.append(reason)
        if workers is None and (moving := self.model.moving_buffers):
            self.budget.notices.append(
                f"layers of the model keep values of their own ({', '.join(moving[:3])}): clients train one by one, "
                "without padding, which is slower"
            )
        self._asked: dict[int, tuple[Tensor, Tensor]] = {}  # by the first lane of a segment
        self.graphs = GraphCache() if self.device.type == "cuda" and not self.model.moving_buffers else None
        self.evaluator = ClientEvaluator(self.lanes, data, self.workers, self.budget)
        self.server = ServerSide(self.lanes, self.model, data, self.stack, self.evaluator)
        self.active, self.seeds, self.pixels = self.server.active, self.server.seeds, self.server.pixels
        self.weight_decay = self.stack.per_lane([lane.spec.weight_decay for lane in lanes])
        self.clip = self.stack.per_lane([lane.spec.clip or float("inf") for lane in lanes])
        profile.built()

    @property
    def segments(self) -> list[Segment]:
        return self.stack.segments

    def without(self, ended: set[int]) -> Engine | None:
        """The engine that goes on once some lanes have ended; None if none are left."""
        left = [lane for lane in range(len(self.lanes)) if lane not in ended]
        if not left:
            return None
        states = self.stack.states()
        return Engine(
            [self.lanes[lane] for lane in left],
            self.data,
            round_number=self.round,
            states=[states[lane] for lane in left],
            budget=self.budget,
            workers=self.workers,
            profile=self.profile,
        )

    @torch.no_grad()
    def run_round(self) -> list[LaneRound]:
        """Select, train, aggregate and, when due, evaluate; one entry per lane."""
        with computing_in(self.lanes[0].spec.precision), self.workers.alone():
            return self._run_round()

    def _run_round(self) -> list[LaneRound]:
        self.round += 1
        span = self.profile.span
        examine = bool(self.evaluator.examined(self.round))
        with span(DIAGNOSIS):
            before = self.server.evaluate() if examine else None
        with span(DATA):
            clients = self.server.select(self.round)
        with span(ASKING):
            surveys = [self.budget.within(self._survey, segment) for segment in self.segments]
            received = self.server.broadcast()
        with span(LOCAL_TRAINING):
            update, buffers, reports, after = self._train(clients, received, examine)
        with span(AGGREGATION):
            self.server.advance(self.round, clients, update, buffers, reports, surveys)
        with span(EVALUATION):
            counts = self.table.class_counts[self.table.of_lane[:, None], clients]
            return self.server.results(self.round, clients, counts, before, after)

    def _survey(self, segment: Segment) -> Tensor | None:
        """Mean over every client's samples of what the algorithm asks about the global model, ``[lanes, clients]``."""
        if not segment.algorithm.surveys:
            return None
        lanes = torch.arange(segment.lanes.start, segment.lanes.stop, device=self.device)
        places, owners = self._everyone(segment)
        hook = per_sample(segment.algorithm.survey)
        no_counts = self.stack.params.new_zeros(1, self.data.dataset.num_classes)

        def work(model: StackedModel, part: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            which, some, whose = part
            pixels = InputScaling(self.pixels.scale[which], self.pixels.shift[which])
            params, buffers = self.stack.params[which], self.stack.buffers[which]
            logits = model.evaluate_each(params, buffers, self.data.batches(some, pixels))
            targets, mask = self.data.train_targets[some], (whose >= 0).to(params.dtype)
            return hook(logits, targets, mask, no_counts.expand(len(which), -1), None, {})

        rows = list(zip(*(tensor.split(self.budget.models) for tensor in (lanes, places, owners)), strict=True))
        size = self.budget.samples
        parts = [
            (which, some, whose)
            for which, row_places, row_owners in rows
            for some, whose in zip(row_places.split(size, 1), row_owners.split(size, 1), strict=True)
        ]
        values = iter(list(self.workers.map(work, parts)))
        width = -(-places.shape[1] // size)
        stacked = torch.cat([torch.cat([next(values) for _ in range(width)], dim=1) for _ in rows])
        return self.table.client_means(lanes, stacked, owners)

    def _everyone(self, segment: Segment) -> tuple[Tensor, Tensor]:
        """All clients' samples and their owners, ``[lanes, samples]``: the same every round."""
        if segment.lanes.start not in self._asked:
            lanes = torch.arange(segment.lanes.start, segment.lanes.stop, device=self.device)
            self._asked[segment.lanes.start] = self.table.everyone(lanes)
        return self._asked[segment.lanes.start]

    def _train(
        self, clients: Tensor, received: list[dict[str, Tensor]], examine: bool
    ) -> tuple[Tensor, Tensor, list[dict[str, Tensor]], Evaluation | None]:
        """Local training of all slots, a chunk at a time within the memory there is.

        Returns the mean update and mean buffers of every lane, the reports of every segment ``[lanes, active, ...]``,
        and the local models' scores where they are examined.
        """
        with self.profile.span(AGGREGATION):
            shares, weights = self.server.weights(clients, self.table.sizes[self.table.of_lane[:, None], clients])
        update, buffers = torch.zeros_like(self.stack.params), self.stack.buffers.clone()
        reports: list[list[dict[str, Tensor]]] = [[] for _ in self.segments]
        examined: list[Evaluation] = []

        def work(model: StackedModel, chunk: Chunk) -> list[TrainedChunk]:
            return self._train_chunk(model, chunk, clients, received, shares, weights, examine)

        for parts in self.workers.map(work, self._chunks()):
            for part in parts:
                update[part.chunk.lanes] += part.update
                buffers[part.chunk.lanes] += part.buffers
                for segment, report, kept in zip(part.segments, part.reports, part.client_states, strict=True):
                    reports[segment.position].append(report)
                    self.segments[segment.position].put(segment.lanes, segment.clients, kept)
                if part.local_models is not None:
                    examined.append(self._evaluate_slots(part.chunk, part.local_models))
        joined = [self._by_lane(parts) for parts in reports]
        return update, buffers, joined, Evaluation.join(examined) if examined else None

    def _train_chunk(
        self,
        model: StackedModel,
        chunk: Chunk,
        clients: Tensor,
        received: list[dict[str, Tensor]],
        shares: Tensor,
        weights: Tensor,
        examine: bool,
    ) -> list[TrainedChunk]:
        """Train the slots of a chunk; in two halves where memory does not reach."""
        spec, (lanes, places) = self.lanes[0].spec, chunk
        try:
            with self.profile.span(DATA):
                slots = self._slots(lanes, clients[lanes, places], received)
            train = train_locally if self.graphs is None else self.graphs.train
            result = train(model, self.data, slots, spec.optimizer, spec.momentum)
            with self.profile.span(AGGREGATION):
                update = lane_sums(weights[lanes, places], result.params - slots.params)
                buffers = lane_sums(shares[lanes, places], result.buffers - slots.buffers)
        except (RuntimeError, MemoryError) as error:
            size = (lanes.stop - lanes.start) * (places.stop - places.start)
            if not is_out_of_memory(error) or (size <= self.budget.slots and not self.budget.halve()):
                raise
            smaller = self._chunks(chunk)
            return [
                part
                for half in smaller
                for part in self._train_chunk(model, half, clients, received, shares, weights, examine)
            ]
        self.profile.trained(slots.plan.steps)
        models = (result.params.clone(), result.buffers.clone()) if examine else None
        reports = [{name: value.clone() for name, value in report.items()} for report in result.reports]
        return [TrainedChunk(chunk, update, buffers, slots.segments, reports, result.client_states, models)]

    def _chunks(self, within: Chunk | None = None) -> list[Chunk]:
        """Slots to train together: whole lanes if they fit, else parts of one lane, in pieces of about equal size."""
        lanes, places = within or Chunk(slice(0, len(self.lanes)), slice(0, self.active))
        together = self.budget.slots // self.active
        if together and places == slice(0, self.active):
            return [Chunk(some, places) for some in _pieces(lanes, together)]
        size = self.budget.slots
        return [Chunk(slice(lane, lane + 1), some) for lane in _range(lanes) for some in _pieces(places, size)]

    def _slots(self, lanes: slice, clients: Tensor, received: list[dict[str, Tensor]]) -> Slots:
        spec, per_lane = self.lanes[0].spec, clients.shape[1]
        which = torch.arange(lanes.start, lanes.stop, device=self.device).repeat_interleave(per_lane)
        seeds, chosen = self.seeds[lanes], clients.flatten()
        keys = schedule.client_keys(seeds, "batches", self.round, clients).flatten()
        sizes = self.table.sizes[self.table.of_lane[which], chosen]
        # A recorded graph needs one shape for all rounds; on a CPU every step that nobody takes is time lost.
        largest = int(sizes.max()) if self.graphs is None else self.table.largest
        plan = schedule.plan_batches(keys, sizes, epochs=spec.local_epochs, batch_size=self.batch_size, largest=largest)
        specs = [lane.spec for lane in self.lanes[lanes]]
        rates = [scheduled_rate(each.lr, each.lr_schedule, self.round, each.rounds) for each in specs]
        return Slots(
            params=self.stack.params[which],
            buffers=self.stack.buffers[which],
            plan=plan,
            samples=self.table.samples(which, chosen, plan.positions),
            class_counts=self.table.class_counts[self.table.of_lane[which], chosen],
            pixels=InputScaling(self.pixels.scale[which], self.pixels.shift[which]),
            dropout_keys=schedule.client_keys(seeds, "dropout", self.round, clients).flatten(),
            lr=self.stack.per_lane(rates).repeat_interleave(per_lane),
            weight_decay=self.weight_decay[which],
            clip=self.clip[which],
            decays=any(each.weight_decay for each in specs),
            clips=any(each.clip for each in specs),
            segments=self._slot_segments(lanes, clients, received),
        )

    def _slot_segments(self, lanes: slice, clients: Tensor, received: list[dict[str, Tensor]]) -> list[SlotSegment]:
        """The segments' share of a chunk; what they received and keep, with one row per slot."""
        per_lane, parts = clients.shape[1], []
        for position, (segment, sent) in enumerate(zip(self.segments, received, strict=True)):
            start, stop = max(lanes.start, segment.lanes.start), min(lanes.stop, segment.lanes.stop)
            if start >= stop:
                continue
            inner = torch.arange(start - segment.lanes.start, stop - segment.lanes.start, device=self.device)
            inner = inner.repeat_interleave(per_lane)
            slots = slice((start - lanes.start) * per_lane, (stop - lanes.start) * per_lane)
            chosen = clients.flatten()[slots]
            got = {name: value[inner] for name, value in sent.items()}
            kept = segment.take(inner, chosen)
            parts.append(SlotSegment(segment.algorithm, slots, got, kept, position, inner, chosen))
        return parts

    def _by_lane(self, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Reports of a segment's slots as ``[lanes, active, ...]``."""
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {name: value.view(-1, self.active, *value.shape[1:]) for name, value in joined.items()}

    def _evaluate_slots(self, chunk: Chunk, models: tuple[Tensor, Tensor]) -> Evaluation:
        per_lane = chunk.places.stop - chunk.places.start
        with self.profile.span(DIAGNOSIS):
            return self.evaluator.evaluate(*models, [lane for lane in _range(chunk.lanes) for _ in range(per_lane)])


def _range(piece: slice) -> range:
    return range(piece.start, piece.stop)


def _pieces(whole: slice, largest: int) -> Iterator[slice]:
    """``whole`` cut into the fewest pieces of at most ``largest``, as even as can be."""
    size = whole.stop - whole.start
    count = -(-size // largest)
    edges = [whole.start + size * piece // count for piece in range(count + 1)]
    return (slice(start, stop) for start, stop in pairwise(edges))
