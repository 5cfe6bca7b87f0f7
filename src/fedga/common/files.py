"""Files that are there whole or not at all, and files of others that are opened only if they are files."""

import io
import os
import re
import secrets
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from fedga.common.owner import Owner
from fedga.errors import FedGAError

_PARTIAL = re.compile(r"\..*\.(?P<owner>[\w-]+\.\d+\.\d*)\.[0-9a-f]{8}\.tmp", re.DOTALL)
_MOST_TEXT = 64 << 20  # bytes
_ORPHAN_AGE_S = 86_400.0  # a stray file of a process on another machine is left alone for this long

_KINDS = {
    **{stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"},
    **{stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"},
}


def write_whole(path: Path, content: str | bytes, *, synced: bool = False) -> Path:
    """Write a file, with the folders it is in, so that nobody ever reads half of it; text as UTF-8, line ends as given.

    It is written under a name of this process beside its place, and then moved there: a kill leaves the file that was
    there before. One that is ``synced`` is whole after a power cut too, and there to stay after `sync_folder`.
    """
    partial = partial_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        if synced:
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def sync_folder(folder: Path) -> None:
    """A renamed file survives a power cut only once its folder is on disk too (there is no such call on Windows)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def partial_name(path: Path) -> Path:
    """Where to write what is to be moved to ``path`` at the end; its name says which process writes it."""
    return path.with_name(f".{path.name[:100]}.{Owner.this_process()}.{secrets.token_hex(4)}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Remove what writers that were killed left half-written in a folder: files, and whole folders."""
    for path in leftovers(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def leftovers(folder: Path, names: re.Pattern[str] = _PARTIAL) -> list[Path]:
    """Files in a folder whose writer is gone: half-written ones of `write_whole`, or others whose ``names`` say it."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := names.fullmatch(path.name):
            alive = Owner.parse(match["owner"]).alive()
            with suppress(FileNotFoundError):
                if alive is False or (alive is None and time.time() - path.stat().st_mtime > _ORPHAN_AGE_S):
                    found.append(path)
    return found


def require_regular(path: Path | str, *, links: bool = True) -> os.stat_result:
    """Refuse a pipe, a device, a socket or a folder in the place of a file, before anybody waits for its end.

    Libraries that open a path themselves are given it after this. ``links=False`` refuses links as well, where the
    content would be copied to somebody else. A path where nothing is raises ``FileNotFoundError``.
    """
    return _checked(path, os.stat(path, follow_symlinks=links))


def _checked(path: Path | str, status: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
        raise FedGAError(f"{path} is {kind}, where a plain file is expected: put a copy of the file there")
    return status


def open_regular(path: Path | str) -> io.BufferedReader:
    """A file to read bytes from; unlike ``open``, it never waits at a pipe and never reads a device without end."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        _checked(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(path: Path | str) -> str:
    """The text of a file that people write by hand, in UTF-8; one that is far too long for that is refused."""
    with open_regular(path) as file:
        content = file.read(_MOST_TEXT + 1)
    if len(content) > _MOST_TEXT:
        raise FedGAError(f"{path} has more than {_MOST_TEXT >> 20} MiB, too much for such a file: is it another one?")
    return content.decode("utf-8")
