"""Results folders: runs by content, metrics per round and checkpoints, in one SQLite file that several processes share.

Runs that train stacked together form a group, fixed when it is made, so that a continued group computes exactly what an
uninterrupted one does. A process claims a group, commits its rounds and gives it back; the group of a process that died
is free for the next one. ``commit`` makes rows and checkpoint visible in one transaction: at any moment the file tells
of rounds and the checkpoint to go on from, never of one without the other.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from fedga.common.files import remove_leftovers
from fedga.common.owner import STALE_AFTER_S, Owner, is_gone
from fedga.common.spreadsheet import text_cell
from fedga.errors import FedGAError, quoted
from fedga.spec.settings import RunSpec
from fedga.store import plugin_metrics as own_metrics
from fedga.store.checkpoints import find_strays, is_checkpoint_name, write_checkpoint
from fedga.store.database import (
    FILE_NAME,
    check_structure,
    explained,
    open_for_reading,
    open_for_writing,
    transaction,
)
from fedga.store.digests import (
    Digests,
    Sealer,
    damaged,
    has_table,
    read_looks,
    read_metrics,
    read_own,
    seal_look,
    seal_rows,
    seal_runs,
)
from fedga.store.records import METRICS, ClientRound, Group, Partition, RoundMetrics, Run, Summary
from fedga.store.register import register_runs
from fedga.store.results import ResultTable, read_runs, read_summaries, result_table, write_table

__all__ = ["ClientRound", "Group", "Partition", "ResultTable", "RoundMetrics", "Run", "Store", "Summary"]


_LOST = "lost"  # no checkpoint has this name: its runs start again


class Store:
    """The results in one folder. Opening touches nothing; the first thing written makes the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
    ...     spec = RunSpec(dataset="digits", alpha=0.1, rounds=1)
    ...     _ = store.register([spec], {spec.run_id: "the data's hash"})
    ...     [group] = store.create_groups([[spec.run_id]])
    ...     store.claim(group.id)
    ...     store.commit(group.id, 1, [RoundMetrics(spec.run_id, 1, accuracy=0.5)], finished={spec.run_id: "done"})
    ...     [summary] = store.summaries()
    ...     summary.run.status, summary.last["accuracy"]
    True
    ('done', 0.5)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.owner = Owner.this_process()
        self._lock = threading.RLock()  # the heartbeat thread uses the same connection
        self._connection: sqlite3.Connection | None = None
        self._inode = 0  # of the file that is open
        self._held: set[int] = set()
        self._sealer = Sealer()
        self._heard: dict[int, tuple[tuple[str, float], float]] = {}  # last signs of others, and since when

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what this store holds; it may be used again afterwards."""
        with self._lock:
            if self._connection is None:
                return
            try:
                # A claim needs no release: it ends with this process. On a full disk, which is what has brought us here
                # then, the trouble that is already being reported must not be replaced by this one.
                with suppress(FedGAError):
                    for group_id in tuple(self._held):
                        self.release(group_id)
            finally:
                self._connection.close()
                self._connection = None
                self._held.clear()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, explained(self.folder):
            connection = self._opened()
            try:
                with transaction(connection):
                    if self._file_number() != self._inode:
                        raise FedGAError(
                            f"{str(self.folder / FILE_NAME)!r} was replaced or removed meanwhile: give the same "
                            "command again, it continues with what is there now"
                        )
                    yield connection
            except BaseException:
                self._sealer.forget()
                raise

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_for_writing(self.folder)
            self._inode = self._file_number()
            for path in find_strays(self._checkpoints):
                self._remove_unless_current(path)
            for folder in (self.folder, self.folder / "models"):
                remove_leftovers(folder)
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")  # an interrupt struck between two statements
        return self._connection

    def _file_number(self) -> int:
        try:
            return (self.folder / FILE_NAME).stat().st_ino
        except FileNotFoundError:
            return -1

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own and one snapshot, so that a slow reader never sees half of a commit."""
        with explained(self.folder, reading=True), closing(open_for_reading(self.folder)) as connection:
            connection.execute("BEGIN")
            yield connection

    # Runs

    def register(
        self, specs: Sequence[RunSpec], fingerprints: Mapping[str, str], axes: Collection[str] = ()
    ) -> list[Run]:
        """Enter runs that are not there yet and return all of them, in the order given.

        ``fingerprints`` gives for each run id the hash of its data; ``axes`` are the settings the command lists several
        values of. What is in the folder already has to be of the same data and of the same settings but for those.
        """
        with self._writing() as connection:
            return register_runs(connection, self.folder, specs, fingerprints, axes)

    def runs(self) -> list[Run]:
        """All runs of the folder, in the order of the results table."""
        with self._reading() as connection:
            return read_runs(connection)

    def check(self) -> None:
        """Look through all of the results file, and compare it with its digests; what is damaged first is an error."""
        with self._reading() as connection:
            check_structure(self.folder, connection)
            digests = Digests(connection)
            for run in read_runs(connection):
                read_metrics(connection, digests, run.key, run.run_id)
                read_own(connection, digests, run.key, run.run_id)
        for run in self.runs():
            self.client_rounds(run.run_id)
        self.partitions()

    # Groups

    def create_groups(self, members: Sequence[Sequence[str]]) -> list[Group]:
        """Fix which runs train stacked together. Runs that have a group or are finished stay as they are."""
        made = []
        with self._writing() as connection:
            for run_ids in members:
                free = [run_id for run_id in dict.fromkeys(run_ids) if self._is_free(connection, run_id)]
                if not free:
                    continue
                group_id = connection.execute("INSERT INTO groups DEFAULT VALUES").lastrowid
                assert group_id is not None
                for lane, run_id in enumerate(free):
                    connection.execute(
                        "UPDATE runs SET group_id = ?, lane = ? WHERE run_id = ?", (group_id, lane, run_id)
                    )
                seal_runs(connection, free)
                made.append(self._group(connection, group_id))
        return made

    @staticmethod
    def _is_free(connection: sqlite3.Connection, run_id: str) -> bool:
        row = connection.execute("SELECT group_id, status FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if row is None:
            raise KeyError(f"run {run_id} was never registered")
        return row[0] is None and row[1] in ("pending", "running")

    def pending_groups(self, run_ids: Collection[str] | None = None) -> list[Group]:
        """Groups with an unfinished run (one of ``run_ids``, where given), also those that others work on now."""
        query = (
            "SELECT DISTINCT group_id, run_id FROM runs WHERE status IN ('pending', 'running') AND group_id NOT NULL"
        )
        with self._reading() as connection:
            wanted = {group for group, run_id in connection.execute(query) if run_ids is None or run_id in run_ids}
            return [self._group(connection, group_id) for group_id in sorted(wanted)]

    def group(self, group_id: int) -> Group:
        """The group as it stands now: read it again after claiming, another process may have moved it on."""
        with self._reading() as connection:
            return self._group(connection, group_id)

    def _group(self, connection: sqlite3.Connection, group_id: int) -> Group:
        row = connection.execute("SELECT round, checkpoint FROM groups WHERE id = ?", (group_id,)).fetchone()
        if row is None or not isinstance(row[0], int):
            raise damaged(self.folder / FILE_NAME, f"the entry of group {group_id}")
        name = row[1] if row[1] is None or is_checkpoint_name(row[1]) else _LOST
        query = "SELECT run_id FROM runs WHERE group_id = ? ORDER BY lane"
        members = tuple(run_id for (run_id,) in connection.execute(query, (group_id,)))
        return Group(group_id, members, row[0], self._checkpoints / name if name else None)

    def unfinished(self, group_id: int) -> list[str]:
        """The runs of a group that have not ended, in the order of their lanes."""
        with self._reading() as connection:
            left = self._unfinished(connection, group_id)
            return [run_id for run_id in self._group(connection, group_id).run_ids if run_id in left]

    def claim(self, group_id: int) -> bool:
        """Take the group for this process; False if another one that lives has it, or if nothing is left to do."""
        with self._writing() as connection:
            row = connection.execute("SELECT owner, heartbeat FROM groups WHERE id = ?", (group_id,)).fetchone()
            if row is None:
                raise KeyError(f"there is no group {group_id}")
            owner, heartbeat = row
            taken = owner not in (None, str(self.owner)) and not self._is_gone(group_id, owner, heartbeat)
            if taken or not (unfinished := self._unfinished(connection, group_id)):
                return False
            keys = self._keys(connection, group_id)
            self._sealer.begin(connection, {run_id: keys[run_id] for run_id in unfinished})
            connection.execute(
                "UPDATE groups SET owner = ?, heartbeat = ? WHERE id = ?", (str(self.owner), time.time(), group_id)
            )
            connection.execute(
                "UPDATE runs SET status = 'running' WHERE group_id = ? AND status = 'pending'", (group_id,)
            )
        self._held.add(group_id)
        return True

    def _is_gone(self, group_id: int, owner: str, heartbeat: float) -> bool:
        """Whether the process that has a group works no more.

        Where it cannot be looked at, its signs of life tell. A sign in the future, as a clock leaves it that was set
        back, tells nothing by itself; but who lives gives another one while we watch.
        """
        if is_gone(owner, heartbeat):
            return True
        now = time.monotonic()
        sign, since = self._heard.get(group_id, (("", 0.0), now))
        if sign != (owner, heartbeat):
            since = now
        self._heard[group_id] = (owner, heartbeat), since
        return Owner.parse(owner).alive() is None and now - since > STALE_AFTER_S

    def beat(self, group_id: int) -> None:
        """A sign of life for processes on other machines; from any thread, at least every two minutes."""
        with self._writing() as connection:
            self._touch(connection, group_id)

    def release(self, group_id: int) -> None:
        """Give the group back, finished or not."""
        with self._writing() as connection:
            mine = connection.execute(
                "UPDATE groups SET owner = NULL WHERE id = ? AND owner = ?", (group_id, str(self.owner))
            ).rowcount
            if mine:
                connection.execute(
                    "UPDATE runs SET status = 'pending' WHERE group_id = ? AND status = 'running'", (group_id,)
                )
        self._held.discard(group_id)

    @contextmanager
    def hold(self, group_id: int) -> Iterator[bool]:
        """``claim``, a heartbeat in the background, and ``release`` at the end; yields whether the claim succeeded."""
        if not self.claim(group_id):
            yield False
            return
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(STALE_AFTER_S / 4):
                try:
                    self.beat(group_id)
                except FedGAError:
                    return  # the next commit meets the same trouble and reports it

        thread = threading.Thread(target=beat, name=f"heartbeat of group {group_id}", daemon=True)
        thread.start()
        try:
            yield True
        finally:
            stop.set()
            thread.join()
            self.release(group_id)

    def _touch(self, connection: sqlite3.Connection, group_id: int) -> None:
        """Refuse to go on with a group that another process has taken over meanwhile."""
        mine = connection.execute(
            "UPDATE groups SET heartbeat = ? WHERE id = ? AND owner = ?", (time.time(), group_id, str(self.owner))
        ).rowcount
        if not mine:
            raise FedGAError(
                f"another process has taken over group {group_id} of {str(self.folder)!r}: leave it to that one"
            )

    @staticmethod
    def _unfinished(connection: sqlite3.Connection, group_id: int) -> set[str]:
        query = "SELECT run_id FROM runs WHERE group_id = ? AND status IN ('pending', 'running')"
        return {run_id for (run_id,) in connection.execute(query, (group_id,))}

    # Rounds

    def commit(
        self,
        group_id: int,
        round: int,  # noqa: A002 - the field's name for it
        metrics: Sequence[RoundMetrics] = (),
        clients: Sequence[ClientRound] = (),
        checkpoint: Callable[[Path], None] | None = None,
        finished: Mapping[str, str] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Make the rows of a group's rounds up to ``round`` permanent, and with them the checkpoint to go on from.

        ``checkpoint`` writes the file it is given; without one the group goes on from its earlier one. ``finished``
        says "done" or "diverged" of runs that end here. Once all have ended, no checkpoint is needed: the old one is
        removed and a new one not written, so anything else made of it has to be saved before.
        """
        finished, notes = finished or {}, notes or {}
        with self._lock, explained(self.folder):
            ends = self._unfinished(self._opened(), group_id) <= set(finished)
            written = None
            if checkpoint is not None and not ends:
                written = write_checkpoint(self._checkpoints, self.owner, group_id, round, checkpoint)
            old = None
            try:
                with self._writing() as connection:
                    self._touch(connection, group_id)
                    self._enter(connection, group_id, round, metrics, clients, finished, notes)
                    if written is not None or ends:
                        query = "SELECT checkpoint FROM groups WHERE id = ?"
                        old = connection.execute(query, (group_id,)).fetchone()[0]
                        name = None if written is None else written.name
                        connection.execute(
                            "UPDATE groups SET round = ?, checkpoint = ? WHERE id = ?", (round, name, group_id)
                        )
            except Exception:
                if written is not None:
                    self._remove_unless_current(written)
                raise
            if old is not None and is_checkpoint_name(old):
                (self._checkpoints / old).unlink(missing_ok=True)

    def _enter(
        self,
        connection: sqlite3.Connection,
        group_id: int,
        round: int,  # noqa: A002
        metrics: Sequence[RoundMetrics],
        clients: Sequence[ClientRound],
        finished: Mapping[str, str],
        notes: Mapping[str, str],
    ) -> None:
        """The rows of a commit. Rounds trained again after a kill replace themselves, number for number."""
        keys = self._keys(connection, group_id)
        cells = ", ".join("?" * (2 + len(METRICS)))
        rows = [row.row(keys[row.run_id]) for row in metrics]
        connection.executemany(f"INSERT OR REPLACE INTO metrics VALUES ({cells})", rows)
        own_metrics.enter(connection, metrics, keys)
        self._sealer.add(connection, keys, metrics)
        packed = [(keys[seen.run_id], seen.round, seen.pack()) for seen in clients]
        connection.executemany("INSERT OR REPLACE INTO client_rounds VALUES (?, ?, ?)", packed)
        for look in packed:
            seal_look(connection, *look)
        unfinished = self._unfinished(connection, group_id)
        for run_id in unfinished:
            connection.execute(
                "UPDATE runs SET rounds_done = ?, status = ?, note = coalesce(?, note) WHERE run_id = ?",
                (round, finished.get(run_id, "running"), notes.get(run_id), run_id),
            )
        seal_runs(connection, unfinished)

    @staticmethod
    def _keys(connection: sqlite3.Connection, group_id: int) -> dict[str, int]:
        return dict(connection.execute("SELECT run_id, key FROM runs WHERE group_id = ?", (group_id,)))

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def _remove_unless_current(self, path: Path) -> None:
        """Asks the file itself, since a commit that failed or was killed late may have counted after all."""
        assert self._connection is not None
        query = "SELECT 1 FROM groups WHERE checkpoint = ?"
        if self._connection.execute(query, (path.name,)).fetchone() is None:
            path.unlink(missing_ok=True)

    # Partitions

    def keep_partitions(self, partitions: Sequence[Partition]) -> None:
        """Remember who held which classes, so that a report can show it where the data are not."""
        with self._writing() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS partitions (key TEXT PRIMARY KEY, arrays BLOB NOT NULL)")
            packed = [(partition.key, partition.pack()) for partition in partitions]
            connection.executemany("INSERT OR REPLACE INTO partitions VALUES (?, ?)", packed)
            for row in packed:
                seal_rows(connection, f"partition/{row[0]}", [row])

    def partitions(self) -> list[Partition]:
        """What `keep_partitions` was told; nothing in a folder of an earlier version."""
        with self._reading() as connection:
            if not has_table(connection, "partitions"):
                return []
            rows, digests = connection.execute("SELECT key, arrays FROM partitions ORDER BY rowid"), Digests(connection)
            return [self._partition(digests, key, packed) for key, packed in rows]

    def _partition(self, digests: Digests, key: str, packed: bytes) -> Partition:
        digests.check_rows(f"partition/{key}", [(key, packed)], f"the partition {quoted(key)}")
        with self._unpacking(f"the partition {quoted(key)}"):
            return Partition.unpack(key, packed)

    @contextmanager
    def _unpacking(self, what: str) -> Iterator[None]:
        """Arrays of somebody else's file may be anything, digest or not; numpy and zipfile raise as they like."""
        try:
            yield
        except (FedGAError, MemoryError):
            raise
        except Exception as error:
            raise damaged(self.folder / FILE_NAME, f"{what} cannot be unpacked") from error

    # Results

    @contextmanager
    def results(self) -> Iterator[ResultTable]:
        """One row per run and evaluated round, streamed from one snapshot: names of columns, and an iterator of tuples.

        The columns are ``results.COLUMNS``, then the averaged metrics where any run averages on the server, then
        metrics of the user's own, then the settings in which runs differ that agree in all named columns.
        """
        with self._reading() as connection:
            yield result_table(connection)

    def write_results(self, stream: TextIO, format: str = "csv") -> None:  # noqa: A002 - the flag is --format
        """The results table as ``csv`` or ``json``; equal results are equal bytes."""
        with self._reading() as connection:
            write_table(result_table(connection, text_cell if format == "csv" else _as_it_is), stream, format)

    def client_rounds(self, run_id: str) -> list[ClientRound]:
        """The class-wise looks at a run's active clients, in the order of rounds."""
        what = f"a look at the clients of run {run_id}"
        with self._reading() as connection:
            # An index that is damaged would hide the run.
            key = connection.execute("SELECT key FROM runs NOT INDEXED WHERE run_id = ?", (run_id,)).fetchone()
            if key is None:
                return []
            rows = read_looks(connection, Digests(connection), key[0], run_id)
        with self._unpacking(what):
            return [ClientRound.unpack(run_id, at, packed) for at, packed in rows]

    def summaries(self) -> list[Summary]:
        """One summary per run, in the order of the results table."""
        with self._reading() as connection:
            return read_summaries(connection)


def _as_it_is(value: Any) -> Any:
    return value
