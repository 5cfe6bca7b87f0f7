"""What a results file says: one row per run and evaluated round, one summary per run.

The order of rows depends on their content alone and numbers are written in their shortest exact form, so equal results
give equal bytes, whoever trained them in whatever order.
"""

import csv
import dataclasses
import json
import math
import operator
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedga.common.spreadsheet import text_cell
from fedga.errors import FedGAError, quoted, unknown_name
from fedga.spec.settings import RunSpec
from fedga.store.database import FILE_NAME, IDENTITY, check_structure, reading, snapshot
from fedga.store.digests import RUN_ROW, RUNS_QUERY, Digests, damaged, has_table
from fedga.store.metrics import GROUPS, RunMetrics, own_names, read_metrics
from fedga.store.records import METRICS, ClientRound, PartitionRecord, Run, Summary

FORMATS = ("csv", "json")
_OF_A_RUN = ("key", "run_id", "fingerprint", "status", "rounds_done", "note")
identity = operator.attrgetter(*IDENTITY)  # of a spec: what names a run
_OTHER_FIELDS = tuple(f.name for f in dataclasses.fields(RunSpec) if f.name not in IDENTITY)


@dataclass(frozen=True)
class ResultTable:
    """Column names, and rows as tuples in their order."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


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
        run_id = quoted(named["run_id"])
        raise FedGAError(f"run {run_id} cannot be read ({error}): was it written by a newer fedga?") from error
    return Run(spec=spec, **{name: named[name] for name in _OF_A_RUN})


def _order(run: Run) -> tuple[Any, ...]:
    """By all settings, None before everything else, options by their text."""
    values = (plain_value(getattr(run.spec, name)) for name in (*IDENTITY, *_OTHER_FIELDS))
    return tuple((value is not None, "" if value is None else value) for value in values)


def telling_fields(runs: list[Run]) -> tuple[str, ...]:
    """The settings beyond the fixed columns that are needed to tell two of these runs apart, or what numbers mean.

    Those of a run that validates are validation numbers, and are never shown without that word.
    """
    first: dict[tuple[Any, ...], RunSpec] = {}
    pairs = [(run.spec, first.setdefault(identity(run.spec), run.spec)) for run in runs]
    differing = {name for name in _OTHER_FIELDS if any(getattr(a, name) != getattr(b, name) for a, b in pairs)}
    differing |= {"validate"} if any(run.spec.validate for run in runs) else set()
    return tuple(name for name in _OTHER_FIELDS if name in differing)


def result_table(connection: sqlite3.Connection, text: Callable[[Any], Any] | None = None) -> ResultTable:
    """The rows of every run; averaged metrics where any run averages, then those of plugins, then telling settings.

    ``text`` is applied to whatever may be a text.
    """
    text = text or (lambda value: value)
    runs, digests = read_runs(connection), Digests(connection)
    groups = ("shown", "averaged") if any(run.spec.server_average for run in runs) else ("shown",)
    own, further = own_names(connection), telling_fields(runs)
    names = [name for group in groups for name in GROUPS[group]] + own

    def of_run(run: Run) -> Iterator[tuple[Any, ...]]:
        measured = read_metrics(digests, run.key, run.run_id, groups)
        head = tuple(map(text, identity(run.spec)))
        tail = tuple(text(plain_value(getattr(run.spec, name))) for name in further)
        numbers = zip(measured.rounds.tolist(), *map(measured.cells, names), strict=True)
        return (head + row + tail for row in numbers)

    shown = (text(quoted(name)[1:-1]) for name in own)  # whoever made the file
    columns = (*IDENTITY, "round", *names[: len(names) - len(own)], *shown, *further)
    return ResultTable(columns, chain.from_iterable(map(of_run, runs)))


def plain_value(value: Any) -> Any:
    """Options as one text, all else as it is."""
    return ":".join(f"{name}={option}" for name, option in value) if isinstance(value, tuple) else value


def write_table(table: ResultTable, stream: TextIO, format: str) -> None:  # noqa: A002 - the flag is --format
    """The table as CSV, or as a JSON array with one object per line; JSON has no infinity, which becomes null."""
    if format == "csv":  # floats by their shortest exact text, None as an empty cell
        csv.writer(stream, lineterminator="\n").writerows(chain([table.columns], table.rows))
    elif format == "json":
        separator = "[\n"
        for row in table.rows:
            values = (None if isinstance(value, float) and not math.isfinite(value) else value for value in row)
            stream.write(separator + json.dumps(dict(zip(table.columns, values, strict=True)), ensure_ascii=False))
            separator = ",\n"
        stream.write("[]\n" if separator == "[\n" else "\n]\n")
    else:
        raise unknown_name("format", format, FORMATS)


def _summary(run: Run, measured: RunMetrics) -> Summary:
    rounds, accuracy = measured.rounds, measured.values["accuracy"]
    last_round = int(rounds[-1]) if len(rounds) else None
    last = {name: _mean(measured.values[name][-1:]) for name in METRICS}
    mean = {name: _mean(measured.values[name][rounds >= 1]) for name in METRICS}
    if np.isnan(accuracy).all():
        return Summary(run, last_round, last, mean, None, None)
    best = int(np.nanargmax(accuracy))
    return Summary(run, last_round, last, mean, float(accuracy[best]), int(rounds[best]))


def _mean(column: np.ndarray) -> float | None:
    known = column[~np.isnan(column)]
    return float(known.mean()) if len(known) else None


class ResultsReader:
    """What is in a results folder, each answer of one moment; nothing is written."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def runs(self) -> list[Run]:
        """All runs of the folder, in the order of the results table."""
        with reading(self.folder) as connection:
            return read_runs(connection)

    def check(self) -> None:
        """Compare all of the results file with its digests; the first damage is an error."""
        with reading(self.folder) as connection:
            check_structure(self.folder, connection)
            digests, runs = Digests(connection), read_runs(connection)
            for run in runs:
                read_metrics(digests, run.key, run.run_id)
        for run in runs:
            self.client_rounds(run.run_id)
        self.partitions()

    @contextmanager
    def results(self) -> Iterator[ResultTable]:
        """One row per run and evaluated round, streamed from one snapshot.

        Columns: what names a run, round, built-in metrics, the averaged ones where any run averages on the server,
        metrics of plugins, then the settings in which runs differ that agree in all named columns.
        """
        with reading(self.folder) as connection:
            yield result_table(connection)

    def write_results(self, stream: TextIO, format: str = "csv") -> None:  # noqa: A002 - the flag is --format
        """The results table as ``csv`` or ``json``; equal results are equal bytes."""
        with reading(self.folder) as connection:
            write_table(result_table(connection, text_cell if format == "csv" else None), stream, format)

    def client_rounds(self, run_id: str) -> list[ClientRound]:
        """The class-wise evaluations of a run's active clients, in the order of rounds."""
        with reading(self.folder) as connection:
            # An index that is damaged would hide the run.
            key = connection.execute("SELECT key FROM runs NOT INDEXED WHERE run_id = ?", (run_id,)).fetchone()
            if key is None:
                return []
            rows = Digests(connection).read_client_rounds(key[0], run_id)
        with self._unpacking(f"an evaluation of the clients of run {run_id}"):
            return [ClientRound.unpack(run_id, at, packed) for at, packed in rows]

    def summaries(self) -> list[Summary]:
        """One summary per run, in the order of the results table."""
        with reading(self.folder) as connection:
            digests, runs = Digests(connection), read_runs(connection)
            return [_summary(run, read_metrics(digests, run.key, run.run_id)) for run in runs]

    def partitions(self) -> list[PartitionRecord]:
        """What `keep_partitions` was given; nothing in a folder of an earlier version."""
        found = []
        with reading(self.folder) as connection:
            if not has_table(connection, "partitions"):
                return []
            digests = Digests(connection)
            for key, packed in connection.execute("SELECT key, arrays FROM partitions ORDER BY rowid"):
                what = f"the partition {quoted(key)}"
                digests.check_rows(f"partition/{key}", [(key, packed)], what)
                with self._unpacking(what):
                    found.append(PartitionRecord.unpack(key, packed))
        return found

    @contextmanager
    def _unpacking(self, what: str) -> Iterator[None]:
        """Arrays of somebody else's file may be anything, digest or not; numpy and zipfile raise as they like."""
        try:
            yield
        except (FedGAError, MemoryError):
            raise
        except Exception as error:
            raise damaged(self.folder / FILE_NAME, f"{what} cannot be unpacked") from error
