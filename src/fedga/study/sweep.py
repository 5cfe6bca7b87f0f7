"""Runs all runs of a command: stacked in groups, committed as they go, continued where an earlier process stopped."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

import torch

from fedga.algorithms import ALGORITHMS
from fedga.common.sealed import DamagedError, is_whole
from fedga.data import Dataset
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.profile import DATA, NO_PROFILE, STORE, Profile
from fedga.engine.stack.lanes import Lane, LaneState, in_engine_order, stacking_key
from fedga.errors import FedGAError, quoted
from fedga.models import MODELS
from fedga.spec.catalog import SOURCES
from fedga.spec.settings import RunSpec
from fedga.store.records import Group, PartitionRecord, Run
from fedga.store.store import Store
from fedga.study.group import GroupRecord, GroupTraining, Observer, Trainer
from fedga.study.model_files import model_path
from fedga.study.prepare import Preparation
from fedga.study.states import check_states, read_states

__all__ = ["ExecutionConfig", "GroupJob", "Groups", "Interrupted", "Observer", "Pool", "Provider", "run_sweep"]

COMMIT_EVERY_S = 20.0
POLL_EVERY_S = 1.0
_MOST_SAID = 5  # models that are told by name
LANES_ON_CPU = 16  # more would only make a group longer: on a CPU stacked lanes are trained a few at a time
LANES_ON_CUDA = 512


class Interrupted(Exception):  # noqa: N818 - a stop that was asked for is not an error
    """The caller asked to stop; everything trained so far is in the store."""


class Provider(Protocol):
    """Where runs get their data and networks from."""

    def lane(self, spec: RunSpec) -> Lane: ...

    def fingerprints(self, specs: Sequence[RunSpec]) -> dict[str, str]: ...

    def partitions(self, specs: Sequence[RunSpec]) -> list[PartitionRecord]: ...


class Pool(Protocol):
    """Several engines, in processes of their own, that train groups side by side."""

    kind: str  # of their devices: cpu or cuda

    @property
    def size(self) -> int:
        """How many engines there are now."""

    def train(self, groups: "Groups") -> None:
        """Train all pending groups; raises `Interrupted` where the observer asks to stop."""


@dataclass(frozen=True)
class ExecutionConfig:
    """How groups of runs are trained, and how often what they did is made permanent."""

    trainer: Callable[..., Trainer] = Engine  # called as the engine is
    together: int | None = None  # runs in a group; None: what suits the device
    commit_every_s: float | None = None  # None: COMMIT_EVERY_S
    pool: Pool | None = None  # None: one engine, in this process


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
        left = [run.spec for run in runs if not run.finished]
        kind = device.type if execution.pool is None else execution.pool.kind
        together = execution.together or (LANES_ON_CPU if kind == "cpu" else LANES_ON_CUDA)
        if execution.pool is not None:  # so that each engine has some
            together = min(together, max(1, -(-len(left) // max(1, execution.pool.size))))
        stacked = _stack(left, preparation, together)
    with profile.span(STORE):
        store.create_groups(stacked)
    groups = Groups(by_id, store, preparation, observer, profile, execution)
    if execution.pool is None:
        _train_here(groups, device)
    else:
        execution.pool.train(groups)
    finished = {run.run_id: run for run in store.runs()}
    return [finished[run_id] for run_id in by_id]


@dataclass(frozen=True)
class GroupJob:
    """A group that this process holds: its lanes, the states to go on from, and the way into the store."""

    lanes: list[Lane]
    states: list[LaneState] | None  # of the lanes, where they do not begin
    round: int
    record: GroupRecord

    @property
    def specs(self) -> list[RunSpec]:
        return [lane.run for lane in self.lanes]


class Groups:
    """The groups of a sweep that are still to be trained."""

    def __init__(
        self,
        asked: dict[str, RunSpec],
        store: Store,
        preparation: Provider,
        observer: Observer,
        profile: Profile,
        execution: ExecutionConfig,
    ) -> None:
        self.asked, self.store, self.preparation, self.observer = asked, store, preparation, observer
        self.profile, self.execution, self._waiting = profile, execution, False
        self.commit_every_s = COMMIT_EVERY_S if execution.commit_every_s is None else execution.commit_every_s

    def pending(self) -> list[int]:
        """Their numbers, also of those that other processes train."""
        return [group.id for group in self.store.pending_groups(set(self.asked))]

    @contextmanager
    def take(self, number: int) -> Iterator[GroupJob | None]:
        """Hold a group; None where another process has it, or all of it has ended meanwhile."""
        with self.store.hold(number) as mine:
            yield self._job(self.store.group(number)) if mine else None

    def _job(self, group: Group) -> GroupJob:
        specs = self.asked | _trained_along(self.store, group, self.asked)
        with self.profile.span(DATA):
            lanes = [self.preparation.lane(specs[run_id]) for run_id in self.store.unfinished(group.id)]
        with self.profile.span(STORE):
            states = self._last_states(group, lanes)
        if states:
            in_stack = list(states)
            lanes.sort(key=lambda lane: in_stack.index(lane.run.run_id))
        record = GroupRecord(group, specs, self.store, self.observer, self.profile, self.commit_every_s)
        return GroupJob(lanes, list(states.values()) or None, group.round if states else 0, record)

    def _last_states(self, group: Group, lanes: Sequence[Lane]) -> dict[str, LaneState]:
        """The states to go on from; none where the runs begin, or begin again since their checkpoint is lost."""
        if group.checkpoint is None:
            return {}
        try:
            states = read_states(group.checkpoint, group.round)
            check_states(group.checkpoint, states, lanes, with_clients=self.execution.trainer is Engine)
            return states
        except DamagedError as error:
            again = "the run that needs it starts" if len(lanes) == 1 else f"the {len(lanes)} runs that need it start"
            self.observer.noticed(f"{error}: {again} again from round 1, and all others are as they were")
            return {}

    def wait(self) -> None:
        """Give other processes the time to train what is left."""
        if not self._waiting:
            self.observer.noticed("another process is training the runs that are left; waiting for it to finish them")
        self._waiting = True
        time.sleep(POLL_EVERY_S)


def _train_here(groups: Groups, device: torch.device) -> None:
    """One group after the other, on the engine of one device."""
    on_device = cache(partial(DeviceData, device=device))
    while pending := groups.pending():
        worked = False
        for number in pending:
            if groups.observer.should_stop():
                raise Interrupted
            with groups.take(number) as job:
                if job is not None:
                    _train_group(groups, job, on_device)
                    worked = True
        if not worked:
            groups.wait()


def _train_group(groups: Groups, job: GroupJob, on_device: Callable[[Dataset], DeviceData]) -> None:
    """From its last checkpoint to its end."""
    profile, observer, record = groups.profile, groups.observer, job.record
    with profile.span(DATA):
        data, at = on_device(job.lanes[0].federation.dataset), {"round_number": job.round, "states": job.states}
        training = GroupTraining(groups.execution.trainer(job.lanes, data, **at, profile=profile))
    observer.started(job.specs, job.round)
    while training.engine is not None:
        with profile.round(len(training.engine.lanes)):
            played = training.play()
            record.keep(played, training.models(played))
            training.leave(played)
            stop = observer.should_stop()
            if stop or played.ended or record.due:
                record.commit(played.round, training.checkpoint)
        if stop and training.engine is not None:
            raise Interrupted


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
