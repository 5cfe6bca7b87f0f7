"""Runs all runs of a command: stacked in groups, committed as they go, continued where an earlier process stopped."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from fedga.algorithms import ALGORITHMS
from fedga.algorithms.base import overrides
from fedga.common.sealed import DamagedError, is_whole
from fedga.data import Dataset
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.evaluation.metrics import ClientRecord
from fedga.engine.profile import DATA, NO_PROFILE, STORE, Profile
from fedga.engine.server import LaneRound, ServerSide
from fedga.engine.stack.budget import MemoryBudget
from fedga.engine.stack.lanes import Lane, LaneStack, LaneState, in_engine_order, stacking_key
from fedga.engine.stack.stacked import StackedModel
from fedga.errors import FedGAError, quoted
from fedga.models import MODELS
from fedga.spec.catalog import SOURCES
from fedga.spec.settings import RunSpec
from fedga.store.database import explained
from fedga.store.records import ClientRound, Group, PartitionRecord, RoundMetrics, Run
from fedga.store.store import Store
from fedga.study.model_files import model_path, save_model
from fedga.study.prepare import Preparation
from fedga.study.states import check_states, read_states, write_states

COMMIT_EVERY_S = 20.0
POLL_EVERY_S = 1.0
_MOST_SAID = 5  # models that are told by name
LANES_ON_CPU = 16  # more would only make a group longer: on a CPU stacked lanes are trained a few at a time
LANES_ON_CUDA = 512


class Interrupted(Exception):  # noqa: N818 - a stop that was asked for is not an error
    """The caller asked to stop; everything trained so far is in the store."""


@dataclass
class Observer:
    """What a caller may watch. The defaults do nothing."""

    started: Callable[[Sequence[RunSpec], int], None] = lambda specs, done: None
    advanced: Callable[[Sequence[RunSpec], Sequence[LaneRound]], None] = lambda specs, rounds: None
    noticed: Callable[[str], None] = lambda text: None
    should_stop: Callable[[], bool] = lambda: False


class Trainer(Protocol):
    """What trains a group of runs round by round: the engine, or one whose clients are other machines."""

    lanes: list[Lane]
    round: int
    model: StackedModel
    data: DeviceData
    budget: MemoryBudget
    server: ServerSide

    @property
    def stack(self) -> LaneStack: ...

    def run_round(self) -> list[LaneRound]: ...

    def without(self, ended: set[int]) -> Self | None: ...


class Provider(Protocol):
    """Where runs get their data and networks from."""

    def lane(self, spec: RunSpec) -> Lane: ...

    def fingerprints(self, specs: Sequence[RunSpec]) -> dict[str, str]: ...

    def partitions(self, specs: Sequence[RunSpec]) -> list[PartitionRecord]: ...


@dataclass(frozen=True)
class ExecutionConfig:
    """How groups of runs are trained, and how often what they did is made permanent."""

    trainer: Callable[..., Trainer] = Engine  # called as the engine is
    together: int | None = None  # runs in a group; None: what suits the device
    commit_every_s: float | None = None  # None: COMMIT_EVERY_S


@dataclass
class _Unsaved:
    metrics: list[RoundMetrics] = field(default_factory=list)
    clients: list[ClientRound] = field(default_factory=list)
    finished: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)


def run_sweep(
    specs: Sequence[RunSpec],
    store: Store,
    device: torch.device,
    *,
    axes: Sequence[str] = (),
    observer: Observer | None = None,
    preparation: Provider | None = None,
    profile: Profile = NO_PROFILE,
    execution: ExecutionConfig | None = None,
) -> list[Run]:
    """Train whatever of ``specs`` the store does not have yet; returns all of them as the store knows them at the end.

    Raises `Interrupted` when the observer asks to stop. Another process may work on the same folder: each group of runs
    is trained by one of them, and both return when all are done.
    """
    observer, execution = observer or Observer(), execution or ExecutionConfig()
    with profile.span(DATA):
        preparation = preparation or Preparation(specs)
        fingerprints = preparation.fingerprints(specs)
    with profile.span(STORE):
        runs = store.register(specs, fingerprints, axes)
        store.keep_partitions(preparation.partitions(specs))
        _say_lost_models(store, runs, observer.noticed)
    by_id = {run.run_id: run.spec for run in runs}
    with profile.span(DATA):
        together = execution.together or (LANES_ON_CPU if device.type == "cpu" else LANES_ON_CUDA)
        stacked = _stack([run.spec for run in runs if not run.finished], preparation, together)
    with profile.span(STORE):
        store.create_groups(stacked)
    on_device = cache(partial(DeviceData, device=device))
    waiting = False
    while groups := store.pending_groups(set(by_id)):
        worked = False
        for group in groups:
            if observer.should_stop():
                raise Interrupted
            with store.hold(group.id) as mine:
                if mine:
                    current = store.group(group.id)
                    everyone = by_id | _trained_along(store, current, by_id)
                    _GroupRun(current, everyone, store, preparation, on_device, observer, profile, execution).run()
                    worked = True
        if not worked:
            if not waiting:
                observer.noticed("another process is training the runs that are left; waiting for it to finish them")
            waiting = True
            time.sleep(POLL_EVERY_S)
    finished = {run.run_id: run for run in store.runs()}
    return [finished[run_id] for run_id in by_id]


def _trained_along(store: Store, group: Group, asked: dict[str, RunSpec]) -> dict[str, RunSpec]:
    """Runs of a group that another command began, which go on with those asked for now.

    What stands in the results file of somebody else must not choose code or files: only names that are ours, or that
    this command uses too, are taken from there.
    """
    others = {run.run_id: run.spec for run in store.runs() if run.run_id in group.run_ids and not run.finished}
    for setting, built_in in (("model", MODELS), ("algorithm_name", ALGORITHMS), ("dataset", SOURCES)):
        known = {*built_in, *(getattr(spec, setting) for spec in asked.values())}
        if strange := {getattr(spec, setting) for spec in others.values()} - known:
            along = f"together with one of {quoted(strange.pop())}, which is none of fedga's own"
            cure = "name it in the command too, or give another --out"
            raise FedGAError(f"the runs asked for were begun in {str(store.folder)!r} {along}: {cure}")
    return others


def _say_lost_models(store: Store, runs: Sequence[Run], noticed: Callable[[str], None]) -> None:
    """Tell of models of finished runs that are gone or damaged; their results are in the store all the same."""
    done = [run.spec for run in runs if run.status == "done"]
    models = ((spec, averaged) for spec in done for averaged in {False, bool(spec.server_average)})
    lost = [path for model in models if not is_whole(path := model_path(store.folder, *model))]
    for path in lost[:_MOST_SAID]:
        what = "is damaged" if path.exists() else "is missing"
        noticed(f"the model {path} of a finished run {what}: the same command with another --out makes it again")
    if len(lost) > _MOST_SAID:
        noticed(f"and {len(lost) - _MOST_SAID} more models are missing or damaged")


def _stack(specs: Sequence[RunSpec], preparation: Provider, size: int) -> list[list[str]]:
    alike: dict[object, list[Lane]] = {}
    for spec in specs:
        lane = preparation.lane(spec)
        alike.setdefault(stacking_key(lane), []).append(lane)
    groups: list[list[str]] = []
    for lanes in alike.values():
        ordered = [lane.run.run_id for lane in in_engine_order(lanes)]
        groups += [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return groups


class _GroupRun:
    """Trains one group from its last checkpoint to its end."""

    def __init__(
        self,
        group: Group,
        specs: dict[str, RunSpec],
        store: Store,
        preparation: Provider,
        on_device: Callable[[Dataset], DeviceData],
        observer: Observer,
        profile: Profile,
        execution: ExecutionConfig,
    ) -> None:
        self.group, self.store, self.observer, self.profile = group, store, observer, profile
        self.commit_every_s = COMMIT_EVERY_S if execution.commit_every_s is None else execution.commit_every_s
        with profile.span(DATA):
            lanes = [preparation.lane(specs[run_id]) for run_id in store.unfinished(group.id)]
        with profile.span(STORE):
            states = self._last_states(group, lanes, execution)
        if states:
            in_stack = list(states)
            lanes.sort(key=lambda lane: in_stack.index(lane.run.run_id))
        with profile.span(DATA):
            data = on_device(lanes[0].federation.dataset)
        number, begin = (group.round, list(states.values())) if states else (0, None)
        self.engine: Trainer | None = execution.trainer(lanes, data, round_number=number, states=begin, profile=profile)
        self.unsaved = _Unsaved()

    def _last_states(self, group: Group, lanes: Sequence[Lane], execution: ExecutionConfig) -> dict[str, LaneState]:
        """The states to go on from; none where the runs begin, or begin again since their checkpoint is lost."""
        if group.checkpoint is None:
            return {}
        try:
            states = read_states(group.checkpoint, group.round)
            check_states(group.checkpoint, states, lanes, with_clients=execution.trainer is Engine)
            return states
        except DamagedError as error:
            again = "the run that needs it starts" if len(lanes) == 1 else f"the {len(lanes)} runs that need it start"
            self.observer.noticed(f"{error}: {again} again from round 1, and all others are as they were")
            return {}

    def run(self) -> None:
        assert self.engine is not None
        self.observer.started([lane.run for lane in self.engine.lanes], self.engine.round)
        while self.engine is not None:
            with self.profile.round(len(self.engine.lanes)):
                stop = self._round(self.engine)
            if stop and self.engine is not None:
                raise Interrupted

    def _round(self, engine: Trainer) -> bool:
        """Train a round, and store what is due; returns whether the caller wants to stop."""
        lanes, rounds = engine.lanes, engine.run_round()
        ended = self._record(engine, rounds)
        notices, engine.budget.notices = engine.budget.notices, []
        for notice in notices:
            self.observer.noticed(notice)
        self.observer.advanced([lane.run for lane in lanes], rounds)
        number = engine.round
        self.engine = engine.without(ended) if ended else engine
        stop = self.observer.should_stop()
        if stop or ended or time.monotonic() - self.unsaved.since > self.commit_every_s:
            with self.profile.span(STORE):
                self._commit(number)
        return stop

    def _record(self, engine: Trainer, rounds: Sequence[LaneRound]) -> set[int]:
        """Keep the rows of a round for the next commit; returns the lanes that ended with it."""
        ended = set()
        for position, (lane, result) in enumerate(zip(engine.lanes, rounds, strict=True)):
            run_id = lane.run.run_id
            if result.metrics is not None:
                self.unsaved.metrics.append(RoundMetrics(run_id, result.round, values=result.metrics))
            if result.clients:
                names = [each.name for each in fields(ClientRecord)]
                arrays = {name: np.array([getattr(each, name) for each in result.clients]) for name in names}
                self.unsaved.clients.append(ClientRound(run_id, result.round, arrays))
            if result.diverged:
                self.unsaved.finished[run_id] = "diverged"
                self.unsaved.notes[run_id] = f"the loss was no longer finite in round {result.round}"
                ended.add(position)
            elif result.round >= lane.spec.rounds:
                with self.profile.span(STORE):
                    self._save(engine, position)
                self.unsaved.finished[run_id] = "done"
                ended.add(position)
        return ended

    def _save(self, engine: Trainer, position: int) -> None:
        """The final models of one lane, before the store says that the run is done."""
        lane, model = engine.lanes[position], engine.model
        stack, dataset = engine.stack, engine.data.dataset
        sent = engine.server.sent_with_head(position, engine.round)
        beside = None
        if overrides(lane.algorithm, "head"):
            beside = {name: value.cpu().clone() for name, value in sent.items()}

        def weights(params: Tensor, buffers: Tensor) -> dict[str, Tensor]:
            named = model.params.views(params.cpu()) | model.buffers.views(buffers.cpu())
            return {name: tensor.clone() for name, tensor in named.items() if name in lane.model.state_dict()}

        with explained(self.store.folder):
            path = model_path(self.store.folder, lane.run)
            save_model(path, lane.run, dataset, weights(stack.params[position], stack.buffers[position]), beside)
            if position in stack.averaging:
                place = stack.averaging.index(position)
                averaged = weights(stack.averaged_params[place], stack.averaged_buffers[place])
                save_model(model_path(self.store.folder, lane.run, averaged=True), lane.run, dataset, averaged, beside)

    def _commit(self, round_number: int) -> None:
        unsaved, self.unsaved = self.unsaved, _Unsaved()

        def checkpoint(path: Path) -> None:
            assert self.engine is not None
            states = zip(self.engine.lanes, self.engine.stack.states(), strict=True)
            write_states(path, {lane.run.run_id: state for lane, state in states}, round_number)

        rows, ends = (unsaved.metrics, unsaved.clients), (unsaved.finished, unsaved.notes)
        self.store.commit(self.group.id, round_number, *rows, checkpoint, *ends)
