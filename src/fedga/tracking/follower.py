"""Brings a service up to what the results file says."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fedga.spec.settings import RunSpec
from fedga.store.database import open_for_reading, snapshot
from fedga.store.digests import Digests
from fedga.store.metrics import read_metrics
from fedga.store.records import Run
from fedga.store.results import read_runs
from fedga.tracking.ledger import Ledger
from fedga.tracking.service import Held, Row, Service, TrackedRun, make_service, setting_text

LOOK_EVERY_S = 5.0

_NAMED = ("dataset", "alpha", "algorithm", "preset", "seed")
_OTHERS = tuple(f.name for f in dataclasses.fields(RunSpec) if f.name not in (*_NAMED, "algorithm_options"))


def follow(name: str, folder: Path, stop: threading.Event, notify: Callable[[str], None]) -> None:
    """Track the folder with one service until ``stop`` is set, and once more then; a failure is a notice."""
    try:
        with Ledger(folder / name) as ledger:
            if _wait_for(ledger, stop):
                _track(make_service(name, folder, ledger.token, notify), folder, ledger, stop)
            else:
                notify(f"another process tracks {folder} with {name}, and these runs too")
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        notify(
            f"tracking with {name} stopped ({reason}): the results are safe in {folder}, and the same command "
            f"delivers to {name} what it lacks"
        )


def _wait_for(ledger: Ledger, stop: threading.Event) -> bool:
    """Whether it is ours to track; as long as another process does so, it need not be."""
    while not ledger.take():
        if stop.wait(LOOK_EVERY_S):
            return ledger.take()
    return True


def _track(service: Service, folder: Path, ledger: Ledger, stop: threading.Event) -> None:
    try:
        with closing(open_for_reading(folder)) as results:
            follower = Follower(service, results, ledger)
            last = False
            while not last:
                last = stop.is_set()
                follower.look()
                stop.wait(LOOK_EVERY_S)
    except BaseException:
        with suppress(Exception):  # what made it fail is worth more than what follows from that
            service.close()
        raise
    service.close()


class Follower:
    """Knows what a service has of every run, and hands on what came since."""

    def __init__(self, service: Service, results: sqlite3.Connection, ledger: Ledger) -> None:
        self.service, self.results, self.ledger = service, results, ledger
        self.ended = ledger.ended()
        self.held: dict[str, Held] = {}  # of the runs that are open
        self.last: dict[str, int] = {}  # their last round that was handed on by this process
        self.version = -1

    def look(self) -> None:
        """Hand on everything that was committed since the last look."""
        before, self.version = self.version, self.results.execute("PRAGMA data_version").fetchone()[0]
        if self.version == before:
            return
        runs = read_runs(self.results)
        names = run_names([run.spec for run in runs])
        try:
            for run in runs:
                if run.run_id not in self.ended and (run.status != "pending" or run.rounds_done):
                    self._deliver(run, TrackedRun(run.spec, names[run.run_id]))
        finally:
            self.ledger.end(self.ended)

    def _deliver(self, run: Run, tracked: TrackedRun) -> None:
        run_id = run.run_id
        if run_id not in self.held:
            self.held[run_id], self.last[run_id] = self.service.begin(tracked), -1
        rows = self._rows(run)  # read after the status: of a run that has ended, all are there
        if rows:
            self.service.log(tracked, rows)
            self.last[run_id] = rows[-1].round
        if run.finished:
            self.service.end(tracked, run.status == "diverged", run.note)
            self.ended.add(run_id)
            del self.held[run_id], self.last[run_id]

    def _rows(self, run: Run) -> list[Row]:
        """The rounds of a run that were not handed on yet."""
        with snapshot(self.results):
            measured = read_metrics(self.results, Digests(self.results), run.key, run.run_id)
        columns = {name: measured.cells(name) for name in measured.values}
        rounds = [(place, at) for place, at in enumerate(measured.rounds.tolist()) if at > self.last[run.run_id]]
        named = [(at, {name: cells[place] for name, cells in columns.items()}) for place, at in rounds]
        rows = [Row(at, _new(at, values, self.held[run.run_id])) for at, values in named]
        return [row for row in rows if row.metrics]


def _new(at: int, values: Mapping[str, float | None], held: Held) -> dict[str, float]:
    """The metrics of a round that were measured and that the service lacks."""
    return {name: value for name, value in values.items() if value is not None and at > held.get(name, -1)}


def run_names(specs: Sequence[RunSpec]) -> Mapping[str, str]:
    """A readable name for each run id, with as many further settings as it takes to tell the runs apart.

    >>> specs = [RunSpec(dataset="mnist", alpha=0.1, lr=lr) for lr in (0.1, 0.01)]
    >>> list(run_names(specs).values())
    ['mnist α=0.1 fedga seed 0, lr 0.1', 'mnist α=0.1 fedga seed 0, lr 0.01']
    """
    alike: dict[str, list[RunSpec]] = {}
    for spec in specs:
        alike.setdefault(_short_name(spec), []).append(spec)
    names = {}
    for name, group in alike.items():
        telling: list[str] = []
        for field in _OTHERS:
            if _distinct(group, [*telling, field]) > _distinct(group, telling):
                telling.append(field)
        for spec in group:
            names[spec.run_id] = ", ".join([name, *(f"{field} {_text(getattr(spec, field))}" for field in telling)])
    return names


def _distinct(specs: Sequence[RunSpec], fields: Sequence[str]) -> int:
    return len({tuple(getattr(spec, field) for field in fields) for spec in specs})


def _short_name(spec: RunSpec) -> str:
    alpha = [] if spec.alpha is None else [f"α={spec.alpha:g}"]
    preset = [spec.preset] if spec.preset else []
    return " ".join([Path(spec.dataset).stem, *alpha, spec.algorithm, *preset, f"seed {spec.seed}"])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else setting_text(value)
