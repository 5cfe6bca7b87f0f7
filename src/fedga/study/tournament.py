"""A tournament of candidates: all train some rounds, the worse half stops, the others go on from where they are.

This is successive halving (Jamieson and Talwalkar 2016) with rounds as the resource. Every candidate runs with the same
seeds and with the schedule of the full length, so that a run that goes on is the run that it would have been alone. A
decision rests on what the folder holds and nothing else: a tournament that was killed decides again what it decided.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log2

import numpy as np
import torch

from fedga.common.sealed import DamagedError
from fedga.engine.server import LaneRound
from fedga.engine.stack.lanes import Lane, in_engine_order, stacking_key
from fedga.measures.columns import AVERAGED
from fedga.spec.settings import RunSpec
from fedga.store.database import reading
from fedga.store.digests import Digests
from fedga.store.metrics import read_metrics
from fedga.store.records import Group
from fedga.store.results import read_runs
from fedga.store.store import Store
from fedga.study.states import read_states, write_states
from fedga.study.sweep import LANES_ON_CPU, LANES_ON_CUDA, POLL_EVERY_S, Interrupted, Observer, Provider, run_sweep

SHARE = 0.25  # of what a full grid would train, at most
REFERENCE = "fedavg"  # whose best candidate always goes on: the others are compared with it
_FINALISTS = {32: 4, 16: 3, 4: 2}  # candidates at least -> how many train to the end
_EARLIEST = 0.05  # of the rounds: before, the order of candidates says little
_LEAST_GAIN = 1.5  # rungs closer together than this factor cost more than they save


@dataclass(frozen=True)
class Rung:
    """After ``round``, the best ``keep`` candidates go on; after the last rung nobody does."""

    round: int
    keep: int


@dataclass(frozen=True)
class Candidate:
    """One method with its settings: a run per seed, seeds in the same order for all candidates."""

    specs: tuple[RunSpec, ...]

    @property
    def spec(self) -> RunSpec:
        """Its run of the first seed: all but the seed is that of the others."""
        return self.specs[0]

    @property
    def is_reference(self) -> bool:
        return self.spec.algorithm_name == REFERENCE


@dataclass(frozen=True, eq=False)
class Standing:
    """A candidate at the end: the round it stopped after, and its scores there by seed."""

    candidate: Candidate
    round: int
    scores: np.ndarray  # [seeds]; NaN where a run has diverged
    rounds: np.ndarray  # [evaluations]
    curve: np.ndarray  # [evaluations]: the mean over seeds

    @property
    def mean(self) -> float:
        """Over seeds; a candidate that diverged with any of them is below all others."""
        return float(self.scores.mean()) if np.isfinite(self.scores).all() else -np.inf


@dataclass(frozen=True, eq=False)
class Outcome:
    rungs: tuple[Rung, ...]
    standings: tuple[Standing, ...]  # the best first: finalists, then those that stopped last

    @property
    def finalists(self) -> tuple[Standing, ...]:
        """Those that trained to the end and did not diverge, the best first."""
        last = self.rungs[-1].round
        return tuple(each for each in self.standings if each.round == last and np.isfinite(each.mean))

    @property
    def share(self) -> float:
        """Of the rounds that all candidates would have trained to the end."""
        full = self.rungs[-1].round * len(self.standings)
        return sum(each.round for each in self.standings) / full


def make_rungs(candidates: int, rounds: int, every: int = 1) -> tuple[Rung, ...]:
    """When how many stop, so that all together train at most `SHARE` of the full grid, where there are enough of them.

    Half of them stop at a time, after rounds that grow by one factor, the first as late as the share allows; rungs are
    multiples of ``every``. Few candidates cost more, since two of them at least train to the end.

    >>> [(rung.round, rung.keep) for rung in make_rungs(60, 60)]
    [(7, 30), (11, 15), (20, 8), (35, 4), (60, 0)]
    >>> make_rungs(3, 60)
    (Rung(round=60, keep=0),)
    """
    last = next((number for least, number in _FINALISTS.items() if candidates >= least), candidates)
    most = rounds * max(SHARE * candidates, last + 1)
    cheapest: tuple[Rung, ...] = (Rung(rounds, 0),)
    for cuts in range(ceil(log2(candidates / last)), 0, -1):  # fewer and sharper ones rather than too early ones
        for first in range(rounds - 1, 0, -1):
            rungs = _rungs(candidates, last, cuts, first, rounds, every)
            if planned(candidates, rungs) <= most and rungs[0].round >= _EARLIEST * rounds:
                return rungs
            cheapest = min(cheapest, rungs, key=lambda rungs: planned(candidates, rungs))
    return cheapest


def _rungs(candidates: int, last: int, cuts: int, first: int, rounds: int, every: int) -> tuple[Rung, ...]:
    rungs: list[Rung] = []
    for cut in range(cuts):
        at = max(every, int(first * (rounds / first) ** (cut / cuts)) // every * every)
        keep = max(last, round(candidates * (last / candidates) ** ((cut + 1) / cuts)))
        if rungs and at < min(
            rounds, _LEAST_GAIN * rungs[-1].round
        ):  # too close: both cuts are made at the earlier one
            rungs[-1] = Rung(rungs[-1].round, keep)
        else:
            rungs.append(Rung(at, keep))
    return (*rungs, Rung(rounds, 0))


def planned(candidates: int, rungs: Sequence[Rung]) -> int:
    """Rounds that all candidates train together, for each seed."""
    left, total = candidates, candidates * rungs[0].round
    for before, rung in pairwise(rungs):
        left = min(left, before.keep)
        total += left * (rung.round - before.round)
    return total


def run_tournament(
    candidates: Sequence[Candidate],
    rungs: Sequence[Rung],
    store: Store,
    device: torch.device,
    preparation: Provider,
    *,
    metric: str = "accuracy",
    axes: Sequence[str] = (),
    observer: Observer | None = None,
    decided: Callable[[Rung, Sequence[Standing]], None] = lambda rung, going_on: None,
) -> Outcome:
    """Train the candidates rung by rung; of equally good ones the earlier goes on.

    Raises `Interrupted` when the observer asks to stop; called again, it goes on. ``decided`` is told who goes on.
    """
    return _Tournament(candidates, rungs, store, device, preparation, metric, axes, observer or Observer()).run(decided)


@dataclass
class _Tournament:
    candidates: Sequence[Candidate]
    rungs: Sequence[Rung]
    store: Store
    device: torch.device
    preparation: Provider
    metric: str
    axes: Sequence[str]
    observer: Observer

    def run(self, decided: Callable[[Rung, Sequence[Standing]], None]) -> Outcome:
        specs = [spec for candidate in self.candidates for spec in candidate.specs]
        self.store.register(specs, self.preparation.fingerprints(specs), self.axes)
        left = list(self.candidates)
        out: list[Standing] = []
        for rung in self.rungs:
            self._train(left, rung.round)
            standings = sorted(self._standings(left, rung.round), key=lambda each: -each.mean)
            going_on = self._best(standings, rung.keep)
            out = [*(each for each in standings if each not in going_on), *out]
            left = [each.candidate for each in going_on]
            self._stop([each.candidate for each in standings if each not in going_on], rung.round)
            if rung.keep:
                decided(rung, going_on)
        return Outcome(tuple(self.rungs), tuple(out))

    @staticmethod
    def _best(standings: Sequence[Standing], keep: int) -> list[Standing]:
        """The first of them, the best of the reference among them; whoever has diverged is not."""
        sound = [each for each in standings if np.isfinite(each.mean)]
        best, reference = sound[:keep], next((each for each in sound if each.candidate.is_reference), None)
        if keep and reference is not None and reference not in best:
            best[-1] = reference
        return best

    def _train(self, left: Sequence[Candidate], target: int) -> None:
        """Bring all their runs to the end of this round."""
        known = {run.run_id: run for run in self.store.runs()}
        specs = [spec for each in left for spec in each.specs if not known[spec.run_id].finished]
        in_groups = {run_id for group in self._groups(specs) for run_id in group.run_ids}
        self.store.create_groups(self._stacked([spec for spec in specs if spec.run_id not in in_groups]))
        while behind := [group for group in self._groups(specs) if group.round < target]:
            for group in behind:
                members = [spec for spec in specs if spec.run_id in group.run_ids]
                pause = _Pause(self.observer, target)
                try:
                    watching, prepared = pause.watching(), self.preparation
                    run_sweep(members, self.store, self.device, axes=self.axes, observer=watching, preparation=prepared)
                except Interrupted:
                    if self.observer.should_stop():
                        raise

    def _groups(self, specs: Sequence[RunSpec]) -> list[Group]:
        return self.store.pending_groups({spec.run_id for spec in specs})

    def _stacked(self, specs: Sequence[RunSpec]) -> list[list[str]]:
        size = LANES_ON_CPU if self.device.type == "cpu" else LANES_ON_CUDA
        alike: dict[object, list[Lane]] = {}
        for lane in map(self.preparation.lane, specs):
            alike.setdefault(stacking_key(lane), []).append(lane)
        ordered = [[lane.run.run_id for lane in in_engine_order(lanes)] for lanes in alike.values()]
        return [run_ids[start : start + size] for run_ids in ordered for start in range(0, len(run_ids), size)]

    def _standings(self, left: Sequence[Candidate], at: int) -> list[Standing]:
        with reading(self.store.folder) as connection:
            known, digests = {run.run_id: run for run in read_runs(connection)}, Digests(connection)
            return [self._standing(candidate, at, known, digests) for candidate in left]

    def _standing(self, candidate: Candidate, at: int, known: Mapping[str, object], digests: Digests) -> Standing:
        name = f"{AVERAGED}{self.metric}" if candidate.spec.server_average else self.metric
        curves = []
        for spec in candidate.specs:
            run = known[spec.run_id]
            measured = read_metrics(digests, run.key, run.run_id)  # type: ignore[attr-defined]
            values = measured.values.get(name, np.full(len(measured.rounds), np.nan))
            curves.append(dict(zip(measured.rounds.tolist(), values.tolist(), strict=True)))
        rounds = [number for number in sorted(set.union(*map(set, curves))) if number <= at]
        table = np.array([[curve.get(number, np.nan) for number in rounds] for curve in curves])
        scores = np.array([curve.get(at, np.nan) for curve in curves])
        return Standing(candidate, at, scores, np.array(rounds), table.mean(0) if rounds else np.zeros(0))

    def _stop(self, losers: Sequence[Candidate], at: int) -> None:
        """Take the runs of these out of their groups: the others go on without them."""
        gone = {spec.run_id: spec for each in losers for spec in each.specs}
        note = f"stopped after round {at}: other candidates were better"
        while groups := self._groups(list(gone.values())):
            for group in groups:
                with self.store.hold(group.id) as mine:
                    if mine:
                        self._take_out(self.store.group(group.id), gone, note)
            if self._groups(list(gone.values())):
                time.sleep(POLL_EVERY_S)  # another process is at it

    def _take_out(self, group: Group, gone: Mapping[str, RunSpec], note: str) -> None:
        states = {}
        try:
            states = {} if group.checkpoint is None else read_states(group.checkpoint, group.round)
        except DamagedError as error:  # whoever goes on starts again
            self.observer.noticed(str(error))
        left = {run_id: state for run_id, state in states.items() if run_id not in gone}
        leaving = [run_id for run_id in self.store.unfinished(group.id) if run_id in gone]
        write = (lambda path: write_states(path, left, group.round)) if left else None
        self.store.take_out(group.id, leaving, note, write)


class _Pause:
    """Stops a group after a round, as a user might, and passes everything else on."""

    def __init__(self, observer: Observer, target: int) -> None:
        self.observer, self.target, self.reached = observer, target, False

    def watching(self) -> Observer:
        return replace(self.observer, started=self._started, advanced=self._advanced, should_stop=self._should_stop)

    def _started(self, specs: Sequence[RunSpec], done: int) -> None:
        self.observer.started(specs, done)

    def _advanced(self, specs: Sequence[RunSpec], rounds: Sequence[LaneRound]) -> None:
        self.reached = rounds[0].round >= self.target
        self.observer.advanced(specs, rounds)

    def _should_stop(self) -> bool:
        return self.reached or self.observer.should_stop()
