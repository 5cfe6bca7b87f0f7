"""The results file: its schema, how it is opened, and what its failures mean to the user.

Write-ahead logging with ``synchronous=FULL``: a transaction that was reported as committed survives a kill and a power
cut. The log needs memory shared between processes, which network file systems do not give; there the older rollback
journal is used, slower and just as safe.
"""

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path

from fedga.common.files import require_regular
from fedga.errors import FedGAError, quoted
from fedga.store import digests, metrics
from fedga.store.records import METRICS

FILE_NAME = "results.sqlite"
SCHEMA_VERSION = 2  # 1: of fedga 0.1, without digests
BUSY_S = 60.0
_APPLICATION_ID = 0x66646761  # "fdga"
# What SQLite says of a file that is not as it wrote it; a schema of ours has all its tables and columns.
_DAMAGE = ("malformed", "corrupt", "not decode", "no such table", "no such column", "file format", "no such collation")
_SHARED_MOUNTS = ("nfs", "cifs", "smb", "9p", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "afs", "glusterfs")

IDENTITY = ("dataset", "alpha", "algorithm", "preset", "server", "seed")

_ALWAYS = {"groups", "runs", "metrics", "client_rounds", "results"}
_NAMES = {*_ALWAYS, "partitions", "own_code", "own_metrics", "digests"}


def open_for_writing(folder: Path) -> sqlite3.Connection:
    """The folder's file, made with its folder where it is not there yet; one of version 0.1 gets digests."""
    with explained(folder), ExitStack() as unless_sound:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise FedGAError(f"the output folder {str(folder)!r} is a file: give another --out") from None
        connection = unless_sound.enter_context(closing(connect(folder / FILE_NAME, "rwc")))
        _refuse_foreign(folder, connection)
        _set_journal(folder, connection)
        check_structure(folder, connection)
        connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            if not digests.has_table(connection, "runs"):
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            for statement in _schema().split(";"):  # executescript would commit first
                connection.execute(statement)
            if not digests.has_table(connection, "digests"):
                connection.execute(digests.TABLE)
                seal_everything(connection)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        unless_sound.pop_all()  # it stays open
    return connection


@cache
def _schema() -> str:
    measured = ", ".join(f"{name} REAL" for name in METRICS)
    text = resources.files("fedga.store").joinpath("schema.sql").read_text(encoding="utf-8")
    return text.format(identity=", ".join(IDENTITY), metrics=", ".join(METRICS), measured=measured)


def open_for_reading(folder: Path) -> sqlite3.Connection:
    """The folder's file as it is; nothing is created, and a folder that cannot be written to can still be read."""
    path = folder / FILE_NAME
    if not os.path.isfile(path):  # unlike Path.is_file, also False where the folder may not be entered
        raise FedGAError(f"there are no results in {str(folder)!r}: no file {FILE_NAME} to be read there")
    with explained(folder, reading=True), ExitStack() as unless_sound:
        connection = unless_sound.enter_context(closing(connect(path, "rw")))
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            connection.close()
            log = path.with_name(path.name + "-wal")
            if log.exists() and log.stat().st_size:
                raise
            # Without its shared memory SQLite reads a logged file only on the promise that nobody writes it.
            connection = unless_sound.enter_context(closing(connect(path, "ro&immutable=1")))
        _refuse_foreign(folder, connection)
        if not digests.has_table(connection, "runs"):
            raise FedGAError(f"there are no results in {str(folder)!r}: its {FILE_NAME} is empty")
        unless_sound.pop_all()  # it stays open
    return connection


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection of its own and one snapshot, so that a slow reader never sees half of a commit."""
    with explained(folder, reading=True), closing(open_for_reading(folder)) as connection, snapshot(connection):
        yield connection


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A results file that may be damaged, to read whatever can be read of it."""
    with suppress(FileNotFoundError):
        require_regular(path)
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    # The store guards it with a lock; its heartbeat is a thread.
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")  # a view of somebody else's calls no function of ours
    return connection


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """What the block reads is of one moment, whoever writes meanwhile; inside a transaction it is so already."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block or nothing of it, alone among writers from the first statement on."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explained(folder: Path, reading: bool = False) -> Iterator[None]:
    """Failures of the file and the disk as one sentence about the output folder.

    A reader's block also runs the code that prints, whose own failures (a closed pipe) are not the folder's.
    """
    try:
        yield
    except FedGAError:
        raise
    except Exception as error:
        of_sqlite = isinstance(error, sqlite3.Error) and any(sign in str(error) for sign in _DAMAGE)
        if of_sqlite or isinstance(error, UnicodeDecodeError):
            raise digests.damaged(folder / FILE_NAME, one_line(error)) from error
        sentence = _explain(folder, error, reading)
        if sentence is None or (reading and not isinstance(error, sqlite3.Error)):
            raise
        raise FedGAError(sentence) from error


def _explain(folder: Path, error: Exception, reading: bool = False) -> str | None:
    """What this failure means to the user; None for one that is not about the folder.

    >>> _explain(Path("out"), OSError(errno.ENOSPC, "No space left on device"))
    "the disk that holds 'out' is full: make room and repeat the command, what was finished is kept"
    """
    text, name, file = str(error), str(folder), str(folder / FILE_NAME)
    number = error.errno if isinstance(error, OSError) else None

    def says(*signs: str) -> bool:
        return any(sign in text for sign in signs)

    if number in (errno.EMFILE, errno.ENFILE) or (says("unable to open database file") and _out_of_descriptors()):
        return "too few files may be open at once: raise the limit (ulimit -n), and give the same command again"
    # Writers outside Python's control (safetensors) put the system's error into a text of their own; "I/O error" is
    # what SQLite says of the first page it cannot write.
    full = number in (errno.ENOSPC, errno.EDQUOT) or says("disk is full", "No space left on device")
    if full or (says("disk I/O error") and folder.is_dir() and shutil.disk_usage(folder).free < 1 << 16):
        return f"the disk that holds {name!r} is full: make room and repeat the command, what was finished is kept"
    unwritable = ("readonly database", "unable to open database file", "Permission denied", "Read-only file system")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) or says(*unwritable):
        if reading:
            return f"the results in {name!r} cannot be read: {text}"
        return f"the output folder {name!r} is not writable: change its permissions or give another --out"
    if isinstance(error, sqlite3.DatabaseError) and says("not a database", "encrypted"):
        return f"{file!r} is damaged or is not a results file ({text}): give another --out"
    if isinstance(error, sqlite3.OperationalError) and says("locked", "busy"):
        return f"another process has kept {file!r} locked for {BUSY_S:g} s: try again later"
    if isinstance(error, (sqlite3.OperationalError, OSError)):
        return f"the output folder {name!r} cannot be used ({text}): give another --out"
    return None


def _out_of_descriptors() -> bool:
    """SQLite says only that it cannot open the file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as refused:
        return refused.errno in (errno.EMFILE, errno.ENFILE)
    return False


