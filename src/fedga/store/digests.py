"""Digests of what a results file holds, so that a flipped bit is reported with the run it is in, not averaged in.

SQLite notices damage to its own structure and little else. Table ``digests`` has one SHA-256 for the row of every run
in ``runs``, for its metrics (`fedga.store.metrics`), for each evaluation of its clients, and for every partition and
plugin. Rows and their digest are written in one transaction; every reader compares. Version 0.1 wrote no digests:
its files are read as they are, and get digests when they are written to.
"""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedga.common.sealed import DamagedError
from fedga.errors import quoted

_RUN = ("run_id", "dataset", "alpha", "algorithm", "preset", "server", "seed", "spec", "fingerprint", "rounds_done")
RUN_ROW = ("key", *_RUN, "note", "group_id", "lane", "status")
RUNS_QUERY = f"SELECT {', '.join(RUN_ROW)} FROM runs"
_KINDS: dict[str, Any] = dict.fromkeys(RUN_ROW, str) | dict.fromkeys(("key", "seed", "rounds_done"), int)
_KINDS |= {"alpha": (float, int, type(None)), "group_id": (int, type(None)), "lane": (int, type(None))}
TABLE = "CREATE TABLE digests (part TEXT PRIMARY KEY, sha256 BLOB NOT NULL) WITHOUT ROWID"
_CLIENTS = "an evaluation of the clients of run {}"

Row = Sequence[Any]


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


class Digests:
    """The digests of a results file as one snapshot has them; nothing is compared in a file that keeps none.

    ``whole=False`` reads as many as can be read of a file whose table of digests may be damaged itself.
    """

    def __init__(self, connection: sqlite3.Connection, *, whole: bool = True) -> None:
        self._file = Path(next(path for _, name, path in connection.execute("PRAGMA database_list") if name == "main"))
        self.connection = connection
        self._known: dict[str, bytes] | None = None
        if has_table(connection, "digests"):
            query = "SELECT part, sha256 FROM digests"
            rows = connection.execute(query).fetchall() if whole else list(readable_rows(connection, query, "part"))
            if whole and not all(isinstance(part, str) and isinstance(digest, bytes) for part, digest in rows):
                raise self.damaged("one of its digests")
            self._known = {str(part): digest for part, digest in rows}
        kinds = [part.split("/") for part in self._known or ()]
        self.runs = sum(kind == "run" for kind, *_ in kinds)  # how many have a digest
        self._evaluations = Counter(names[0] for kind, *names in kinds if kind == "looks")  # by run

    def check(self, part: str, found: bytes, what: str, *, empty: bool = False) -> None:
        """Compare a digest; ``empty``: there are no rows, so it may be missing."""
        if self._known is None or self._known.get(part) == found or (empty and part not in self._known):
            return
        raise self.damaged(what)

    def check_rows(self, part: str, rows: Sequence[Row], what: str) -> None:
        self.check(part, rows_digest(rows), what, empty=not rows)

    def check_runs(self, rows: Sequence[Row]) -> None:
        """The rows of ``RUNS_QUERY``: each as it was written, and none missing."""
        for row in rows:
            self.check_run(row)
        if self._known is not None and self.runs != len(rows):
            raise self.damaged(f"of {self.runs} runs {len(rows)} are left")

    def check_run(self, row: Row) -> None:
        what = f"the entry of run {quoted(row[1])}"
        strange = any(not isinstance(cell, kinds) for cell, kinds in zip(row, _KINDS.values(), strict=True))
        if strange or row[-1] not in ("pending", "running", "done", "diverged"):
            raise self.damaged(f"{what} holds what is not of its kind")
        self.check(f"run/{row[0]}", run_digest(row), what)

    def damaged(self, what: str) -> DamagedError:
        return damaged(self._file, what)

    def read_client_rounds(self, run: int, run_id: str) -> list[Row]:
        """Round and packed arrays of the evaluations of a run's clients: each as it was written, and none missing."""
        query = "SELECT round, arrays FROM client_rounds WHERE run = ? ORDER BY round"
        rows = self.connection.execute(query, (run,)).fetchall()
        for at, arrays in rows:
            found = hashlib.sha256(arrays if isinstance(arrays, bytes) else b"").digest()
            self.check(f"looks/{run}/{at}", found, _CLIENTS.format(run_id))
        if self._known is not None and self._evaluations[str(run)] != len(rows):
            raise self.damaged(f"{_CLIENTS.format(run_id)} is missing")
        return rows


def damaged(file: Path, what: str) -> DamagedError:
    """The error for a results file that is not as it was written; ``what`` is damaged in it."""
    cure = f"'fedga repair {file.parent}' keeps every run that is whole"
    again = "the command that trained them then trains the others again"
    return DamagedError(f"{str(file)!r} is damaged ({what}): {cure}, and {again}")


def readable_rows(connection: sqlite3.Connection, query: str, order: str) -> Iterator[Row]:
    """What can be read of a damaged table, from its beginning and from its end: a damaged page ends either way."""
    seen: set[Any] = set()
    for direction in ("ASC", "DESC"):
        with suppress(sqlite3.Error):
            for row in connection.execute(f"{query} ORDER BY {order} {direction}"):
                if row[0] not in seen:
                    seen.add(row[0])
                    yield row


def run_digest(row: Row) -> bytes:
    """Of a row of ``RUNS_QUERY``. Which of two unfinished states it is in changes with every claim, and is left out."""
    *cells, status = row
    state = status if status in ("done", "diverged") else "open"
    return hashlib.sha256(json.dumps([*cells[1:], state]).encode()).digest()


def rows_digest(rows: Iterable[Row]) -> bytes:
    """Of rows of numbers, texts and blobs."""
    plain = ([hashlib.sha256(cell).hexdigest() if isinstance(cell, bytes) else cell for cell in row] for row in rows)
    return hashlib.sha256("".join(map(json.dumps, plain)).encode()).digest()


def enter(connection: sqlite3.Connection, digests: Mapping[str, bytes]) -> None:
    connection.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?)", digests.items())


def seal_runs(connection: sqlite3.Connection, run_ids: Iterable[str]) -> None:
    """New digests for these runs' own rows, inside the transaction that changed them."""
    query = f"{RUNS_QUERY} WHERE run_id = ?"
    rows = [connection.execute(query, (run_id,)).fetchone() for run_id in run_ids]
    enter(connection, {f"run/{row[0]}": run_digest(row) for row in rows})


def seal_rows(connection: sqlite3.Connection, kind: str, rows: Iterable[Row]) -> None:
    """Digests of partitions or plugins, one for every row, named by its first cell."""
    enter(connection, {f"{kind}/{row[0]}": rows_digest([row]) for row in rows})


def seal_client_rounds(connection: sqlite3.Connection, rows: Iterable[tuple[int, int, bytes]]) -> None:
    """Digests of the evaluations of clients: rows of run, round and packed arrays."""
    enter(connection, {f"looks/{run}/{at}": hashlib.sha256(arrays).digest() for run, at, arrays in rows})
