"""Results folders: runs by content, metrics per round and checkpoints, in one SQLite file that several processes share.

Runs that train stacked together form a group, fixed when it is made, so that a continued group computes exactly what an
uninterrupted one does. A process claims a group, commits its rounds and gives it back; the group of a process that died
is free for the next one. ``commit`` makes rows and checkpoint visible in one transaction: the file always has
the rounds and the checkpoint to go on from, never one without the other.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedga.common.files import leftovers, remove_leftovers
from fedga.common.owner import STALE_AFTER_S, Owner, is_gone
from fedga.errors import FedGAError
from fedga.spec.settings import RunSpec
from fedga.store.checkpoints import CHECKPOINT_NAME, is_checkpoint_name, write_checkpoint
from fedga.store.database import FILE_NAME, explained, open_for_writing, reading, transaction
from fedga.store.digests import Digests, damaged, seal_client_rounds, seal_rows, seal_runs
from fedga.store.metrics import checked_rows, write_metrics
from fedga.store.records import ClientRound, Group, PartitionRecord, RoundMetrics, Run, Summary
from fedga.store.register import register_runs
from fedga.store.results import ResultsReader, ResultTable

__all__ = ["ClientRound", "Group", "PartitionRecord", "ResultTable", "RoundMetrics", "Run", "Store", "Summary"]

_LOST = "lost"  # no checkpoint has this name: its runs start again
_UNFINISHED = "status IN ('pending', 'running')"


class Store(ResultsReader, AbstractContextManager["Store"]):
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
        super().__init__(folder)
        self.owner = Owner.this_process()
        self._lock = threading.RLock()  # the heartbeat thread uses the same connection
        self._checkpoints = self.folder / "checkpoints"
        self._connection: sqlite3.Connection | None = None
        self._inode = 0  # of the file that is open
        self._held: set[int] = set()
        self._written: dict[int, Any] = {}  # rows of metrics that the file is known to have, by run
        self._heard: dict[int, tuple[tuple[str, float], float]] = {}  # last signs of others, and since when

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what this store holds; it may be used again afterwards."""
        with self._lock:
            if self._connection is None:
                return
            try:
                # A claim ends with this process anyway. On a full disk, which has brought us here then, the error that
                # is already being reported must not be replaced by this one.
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
            with transaction(connection):
                if self._file_number() != self._inode:
                    file = str(self.folder / FILE_NAME)
                    raise FedGAError(f"{file!r} was replaced or removed meanwhile: give the same command again")
                yield connection

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_for_writing(self.folder)
            self._inode = self._file_number()
            # Looked for before the file is asked: a writer that is gone by then can no longer change the answer.
            for path in leftovers(self._checkpoints, CHECKPOINT_NAME):
                self._remove_unless_current(path)
            for folder in (self.folder, self.folder / "models"):
                remove_leftovers(folder)
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")  # an interrupt struck between two statements
        return self._connection

    def _file_number(self) -> int:
        with suppress(FileNotFoundError):
            return (self.folder / FILE_NAME).stat().st_ino
        return -1

    # Runs

    def register(
        self, specs: Sequence[RunSpec], fingerprints: Mapping[str, str], axes: Collection[str] = ()
    ) -> list[Run]:
        """Enter runs that are not there yet and return all of them, in the order given.

        ``fingerprints`` gives for each run id the hash of its data; ``axes`` are the settings the command lists several
        values of. What is in the folder already has to be of the same data and settings, except those.
        """
        with self._writing() as connection:
            return register_runs(connection, self.folder, specs, fingerprints, axes)

    # Groups

    def create_groups(self, members: Sequence[Sequence[str]]) -> list[Group]:
        """Fix which runs train stacked together. Runs that have a group or are finished stay as they are."""
        made = []
        with self._writing() as connection:
            rows = connection.execute(f"SELECT run_id, group_id IS NULL AND {_UNFINISHED} FROM runs")
            free = {run_id: bool(is_free) for run_id, is_free in rows}
            for run_ids in members:
                group = [run_id for run_id in dict.fromkeys(run_ids) if free[run_id]]
                if not group:
                    continue
                group_id = connection.execute("INSERT INTO groups DEFAULT VALUES").lastrowid
                assert group_id is not None
                places = [(group_id, lane, run_id) for lane, run_id in enumerate(group)]
                connection.executemany("UPDATE runs SET group_id = ?, lane = ? WHERE run_id = ?", places)
                seal_runs(connection, group)
                free |= dict.fromkeys(group, False)
                made.append(self._group(connection, group_id))
        return made

    def pending_groups(self, run_ids: Collection[str] | None = None) -> list[Group]:
        """Groups with an unfinished run (one of ``run_ids``, where given), also those that others work on now."""
        query = f"SELECT DISTINCT group_id, run_id FROM runs WHERE {_UNFINISHED} AND group_id NOT NULL"
        with reading(self.folder) as connection:
            wanted = {group for group, run_id in connection.execute(query) if run_ids is None or run_id in run_ids}
            return [self._group(connection, group_id) for group_id in sorted(wanted)]

    def group(self, group_id: int) -> Group:
        """The group as it stands now: read it again after claiming, another process may have moved it on."""
        with reading(self.folder) as connection:
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
        with reading(self.folder) as connection:
            left = self._unfinished(connection, group_id)
            return [run_id for run_id in self._group(connection, group_id).run_ids if run_id in left]

    def claim(self, group_id: int) -> bool:
        """Take the group for this process; False if another live one has it, or if nothing is left to do."""
        with self._writing() as connection:
            row = connection.execute("SELECT owner, heartbeat FROM groups WHERE id = ?", (group_id,)).fetchone()
            if row is None:
                raise KeyError(f"there is no group {group_id}")
            owner, heartbeat = row
            taken = owner not in (None, str(self.owner)) and not self._is_gone(group_id, owner, heartbeat)
            if taken or not (unfinished := self._unfinished(connection, group_id)):
                return False
            keys, digests = self._keys(connection, group_id), Digests(connection)
            for run_id in unfinished:
                self._written[keys[run_id]] = checked_rows(digests, keys[run_id], run_id)
            mine = (str(self.owner), time.time(), group_id)
            connection.execute("UPDATE groups SET owner = ?, heartbeat = ? WHERE id = ?", mine)
            query = "UPDATE runs SET status = 'running' WHERE group_id = ? AND status = 'pending'"
            connection.execute(query, (group_id,))
        self._held.add(group_id)
        return True

    def _is_gone(self, group_id: int, owner: str, heartbeat: float) -> bool:
        """Whether the process that has a group works no more.

        Where it cannot be asked, its signs of life decide. A sign in the future, as a clock leaves it that was set
        back, says nothing by itself; but a live process gives another one while we watch.
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
            query = "UPDATE groups SET owner = NULL WHERE id = ? AND owner = ?"
            if connection.execute(query, (group_id, str(self.owner))).rowcount:
                query = "UPDATE runs SET status = 'pending' WHERE group_id = ? AND status = 'running'"
                connection.execute(query, (group_id,))
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
                    return  # the next commit fails the same way and reports it

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
        query = "UPDATE groups SET heartbeat = ? WHERE id = ? AND owner = ?"
        if not connection.execute(query, (time.time(), group_id, str(self.owner))).rowcount:
            group = f"group {group_id} of {str(self.folder)!r}"
            raise FedGAError(f"another process has taken over {group}: leave it to that one")

    @staticmethod
    def _unfinished(connection: sqlite3.Connection, group_id: int) -> set[str]:
        query = f"SELECT run_id FROM runs WHERE group_id = ? AND {_UNFINISHED}"
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
        removed and a new one not written, so anything else made of it has to be saved before. Rows of rounds that are
        trained again after a kill replace themselves, number for number.
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
                    keys = self._keys(connection, group_id)
                    write_metrics(connection, keys, metrics, self._written)
                    packed = [(keys[seen.run_id], seen.round, seen.pack()) for seen in clients]
                    connection.executemany("INSERT OR REPLACE INTO client_rounds VALUES (?, ?, ?)", packed)
                    seal_client_rounds(connection, packed)
                    left = self._unfinished(connection, group_id)
                    states = [(round, finished.get(run_id, "running"), notes.get(run_id), run_id) for run_id in left]
                    query = "UPDATE runs SET rounds_done = ?, status = ?, note = coalesce(?, note) WHERE run_id = ?"
                    connection.executemany(query, states)
                    seal_runs(connection, left)
                    if written is not None or ends:
                        query = "SELECT checkpoint FROM groups WHERE id = ?"
                        old = connection.execute(query, (group_id,)).fetchone()[0]
                        name = None if written is None else written.name
                        query = "UPDATE groups SET round = ?, checkpoint = ? WHERE id = ?"
                        connection.execute(query, (round, name, group_id))
            except Exception:
                self._written.clear()
                if written is not None:
                    self._remove_unless_current(written)
                raise
            if old is not None and is_checkpoint_name(old):
                (self._checkpoints / old).unlink(missing_ok=True)

    def take_out(
        self, group_id: int, run_ids: Collection[str], note: str, checkpoint: Callable[[Path], None] | None
    ) -> None:
        """Let runs leave a group that this store holds; those that are left go on from ``checkpoint``, else as before.

        They stay as far as they are: begun, unfinished, and in no group.
        """
        with self._lock, explained(self.folder):
            ends = self._unfinished(self._opened(), group_id) <= set(run_ids)
            written = None
            if checkpoint is not None and not ends:
                at = self.group(group_id).round
                written = write_checkpoint(self._checkpoints, self.owner, group_id, at, checkpoint)
            old = None
            try:
                with self._writing() as connection:
                    self._touch(connection, group_id)
                    query = "UPDATE runs SET group_id = NULL, lane = NULL, status = 'pending', note = ?"
                    rows = [(note, run_id, group_id) for run_id in run_ids]
                    connection.executemany(f"{query} WHERE run_id = ? AND group_id = ? AND {_UNFINISHED}", rows)
                    seal_runs(connection, run_ids)
                    if written is not None or ends:
                        query = "SELECT checkpoint FROM groups WHERE id = ?"
                        old = connection.execute(query, (group_id,)).fetchone()[0]
                        name = None if written is None else written.name
                        connection.execute("UPDATE groups SET checkpoint = ? WHERE id = ?", (name, group_id))
            except Exception:
                if written is not None:
                    self._remove_unless_current(written)
                raise
            if old is not None and is_checkpoint_name(old):
                (self._checkpoints / old).unlink(missing_ok=True)

    @staticmethod
    def _keys(connection: sqlite3.Connection, group_id: int) -> dict[str, int]:
        return dict(connection.execute("SELECT run_id, key FROM runs WHERE group_id = ?", (group_id,)))

    def _remove_unless_current(self, path: Path) -> None:
        """Asks the file itself, since a commit that failed or was killed late may have counted after all."""
        assert self._connection is not None
        query = "SELECT 1 FROM groups WHERE checkpoint = ?"
        if self._connection.execute(query, (path.name,)).fetchone() is None:
            path.unlink(missing_ok=True)

    # Partitions

    def keep_partitions(self, partitions: Sequence[PartitionRecord]) -> None:
        """Remember who held which classes, so that a report can show it where the data are not."""
        with self._writing() as connection:
            packed = [(partition.key, partition.pack()) for partition in partitions]
            connection.executemany("INSERT OR REPLACE INTO partitions VALUES (?, ?)", packed)
            seal_rows(connection, "partition", packed)
