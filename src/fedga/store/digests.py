"""Digests of what a results file holds, so that a flipped bit is told with the run it is in, and not averaged in.

SQLite notices damage to its own structure and little else. So the file has a table ``digests``: one SHA-256 for the
row of every run in ``runs``, for its rows in each group of columns of ``metrics``, for its metrics of the user's own,
its looks at clients, and for every partition. Whoever writes rows writes their digest in the same transaction; whoever
reads them compares. Version 0.1 wrote no digests: its files are read as they are, and get some when they are written.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedga.common.sealed import DamagedError
from fedga.errors import quoted
from fedga.store.records import AVERAGED, METRICS, SHOWN, RoundMetrics

# Columns that are read together have a digest of their own: a table of results reads the first few alone.
GROUPS = {"shown": SHOWN, "averaged": AVERAGED, "clients": METRICS[len(SHOWN) + len(AVERAGED) :]}


def _slices(groups: Mapping[str, Sequence[str]]) -> dict[str, slice]:
    """Where the columns of groups lie, one after another behind the round; that of the first has the round as well."""
    places, begin = {}, 0
    for name, columns in groups.items():
        end = max(begin, 1) + len(columns)
        places[name] = slice(begin, end)
        begin = end
    return places


_PLACES = _slices(GROUPS)

_RUN = ("run_id", "dataset", "alpha", "algorithm", "preset", "server", "seed", "spec", "fingerprint", "rounds_done")
RUN_ROW = ("key", *_RUN, "note", "group_id", "lane", "status")
RUNS_QUERY = f"SELECT {', '.join(RUN_ROW)} FROM runs"

_NUMBER_OR_NOTHING = (float, int, type(None))
_KINDS: dict[str, Any] = dict.fromkeys(RUN_ROW, str) | dict.fromkeys(("key", "seed", "rounds_done"), int)
_KINDS |= {"alpha": _NUMBER_OR_NOTHING, "group_id": (int, type(None)), "lane": (int, type(None))}

Row = Sequence[Any]


def make_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE digests (part TEXT PRIMARY KEY, sha256 BLOB NOT NULL) WITHOUT ROWID")


def has_digests(connection: sqlite3.Connection) -> bool:
    """Whether the file keeps digests; one of version 0.1 does not."""
    return has_table(connection, "digests")


class Digests:
    """The digests of a results file as one snapshot has them; nothing is compared in a file that keeps none."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._file = _file_of(connection)
        self._known: dict[str, bytes] | None = None
        self._looks: Counter[str] | None = None  # how many there are of each run
        if has_digests(connection):
            rows = connection.execute("SELECT part, sha256 FROM digests").fetchall()
            if not all(isinstance(part, str) and isinstance(digest, bytes) for part, digest in rows):
                raise self._damaged("one of its digests")
            self._known = dict(rows)

    @classmethod
    def readable(cls, connection: sqlite3.Connection) -> Digests:
        """As many as can be read of a file whose table of digests may be damaged itself."""
        digests = cls.__new__(cls)
        digests._file, digests._looks, digests._known = _file_of(connection), None, None
        if has_digests(connection):
            digests._known = {}
            for direction in ("ASC", "DESC"):
                with suppress(sqlite3.Error):
                    for part, digest in connection.execute(
                        f"SELECT part, sha256 FROM digests ORDER BY part {direction}"
                    ):
                        digests._known[str(part)] = digest
        return digests

    @property
    def runs(self) -> int:
        """How many runs have a digest."""
        return sum(part.startswith("run/") for part in self._known or ())

    def check_runs(self, rows: Sequence[Row]) -> None:
        """The rows of ``RUNS_QUERY``: each as it was written, and none missing."""
        for row in rows:
            self.check_run(row)
        if self._known is not None and self.runs != len(rows):
            raise self._damaged(f"of {self.runs} runs {len(rows)} are left")

    def check_run(self, row: Row) -> None:
        """One of these rows."""
        strange = any(not isinstance(cell, kinds) for cell, kinds in zip(row, _KINDS.values(), strict=True))
        if strange or row[-1] not in ("pending", "running", "done", "diverged"):
            raise self._damaged(f"the entry of run {quoted(row[1])} holds what is not of its kind")
        if self._known is not None:
            self._check(f"run/{row[0]}", run_digest(row), f"the entry of run {quoted(row[1])}")

    def check_metrics(self, run: int, run_id: str, table: np.ndarray) -> None:
        """The rows of one run, all columns of them, as `as_table` has them."""
        self._check_groups(run, run_id, table, _PLACES)

    def check_columns(self, run: int, run_id: str, rows: Sequence[Row], groups: Mapping[str, Sequence[str]]) -> None:
        """The rows of one run where they were read in part: the round, then the columns of these groups."""
        try:
            table = as_table(rows, 1 + sum(map(len, groups.values())))
        except (ValueError, TypeError):
            raise self._damaged(f"a result of run {run_id} is not a number") from None
        self._check_groups(run, run_id, table, _slices(groups))

    def _check_groups(self, run: int, run_id: str, table: np.ndarray, places: Mapping[str, slice]) -> None:
        if self._known is None:
            return
        for group, columns in places.items():
            found = hashlib.sha256(table[:, columns].tobytes()).digest()
            self._check(f"{group}/{run}", found, f"a result of run {run_id}", empty=not len(table))

    def check_looks(self, run: int, run_id: str, rows: Sequence[Row]) -> None:
        """The looks at a run's clients, rounds and packed arrays: each as it was written, and none missing."""
        if self._known is None:
            return
        for at, arrays in rows:
            self._check(f"looks/{run}/{at}", _blob_digest(arrays), f"a look at the clients of run {run_id}")
        if self._looks is None:
            self._looks = Counter(part.split("/")[1] for part in self._known if part.startswith("looks/"))
        if self._looks[str(run)] != len(rows):
            raise self._damaged(f"a look at the clients of run {run_id} is missing")

    def check_rows(self, part: str, rows: Sequence[Row], what: str) -> None:
        """Rows of another table, all those of one ``part``."""
        if self._known is not None:
            self._check(part, rows_digest(rows), what, empty=not rows)

    def _check(self, part: str, found: bytes, what: str, *, empty: bool = False) -> None:
        assert self._known is not None
        if self._known.get(part) != found and not (empty and part not in self._known):
            raise self._damaged(what)

    def _damaged(self, what: str) -> DamagedError:
        return damaged(self._file, what)


