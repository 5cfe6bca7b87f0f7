"""What a service has been given, kept in the service's own folder: whoever deletes that folder starts tracking over."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Collection
from pathlib import Path

from fedga.store.database import transaction

FILE_NAME = "fedga.sqlite"


class Ledger:
    """The runs that a service has to their end, and the right to give it more: one process at a time has that.

    The right is the system's lock on the file. It goes with the process that held it, however that ended.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(folder / FILE_NAME, timeout=0, isolation_level=None)
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def take(self) -> bool:
        """Whether this process may track now; once it may, it may until the ledger is closed."""
        try:
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            return False
        self._connection.execute("CREATE TABLE IF NOT EXISTS ended (run_id TEXT PRIMARY KEY)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS token (value TEXT)")
        new = (secrets.token_hex(3),)
        self._connection.execute("INSERT INTO token SELECT ? WHERE NOT EXISTS (SELECT * FROM token)", new)
        self._connection.execute("COMMIT")
        return True

    @property
    def token(self) -> str:
        """Drawn once for the folder."""
        return str(self._connection.execute("SELECT value FROM token").fetchone()[0])

    def ended(self) -> set[str]:
        return {run_id for (run_id,) in self._connection.execute("SELECT run_id FROM ended")}

    def end(self, run_ids: Collection[str]) -> None:
        """Note that the service has these to their end; those that were noted before may be among them."""
        with transaction(self._connection):
            self._connection.executemany("INSERT OR IGNORE INTO ended VALUES (?)", [(run_id,) for run_id in run_ids])
