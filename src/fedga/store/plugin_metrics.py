"""The table of metrics that are the user's own: made when the first one is measured, so older files are as they were.

A metric of the averaged model is called ``averaged_NAME``, as the built-in ones are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from fedga.errors import quoted
from fedga.store.records import RoundMetrics

_TABLE = """
CREATE TABLE IF NOT EXISTS own_metrics (
    run INTEGER NOT NULL REFERENCES runs (key),
    round INTEGER NOT NULL,
    name TEXT NOT NULL,
    value REAL,
    PRIMARY KEY (run, round, name)
) WITHOUT ROWID
"""


def make_table(connection: sqlite3.Connection) -> None:
    connection.execute(_TABLE)


def enter(connection: sqlite3.Connection, metrics: Sequence[RoundMetrics], keys: dict[str, int]) -> None:
    """Rows of rounds that are trained again replace themselves."""
    rows = [row for measured in metrics for row in measured.own_rows(keys[measured.run_id])]
    if rows:
        make_table(connection)
        connection.executemany("INSERT OR REPLACE INTO own_metrics VALUES (?, ?, ?, ?)", rows)


def names(connection: sqlite3.Connection) -> tuple[str, ...]:
    """All that were ever measured in this folder, those of averaged models last."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'own_metrics'").fetchone() is None:
        return ()
    found = [
        quoted(name)[1:-1]  # whoever made the file; what is not a name at all is refused with its row
        for (name,) in connection.execute("SELECT DISTINCT name FROM own_metrics")
    ]
    return tuple(sorted(found, key=lambda name: (name.startswith("averaged_"), name)))


def by_round(rows: Iterable[Sequence[Any]]) -> dict[int, dict[str, float | None]]:
    """Rows of round, name and value, by round and name."""
    measured: dict[int, dict[str, float | None]] = {}
    for at, name, value in rows:
        measured.setdefault(at, {})[name] = value
    return measured
