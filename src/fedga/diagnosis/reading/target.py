"""Where a page may go."""

from __future__ import annotations

import os
from pathlib import Path

from fedga.errors import FedGAError

_BEGINNINGS = {  # of the files beside a page, by which they are known again
    "numbers.json": b'{\n "format": "fedga-diagnosis-',
    "classes.csv": b"class,trained_on,samples,",
    "sites.csv": b"site,samples,accuracy,",
    "cells.csv": b"site,class,trained_on,",
}


def beside(page: Path) -> dict[str, Path]:
    """The files that may lie beside a page, by what they hold."""
    return {ending: page.with_name(f"{page.stem}-{ending}") for ending in _BEGINNINGS}


def check_target(page: Path) -> None:
    """Refuse a place where no page can go, or where files of others lie, before anything long is done."""
    try:
        _check_page(page)
        for ending, path in beside(page).items():
            if path.exists() and not _begins(path, _BEGINNINGS[ending]):
                raise FedGAError(
                    f"{str(path)!r} is there and was not written by fedga diagnose, so it is not overwritten: give "
                    "another file with --out"
                )
    except OSError as error:  # a name too long, a folder that may not be looked into
        reason = error.strerror or error
        raise FedGAError(f"{str(page)!r} cannot be written ({reason}): give another file with --out") from error


def _begins(path: Path, beginning: bytes) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(beginning)).lower() == beginning


def _check_page(page: Path) -> None:
    if page.is_dir():
        raise FedGAError(f"the page cannot be written to {str(page)!r}, which is a folder: give a file with --out")
    if page.suffix.lower() not in (".html", ".htm"):
        raise FedGAError(f"the page {str(page)!r} must end in .html: give such a file with --out")
    if page.is_file() and not _begins(page, b"<!doctype html"):
        raise FedGAError(
            f"{str(page)!r} is there and is no page, so it is not overwritten: give another file with --out"
        )
    folder = next(parent for parent in page.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise FedGAError(f"{str(folder)!r} is no folder that may be written to: give another file with --out")
