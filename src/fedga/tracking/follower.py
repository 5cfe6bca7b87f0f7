"""Brings a service up to what the results file says."""

import dataclasses
import os
import secrets
import sqlite3
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

from fedga.report.series import setting_text, telling_settings
from fedga.report.words import grouped
from fedga.spec.settings import RunSpec
from fedga.store.database import open_for_reading, snapshot
from fedga.store.digests import Digests
from fedga.store.metrics import read_metrics
from fedga.store.records import Run
from fedga.store.results import read_runs
from fedga.tracking.service import Held, Service, TrackedRound, TrackedRun

LOOK_EVERY_S = 5.0

_NAMED = ("dataset", "alpha", "algorithm", "preset", "seed", "algorithm_options")
_OTHERS = tuple(field.name for field in dataclasses.fields(RunSpec) if field.name not in _NAMED)


class Ledger:
    """The runs that a service has to their end, and the right to give it more: the system's lock on the file.

    It is kept in the service's own folder: deleting that starts tracking over.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(folder / "fedga.sqlite", timeout=0, isolation_level=None)
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")

    def close(self) -> None:
        self._connection.close()

    def take(self) -> bool:
        """Whether this process may track now; once it may, it may until the ledger is closed."""
        try:
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            return False
        self._connection.execute("CREATE TABLE IF NOT EXISTS ended (run_id TEXT PRIMARY KEY)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS token (value TEXT)")
        new = (secrets.token_hex(3),)
        self._connection.execute("INSERT INTO token SELECT ? WHERE NOT EXISTS (SELECT * FROM token)", new)
        self._connection.execute("COMMIT")
        return True

    @property
    def token(self) -> str:
        """Drawn once for the folder."""
        return str(self._connection.execute("SELECT value FROM token").fetchone()[0])

    def ended(self) -> set[str]:
        return {run_id for (run_id,) in self._connection.execute("SELECT run_id FROM ended")}

    def end(self, run_id: str) -> None:
        """Note that the service has this run to its end."""
        self._connection.execute("INSERT INTO ended VALUES (?)", (run_id,))


class Follower:
    """Knows what a service has of every run, and hands on what is new."""

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
        for run in runs:
            if run.run_id not in self.ended and (run.status != "pending" or run.rounds_done):
                self._deliver(run, TrackedRun(run.spec, names[run.run_id]))

    def _deliver(self, run: Run, tracked: TrackedRun) -> None:
        run_id = run.run_id
        if run_id not in self.held:
            self.held[run_id], self.last[run_id] = self.service.begin(tracked), -1
        rounds = self._new_rounds(run)  # read after the status: of a run that has ended, all are there
        if rounds:
            self.service.log(tracked, rounds)
            self.last[run_id] = rounds[-1].round
        if run.finished:
            self.service.end(tracked, run.status == "diverged", run.note)
            self.ledger.end(run_id)
            self.ended.add(run_id)
            del self.held[run_id], self.last[run_id]

    def _new_rounds(self, run: Run) -> list[TrackedRound]:
        """The rounds that were not handed on yet, with the metrics that were measured and that the service lacks."""
        with snapshot(self.results):
            measured = read_metrics(Digests(self.results), run.key, run.run_id)
        held, rounds = self.held[run.run_id], []
        columns = {name: measured.cells(name) for name in measured.values}
        for place, at in enumerate(measured.rounds.tolist()):
            named = {name: cells[place] for name, cells in columns.items()}
            new = {name: value for name, value in named.items() if value is not None and at > held.get(name, -1)}
            if new and at > self.last[run.run_id]:
                rounds.append(TrackedRound(at, new))
        return rounds


def follow(name: str, folder: Path, stop: threading.Event, notify: Callable[[str], None]) -> None:
    """Track the folder with one service until ``stop`` is set, and once more then; a failure is a notice."""
    try:
        with closing(Ledger(folder / name)) as ledger:
            while not (ours := ledger.take()):  # as long as another process tracks it, we need not
                if stop.wait(LOOK_EVERY_S):
                    ours = ledger.take()
                    break
            if ours:
                tracker = import_module(f"fedga.tracking.{name}").Tracker  # and with it the service's own package
                _track(tracker(folder, ledger.token, notify), folder, ledger, stop)
            else:
                notify(f"another process tracks {folder} with {name}, and these runs too")
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = f"the results are safe in {folder}, and the same command delivers to {name} what it lacks"
        notify(f"tracking with {name} stopped ({reason}): {remedy}")


def _track(service: Service, folder: Path, ledger: Ledger, stop: threading.Event) -> None:
    try:
        with closing(open_for_reading(folder)) as results:
            follower, last = Follower(service, results, ledger), False
            while not last:
                last = stop.is_set()
                follower.look()
                stop.wait(LOOK_EVERY_S)
    except BaseException:
        with suppress(Exception):  # what made it fail is worth more than what follows from that
            service.close()
        raise
    service.close()


def run_names(specs: Sequence[RunSpec]) -> Mapping[str, str]:
    """A readable name for each run id, with as many further settings as it takes to tell the runs apart.

    >>> specs = [RunSpec(dataset="mnist", alpha=0.1, lr=lr) for lr in (0.1, 0.01)]
    >>> list(run_names(specs).values())
    ['mnist α=0.1 fedga seed 0, lr 0.1', 'mnist α=0.1 fedga seed 0, lr 0.01']
    """
    names = {}
    for name, group in grouped(specs, _short_name).items():
        settings = [{field: getattr(spec, field) for field in _OTHERS} for spec in group]
        telling = telling_settings(settings)
        for spec, of in zip(group, settings, strict=True):
            texts = (f"{field} {setting_text(of[field]) or 'none'}" for field in telling)
            names[spec.run_id] = ", ".join([name, *texts])
    return names


def _short_name(spec: RunSpec) -> str:
    alpha = "" if spec.alpha is None else f"α={spec.alpha:g}"
    return " ".join(filter(None, (Path(spec.dataset).stem, alpha, spec.algorithm, spec.preset, f"seed {spec.seed}")))


def main() -> None:
    """``... FOLDER SERVICE...``: until standard input is closed, and once more; each line of output is a notice."""
    folder, *names = sys.argv[1:]
    notices = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where libraries print, which are not to be taken for notices
    lock = threading.Lock()

    def notify(text: str) -> None:
        with lock, suppress(OSError):  # nobody may be left to read it
            print(text, file=notices, flush=True)

    stop = threading.Event()
    # A thread for each: a server that does not answer keeps nothing from the others.
    threads = [threading.Thread(target=follow, args=(name, Path(folder), stop, notify), name=name) for name in names]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
