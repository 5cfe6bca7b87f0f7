"""What is whole in a damaged results file, in a new one; the damaged one stays beside it."""

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fedga.common.files import partial_name, remove_leftovers, require_regular
from fedga.common.owner import is_gone
from fedga.common.sealed import DamagedError
from fedga.errors import FedGAError
from fedga.store import metrics
from fedga.store.database import FILE_NAME, connect, explained, open_for_writing, seal_everything, transaction
from fedga.store.digests import RUN_ROW, RUNS_QUERY, Digests, Row, readable_rows
from fedga.store.results import ResultsReader

_UNREADABLE = (sqlite3.Error, FedGAError, ValueError, TypeError, OverflowError)  # what damage may raise
_ENDED = ("done", "diverged")
_BESIDE_RUNS = (("partitions", "key, arrays", "partition"), ("own_code", "part, digest, origin", "code"))


def repair_results(folder: Path) -> tuple[int, int, Path | None]:
    """How many runs are kept, how many lost as far as is known, and where the damaged file is now (None: whole)."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise FedGAError(f"there are no results in {str(folder)!r}: no file {FILE_NAME} to be repaired there")
    require_regular(path)
    remove_leftovers(folder)
    with suppress(DamagedError):  # what is no results file of ours is refused, not repaired
        ResultsReader(folder).check()
        return len(ResultsReader(folder).runs()), 0, None
    place = partial_name(folder / "repair")
    try:
        with explained(folder):
            with closing(connect(path, "rw")) as old, closing(open_for_writing(place)) as new:
                refuse_while_trained(folder, old)
                kept, lost = _copy_whole(old, new)
                new.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
            names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in range(10_000))
            aside = next(name for name in names if not name.exists())
            aside.hardlink_to(path)
            for log in (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
                if log.exists():  # it would be played onto the new file
                    log.replace(aside.with_name(log.name.replace(path.name, aside.name)))
            (place / FILE_NAME).replace(path)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return kept, lost, aside


def refuse_while_trained(folder: Path, connection: sqlite3.Connection) -> None:
    claims: list[Row] = []
    with suppress(sqlite3.Error):
        claims = connection.execute("SELECT owner, heartbeat FROM groups WHERE owner NOT NULL").fetchall()
    if not all(is_gone(owner, heartbeat) for owner, heartbeat in claims):
        raise FedGAError(f"{str(folder)!r} is being trained in: stop that first, nothing is lost by it")


def _copy_whole(old: sqlite3.Connection, new: sqlite3.Connection) -> tuple[int, int]:
    digests = Digests(old, whole=False)
    found = {row[0]: dict(zip(RUN_ROW, row, strict=True)) for row in readable_rows(old, RUNS_QUERY, "key")}
    whole = {key: contents for key, run in found.items() if (contents := _contents(digests, run)) is not None}
    groups = {row[0]: row for row in readable_rows(old, "SELECT id, round, checkpoint FROM groups", "id")}
    kept = [key for key in whole if _may_stay(found[key], found, whole, groups)]
    with transaction(new):
        for key in kept:
            run, (table, own, clients) = found[key], whole[key]
            if run["status"] not in _ENDED:
                run["status"] = "pending"
            if run["group_id"] in groups:
                query = "INSERT OR IGNORE INTO groups (id, round, checkpoint) VALUES (?, ?, ?)"
                new.execute(query, groups[run["group_id"]])
            else:
                run |= {"group_id": None, "lane": None}
            _insert(new, f"runs ({', '.join(run)})", tuple(run.values()))
            metrics.insert(new, key, table, own)
            for row in clients:
                _insert(new, "client_rounds", (key, *row))
        for name, columns, part in _BESIDE_RUNS:
            for row in readable_rows(old, f"SELECT {columns} FROM {name}", columns.partition(",")[0]):
                with suppress(FedGAError):
                    digests.check_rows(f"{part}/{row[0]}", [row], "")
                    _insert(new, name, row)
        seal_everything(new)
    return len(kept), max(len(found), digests.runs) - len(kept)


def _may_stay(run: dict[str, Any], found: dict[int, Any], whole: dict[int, Any], groups: dict[int, Row]) -> bool:
    """A finished run does; one that is under way only with its group and all that share its checkpoint."""
    if run["status"] in _ENDED:
        return True
    group = run["group_id"]
    company = [key for key, one in found.items() if one["group_id"] == group and one["status"] not in _ENDED]
    return group in groups and all(key in whole for key in company)


def _contents(digests: Digests, run: dict[str, Any]) -> tuple[Any, ...] | None:
    """Rows of built-in metrics, of others, and of clients of a run, if all of them are as they were written."""
    key, run_id = run["key"], run["run_id"]
    try:
        digests.check_run(tuple(run.values()))
        return *metrics.checked_rows(digests, key, run_id), digests.read_client_rounds(key, run_id)
    except _UNREADABLE:
        return None


def _insert(new: sqlite3.Connection, table: str, row: Row) -> None:
    new.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
