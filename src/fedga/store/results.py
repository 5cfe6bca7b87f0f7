"""What a results file says: one row per run and evaluated round, one summary per run.

The order of rows depends on their content alone and numbers are written in their shortest exact form, so equal results
give equal bytes, whoever trained them in whatever order.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from fedga.errors import FedGAError, quoted, unknown_name
from fedga.spec.settings import RunSpec
from fedga.store.database import IDENTITY, snapshot
from fedga.store.digests import RUN_ROW, RUNS_QUERY, Digests
from fedga.store.metrics import GROUPS, RunMetrics, own_names, read_metrics
from fedga.store.records import METRICS, Run, Summary

FORMATS = ("csv", "json")
_OF_A_RUN = ("key", "run_id", "fingerprint", "status", "rounds_done", "note")
_OTHER_FIELDS = tuple(f.name for f in dataclasses.fields(RunSpec) if f.name not in IDENTITY)


@dataclass(frozen=True)
class RunRows:
    """The rows of one run: what stands before and behind the numbers is the same in all of them."""

    head: tuple[Any, ...]
    numbers: list[tuple[Any, ...]]
    tail: tuple[Any, ...]


@dataclass(frozen=True)
class ResultTable:
    """Column names, and the rows run by run, or one by one as tuples in the order of the columns."""

    columns: tuple[str, ...]
    runs: Iterator[RunRows]

    @property
    def rows(self) -> Iterator[tuple[Any, ...]]:
        return (run.head + row + run.tail for run in self.runs for row in run.numbers)


def read_runs(connection: sqlite3.Connection) -> list[Run]:
    """All runs, in the order of the results table."""
    with snapshot(connection):
        rows = connection.execute(RUNS_QUERY).fetchall()
        Digests(connection).check_runs(rows)
    return sorted((_run(row) for row in rows), key=_order)


def _run(row: tuple[Any, ...]) -> Run:
    named = dict(zip(RUN_ROW, row, strict=True))
    try:
        spec = RunSpec.from_json(named["spec"])
    except FedGAError as error:
        raise FedGAError(
            f"run {quoted(named['run_id'])} is described in a way this version cannot read ({error}): was it written "
            "by a newer fedga?"
        ) from error
    return Run(spec=spec, **{name: named[name] for name in _OF_A_RUN})


def _order(run: Run) -> tuple[Any, ...]:
    return tuple(_sortable(getattr(run.spec, name)) for name in (*IDENTITY, *_OTHER_FIELDS))


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


def result_table(connection: sqlite3.Connection, text: Callable[[Any], Any] | None = None) -> ResultTable:
    """The rows of every run; averaged metrics where any run averages, then those of plugins, then telling settings.

    ``text`` is applied to whatever may be a text.
    """
    text = text or (lambda value: value)
    runs, digests = read_runs(connection), Digests(connection)
    groups = ("shown", "averaged") if any(run.spec.server_average for run in runs) else ("shown",)
    own, further = own_names(connection), telling_fields(runs)
    names = [name for group in groups for name in GROUPS[group]] + own

    def of_run(run: Run) -> RunRows:
        measured = read_metrics(connection, digests, run.key, run.run_id, groups)
        numbers = zip(measured.rounds.tolist(), *map(measured.cells, names), strict=True)
        head = tuple(text(getattr(run.spec, name)) for name in IDENTITY)
        tail = tuple(text(_plain(getattr(run.spec, name))) for name in further)
        return RunRows(head, list(numbers), tail)

    shown = (text(quoted(name)[1:-1]) for name in own)  # whoever made the file
    return ResultTable((*IDENTITY, "round", *names[: len(names) - len(own)], *shown, *further), map(of_run, runs))


def _plain(value: Any) -> Any:
    return ":".join(f"{name}={option}" for name, option in value) if isinstance(value, tuple) else value


def write_table(table: ResultTable, stream: TextIO, format: str) -> None:  # noqa: A002 - the flag is --format
    """The table as CSV, or as a JSON array with one object per line; JSON has no infinity, which becomes null."""
    if format == "csv":
        stream.write(_csv_lines([table.columns]))
        for run in table.runs:
            stream.write(_csv_of_run(run))
    elif format == "json":
        separator = "[\n"
        for row in table.rows:
            values = (None if isinstance(value, float) and not math.isfinite(value) else value for value in row)
            stream.write(separator + json.dumps(dict(zip(table.columns, values, strict=True)), ensure_ascii=False))
            separator = ",\n"
        stream.write("[]\n" if separator == "[\n" else "\n]\n")
    else:
        raise unknown_name("format", format, FORMATS)


def _csv_of_run(run: RunRows) -> str:
    """Lines of numbers, which need no quotation marks, between what all of them have in common, written once."""
    lines = _csv_lines(run.numbers)
    head, tail = (_csv_lines([cells]).removesuffix("\n") for cells in (run.head, run.tail))
    end = f",{tail}\n" if run.tail else "\n"
    return f"{head}," + lines.removesuffix("\n").replace("\n", f"{end}{head},") + end if lines else ""


def _csv_lines(rows: Iterable[tuple[Any, ...]]) -> str:
    """Floats by their shortest exact text, nothing as an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_summaries(connection: sqlite3.Connection) -> list[Summary]:
    """One summary per run, in the order of the results table."""
    digests = Digests(connection)
    return [_summary(run, read_metrics(connection, digests, run.key, run.run_id)) for run in read_runs(connection)]


def _summary(run: Run, measured: RunMetrics) -> Summary:
    rounds = measured.rounds
    if not len(rounds):
        nothing: dict[str, float | None] = dict.fromkeys(METRICS)
        return Summary(run, None, nothing, nothing, None, None)
    last = {name: _mean(measured.values[name][-1:]) for name in METRICS}
    mean = {name: _mean(measured.values[name][rounds >= 1]) for name in METRICS}
    accuracy = measured.values["accuracy"]
    if np.isnan(accuracy).all():
        return Summary(run, int(rounds[-1]), last, mean, None, None)
    best = int(np.nanargmax(accuracy))
    return Summary(run, int(rounds[-1]), last, mean, float(accuracy[best]), int(rounds[best]))


def _mean(column: np.ndarray) -> float | None:
    known = column[~np.isnan(column)]
    return float(known.mean()) if len(known) else None
