"""Paths that a user gave, checked before anything is loaded."""

import os
from collections.abc import Iterable
from pathlib import Path

from fedga.errors import FedGAError, quoted
from fedga.spec.catalog import find_source


def check_data_dir(folder: Path | None, where: str = "--data-dir") -> Path | None:
    """The folder with the data files, if it is one; None where none was given.

    >>> check_data_dir(Path("nowhere"))
    Traceback (most recent call last):
        ...
    fedga.errors.FedGAError: the folder of --data-dir does not exist: 'nowhere'
    """
    if folder is None:
        return None
    folder = folder.expanduser()
    if not folder.exists():
        raise FedGAError(f"the folder of {where} does not exist: {quoted(folder, most=200)}")
    if not folder.is_dir():
        raise FedGAError(f"{where} {quoted(folder, most=200)} is a file: give the folder that it lies in")
    return folder


def check_data_variable(datasets: Iterable[str]) -> None:
    """The folder of FEDGA_DATA, where one of these data sets is looked for in it: the digits come with scikit-learn."""
    written = os.environ.get("FEDGA_DATA")
    sources = [find_source(name) for name in datasets]
    if written and any(source is not None and source.files for source in sources):
        check_data_dir(Path(written), "the variable FEDGA_DATA")
