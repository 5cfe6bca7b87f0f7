"""A copy of a results folder, to commit, to send, or to go on from elsewhere.

The small one is made of Parquet files that pandas and DuckDB read as they are: numbers rounded to four significant
digits, class-wise evaluations of clients of one seed in its last round; trained models and checkpoints stay behind. A
report of it says the same as one of its folder, up to that. The full one holds everything as it is, checkpoints of
unfinished runs included: `unpack` makes a folder of it in which training goes on.

Either is a set of parts with a manifest (`fedga.store.manifest`), whole or refused.
"""

import io
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedga.common.files import partial_name, remove_leftovers, require_regular
from fedga.common.memory import require_memory
from fedga.common.sealed import DamagedError, is_whole
from fedga.data.formats.files import optional
from fedga.errors import FedGAError
from fedga.store import metrics
from fedga.store.checkpoints import is_checkpoint_name
from fedga.store.database import FILE_NAME, IDENTITY, explained, one_line, open_for_writing, reading, transaction
from fedga.store.digests import damaged, has_table
from fedga.store.manifest import PARTS, Writer, check_parts, read_manifest, replacing
from fedga.store.records import METRICS
from fedga.store.repair import refuse_while_trained
from fedga.store.results import ResultsReader

DIGITS = 4
SMALL, FULL = "small", "full"
_BESIDE = ("paper.jsonl", "binary.npz")  # what `fedga paper` notes and computes outside the database
_TABLES: dict[str, tuple[str, ...]] = {
    "runs": ("key", "run_id", *IDENTITY, "spec", "fingerprint", "status", "rounds_done", "note"),
    **metrics.TABLES,
    "client_rounds": ("run", "round", "arrays"),
    "partitions": ("key", "arrays"),
    "own_code": ("part", "digest", "origin"),
}
_MEASURED = (*METRICS, "value")
_FEWER_RUNS = "bring an archive of fewer runs"
_BYTES_PER_CELL = 150  # of a Parquet file's value as a Python object on its way into the database
_NOT_DIGESTED = "{} is without digests, as fedga 0.1 wrote it: damage to it would not be noticed"
_INCOMPLETE = "the archive {!r} is incomplete ({}): bring a whole copy"


def write_archive(folder: Path, target: Path, *, full: bool = False) -> list[Path]:
    """The results of ``folder`` as an archive in ``target``, in place of one that is there; returns its files."""
    if target.exists() and target.samefile(folder):
        raise FedGAError(f"the archive cannot go where the results are, {str(folder)!r}: give another folder")
    if any(target.resolve().is_relative_to((folder / own).resolve()) for own in ("models", "checkpoints")):
        raise FedGAError(f"{str(target)!r} lies among the models or checkpoints: give another folder for the archive")
    if (target / FILE_NAME).exists():
        raise FedGAError(f"{str(target)!r} holds results of its own: give another folder for the archive")
    ResultsReader(folder).check()
    for name in (FILE_NAME, *_beside(folder)):
        require_regular(folder / name, links=False)  # a link would bring along what lies elsewhere
    contents = {} if full else _small_contents(folder)
    replaces_0_1 = read_manifest(target) is None and is_archive(target)
    try:
        with replacing(target, FULL if full else SMALL) as writer:
            if full:
                _add_everything(folder, writer)
            for name, content in contents.items():
                writer.add(f"{name}.parquet", content)
            for name in _beside(folder):
                writer.add(name, folder / name)
        for name in (*(f"{table}.parquet" for table in _TABLES), *_BESIDE) if replaces_0_1 else ():
            (target / name).unlink(missing_ok=True)
        return [target / PARTS / part.file for part in writer.parts.values()]
    except OSError as error:
        raise FedGAError(f"the archive cannot be written to {str(target)!r}: {error.strerror or error}") from None


def _beside(folder: Path) -> list[str]:
    return [name for name in _BESIDE if (folder / name).is_symlink() or (folder / name).exists()]


