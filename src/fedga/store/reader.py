"""Reading a results folder: nothing is written or made, and everything is compared with its digest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fedga.common.spreadsheet import text_cell
from fedga.errors import FedGAError, quoted
from fedga.store.database import FILE_NAME, check_structure, reading
from fedga.store.digests import Digests, damaged, has_table
from fedga.store.metrics import read_metrics
from fedga.store.records import ClientRound, Partition, Run, Summary
from fedga.store.results import ResultTable, read_runs, read_summaries, result_table, write_table


class ResultsReader:
    """What is in a folder, each answer of one moment."""

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
                read_metrics(connection, digests, run.key, run.run_id)
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
            rows = Digests(connection).read_client_rounds(connection, key[0], run_id)
        with self._unpacking(f"an evaluation of the clients of run {run_id}"):
            return [ClientRound.unpack(run_id, at, packed) for at, packed in rows]

    def summaries(self) -> list[Summary]:
        """One summary per run, in the order of the results table."""
        with reading(self.folder) as connection:
            return read_summaries(connection)

    def partitions(self) -> list[Partition]:
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
                    found.append(Partition.unpack(key, packed))
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
