"""Files that only their owner may read, and small files that others have sent."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedga.common.files import open_regular
from fedga.errors import FedGAError

_LONGEST = 100_000  # bytes; keys and certificates have about a thousand


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file, in a folder nobody else may enter; an existing one is never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FedGAError(f"{path} exists, and keys are never overwritten: choose another folder") from None
    with os.fdopen(file, "wb") as out:
        os.fchmod(out.fileno(), 0o600)  # whatever the umask
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def check_secret(path: Path, made_by: str) -> None:
    """Refuse a key that is missing or that others may read; ``made_by`` is the command that makes it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise FedGAError(f"{path} is missing: {made_by} makes it") from None
    if mode & 0o077:
        raise FedGAError(
            f"others may read the private key {path}: make a new one, or chmod 600 {path} if nobody has read it"
        )


def read_received(path: Path, wanted: str) -> bytes:
    """A small file that somebody sent; ``wanted`` says which one to give instead if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(_LONGEST)
    except OSError as error:
        raise FedGAError(f"{path} cannot be read ({error.strerror}): give {wanted}") from None