def damaged(file: Path, what: str) -> DamagedError:
    """The error for a results file that is not as it was written; ``what`` is damaged in it."""
    return DamagedError(
        f"{str(file)!r} is damaged ({what}): 'fedga repair {file.parent}' keeps every run that is whole, and the "
        "command that trained them then trains the others again"
    )


def _file_of(connection: sqlite3.Connection) -> Path:
    return Path(next(path for _, name, path in connection.execute("PRAGMA database_list") if name == "main"))


def as_table(rows: Sequence[Row], width: int = 1 + len(METRICS)) -> np.ndarray:
    """Rows of rounds and numbers as float64, NaN for nothing; a text among them raises ``ValueError``."""
    try:
        flat = np.fromiter(chain.from_iterable(rows), dtype="<f8", count=len(rows) * width)
    except TypeError:  # there is a nothing among them, which takes longer
        flat = np.array(rows, dtype="<f8")
    return flat.reshape(len(rows), width)


def run_digest(row: Row) -> bytes:
    """Of a row of ``RUNS_QUERY``. Which of two unfinished states it is in changes with every claim, and is left out."""
    *cells, status = row
    state = status if status in ("done", "diverged") else "open"
    return hashlib.sha256(json.dumps([*cells[1:], state]).encode()).digest()


def rows_digest(rows: Sequence[Row]) -> bytes:
    """Of rows of numbers, texts and blobs."""
    return hashlib.sha256(b"".join(map(_encoded, rows))).digest()


def _blob_digest(blob: object) -> bytes:
    return hashlib.sha256(blob if isinstance(blob, bytes) else b"").digest()


def _encoded(row: Row) -> bytes:
    cells = [hashlib.sha256(cell).hexdigest() if isinstance(cell, bytes) else cell for cell in row]
    return json.dumps(cells).encode()


def enter(connection: sqlite3.Connection, digests: Mapping[str, bytes]) -> None:
    connection.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?)", digests.items())


def seal_runs(connection: sqlite3.Connection, run_ids: Iterable[str]) -> None:
    """New digests for these runs' own rows, inside the transaction that changed them."""
    query = f"{RUNS_QUERY} WHERE run_id = ?"
    rows = [connection.execute(query, (run_id,)).fetchone() for run_id in run_ids]
    enter(connection, {f"run/{row[0]}": run_digest(row) for row in rows})


def seal_rows(connection: sqlite3.Connection, part: str, rows: Sequence[Row]) -> None:
    enter(connection, {part: rows_digest(rows)})


_OWN_ROWS = "SELECT round, name, value FROM own_metrics WHERE run = ? ORDER BY round, name"
_METRIC_ROWS = f"SELECT round, {', '.join(METRICS)} FROM metrics WHERE run = ? ORDER BY round"


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def read_metrics(connection: sqlite3.Connection, digests: Digests, run: int, run_id: str) -> np.ndarray:
    """Rounds and all metrics of a run, ``[rows, 1 + METRICS]``, compared with their digests."""
    try:
        table = as_table(connection.execute(_METRIC_ROWS, (run,)).fetchall())
    except (ValueError, TypeError):
        raise damaged(_file_of(connection), f"a result of run {run_id} is not a number") from None
    digests.check_metrics(run, run_id, table)
    return table


def read_own(connection: sqlite3.Connection, digests: Digests, run: int, run_id: str) -> list[Row]:
    """Round, name and value of the user's own metrics of a run, compared with their digest."""
    rows = _own_rows(connection, run)
    what = f"a metric of your own of run {run_id}"
    if any(not isinstance(name, str) or not isinstance(value, _NUMBER_OR_NOTHING) for _, name, value in rows):
        raise damaged(_file_of(connection), what)
    digests.check_rows(f"own/{run}", rows, what)
    return rows


