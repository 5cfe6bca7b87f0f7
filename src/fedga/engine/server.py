"""The server's half of a round: who takes part, what is sent, how replies become the next model, what is recorded.

It is the same whoever trains the clients: the engine, stacked on this machine, or other machines under Flower.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakMethod

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedga.algorithms.base import RoundResult, Server, Tensors, overrides
from fedga.common import streams
from fedga.engine import schedule
from fedga.engine.device_data import DeviceData, InputScaling
from fedga.engine.evaluation.evaluate import Evaluation
from fedga.engine.evaluation.evaluator import ClientEvaluator
from fedga.engine.evaluation.metrics import ClientRecord, client_records, client_scores, mean_client_ratio
from fedga.engine.local import stacked_head
from fedga.engine.stack.lanes import Lane, LaneStack, Segment, ServerGroup, rows_of
from fedga.engine.stack.stacked import Head, StackedModel
from fedga.errors import FedGAError
from fedga.selection import SELECTIONS, Choice
from fedga.selection.check import check_chosen

NOBODY_DRAWS_THIS = 2.0  # draws are below 1: rules of version 0.1 see absent clients last

ClassCounts = Callable[[], Tensor | None]  # of all clients, [lanes, clients, classes], where they are known


@dataclass(frozen=True)
class LaneRound:
    """What one lane did in one round."""

    round: int
    metrics: dict[str, float] | None  # None in rounds that are not evaluated
    clients: list[ClientRecord] = field(default_factory=list)  # in rounds in which local models are examined
    diverged: bool = False


@dataclass(frozen=True)
class Chosen:
    """Who takes part in a round."""

    clients: Tensor  # [lanes, active]; those that are there come first
    counts: list[int] | None = None  # how many of them are there, by lane; None: all


@dataclass(frozen=True)
class TrainResult:
    """What came back from the clients of a round."""

    clients: Tensor  # [lanes, active]
    sizes: Tensor  # [lanes, active]: their samples
    shares: Tensor  # [lanes, active]: by samples, or equal
    update: Tensor  # [lanes, parameters]: sum of the clients' updates by weight
    buffers: Tensor  # [lanes, buffers]: mean of the clients' buffers
    reports: list[dict[str, Tensor]]  # per segment, [lanes, active, ...]
    counts: list[int] | None = None  # how many answered, by lane; None: all
    params: Tensor | None = None  # [lanes, active, parameters] where single models are asked for
    all_buffers: Tensor | None = None  # [lanes, active, buffers], with them
    after: Evaluation | None = None  # of the local models, in rounds in which they are examined
    class_counts: Tensor | None = None  # [lanes, active, classes], where they are known


class ServerSide:
    """The servers of all lanes. ``stack`` is what they carry from round to round, and is moved on here."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        model: StackedModel,
        data: DeviceData,
        stack: LaneStack,
        evaluator: ClientEvaluator,
        class_counts: ClassCounts = lambda: None,
    ) -> None:
        self.lanes, self.model, self.data, self.stack, self.evaluator = lanes, model, data, stack, evaluator
        self.segments = stack.segments
        self.device, self.class_counts = data.device, class_counts
        self.active, self.num_clients = lanes[0].spec.active, lanes[0].federation.num_clients
        self.seeds = [lane.spec.seed for lane in lanes]
        self.uniform = torch.tensor([lane.spec.aggregation == "uniform" for lane in lanes], device=self.device)
        self.scaling = lane_scaling(lanes, data)
        evaluator.head = WeakMethod(self.head)  # no cycle: memory of a device is freed when the engine is let go

    @property
    def inspects(self) -> bool:
        """Whether somebody wants to see single models."""
        parts = [part for segment in self.segments for part in (segment.algorithm, segment.selection)]
        return any(overrides(part, "inspect") for part in parts)

    # --- before clients train ----------------------------------------------------------------------------------------

    def select(
        self, round_number: int, absent: Sequence[int] = (), losses: Sequence[Tensor | None] | None = None
    ) -> Chosen:
        """Chosen clients; ``absent`` ones, and those that availability leaves out, are passed over.

        ``losses [lanes, clients]`` are there for segments whose rule asks for them.
        """
        draws = schedule.client_draws(self.seeds, round_number, self.num_clients, self.device)
        always = all(lane.availability.always for lane in self.lanes) and not absent
        available = torch.ones_like(draws, dtype=torch.bool) if always else self._available(round_number, absent)
        # Where all lanes lack clients alike (there is one lane under Flower), fewer are chosen.
        active = min(self.active, self.num_clients - len(absent))
        given = zip(self.segments, losses or [None] * len(self.segments), strict=True)
        chosen = torch.cat([self._select(each, round_number, draws, available, active, asked) for each, asked in given])
        if always:
            return Chosen(chosen)
        there = available.gather(1, chosen)
        order = (~there).long().argsort(dim=1, stable=True)
        return Chosen(chosen.gather(1, order), there.sum(1).tolist())

    def _available(self, round_number: int, absent: Sequence[int]) -> Tensor:
        rows = [lane.availability.present(lane.spec.seed, round_number, self.num_clients) for lane in self.lanes]
        available = torch.stack(rows)
        available[:, list(absent)] = False
        nobody = ~available.any(1)
        if nobody.any():  # everybody who would be available is away: whoever is left is asked
            left = torch.ones(self.num_clients, dtype=torch.bool)
            left[list(absent)] = False
            available[nobody] = left
        return available.to(self.device)

    def _select(
        self,
        segment: Segment,
        round_number: int,
        draws: Tensor,
        available: Tensor,
        active: int,
        losses: Tensor | None,
    ) -> Tensor:
        rows, rule = segment.lanes, segment.selection
        legacy = getattr(segment.algorithm, "select", None)
        if legacy is not None and type(rule).__name__ == "Uniform":
            seen = torch.where(available[rows], draws[rows], NOBODY_DRAWS_THIS)
            chosen = vmap(lambda state, draws: legacy(state, draws, active))(segment.state, seen)
            return self._checked(chosen, available[rows], active, f"select of {type(segment.algorithm).__name__}")
        counts = self.class_counts() if rule.needs_class_counts else None
        if rule.needs_class_counts and counts is None:
            raise FedGAError(
                "--select chooses by the clients' class counts, which are not known here: choose another rule, or let "
                "the sites report them"
            )

        def one(state: Tensors, draws: Tensor, available: Tensor, more: Tensors) -> Tensor:
            return rule.select(Choice(round_number, state, draws, available, active, **more))

        more = {"key": torch.tensor([streams.key(seed, "selection") for seed in self.seeds[rows]], device=self.device)}
        more |= {} if counts is None else {"class_counts": counts[rows].to(self.device)}
        more |= {"losses": losses} if rule.needs_losses and losses is not None else {}
        chosen = vmap(one)(segment.select_state, draws[rows], available[rows], more)
        if type(rule) in SELECTIONS.values():
            return chosen.long()
        return self._checked(chosen, available[rows], active, f"selection rule {type(rule).__name__}")

    def _checked(self, chosen: Tensor, available: Tensor, active: int, called: str) -> Tensor:
        """What a rule of the user's own chose: a check before the run has not seen these clients and rounds."""
        for choice, there in zip(chosen, available, strict=True):
            check_chosen(choice, there, active, called)
        return chosen.long()

    def broadcast(self, round_number: int) -> list[dict[str, Tensor]]:
        """What every segment's servers send besides the model, ``[lanes, ...]``."""
        return [self._broadcast(segment, round_number) for segment in self.segments]

    def _broadcast(self, segment: Segment, round_number: int) -> dict[str, Tensor]:
        if not overrides(segment.algorithm, "broadcast"):
            return {}
        return self._of_servers(segment, segment.algorithm.broadcast, round_number)

    def _of_servers(
        self, segment: Segment, hook: Callable[..., Any], round_number: int, *more: Any, rule: bool = False
    ) -> Any:
        """A hook of a `Server` (first) and of what is given besides, ``[lanes, ...]``, mapped over a segment.

        It is one of the algorithm, or of the ``rule``.
        """
        lanes = segment.lanes

        def one(params: Tensor, buffers: Tensor, state: Tensors, auxiliary: tuple[Tensor, ...], *more: Any) -> Any:
            return hook(self._server(params, buffers, state, round_number, *auxiliary), *more)

        params, buffers = self.stack.params[lanes], self.stack.buffers[lanes]
        return vmap(one)(params, buffers, segment.state, self._auxiliary(segment, rule), *more)

    def _auxiliary(self, segment: Segment, rule: bool = False) -> tuple[Tensor, ...]:
        """The samples that a segment's servers hold, ``[lanes, classes, samples, ...]``; none where they need none."""
        places = segment.select_auxiliary if rule else segment.auxiliary
        if places is None:
            return ()
        stored = self.data.gather(places)
        return (self.scaling[segment.lanes].apply(stored.flatten(1, 2)).view(stored.shape),)

    def groups(self, round_number: int, chosen: Chosen) -> list[int]:
        """The group of each chosen client of the only lane: where clients train in turn, a run has an engine alone."""
        [segment] = self.segments
        counts = self.class_counts()
        if counts is None:
            raise FedGAError(
                "the algorithm groups clients by their class counts, which are not known here: let the sites report "
                "them, or choose another algorithm"
            )
        own = counts.to(self.device).gather(1, chosen.clients[..., None].expand(-1, -1, counts.shape[-1]))
        found = self._of_servers(segment, segment.algorithm.groups, round_number, chosen.clients, own)
        return [int(group) for group in found[0].tolist()]

    def training_order(self, round_number: int, chosen: Chosen) -> list[int]:
        """Places of the chosen clients of the only lane by the round's draws, whatever order a rule chose them in."""
        draws = schedule.client_draws(self.seeds, round_number, self.num_clients, self.device)
        return draws[0, chosen.clients[0]].argsort(stable=True).tolist()

    # --- after clients have trained ----------------------------------------------------------------------------------

    def weights(self, clients: Tensor, sizes: Tensor, counts: list[int] | None = None) -> tuple[Tensor, Tensor]:
        """Shares by sample count (or equal), and the algorithms' weights made from them: ``[lanes, active]`` each.

        Both are 0 for clients beyond the ``counts`` that are there.
        """
        sizes = torch.where(self.uniform[:, None], 1.0, sizes.to(self.model.dtype))
        if counts is not None:
            place = torch.arange(sizes.shape[1], device=self.device)
            sizes = sizes * (place < torch.tensor(counts, device=self.device)[:, None])
        shares = sizes / sizes.sum(1, keepdim=True)

        def weigh(segment: Segment) -> Tensor:
            rows, hook = segment.lanes, segment.algorithm.weights
            if counts is None:
                return vmap(hook)(segment.state, clients[rows], shares[rows])
            found = torch.zeros_like(shares[rows])
            for row, lane in enumerate(segment.numbers):
                given = clients[lane, : counts[lane]], shares[lane, : counts[lane]]
                found[row, : counts[lane]] = hook(rows_of(segment.state, row), *given)
            return found

        return shares, torch.cat([weigh(segment) for segment in self.segments])

    def advance(self, round_number: int, returned: TrainResult, surveys: Sequence[Tensor | None]) -> None:
        """The servers' step, and what algorithms and rules learn from the round; ``surveys [lanes, clients]``."""
        params = self.stack.params.clone()
        own_steps: dict[int, RoundResult] = {}
        for segment, reports, survey in zip(self.segments, returned.reports, surveys, strict=True):
            algorithm, rule, rows = segment.algorithm, segment.selection, segment.lanes
            given = (round_number, returned.clients[rows], returned.shares[rows], returned.update[rows])
            of_algorithm, of_rule = (
                RoundResult(*given, reports | self._inspected(segment, part, round_number, returned), survey)
                for part in (algorithm, rule)
            )
            counts = None if returned.counts is None else returned.counts[rows]
            if overrides(algorithm, "update_server"):
                segment.state = _after(algorithm.update_server, segment.state, of_algorithm, counts)
            if overrides(rule, "update"):
                segment.select_state = _after(rule.update, segment.select_state, of_rule, counts)
            if overrides(algorithm, "aggregate"):
                own_steps |= {lane: _row(of_algorithm, row, counts) for row, lane in enumerate(segment.numbers)}
        for group in self.stack.servers:
            self._step(group, params, returned.update, own_steps)
        self.stack.move(params, returned.buffers, round_number)

    def _step(self, group: ServerGroup, params: Tensor, update: Tensor, own_steps: dict[int, RoundResult]) -> None:
        """Move the lanes of one server optimiser; an algorithm with a step of its own decides how that is used."""
        if own_steps.keys().isdisjoint(group.lanes):
            rows: Any = slice(None) if len(group.lanes) == len(self.lanes) else group.lanes  # a list is a copy
            params[rows] = group.step(self.stack.params[rows], update[rows])
            return
        kept = {name: value.clone() for name, value in group.state.items()}
        for row, lane in enumerate(group.lanes):
            params[lane], after = self._next(lane, group, row, update[lane], own_steps.get(lane))
            for name, value in after.items():
                kept[name][row] = value
        group.state = kept

    def _next(
        self, lane: int, group: ServerGroup, row: int, update: Tensor, own: RoundResult | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The next model of one lane, and what its server optimiser keeps."""
        params, kept = self.stack.params[lane], rows_of(group.state, row)

        def step(update: Tensor) -> Tensor:
            nonlocal kept
            moved, kept = group.optimizer.step(params, update, kept, group.rate[row])
            return moved

        if own is None:
            return step(update), kept
        segment = self._segment_of(lane)
        moved = segment.algorithm.aggregate(self._server_of(segment, lane, own.round), own, step)
        return moved, kept

    def _inspected(
        self, segment: Segment, inspector: Any, round_number: int, returned: TrainResult
    ) -> dict[str, Tensor]:
        """What an algorithm or rule reads off single models, ``[lanes, active, ...]``; 0 for clients not there.

        It sees what was sent: what stays at clients has the values of the global model.
        """
        if not overrides(inspector, "inspect"):
            return {}
        assert returned.params is not None
        models = returned.params[segment.lanes].clone()
        if segment.own is not None:
            models[..., segment.own.params] = self.stack.params[segment.lanes][:, None, segment.own.params]
        rule = inspector is segment.selection
        if returned.counts is None:
            return self._of_servers(segment, inspector.inspect, round_number, models, rule=rule)
        seen = []
        for row, lane in enumerate(segment.numbers):
            there = models[row, : returned.counts[lane]]
            found = inspector.inspect(self._server_of(segment, lane, round_number, rule), there)
            absent = models.shape[1] - len(there)
            seen.append({key: torch.cat([x, x.new_zeros(absent, *x.shape[1:])]) for key, x in found.items()})
        return {key: torch.stack([each[key] for each in seen]) for key in seen[0]}

    def _server(
        self, params: Tensor, buffers: Tensor, state: Tensors, number: int, auxiliary: Tensor | None = None
    ) -> Server:
        """The server of one lane."""

        def forward(params: Tensor, inputs: Tensor) -> Tensor:
            return self.model.forward_one(params, buffers, inputs)

        return Server(params, state, self.data.dataset.num_classes, forward, self.model.params, auxiliary, number)

    def _server_of(self, segment: Segment, lane: int, round_number: int, rule: bool = False) -> Server:
        row = lane - segment.lanes.start
        own = (self.stack.params[lane], self.stack.buffers[lane], rows_of(segment.state, row))
        return self._server(*own, round_number, *(held[row] for held in self._auxiliary(segment, rule)))

    def finish(self, round_number: int, finals: Sequence[dict[str, Tensor] | None], which: Sequence[int]) -> None:
        """The exchange after the last round of the lanes in ``which``; ``finals`` are ``[lanes, clients, ...]``."""
        for segment, reports in zip(self.segments, finals, strict=True):
            if reports is None:
                continue
            for lane in [lane for lane in which if lane in segment.numbers]:
                server = self._server_of(segment, lane, round_number)
                seen = rows_of(reports, lane - segment.lanes.start)
                self.stack.params[lane] = segment.algorithm.finish(server, seen)

    # --- scores ------------------------------------------------------------------------------------------------------

    def head(self, lanes: Sequence[int], round_number: int) -> Head | None:
        """The algorithms' head for a stack of models, one of each of the named lanes; None: the network's own."""
        segment = self._segment_of(lanes[0])
        rows = torch.tensor([lane - segment.lanes.start for lane in lanes], device=self.device)
        return stacked_head(self.model, segment.algorithm, rows_of(self._broadcast(segment, round_number), rows))

    def sent_with_head(self, lane: int, round_number: int) -> dict[str, Tensor]:
        """What the head of a lane's algorithm needs beside the model; nothing where the network's own is used."""
        segment = self._segment_of(lane)
        if not overrides(segment.algorithm, "head"):
            return {}
        return rows_of(self._broadcast(segment, round_number), lane - segment.lanes.start)

    def _segment_of(self, lane: int) -> Segment:
        return next(segment for segment in self.segments if lane in segment.numbers)

    def evaluate(self, round_number: int) -> Evaluation:
        """The global model of every lane on the test split."""
        return self.evaluator.evaluate(self.stack.params, self.stack.buffers, range(len(self.lanes)), round_number)

    def results(self, round_number: int, returned: TrainResult, before: Evaluation | None) -> list[LaneRound]:
        """What is recorded of the round."""
        finite = self.stack.params.isfinite().all(1).tolist()
        rows = self.evaluator.metric_rows(self.stack, round_number)
        self.evaluator.score_own_parts(rows, self.stack, self.class_counts(), round_number)
        after, class_counts, clients = returned.after, returned.class_counts, returned.clients
        examined = self.evaluator.examined(round_number) if before is not None and after is not None else set()
        # Where a part is a client's own, it received no whole model to compare its trained one with.
        examined -= {lane for each in self.segments if each.own for lane in each.numbers}
        records: list[list[ClientRecord]] = [[] for _ in self.lanes]
        seen: list[dict[str, float]] = [{} for _ in self.lanes]
        if before is not None and after is not None and class_counts is not None:
            found = client_records(clients, class_counts, before, after)
            there = returned.counts or [clients.shape[1]] * len(self.lanes)
            records = [records[: there[lane]] if lane in examined else [] for lane, records in enumerate(found)]
        elif after is not None:
            ratios = mean_client_ratio(after, len(self.lanes))
            seen = [{"client_ea_ratio": ratio} if lane in examined else {} for lane, ratio in enumerate(ratios)]
        results = []
        for lane, row in enumerate(rows):
            diverged = not finite[lane] or (row is not None and not np.isfinite(row.get("loss", 0.0)))
            if row is not None and not diverged:
                row |= client_scores(records[lane]) if records[lane] else seen[lane]
            results.append(LaneRound(round_number, None if diverged else row, records[lane], diverged))
        return results


def lane_scaling(lanes: Sequence[Lane], data: DeviceData) -> InputScaling:
    """How samples become inputs, with a row per lane."""
    each = [data.pixels(lane.spec.standardize) for lane in lanes]
    return InputScaling(torch.stack([one.scale for one in each]), torch.stack([one.shift for one in each]))


def _row(stacked: RoundResult, row: int, counts: list[int] | None) -> RoundResult:
    """The round of one lane out of that of a segment, ``[lanes, ...]``: its server sees the clients that answered."""
    there = (row, slice(None if counts is None else counts[row]))
    survey = None if stacked.survey is None else stacked.survey[row]
    seen = (stacked.clients[there], stacked.shares[there], stacked.update[row], rows_of(stacked.reports, there))
    return RoundResult(stacked.round, *seen, survey)


def _after(
    hook: Callable[[Tensors, RoundResult], dict[str, Tensor]],
    state: dict[str, Tensor],
    stacked: RoundResult,
    counts: list[int] | None,
) -> dict[str, Tensor]:
    """The state after a round, of every lane of a segment, in the types it began with."""
    if counts is not None:
        each = [hook(rows_of(state, row), _row(stacked, row, counts)) for row in range(len(counts))]
        found = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    else:
        tensors = {name: value for name, value in vars(stacked).items() if name != "round" and value is not None}
        found = vmap(lambda state, given: hook(state, RoundResult(stacked.round, **given)))(state, tensors)
    return {name: value.to(state[name].dtype) for name, value in found.items()}


def lane_sums(weights: Tensor, values: Tensor) -> Tensor:
    """Weighted sums over each lane's slots: ``[lanes, slots], [lanes * slots, n] -> [lanes, n]``."""
    return torch.bmm(weights[:, None], values.view(*weights.shape, values.shape[1])).squeeze(1)
