"""A group of runs, in two halves: `GroupTraining` trains it, and `GroupRecord` brings what comes of it into the store.

Between the halves pass plain values only, so that they need not be in one process, nor on one machine.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import numpy as np
from torch import Tensor

from fedga.algorithms.base import overrides
from fedga.engine.device_data import DeviceData
from fedga.engine.evaluation.metrics import ClientRecord
from fedga.engine.profile import STORE, Profile
from fedga.engine.server import LaneRound, ServerSide
from fedga.engine.stack.budget import MemoryBudget
from fedga.engine.stack.lanes import Lane, LaneStack
from fedga.engine.stack.stacked import StackedModel
from fedga.spec.settings import RunSpec
from fedga.store.database import explained
from fedga.store.records import ClientRound, Group, RoundMetrics
from fedga.store.store import Store
from fedga.study.model_files import model_content, model_path, write_model
from fedga.study.states import states_content


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


@dataclass(frozen=True)
class PlayedRound:
    """What one round of a group brought."""

    round: int
    run_ids: list[str]
    results: list[LaneRound]  # of each run
    ended: dict[int, str]  # places of the runs that end here: done or diverged
    notices: list[str]


class ModelFile(NamedTuple):
    """The model of a run that is done, as it is to lie on disk."""

    run_id: str
    averaged: bool
    content: bytes


class GroupTraining:
    """Trains a group round by round; touches no store."""

    def __init__(self, trainer: Trainer) -> None:
        self.engine: Trainer | None = trainer

    @property
    def _engine(self) -> Trainer:
        assert self.engine is not None, "all runs of the group have ended"
        return self.engine

    def play(self) -> PlayedRound:
        """Train a round. Runs that end with it are there until `leave`, so that their models can be had."""
        engine = self._engine
        results, ended = engine.run_round(), {}
        for place, (lane, result) in enumerate(zip(engine.lanes, results, strict=True)):
            if result.diverged:
                ended[place] = "diverged"
            elif result.round >= lane.spec.rounds:
                ended[place] = "done"
        notices, engine.budget.notices = engine.budget.notices, []
        return PlayedRound(engine.round, [lane.run.run_id for lane in engine.lanes], results, ended, notices)

    def models(self, played: PlayedRound) -> Iterator[ModelFile]:
        """The models of the runs that are done, one after the other."""
        for place, status in played.ended.items():
            if status == "done":
                yield from self._models(place)

    def _models(self, place: int) -> Iterator[ModelFile]:
        engine = self._engine
        lane, model, stack, dataset = engine.lanes[place], engine.model, engine.stack, engine.data.dataset
        sent = engine.server.sent_with_head(place, engine.round)
        beside = None
        if overrides(lane.algorithm, "head"):
            beside = {name: value.cpu().clone() for name, value in sent.items()}

        def content(params: Tensor, buffers: Tensor) -> bytes:
            named = model.params.views(params.cpu()) | model.buffers.views(buffers.cpu())
            weights = {name: tensor.clone() for name, tensor in named.items() if name in lane.model.state_dict()}
            return model_content(lane.run, dataset, weights, beside)

        yield ModelFile(lane.run.run_id, False, content(stack.params[place], stack.buffers[place]))
        if place in stack.averaging:
            at = stack.averaging.index(place)
            averaged = content(stack.averaged_params[at], stack.averaged_buffers[at])
            yield ModelFile(lane.run.run_id, True, averaged)

    def leave(self, played: PlayedRound) -> None:
        """Go on without the runs that ended."""
        if played.ended:
            self.engine = self._engine.without(set(played.ended))

    def checkpoint(self) -> bytes:
        """The content of the file from which the runs that are left go on."""
        engine = self._engine
        states = zip(engine.lanes, engine.stack.states(), strict=True)
        return states_content({lane.run.run_id: state for lane, state in states}, engine.round)


@dataclass
class _Unsaved:
    metrics: list[RoundMetrics] = field(default_factory=list)
    clients: list[ClientRound] = field(default_factory=list)
    finished: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)


class GroupRecord:
    """Keeps what the rounds of a group bring until it is committed, together with the checkpoint to go on from."""

    def __init__(
        self,
        group: Group,
        specs: Mapping[str, RunSpec],
        store: Store,
        observer: Observer,
        profile: Profile,
        commit_every_s: float,
    ) -> None:
        self.group, self.specs, self.store, self.observer = group, specs, store, observer
        self.profile, self.commit_every_s = profile, commit_every_s
        self._unsaved = _Unsaved()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._unsaved.since > self.commit_every_s

    def keep(self, played: PlayedRound, models: Iterable[ModelFile]) -> None:
        """The rows of a round wait for the next commit; models are written now, before a run is said to be done."""
        for place, (run_id, result) in enumerate(zip(played.run_ids, played.results, strict=True)):
            if result.metrics is not None:
                self._unsaved.metrics.append(RoundMetrics(run_id, result.round, values=result.metrics))
            if result.clients:
                names = [each.name for each in fields(ClientRecord)]
                arrays = {name: np.array([getattr(each, name) for each in result.clients]) for name in names}
                self._unsaved.clients.append(ClientRound(run_id, result.round, arrays))
            if place in played.ended:
                self._unsaved.finished[run_id] = played.ended[place]
            if result.diverged:
                self._unsaved.notes[run_id] = f"the loss was no longer finite in round {result.round}"
        with self.profile.span(STORE), explained(self.store.folder):
            for run_id, averaged, content in models:
                spec = self.specs[run_id]
                write_model(model_path(self.store.folder, spec, averaged), spec, content)
        for notice in played.notices:
            self.observer.noticed(notice)
        self.observer.advanced([self.specs[run_id] for run_id in played.run_ids], played.results)

    def commit(self, round_number: int, checkpoint: Callable[[], bytes]) -> None:
        """Make permanent what waits; ``checkpoint`` is asked for where runs are left."""
        unsaved, self._unsaved = self._unsaved, _Unsaved()

        def write(path: Path) -> None:
            path.write_bytes(checkpoint())

        rows, ends = (unsaved.metrics, unsaved.clients), (unsaved.finished, unsaved.notes)
        with self.profile.span(STORE):
            self.store.commit(self.group.id, round_number, *rows, write, *ends)
