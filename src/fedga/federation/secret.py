"""Files that only their owner may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedga.errors import FedGAError


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file, in a folder nobody else may enter; one that is there already is never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FedGAError(f"{path} is there already, and keys are never overwritten: choose another folder") from None
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
            f"others may read the private key {path}: it may be known already, so make a new one, or "
            f"chmod 600 {path} if it is not"
        )
