"""Where a page may go."""

from __future__ import annotations

import os
from pathlib import Path

from fedga.errors import FedGAError


def check_target(page: Path) -> None:
    """Refuse a place where no page can go, before anything long is done."""
    if page.is_dir():
        raise FedGAError(f"the page cannot be written to {str(page)!r}, which is a folder: give a file with --out")
    if page.suffix.lower() not in (".html", ".htm"):
        raise FedGAError(f"the page {str(page)!r} must end in .html: give such a file with --out")
    if page.is_file() and not page.read_bytes()[:15].lower().startswith(b"<!doctype html"):
        raise FedGAError(
            f"{str(page)!r} is there and is no page, so it is not overwritten: give another file with --out"
        )
    folder = next(parent for parent in page.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise FedGAError(f"{str(folder)!r} is no folder that may be written to: give another file with --out")