def _add_everything(folder: Path, writer: Writer) -> None:
    """The results file, with the checkpoints that unfinished runs go on from, and all models."""
    with tempfile.TemporaryDirectory(prefix="fedga-") as place:
        copy = Path(place) / FILE_NAME
        checkpoints = [folder / "checkpoints" / name for name in _copy_results(folder, copy)]
        writer.add(FILE_NAME, copy)
    for path in checkpoints:
        if not is_whole(path):
            raise DamagedError(f"{path} is damaged or gone: give the training command again, it restarts its runs")
    models = folder / "models"
    models_there = sorted(models.iterdir()) if models.is_dir() else []
    for path in (*checkpoints, *(path for path in models_there if path.suffix in (".safetensors", ".json"))):
        require_regular(path, links=False)
        writer.add(f"{path.parent.name}/{path.name}", path)


def _copy_results(folder: Path, copy: Path) -> list[str]:
    """The results file as it is now, in one file and without claims; returns the names of its checkpoints."""
    with reading(folder) as connection, closing(sqlite3.connect(copy)) as other:
        refuse_while_trained(folder, connection)
        connection.backup(other)
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("UPDATE groups SET owner = NULL, heartbeat = 0")
        other.execute("UPDATE runs SET status = 'pending' WHERE status = 'running'")
        other.commit()
        names = [name for (name,) in other.execute("SELECT checkpoint FROM groups WHERE checkpoint NOT NULL")]
        if not all(map(is_checkpoint_name, names)):
            raise damaged(folder / FILE_NAME, "the name of a checkpoint")
        return names


def _small_contents(folder: Path) -> dict[str, bytes]:
    """The tables that are not empty as Parquet files."""
    _parquet()
    with reading(folder) as connection:
        connection.create_function("rounded", 1, _rounded, deterministic=True)
        rows = {table: _small_rows(connection, table) for table in _TABLES if has_table(connection, table)}
    return {table: _as_parquet(table, of) for table, of in rows.items() if of or table in ("runs", "metrics")}


