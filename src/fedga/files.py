"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file, with the folders it is in, so that nobody ever reads half of it; text as UTF-8, line ends as given.

    It is written under a name of this process beside its place, and then moved there: whoever is killed on the way
    leaves the file that was there before. An ``OSError`` is the caller's to put into words.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
