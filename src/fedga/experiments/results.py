"""What a results file says: one row per run and evaluated round, one summary per run.

The order of rows depends on their content alone and numbers are written in their shortest exact form, so equal results
give equal bytes, whoever trained them in whatever order.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from fedga.errors import unknown_name
from fedga.experiments import own_metrics
from fedga.experiments.database import IDENTITY
from fedga.experiments.records import METRICS, Run, Summary
from fedga.experiments.spec import RunSpec

SHOWN = ("accuracy", "macro_f1", "balanced_accuracy", "ea_ratio", "loss")
COLUMNS = (*IDENTITY, "round", *SHOWN)
AVERAGED = tuple(f"averaged_{name}" for name in SHOWN)
FORMATS = ("csv", "json")
_OTHER_FIELDS = tuple(f.name for f in dataclasses.fields(RunSpec) if f.name not in IDENTITY)


@dataclass(frozen=True)
class ResultTable:
    """Column names, and the rows as tuples in the same order."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def read_runs(connection: sqlite3.Connection) -> list[Run]:
    """All runs, in the order of the results table."""
    query = "SELECT key, run_id, spec, fingerprint, status, rounds_done, note FROM runs"
    runs = [Run(key, run_id, RunSpec.from_json(spec), *rest) for key, run_id, spec, *rest in connection.execute(query)]
    return sorted(runs, key=_order)


def _order(run: Run) -> tuple[Any, ...]:
    identity = (getattr(run.spec, name) for name in IDENTITY)
    others = (_sortable(getattr(run.spec, name)) for name in _OTHER_FIELDS)
    return (*(_sortable(value) for value in identity), *others)


def _sortable(value: Any) -> tuple[bool, Any]:
    """None before everything else, options by their text."""
    return (value is not None, "" if value is None else _plain(value))


def telling_fields(runs: list[Run]) -> tuple[str, ...]:
    """The settings beyond the fixed columns that are needed to tell two of these runs apart."""
    alike: dict[tuple[Any, ...], list[RunSpec]] = {}
    for run in runs:
        alike.setdefault(tuple(getattr(run.spec, name) for name in IDENTITY), []).append(run.spec)
    return tuple(
        name
        for name in _OTHER_FIELDS
        if any(len({getattr(spec, name) for spec in specs}) > 1 for specs in alike.values() if len(specs) > 1)
    )


def result_table(connection: sqlite3.Connection) -> ResultTable:
    """The rows of every run; averaged metrics where any run averages, then the user's own, then telling settings."""
    runs = read_runs(connection)
    averaged = AVERAGED if any(run.spec.server_average for run in runs) else ()
    further = telling_fields(runs)
    own = own_metrics.names(connection)
    query = f"SELECT round, {', '.join((*SHOWN, *averaged))} FROM metrics WHERE run = ? ORDER BY round"

    def rows() -> Iterator[tuple[Any, ...]]:
        for run in runs:
            head = tuple(getattr(run.spec, name) for name in IDENTITY)
            tail = tuple(_plain(getattr(run.spec, name)) for name in further)
            measured = own_metrics.of_run(connection, run.key)
            for row in connection.execute(query, (run.key,)):
                yield (*head, *row, *(measured.get(row[0], {}).get(name) for name in own), *tail)

    return ResultTable((*COLUMNS, *averaged, *own, *further), rows())


def _plain(value: Any) -> Any:
    return ":".join(f"{name}={option}" for name, option in value) if isinstance(value, tuple) else value


def write_table(table: ResultTable, stream: TextIO, format: str) -> None:  # noqa: A002 - the flag is --format
    """The table as CSV, or as a JSON array with one object per line; JSON has no infinity, which becomes null."""
    if format == "csv":
        writer = csv.writer(stream, lineterminator="\n")  # writes floats by repr, None as an empty cell
        writer.writerow(table.columns)
        writer.writerows(table.rows)
    elif format == "json":
        separator = "[\n"
        for row in table.rows:
            values = (None if isinstance(value, float) and not math.isfinite(value) else value for value in row)
            stream.write(separator + json.dumps(dict(zip(table.columns, values, strict=True)), ensure_ascii=False))
            separator = ",\n"
        stream.write("[]\n" if separator == "[\n" else "\n]\n")
    else:
        raise unknown_name("format", format, FORMATS)


def read_summaries(connection: sqlite3.Connection) -> list[Summary]:
    """One summary per run, in the order of the results table."""
    names = ", ".join(METRICS)
    last = {
        run: (last_round, dict(zip(METRICS, values, strict=True)))
        for run, last_round, *values in connection.execute(
            f"SELECT run, max(round), {names} FROM metrics GROUP BY run"  # beside max() stand the values of its row
        )
    }
    means = ", ".join(f"avg({name})" for name in METRICS)
    mean = {
        run: dict(zip(METRICS, values, strict=True))
        for run, *values in connection.execute(f"SELECT run, {means} FROM metrics WHERE round >= 1 GROUP BY run")
    }
    best = {
        run: (accuracy, at)
        for run, accuracy, at in connection.execute("SELECT run, max(accuracy), round FROM metrics GROUP BY run")
    }
    nothing: dict[str, float | None] = dict.fromkeys(METRICS)
    summaries = []
    for run in read_runs(connection):
        last_round, last_values = last.get(run.key, (None, nothing))
        best_accuracy, best_round = best.get(run.key, (None, None))
        best_round = None if best_accuracy is None else best_round
        summaries.append(Summary(run, last_round, last_values, mean.get(run.key, nothing), best_accuracy, best_round))
    return summaries
