"""A small copy of a results folder, to commit or to send: Parquet files that pandas and DuckDB read as they are.

Numbers are rounded to four significant digits, and of class-wise looks at clients one is kept: of one seed, at its end;
trained models and checkpoints stay behind. A report of an archive says the same as one of its folder, up to that.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedga.errors import FedGAError, needs_extra
from fedga.experiments import code, own_metrics
from fedga.experiments.database import FILE_NAME, IDENTITY, explained, open_for_reading, open_for_writing, transaction
from fedga.experiments.records import METRICS

DIGITS = 4
_BESIDE = ("paper.jsonl", "binary.npz")  # what `fedga paper` notes and computes outside the database
_RUNS = ("key", "run_id", *IDENTITY, "spec", "fingerprint", "status", "rounds_done", "note")
_TABLES: dict[str, tuple[str, ...]] = {
    "runs": _RUNS,
    "metrics": ("run", "round", *METRICS),
    "own_metrics": ("run", "round", "name", "value"),
    "client_rounds": ("run", "round", "arrays"),
    "partitions": ("key", "arrays"),
    "own_code": ("part", "digest", "origin"),
}
_MEASURED = (*METRICS, "value")


def write_archive(folder: Path, target: Path) -> list[Path]:
    """The results of ``folder`` as Parquet files in ``target``; returns the files."""
    parquet = _parquet()
    if target.exists() and target.samefile(folder):
        raise FedGAError(f"the archive cannot go where the results are, {str(folder)!r}: give another folder")
    with explained(folder, reading=True), closing(open_for_reading(folder)) as connection:
        connection.execute("BEGIN")
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        contents = {table: _read(connection, table) for table in _TABLES if table in there}
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in (*(f"{table}.parquet" for table in _TABLES), *_BESIDE):  # of an archive that this one replaces
            (target / name).unlink(missing_ok=True)
        written = [target / f"{table}.parquet" for table in contents]
        for path, content in zip(written, contents.values(), strict=True):
            parquet.write_table(content, path, compression="zstd", compression_level=19, use_dictionary=True)
        return written + _copy_beside(folder, target)
    except OSError as error:
        raise FedGAError(f"the archive cannot be written to {str(target)!r}: {error.strerror or error}") from None


def _copy_beside(source: Path, target: Path) -> list[Path]:
    return [Path(shutil.copy(source / name, target / name)) for name in _BESIDE if (source / name).exists()]


def _read(connection: sqlite3.Connection, table: str) -> Any:
    import pyarrow as pa

    names = _TABLES[table]
    connection.create_function("rounded", 1, _rounded, deterministic=True)
    cells = [f"rounded({name})" if name in _MEASURED else name for name in names]
    order = {"metrics": "run, round", "own_metrics": "run, round, name"}.get(table, "rowid")
    query = f"SELECT {', '.join(cells)} FROM {table} ORDER BY {order}"
    rows = _looks(connection) if table == "client_rounds" else connection.execute(query)
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    kinds = {name: pa.float32() for name in _MEASURED}
    found = {name: pa.array(column, kinds.get(name)) for name, column in zip(names, columns, strict=True)}
    return pa.table({name: column for name, column in found.items() if column.null_count < len(column)})


def _looks(connection: sqlite3.Connection) -> Iterator[tuple[int, int, bytes]]:
    """The looks at clients that a report draws: of the lowest seed of every setting, in the last round that has one."""
    lowest: dict[str, tuple[int, int]] = {}
    for key, spec in connection.execute("SELECT key, spec FROM runs"):
        settings = json.loads(spec)
        place = (settings.pop("seed"), key)
        name = json.dumps(settings, sort_keys=True)
        lowest[name] = min(lowest.get(name, place), place)
    query = "SELECT run, max(round), arrays FROM client_rounds WHERE run = ? GROUP BY run"
    for _, key in sorted(lowest.values(), key=lambda place: place[1]):
        yield from connection.execute(query, (key,))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def is_archive(folder: Path) -> bool:
    """Whether `write_archive` made it; a folder with results of its own is read as what it is."""
    return (folder / "runs.parquet").is_file() and not (folder / FILE_NAME).exists()


@contextmanager
def opened(folder: Path) -> Iterator[Path]:
    """A results folder to read: the folder itself, or what its archive restores to for as long as it is needed."""
    if not is_archive(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fedga-") as place:
        restore(folder, Path(place))
        yield Path(place)


def restore(archive: Path, folder: Path) -> None:
    """Make a results folder of an archive; runs that were not finished are finished as they were."""
    parquet = _parquet()
    with closing(open_for_writing(folder)) as connection, transaction(connection):
        connection.execute("CREATE TABLE IF NOT EXISTS partitions (key TEXT PRIMARY KEY, arrays BLOB NOT NULL)")
        own_metrics.make_table(connection)
        code.make_table(connection)
        for table in _TABLES:
            path = archive / f"{table}.parquet"
            if path.exists():
                _insert(connection, table, _load(parquet, path))
    _copy_beside(archive, folder)


def _load(parquet: Any, path: Path) -> Any:
    try:
        return parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise FedGAError(f"{path} is damaged or is not an archive's file ({error}): bring a whole copy") from None


def _insert(connection: sqlite3.Connection, table: str, content: Any) -> None:
    if not content.num_rows:  # nor columns: those without a value are left out
        return
    names = [name for name in content.column_names if name in _TABLES[table]]
    columns = (content.column(name).to_pylist() for name in names)
    rows = zip(
        *(map(_rounded, of) if at in _MEASURED else of for at, of in zip(names, columns, strict=True)), strict=True
    )
    places = ", ".join("?" * len(names))
    connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})", rows)


def _parquet() -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise needs_extra("pyarrow", "data", "reading and writing archives of results") from None
    return parquet