def one_line(error: object) -> str:
    """What a library says of a failure, short enough for a sentence."""
    return " ".join(str(error).split())[:160]


def _refuse_foreign(folder: Path, connection: sqlite3.Connection) -> None:
    """A file of somebody else may have views that never end, or triggers, under the names of our tables."""
    kinds: dict[str, str] = dict(connection.execute("SELECT name, type FROM sqlite_master"))
    if not kinds:
        return
    file = folder / FILE_NAME
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise FedGAError(f"{str(file)!r} is a database of another program, or is damaged: give another --out")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version < 1:
        raise digests.damaged(file, f"its format is {version}")
    if version > SCHEMA_VERSION:
        formats = f"format {version}, this one reads {SCHEMA_VERSION}"
        raise FedGAError(f"{str(file)!r} was written by a newer fedga ({formats}): upgrade fedga or give another --out")
    for name, kind in kinds.items():
        if (name in _NAMES and kind != ("view" if name == "results" else "table")) or kind == "trigger":
            raise digests.damaged(file, f"its {quoted(name)} is a {kind}")
    if missing := _ALWAYS - kinds.keys():
        raise digests.damaged(file, f"it has no {', '.join(sorted(missing))}")
    if ("digests" in kinds) != (version > 1):
        raise digests.damaged(file, f"its format is {version}, which does not fit its digests")


def check_structure(folder: Path, connection: sqlite3.Connection) -> None:
    """Refuse to write into a file whose structure is damaged: rows would be lost, or found twice."""
    with closing(connection.execute("PRAGMA integrity_check(1)")) as cursor:
        (found,) = cursor.fetchone()
    if found != "ok":
        raise digests.damaged(folder / FILE_NAME, one_line(found))


def seal_everything(connection: sqlite3.Connection) -> None:
    """Digests for a file that has none, of version 0.1 or made of an archive: what it holds is taken as it is."""
    rows = connection.execute(digests.RUNS_QUERY).fetchall()
    digests.enter(connection, {f"run/{row[0]}": digests.run_digest(row) for row in rows})
    for run, *_ in rows:
        metrics.seal(connection, run)
    clients = connection.execute("SELECT run, round, arrays FROM client_rounds").fetchall()
    digests.seal_client_rounds(connection, clients)
    for table, part in (("partitions", "partition"), ("own_code", "code")):
        digests.seal_rows(connection, part, connection.execute(f"SELECT * FROM {table}").fetchall())


def _set_journal(folder: Path, connection: sqlite3.Connection) -> None:
    wanted = "delete" if is_network_folder(folder) else "wal"
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            with closing(connection.execute(f"PRAGMA journal_mode = {wanted}")) as cursor:
                cursor.fetchone()  # names the mode in force: where the log is not supported, it stays as it was
            return
        except sqlite3.OperationalError as error:
            # Changing the mode does not wait for others by itself; and some file systems fail it outright.
            if "locked" in str(error) and time.monotonic() < deadline:
                time.sleep(0.05)
            elif wanted == "wal" and "disk is full" not in str(error) and "readonly" not in str(error):
                wanted = "delete"
            else:
                raise


def is_network_folder(folder: Path) -> bool:
    """Whether the folder lies on a file system that several machines share (known on Linux only)."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    place = f"{os.path.realpath(folder)}/"
    points = ((point.replace("\\040", " ").rstrip("/") + "/", kind) for _, point, kind, *_ in map(str.split, mounts))
    above = [(len(point), at, kind) for at, (point, kind) in enumerate(points) if place.startswith(point)]
    return max(above, default=(0, 0, ""))[2].startswith(_SHARED_MOUNTS)
