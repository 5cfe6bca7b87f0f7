"""Checkpoint files of a results folder: whole or absent, and cleared away when nobody needs them.

A file is written under another name, forced to disk and renamed; only then may the results file refer to it. Its name
says which process wrote it, so that the leftovers of a killed one are known from the files of a live one.
"""

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from fedga.common.files import sync_folder
from fedga.common.owner import Owner

CHECKPOINT_NAME = re.compile(r"(?:tmp-)?group-\d+\.round-\d+\.(?P<owner>[\w-]+\.\d+\.\d*)\.[0-9a-f]+\.safetensors")


def write_checkpoint(folder: Path, owner: Owner, group_id: int, at: int, write: Callable[[Path], None]) -> Path:
    """The file that ``write`` fills after round ``at``, complete and on disk under a name never used before."""
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
    final = folder / f"group-{group_id:04d}.round-{at:06d}.{owner}.{secrets.token_hex(4)}.safetensors"
    partial = final.with_name(f"tmp-{final.name}")
    try:
        write(partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(folder)
    return final


def is_checkpoint_name(name: object) -> bool:
    """Whether `write_checkpoint` may have called a file so: what stands in a results file must not lead elsewhere."""
    return isinstance(name, str) and CHECKPOINT_NAME.fullmatch(name) is not None and not name.startswith("tmp-")
