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
        problem = _problem(page)
    except OSError as error:  # a name too long, a folder that may not be looked into
        problem = f"{str(page)!r} cannot be written ({error.strerror or error})"
    if problem:
        raise FedGAError(f"{problem}: give another file with --out")


def _problem(page: Path) -> str:
    if page.is_dir():
        return f"the page cannot be written to {str(page)!r}, which is a folder"
    if page.suffix.lower() not in (".html", ".htm"):
        return f"the page {str(page)!r} must end in .html"
    begin = {page: b"<!doctype html"} | dict(zip(beside(page).values(), _BEGINNINGS.values(), strict=True))
    for path, beginning in begin.items():
        if path.exists() and not _begins(path, beginning):
            return f"{str(path)!r} is there and was not written by fedga diagnose, so it is not overwritten"
    folder = next(parent for parent in page.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return f"{str(folder)!r} is no folder that may be written to"
    return ""


def _begins(path: Path, beginning: bytes) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(beginning)).lower() == beginning
