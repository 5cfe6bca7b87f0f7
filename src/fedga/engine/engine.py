"""The vectorised engine: the clients of a round, of many runs at once, as one leading axis.

A *lane* is a whole run. Lanes that share data set, model and batch shape stack: the active clients of all of them form
one axis of *slots*, through which every local step runs at once. What differs between lanes (seed, α, algorithm, rates,
server optimiser, scaling) is a tensor with one entry per lane, or a segment of the axis. The round itself is
`fedga.engine.round`; the engine answers its questions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, uses_features
from fedga.engine.device_data import DeviceData, FederationTable
from fedga.engine.evaluation.evaluate import Evaluation
from fedga.engine.evaluation.evaluator import ClientEvaluator
from fedga.engine.gpu.graphs import GraphCache
from fedga.engine.gpu.layers import why_not_fast
from fedga.engine.local import Slots, SlotSegment, final_reports, per_sample, stacked_head, train_locally
from fedga.engine.profile import AGGREGATION, DATA, DIAGNOSIS, LOCAL_TRAINING, NO_PROFILE, Profile
from fedga.engine.round import Finish, Losses, Question, Survey, Train, play_round
from fedga.engine.server import Chosen, LaneRound, ServerSide, TrainResult, lane_scaling, lane_sums
from fedga.engine.slots import Places, SlotPlanner
from fedga.engine.stack.budget import MemoryBudget, is_out_of_memory
from fedga.engine.stack.forks import why_no_forks
from fedga.engine.stack.kinds import THREADS, KindOfWorker, key_of
from fedga.engine.stack.lanes import Lane, LaneStack, LaneState, Segment, rows_of, stacking_key
from fedga.engine.stack.stacked import StackedModel
from fedga.engine.stack.trial import check
from fedga.engine.stack.workers import Workers, computing_in


class Chunk(NamedTuple):
    """Slots that train together: some places among the active clients of some lanes."""

    lanes: slice
    places: slice


class SlotOwners(NamedTuple):
    """Which clients the slots of a segment are."""

    position: int  # of the segment
    lanes: Tensor  # [slots], within the segment
    clients: Tensor  # [slots]


@dataclass(frozen=True)
class TrainedChunk:
    """What is left of a chunk: sums over the slots of each lane, and what its clients report and keep."""

    chunk: Chunk
    update: Tensor  # [lanes, parameters]
    buffers: Tensor  # [lanes, buffers]
    owners: list[SlotOwners]
    reports: list[dict[str, Tensor]]
    client_states: list[dict[str, Tensor]]
    local_models: tuple[Tensor, Tensor] | None  # parameters and buffers of every slot, where they are asked for
    steps: int  # that were taken, on a CPU


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
        processes: bool = True,
    ) -> None:
        """``processes``: whether clients may train in forked processes, for which other threads must hold no lock."""
        if len({stacking_key(lane) for lane in lanes}) > 1:
            raise ValueError("these runs cannot be stacked: group them by `stacking_key` first")
        self.lanes, self.data, self.device, self.round = list(lanes), data, data.device, round_number
        self.profile = profile
        self.model = StackedModel(lanes[0].model).to(self.device) if workers is None else workers.model
        if workers is None:
            check(self.model, data.dataset.input_shape)
            if any(uses_features(lane.algorithm) for lane in lanes):
                self.model.keep_features()
        self.stack = LaneStack(lanes, self.model, data, states)
        self.segments = self.stack.segments
        table = self.table = FederationTable([lane.federation for lane in lanes], self.device, self.model.dtype)
        self.graphs = GraphCache() if self.device.type == "cuda" and not self.model.moving_buffers else None
        self.planner = SlotPlanner(
            [lane.spec for lane in lanes],
            [lane.algorithm for lane in lanes],
            self.table,
            data,
            lane_scaling(lanes, data),
            dtype=self.model.dtype,
            fixed_shape=self.graphs is not None,
        )
        self.budget = budget or MemoryBudget.for_model(
            self.model, self.device, data.dataset.input_shape, self.planner.batch_size
        )
        self.workers = workers or Workers(
            self.model, self.device, profile, self._kind_of_worker(processes), self.budget.notice
        )
        if workers is None and self.model.has_convolutions and (reason := why_not_fast(self.device)):
            self.budget.notices.append(reason)
        if workers is None and (moving := self.model.moving_buffers):
            self.budget.notices.append(
                f"layers of the model keep values of their own ({', '.join(moving[:3])}): clients train one by one, "
                "without padding, which is slower"
            )
        if workers is None and any(segment.own and segment.own.has_head for segment in self.segments):
            self.budget.notices.append(
                "clients keep their heads: the model that is saved has the head it began with; read client_accuracy"
            )
        self._asked: dict[int, tuple[Tensor, Tensor]] = {}  # all samples and their owners, by a segment's first lane
        self.evaluator = ClientEvaluator(self.lanes, data, self.workers, self.budget)
        # The table and not self: an engine without cycles frees the device's memory when it is let go.
        parts = (self.lanes, self.model, data, self.stack, self.evaluator)
        self.server = ServerSide(*parts, lambda: table.class_counts[table.of_lane])
        profile.built()

    def _kind_of_worker(self, processes: bool) -> KindOfWorker:
        """Convolutions are where processes may pay: their operations are long enough to be worth a fork."""
        pay = self.model.has_convolutions and self.device.type == "cpu" and torch.get_num_threads() > 1
        if not pay or not processes:
            return KindOfWorker(THREADS)
        if reason := why_no_forks():
            self.budget.notice(f"{reason}: clients train in threads, which can be a fifth slower")
            return KindOfWorker(THREADS)
        spec, shapes = self.lanes[0].spec, tuple(self.model.params.shapes.items())
        return KindOfWorker(key=key_of(shapes, self.data.dataset.input_shape, spec.batch_size, spec.optimizer))

    def without(self, ended: set[int]) -> Self | None:
        """The engine that goes on once some lanes have ended; None if none are left."""
        left = [lane for lane in range(len(self.lanes)) if lane not in ended]
        if not left:
            return None
        states = self.stack.states()
        return type(self)(
            [self.lanes[lane] for lane in left],
            self.data,
            round_number=self.round,
            states=[states[lane] for lane in left],
            budget=self.budget,
            workers=self.workers,
            profile=self.profile,
        )

    # --- a round -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run_round(self) -> list[LaneRound]:
        """Select, train, aggregate and, when due, evaluate; one entry per lane."""
        self.round += 1
        with computing_in(self.lanes[0].spec.precision), self.workers.alone():
            conversation = play_round(self.server, self.round, profile=self.profile)
            answer: Any = None
            while True:
                try:
                    question = conversation.send(answer)
                except StopIteration as end:
                    return end.value
                answer = self._answer(question)

    def _answer(self, question: Question) -> Any:
        if isinstance(question, Survey):
            return [self.budget.within(self._survey, segment) for segment in self.segments]
        if isinstance(question, Losses):
            return [self.budget.within(self._losses, segment) for segment in self.segments]
        if isinstance(question, Finish):
            return [self._final_reports(segment) for segment in self.segments]
        with self.profile.span(LOCAL_TRAINING):
            return self._train(question)

    def _survey(self, segment: Segment) -> Tensor | None:
        """Mean over every client's samples of what the algorithm asks about the global model, ``[lanes, clients]``."""
        return self._ask(segment, segment.algorithm) if segment.algorithm.evaluates_all_clients else None

    def _losses(self, segment: Segment) -> Tensor | None:
        """Every client's mean cross-entropy, ``[lanes, clients]``."""
        return self._ask(segment, Algorithm()) if segment.selection.needs_losses else None

    def _ask(self, segment: Segment, asking: Algorithm) -> Tensor:
        algorithm, first = segment.algorithm, segment.lanes.start
        lanes = torch.arange(first, segment.lanes.stop, device=self.device)
        if first not in self._asked:
            self._asked[first] = self.table.everyone(lanes)
        places, owners = self._asked[first]
        no_counts = self.stack.params.new_full((1, self.data.dataset.num_classes), torch.nan)
        received = self.server.broadcast(self.round)[self.segments.index(segment)] if uses_features(algorithm) else {}

        def work(model: StackedModel, part: tuple[slice, ...]) -> Tensor:
            which, some, whose = lanes[part[0]], places[part], owners[part]
            params, buffers = self.stack.params[which], self.stack.buffers[which]
            head = stacked_head(model, algorithm, rows_of(received, which - first))
            logits = model.evaluate_each(params, buffers, self.data.batches(some, self.server.scaling[which]), head)
            targets, mask = self.data.train_targets[some], (whose >= 0).to(params.dtype)
            return per_sample(asking.survey, Batch(logits, targets, mask, no_counts.expand(len(which), -1)))

        sides = zip(places.shape, (self.budget.models, self.budget.samples), strict=True)
        parts = list(product(*([slice(at, at + size) for at in range(0, length, size)] for length, size in sides)))
        values = self.stack.params.new_empty(places.shape)
        for part, found in zip(parts, self.workers.map(work, parts), strict=True):
            values[part] = found
        return self.table.client_means(lanes, values, owners)

    def _final_reports(self, segment: Segment) -> dict[str, Tensor] | None:
        """What all clients say of the final model, ``[lanes, clients, ...]``."""
        if not segment.algorithm.finishes:
            return None
        sent = self.server.broadcast(self.round)
        found: list[dict[str, Tensor]] = []
        everyone = torch.arange(self.table.sizes.shape[1], device=self.device)[None]
        for lane in segment.numbers:
            for clients in everyone.split(max(1, self.budget.slots), 1):
                slots = self._slots(slice(lane, lane + 1), Chosen(clients), sent)
                found.append(final_reports(self.model, self.data, slots))
        return _by_lane(found, everyone.shape[1])

    # --- local training ----------------------------------------------------------------------------------------------

    def _train(self, asked: Train) -> TrainResult:
        """Local training of all slots, a chunk at a time within the memory there is."""
        chosen = asked.chosen
        clients, keep = chosen.clients, asked.keep_models or asked.examine
        sizes = self.table.sizes[self.table.of_lane[:, None], clients]
        with self.profile.span(AGGREGATION):
            shares, weights = self.server.weights(clients, sizes, chosen.counts)
        update, buffers = torch.zeros_like(self.stack.params), self.stack.buffers.clone()
        reports: list[list[dict[str, Tensor]]] = [[] for _ in self.segments]
        examined: list[Evaluation] = []
        models: list[tuple[Tensor, Tensor]] = []

        def work(model: StackedModel, chunk: Chunk) -> list[TrainedChunk]:
            return self._train_chunk(model, chunk, asked, shares, weights, keep)

        whole = Chunk(slice(0, len(self.lanes)), slice(0, clients.shape[1]))
        steps: list[int] = []
        amount = None if asked.examine else lambda: sum(steps)  # with a look at local models comes more than training
        for parts in self.workers.map(work, self._chunks(whole), amount):
            for part in parts:
                steps.append(part.steps)
                update[part.chunk.lanes] += part.update
                buffers[part.chunk.lanes] += part.buffers
                for owners, report, kept in zip(part.owners, part.reports, part.client_states, strict=True):
                    reports[owners.position].append(report)
                    self._keep(owners, kept, chosen)
                if part.local_models is not None and asked.examine:
                    examined.append(self._evaluate_slots(part.chunk, part.local_models))
                if part.local_models is not None and asked.keep_models:
                    models.append(part.local_models)
        width = clients.shape[1]

        def stacked(which: int) -> Tensor | None:
            return torch.cat([each[which] for each in models]).view(len(self.lanes), width, -1) if models else None

        return TrainResult(
            clients=clients,
            sizes=sizes,
            shares=shares,
            update=update,
            buffers=buffers,
            reports=[_by_lane(parts, width) for parts in reports],
            counts=chosen.counts,
            params=stacked(0),
            all_buffers=stacked(1),
            after=Evaluation.join(examined) if examined else None,
            class_counts=self.table.class_counts[self.table.of_lane[:, None], clients],
        )

    def _keep(self, owners: SlotOwners, kept: dict[str, Tensor], chosen: Chosen) -> None:
        """What clients keep; those that were not there keep what they had."""
        home = self.segments[owners.position]
        if chosen.counts is None or not home.client_state:
            home.put(owners.lanes, owners.clients, kept)
            return
        rows = chosen.clients[home.lanes][owners.lanes] == owners.clients[:, None]
        there = torch.tensor(chosen.counts, device=self.device)[home.lanes][owners.lanes]
        present = rows.long().argmax(1) < there
        home.put(owners.lanes[present], owners.clients[present], rows_of(kept, present))

    def _train_chunk(
        self, model: StackedModel, chunk: Chunk, asked: Train, shares: Tensor, weights: Tensor, keep: bool
    ) -> list[TrainedChunk]:
        """Train the slots of a chunk; in two halves where memory does not reach."""
        spec, (lanes, places) = self.lanes[0].spec, chunk
        try:
            with self.profile.span(DATA):
                start = None if asked.start is None else (asked.start[0][places], asked.start[1][places])
                slots = self._slots(lanes, self._part(asked.chosen, chunk), asked.received, start)
            train = train_locally if self.graphs is None else self.graphs.train
            result = train(model, self.data, slots, spec.optimizer, spec.momentum)
            with self.profile.span(AGGREGATION):
                moved, moved_buffers = result.params - slots.params, result.buffers - slots.buffers
                for segment in slots.segments:
                    if segment.own is not None:
                        moved[segment.slots, segment.own.params] = 0
                        moved_buffers[segment.slots, segment.own.buffers] = 0
                update = lane_sums(weights[lanes, places], moved)
                buffers = lane_sums(shares[lanes, places], moved_buffers)
        except (RuntimeError, MemoryError) as error:
            size = (lanes.stop - lanes.start) * (places.stop - places.start)
            if not is_out_of_memory(error) or (size <= self.budget.slots and not self.budget.halve()):
                raise
            smaller = self._chunks(chunk)
            return [part for half in smaller for part in self._train_chunk(model, half, asked, shares, weights, keep)]
        self.profile.trained(slots.plan.steps)
        models = (result.params.clone(), result.buffers.clone()) if keep else None
        reports = [{name: value.clone() for name, value in report.items()} for report in result.reports]
        states = [
            {name: value.clone() for name, value in state.items()}
            | (part.own.of_model(result.params[part.slots], result.buffers[part.slots]) if part.own else {})
            for part, state in zip(slots.segments, result.client_states, strict=True)
        ]
        owners = [SlotOwners(part.position, part.lanes, part.clients) for part in slots.segments]
        # A GPU would have to be waited for, and has no kinds of worker to choose from.
        steps = int(slots.plan.steps.sum()) if self.device.type == "cpu" else 0
        return [TrainedChunk(chunk, update, buffers, owners, reports, states, models, steps)]

    def _part(self, chosen: Chosen, chunk: Chunk) -> Chosen:
        (lanes, places), counts = chunk, chosen.counts
        if counts is not None:
            width = places.stop - places.start
            counts = [min(max(counts[lane] - places.start, 0), width) for lane in range(lanes.start, lanes.stop)]
        return Chosen(chosen.clients[lanes, places], counts)

    def _chunks(self, within: Chunk) -> list[Chunk]:
        """Slots to train together: whole lanes if they fit, else parts of one lane, in pieces of about equal size."""
        (lanes, places), size = within, self.budget.slots
        together = size // (places.stop - places.start)
        if together and places.start == 0:
            return [Chunk(some, places) for some in _pieces(lanes, together)]
        return [Chunk(lane, some) for lane in _pieces(lanes, 1) for some in _pieces(places, size)]

    def _slots(
        self, lanes: slice, chosen: Chosen, received: list[dict[str, Tensor]], start: tuple[Tensor, ...] | None = None
    ) -> Slots:
        clients = chosen.clients
        segments = self._slot_segments(lanes, clients, received)
        which = torch.arange(lanes.start, lanes.stop, device=self.device).repeat_interleave(clients.shape[1])
        params, buffers = start or (self.stack.params[which], self.stack.buffers[which])
        places = Places(lanes, clients, clients, chosen.counts)
        return self.planner.slots(self.round, places, params, buffers, segments)

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
            had = (rows_of(sent, inner), segment.take(inner, chosen))
            parts.append(SlotSegment(segment.algorithm, slots, *had, position, inner, chosen, segment.own))
        return parts

    def _evaluate_slots(self, chunk: Chunk, models: tuple[Tensor, Tensor]) -> Evaluation:
        per_lane = chunk.places.stop - chunk.places.start
        lanes = [lane for lane in range(chunk.lanes.start, chunk.lanes.stop) for _ in range(per_lane)]
        with self.profile.span(DIAGNOSIS):
            return self.evaluator.evaluate(*models, lanes, self.round)


def _by_lane(parts: list[dict[str, Tensor]], active: int) -> dict[str, Tensor]:
    """Reports of a segment's slots as ``[lanes, active, ...]``."""
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return {name: value.view(-1, active, *value.shape[1:]) for name, value in joined.items()}


def _pieces(whole: slice, largest: int) -> Iterator[slice]:
    """``whole`` cut into the fewest pieces of at most ``largest``, as even as can be."""
    size = whole.stop - whole.start
    count = -(-size // largest)
    edges = [whole.start + size * piece // count for piece in range(count + 1)]
    return (slice(start, stop) for start, stop in pairwise(edges))