def _own_rows(connection: sqlite3.Connection, run: int) -> list[Row]:
    return connection.execute(_OWN_ROWS, (run,)).fetchall() if has_table(connection, "own_metrics") else []


def read_looks(connection: sqlite3.Connection, digests: Digests, run: int, run_id: str) -> list[Row]:
    """Round and packed arrays of the looks at a run's clients, compared with their digests."""
    query = "SELECT round, arrays FROM client_rounds WHERE run = ? ORDER BY round"
    rows = connection.execute(query, (run,)).fetchall()
    digests.check_looks(run, run_id, rows)
    return rows


class Sealer:
    """Keeps the digests of the runs that a process trains, without reading their rows again at every commit."""

    def __init__(self) -> None:
        self._runs: dict[int, _RunSeal] = {}

    def forget(self) -> None:
        """After a failed transaction: what was added may not be in the file."""
        self._runs.clear()

    def begin(self, connection: sqlite3.Connection, runs: Mapping[str, int]) -> None:
        """Compare what the file has of these runs with its digests, before anything is added to it."""
        digests = Digests(connection)
        for run_id, run in runs.items():
            if run not in self._runs:
                table = read_metrics(connection, digests, run, run_id)
                self._runs[run] = _RunSeal(table, read_own(connection, digests, run, run_id))

    def add(self, connection: sqlite3.Connection, runs: Mapping[str, int], metrics: Sequence[RoundMetrics]) -> None:
        """New digests for the runs of these rows, which were entered in this transaction."""
        added: dict[str, list[RoundMetrics]] = {}
        for row in metrics:
            added.setdefault(row.run_id, []).append(row)
        changed: dict[str, bytes] = {}
        for run_id, rows in added.items():
            run, seal = runs[run_id], self._runs.get(runs[run_id])
            table = as_table([row.row(run)[1:] for row in rows])
            own = [cells[1:] for row in rows for cells in sorted(row.own_rows(run))]
            if seal is None or not seal.extend(table, own):  # rounds that are trained again replace themselves
                table = as_table(connection.execute(_METRIC_ROWS, (run,)).fetchall())
                seal = self._runs[run] = _RunSeal(table, _own_rows(connection, run))
            changed |= {f"{name}/{run}": digest for name, digest in seal.digests().items()}
        enter(connection, changed)


class _RunSeal:
    """The digests of one run's rows so far."""

    def __init__(self, table: np.ndarray, own: Sequence[Row]) -> None:
        self._hashes = {name: hashlib.sha256() for name in GROUPS}
        self._own = hashlib.sha256()
        self._has_own, self._last = False, -1.0
        self.extend(table, own)

    def extend(self, table: np.ndarray, own: Sequence[Row]) -> bool:
        """Rows of later rounds, in their order; False, and nothing done, where they are not."""
        rounds = table[:, 0]
        if len(rounds) and not (rounds[0] > self._last and (np.diff(rounds) > 0).all()):
            return False
        for group, places in _PLACES.items():
            self._hashes[group].update(table[:, places].tobytes())
        for row in own:
            self._own.update(_encoded(row))
        self._has_own = self._has_own or bool(own)
        self._last = rounds[-1] if len(rounds) else self._last
        return True

    def digests(self) -> dict[str, bytes]:
        found = {group: hashed.digest() for group, hashed in self._hashes.items()}
        return found | ({"own": self._own.digest()} if self._has_own else {})


def seal_look(connection: sqlite3.Connection, run: int, round: int, arrays: bytes) -> None:  # noqa: A002
    """The digest of one look at a run's clients."""
    enter(connection, {f"looks/{run}/{round}": hashlib.sha256(arrays).digest()})


def seal_everything(connection: sqlite3.Connection) -> None:
    """Digests for a file that has none: of version 0.1, or made of an archive."""
    rows = connection.execute(RUNS_QUERY).fetchall()
    enter(connection, {f"run/{row[0]}": run_digest(row) for row in rows})
    for run, *_ in rows:
        table = as_table(connection.execute(_METRIC_ROWS, (run,)).fetchall())
        if len(table):
            seal = _RunSeal(table, _own_rows(connection, run))
            enter(connection, {f"{name}/{run}": digest for name, digest in seal.digests().items()})
    for run, at, arrays in connection.execute("SELECT run, round, arrays FROM client_rounds").fetchall():
        seal_look(connection, run, at, arrays)
    if has_table(connection, "partitions"):
        for row in connection.execute("SELECT key, arrays FROM partitions").fetchall():
            seal_rows(connection, f"partition/{row[0]}", [row])
    if has_table(connection, "own_code"):
        for row in connection.execute("SELECT part, digest, origin FROM own_code").fetchall():
            seal_rows(connection, f"code/{row[0]}", [row])
