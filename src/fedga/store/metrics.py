"""Metrics of rounds in a results file: a metric is a name and a number per round, whoever defined it.

Inside the file built-in metrics are columns of table ``metrics``, all others rows of ``own_metrics``. No other module
knows. A metric of the averaged model is called ``averaged_NAME``.
"""

import hashlib
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from fedga.measures.columns import OF_CLIENTS, OF_MODELS
from fedga.store.digests import Digests, Row, enter, has_table, rows_digest
from fedga.store.records import AVERAGED, METRICS, RoundMetrics

# Columns that are read together have a digest of their own: a table of results reads the first few alone.
GROUPS = {"shown": OF_MODELS, "averaged": AVERAGED, "clients": OF_CLIENTS}
_ALL = tuple(GROUPS)
TABLES = {"metrics": ("run", "round", *METRICS), "own_metrics": ("run", "round", "name", "value")}
MetricRows = tuple[np.ndarray, list[Row]]  # round and built-in ones [rows, 1 + columns]; round, name, value of others
_OWN_ROWS = "SELECT round, name, value FROM own_metrics WHERE run = ? ORDER BY round, name"


def own_names(connection: sqlite3.Connection) -> list[str]:
    """The metrics that are not built in and were ever measured in this folder, those of averaged models last."""
    if not has_table(connection, "own_metrics"):
        return []
    found = (name for (name,) in connection.execute("SELECT DISTINCT name FROM own_metrics"))
    names = [name for name in found if isinstance(name, str) and name not in METRICS]
    return sorted(names, key=lambda name: (name.startswith("averaged_"), name))


@dataclass(frozen=True, eq=False)
class RunMetrics:
    rounds: np.ndarray  # int64 [evaluated rounds], ascending
    values: Mapping[str, np.ndarray]  # name -> float64 [evaluated rounds], NaN where it was not measured

    def cells(self, name: str) -> list[float | None]:
        """All rounds of one metric as Python numbers, None where it was not measured."""
        column = self.values.get(name, np.full(len(self.rounds), np.nan))
        return [None if value != value else value for value in column.tolist()]


def read_metrics(digests: Digests, run: int, run_id: str, groups: Collection[str] = _ALL) -> RunMetrics:
    """The metrics of a run, compared with their digests; of the built-in ones only those of ``groups``."""
    table, own = checked_rows(digests, run, run_id, groups)
    rounds = table[:, 0].astype(np.int64)
    names = (name for group in groups for name in GROUPS[group])
    values = dict(zip(names, table[:, 1:].T, strict=True))
    place = {at: index for index, at in enumerate(rounds.tolist())}
    for at, name, value in own:
        if at in place and name not in METRICS:
            column = values.setdefault(name, np.full(len(rounds), np.nan))
            column[place[at]] = np.nan if value is None else value
    return RunMetrics(rounds, values)


def checked_rows(digests: Digests, run: int, run_id: str, groups: Collection[str] = _ALL) -> MetricRows:
    what = f"a result of run {run_id}"
    try:
        table, own = _rows(digests.connection, run, groups)
    except (ValueError, TypeError):
        raise digests.damaged(f"{what} is not a number") from None
    if not all(isinstance(name, str) and isinstance(value, float | int | None) for _, name, value in own):
        raise digests.damaged(what)
    for part, digest in _digests(run, table, own, groups).items():
        digests.check(part, digest, what, empty=not (own if part.startswith("own/") else len(table)))
    return table, own


def _digests(run: int, table: np.ndarray, own: Sequence[Row], groups: Collection[str]) -> dict[str, bytes]:
    found, begin = {f"own/{run}": rows_digest(own)}, 0
    for group in groups:
        end = max(begin, 1) + len(GROUPS[group])  # the first one has the rounds as well
        found[f"{group}/{run}"] = hashlib.sha256(table[:, begin:end].tobytes()).digest()
        begin = end
    return found


def _rows(connection: sqlite3.Connection, run: int, groups: Collection[str] = _ALL) -> MetricRows:
    names = [name for group in groups for name in GROUPS[group]]
    query = f"SELECT round, {', '.join(names)} FROM metrics WHERE run = ? ORDER BY round"
    table = _as_table(connection.execute(query, (run,)).fetchall(), 1 + len(names))
    return table, connection.execute(_OWN_ROWS, (run,)).fetchall() if has_table(connection, "own_metrics") else []


def _as_table(rows: Sequence[Row], width: int) -> np.ndarray:
    """Rows of rounds and numbers as float64, NaN for nothing; a text among them raises ``ValueError``."""
    try:
        flat = np.fromiter(chain.from_iterable(rows), dtype="<f8", count=len(rows) * width)
    except TypeError:  # there is a None among them, which takes longer
        flat = np.array(rows, dtype="<f8")
    return flat.reshape(len(rows), width)


def insert(connection: sqlite3.Connection, run: int, table: np.ndarray, own: Sequence[Row]) -> None:
    """Rows as `checked_rows` has them; those of rounds that are there are replaced. SQLite takes NaN for nothing."""
    for name, rows in (("metrics", table.tolist()), ("own_metrics", own)):
        places = ", ".join("?" * len(TABLES[name]))
        connection.executemany(f"INSERT OR REPLACE INTO {name} VALUES ({places})", [(run, *row) for row in rows])


def seal(connection: sqlite3.Connection, run: int, known: MetricRows | None = None) -> None:
    """Digests for what the file has of a run, whatever it is."""
    table, own = known or _rows(connection, run)
    found = _digests(run, table, own, _ALL)
    enter(connection, {part: of for part, of in found.items() if (own if part.startswith("own/") else len(table))})


def write_metrics(
    connection: sqlite3.Connection,
    runs: Mapping[str, int],
    metrics: Sequence[RoundMetrics],
    written: dict[int, MetricRows],
) -> None:
    """Add metrics of these runs, by id and key, once what the file has of them is as it was written.

    ``written`` are the rows that this process has checked or written before, by run: they are not read again.
    """
    digests, added = Digests(connection), dict[str, list[RoundMetrics]]()
    for measured in metrics:
        added.setdefault(measured.run_id, []).append(measured)
    for run_id, rows in added.items():
        run = runs[run_id]
        before, own_before = written.pop(run) if run in written else checked_rows(digests, run, run_id)
        known = [(row.round, {name: _known(value) for name, value in row.values.items()}) for row in rows]
        table = _as_table([(at, *map(values.get, METRICS)) for at, values in known], 1 + len(METRICS))
        own = [(at, name, values[name]) for at, values in known for name in values.keys() - set(METRICS)]
        insert(connection, run, table, own)
        if (np.diff(np.concatenate((before[-1:, 0], table[:, 0]))) > 0).all():
            written[run] = np.concatenate((before, table)), [*own_before, *sorted(own)]
        seal(connection, run, written.get(run))  # rounds that are trained again replace themselves


def _known(value: Any) -> float | None:
    """NaN is no value, and numbers of any library become Python's."""
    return None if value is None or value != value else float(value)
