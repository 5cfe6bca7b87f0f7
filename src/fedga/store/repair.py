"""What is whole in a damaged results file, in a new one; the damaged one stays beside it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedga.common.files import partial_name, remove_leftovers, require_regular
from fedga.common.owner import is_gone
from fedga.common.sealed import DamagedError
from fedga.errors import FedGAError
from fedga.store import code
from fedga.store import plugin_metrics as own_metrics
from fedga.store.database import FILE_NAME, explained, open_as_it_is, open_for_writing, transaction
from fedga.store.digests import RUN_ROW, Digests, read_looks, read_metrics, read_own, seal_everything
from fedga.store.records import METRICS
from fedga.store.store import Store

Row = Sequence[Any]
_UNREADABLE = (sqlite3.Error, FedGAError, ValueError, TypeError, OverflowError)  # what damage may raise


def repair_results(folder: Path) -> tuple[int, int, Path | None]:
    """How many runs are kept, how many lost as far as is known, and where the damaged file is now (None: whole)."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise FedGAError(f"there are no results in {str(folder)!r}: no file {FILE_NAME} to be repaired there")
    require_regular(path)
    remove_leftovers(folder)
    if (runs := _whole(folder)) is not None:
        return runs, 0, None
    place = partial_name(folder / "repair")
    with explained(folder), _removed(place):
        with closing(open_as_it_is(path)) as old, closing(open_for_writing(place)) as new:
            _refuse_while_trained(folder, old)
            kept, lost = _copy_whole(old, new)
            new.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        aside = _free_name(path)
        aside.hardlink_to(path)
        for log in (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            if log.exists():  # it would be played onto the new file
                log.replace(aside.with_name(log.name.replace(path.name, aside.name)))
        (place / FILE_NAME).replace(path)
    return kept, lost, aside


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _whole(folder: Path) -> int | None:
    """How many runs there are, if nothing is damaged. What is no results file of ours is refused, not repaired."""
    try:
        with Store(folder) as store:
            store.check()
            return len(store.runs())
    except DamagedError:
        return None


def _refuse_while_trained(folder: Path, old: sqlite3.Connection) -> None:
    claims: list[Row] = []
    with suppress(sqlite3.Error):
        claims = old.execute("SELECT owner, heartbeat FROM groups WHERE owner NOT NULL").fetchall()
    if not all(is_gone(owner, heartbeat) for owner, heartbeat in claims):
        raise FedGAError(f"{str(folder)!r} is being trained in: stop that first, nothing is lost by it")


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in range(10_000))
    return next(name for name in names if not name.exists())


def _copy_whole(old: sqlite3.Connection, new: sqlite3.Connection) -> tuple[int, int]:
    digests = Digests.readable(old)
    found = {row[0]: row for row in _rows(old, f"SELECT {', '.join(RUN_ROW)} FROM runs", "key")}
    whole = {key: contents for key, row in found.items() if (contents := _contents(old, digests, row)) is not None}
    groups = {row[0]: row for row in _rows(old, "SELECT id, round, checkpoint FROM groups", "id")}
    kept = {key: contents for key, contents in whole.items() if _may_stay(found[key], found, whole, groups)}
    with transaction(new):
        for key, (metrics, own, looks) in kept.items():
            row = dict(zip(RUN_ROW, found[key], strict=True))
            ended = row["status"] in ("done", "diverged")
            row |= {"status": row["status"] if ended else "pending"}
            if row["group_id"] not in groups:
                row |= {"group_id": None, "lane": None}
            elif not new.execute("SELECT 1 FROM groups WHERE id = ?", (row["group_id"],)).fetchone():
                new.execute("INSERT INTO groups (id, round, checkpoint) VALUES (?, ?, ?)", groups[row["group_id"]])
            _insert(new, "runs", row)
            places = ", ".join("?" * (2 + len(METRICS)))
            new.executemany(f"INSERT INTO metrics VALUES ({places})", [(key, *cells) for cells in metrics])
            if own:
                own_metrics.make_table(new)
                new.executemany("INSERT INTO own_metrics VALUES (?, ?, ?, ?)", [(key, *cells) for cells in own])
            new.executemany("INSERT INTO client_rounds VALUES (?, ?, ?)", [(key, *cells) for cells in looks])
        _copy_beside(old, new, digests)
        seal_everything(new)
    return len(kept), max(len(found), digests.runs) - len(kept)


def _may_stay(row: Row, found: dict[int, Row], whole: dict[int, Any], groups: dict[int, Row]) -> bool:
    """A finished run does; one that is under way only with all that share its checkpoint, and with that told of."""
    named = dict(zip(RUN_ROW, row, strict=True))
    if named["status"] in ("done", "diverged"):
        return True
    group = named["group_id"]
    place, state = RUN_ROW.index("group_id"), RUN_ROW.index("status")
    company = [key for key, other in found.items() if other[place] == group and other[state] in ("pending", "running")]
    return group in groups and all(key in whole for key in company)


def _contents(old: sqlite3.Connection, digests: Digests, row: Row) -> tuple[list[Row], list[Row], list[Row]] | None:
    """The rows of a run, if all of them are as they were written."""
    key, run_id = row[0], row[1]
    try:
        digests.check_run(row)
        metrics: list[Row] = [
            (int(at), *(None if value != value else value for value in values))
            for at, *values in read_metrics(old, digests, key, run_id).tolist()
        ]
        return metrics, read_own(old, digests, key, run_id), read_looks(old, digests, key, run_id)
    except _UNREADABLE:
        return None


def _copy_beside(old: sqlite3.Connection, new: sqlite3.Connection, digests: Digests) -> None:
    """Partitions and the list of the user's own code, as far as they are whole."""
    new.execute("CREATE TABLE IF NOT EXISTS partitions (key TEXT PRIMARY KEY, arrays BLOB NOT NULL)")
    code.make_table(new)
    for table, columns, part in (
        ("partitions", "key, arrays", "partition"),
        ("own_code", "part, digest, origin", "code"),
    ):
        for row in _rows(old, f"SELECT {columns} FROM {table}", columns.split(",")[0]):
            with suppress(FedGAError):
                digests.check_rows(f"{part}/{row[0]}", [row], "")
                new.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _insert(new: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    new.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))


def _rows(old: sqlite3.Connection, query: str, order: str) -> Iterator[Row]:
    """What can be read of a table, from its beginning and from its end: a damaged page ends either way."""
    seen: set[Any] = set()
    for direction in ("ASC", "DESC"):
        with suppress(sqlite3.Error):
            for row in old.execute(f"{query} ORDER BY {order} {direction}"):
                if row[0] not in seen:
                    seen.add(row[0])
                    yield row