def _small_rows(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    if table == "client_rounds":
        return list(_last_evaluations(connection))
    cells = [f"rounded({name})" if name in _MEASURED else name for name in _TABLES[table]]
    order = {"metrics": "run, round", "own_metrics": "run, round, name"}.get(table, "rowid")
    return connection.execute(f"SELECT {', '.join(cells)} FROM {table} ORDER BY {order}").fetchall()


def _last_evaluations(connection: sqlite3.Connection) -> Iterator[tuple[int, int, bytes]]:
    """The evaluations of clients that a report draws: of the lowest seed of every setting, in its last such round."""
    lowest: dict[str, tuple[int, int]] = {}
    for key, spec in connection.execute("SELECT key, spec FROM runs"):
        settings = json.loads(spec)
        place = (settings.pop("seed"), key)
        name = json.dumps(settings, sort_keys=True)
        lowest[name] = min(lowest.get(name, place), place)
    query = "SELECT run, max(round), arrays FROM client_rounds WHERE run = ? GROUP BY run"
    for key in sorted(key for _, key in lowest.values()):
        yield from connection.execute(query, (key,))


def _as_parquet(table: str, rows: list[tuple[Any, ...]]) -> bytes:
    """Columns without any value are left out."""
    import pyarrow as pa

    columns = zip(_TABLES[table], zip(*rows, strict=True), strict=True) if rows else ()
    arrays = {name: pa.array(column, pa.float32() if name in _MEASURED else None) for name, column in columns}
    known = pa.table({name: array for name, array in arrays.items() if array.null_count < len(array)})
    packed = io.BytesIO()
    _parquet().write_table(known, packed, compression="zstd", compression_level=19, use_dictionary=True)
    return packed.getvalue()


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def is_archive(folder: Path) -> bool:
    """Whether `write_archive` made it; a folder with results of its own is read as what it is."""
    archived = (folder / "manifest.json").is_file() or (folder / "runs.parquet").is_file()
    return archived and not (folder / FILE_NAME).exists()


@contextmanager
def opened(folder: Path, notice: Callable[[str], None] = lambda text: None) -> Iterator[Path]:
    """A results folder to read: the folder itself, or what its archive restores to for as long as it is needed.

    ``notice`` hears of files of version 0.1, which wrote no digests.
    """
    if not is_archive(folder):
        with reading(folder) as connection:
            if not has_table(connection, "digests"):
                notice(_NOT_DIGESTED.format(folder))
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fedga-") as place:
        restore(folder, Path(place), notice)
        yield Path(place)


def restore(archive: Path, folder: Path, notice: Callable[[str], None] = lambda text: None) -> None:
    """Make a folder to read of an archive; runs that were not finished are as they were."""
    manifest = read_manifest(archive)
    if manifest is None:
        notice(_NOT_DIGESTED.format(archive))
        places = {f"{table}.parquet": archive / f"{table}.parquet" for table in _TABLES}
        places |= {name: archive / name for name in _beside(archive)}
    else:
        places = check_parts(archive, manifest)
    if manifest is not None and manifest.kind == FULL:
        if FILE_NAME not in places:
            raise DamagedError(_INCOMPLETE.format(str(archive), f"it has no {FILE_NAME}"))
        shutil.copyfile(places[FILE_NAME], folder / FILE_NAME)
    else:
        _restore_tables(archive, places, folder)
    for name in _BESIDE:
        if name in places:
            require_regular(places[name], links=False)
            shutil.copyfile(places[name], folder / name)


def unpack(archive: Path, folder: Path) -> None:
    """Make a results folder of a full archive, in which the same command goes on with what is not finished."""
    manifest = read_manifest(archive)
    if manifest is None and not is_archive(archive):
        raise FedGAError(f"{str(archive)!r} is not an archive: give a folder that `fedga archive` wrote")
    if manifest is None or manifest.kind != FULL or FILE_NAME not in manifest.parts:
        raise FedGAError(f"{str(archive)!r} is a small archive, for reports only: make one with `fedga archive --full`")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedGAError(f"{str(folder)!r} is there already: give a new folder, or remove it")
    parts, partial = check_parts(archive, manifest), partial_name(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent)
        for name, path in parts.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, partial / name)
        ResultsReader(partial).check()
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        raise FedGAError(f"{str(folder)!r} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _restore_tables(archive: Path, places: dict[str, Path], folder: Path) -> None:
    if not places.get("runs.parquet", archive / "runs.parquet").exists():
        raise DamagedError(_INCOMPLETE.format(str(archive), "it has no runs"))
    with closing(open_for_writing(folder)) as connection, explained(archive, reading=True), transaction(connection):
        for table in _TABLES:
            path = places.get(f"{table}.parquet")
            if path is not None and (path.is_symlink() or path.exists()):
                try:
                    _insert(connection, table, _load(path))
                except (OSError, ValueError, TypeError, OverflowError, sqlite3.Error) as error:  # pyarrow's too
                    if isinstance(error, FedGAError):
                        raise
                    damage = f"{path} is damaged or is not an archive's file ({one_line(error)}): bring a whole copy"
                    raise FedGAError(damage) from error
        query = "SELECT count(*) FROM runs WHERE status = 'done' AND key NOT IN (SELECT run FROM metrics)"
        if lost := connection.execute(query).fetchone()[0]:
            raise DamagedError(_INCOMPLETE.format(str(archive), f"{lost} finished runs have no results"))
        # What is read once, right away, needs no digests: the archive's own were compared.
        connection.execute("DROP TABLE digests")
        connection.execute("PRAGMA user_version = 1")


def _load(path: Path) -> Any:
    """The table of a file, with its texts in every row, once it is sure that they fit into memory."""
    parquet = _parquet()
    import pyarrow as pa
    import pyarrow.compute as compute

    require_regular(path, links=False)
    with parquet.ParquetFile(path) as file:
        cells = file.metadata.num_rows * max(1, file.metadata.num_columns)
        require_memory(cells * _BYTES_PER_CELL, str(path), _FEWER_RUNS)
        texts = [field.name for field in file.schema_arrow if str(field.type) in ("string", "binary")]
    with parquet.ParquetFile(path, read_dictionary=texts) as file:  # one long text may stand for many rows
        table = file.read()
    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            lengths = (compute.max(compute.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks)
            size = sum(length * len(chunk) for length, chunk in zip(lengths, column.chunks, strict=True))
            require_memory(size, str(path), _FEWER_RUNS)
            table = table.set_column(at, table.column_names[at], column.cast(column.type.value_type))
    return table


def _insert(connection: sqlite3.Connection, table: str, content: Any) -> None:
    names = [name for name in content.column_names if name in _TABLES[table]]
    if content.num_rows and names:
        columns = ((name, content.column(name).to_pylist()) for name in names)
        cells = (map(_rounded, of) if name in _MEASURED else of for name, of in columns)
        query = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        connection.executemany(query, zip(*cells, strict=True))


def _parquet() -> Any:
    return optional("pyarrow.parquet", "pyarrow", "reading and writing archives of results")
