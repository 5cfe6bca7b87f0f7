"""Small helpers that every reader shares."""

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedga.common.files import open_regular
from fedga.common.memory import require_memory
from fedga.errors import FedGAError, needs_extra

FEWER_SAMPLES = "give fewer samples, or use a machine with more memory"
Progress = Callable[[str, int, int], None]  # what is being done, how many are done, out of how many


def optional(module: str, package: str, purpose: str) -> Any:
    """Import ``module`` now that it is needed; without ``package``, say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise needs_extra(package, "data", purpose) from error


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turn whatever a parser raises on a damaged file, which may be anything, into one sentence that names the file."""
    try:
        with within_memory(path):
            yield
    except FedGAError:
        raise
    except FileNotFoundError as error:
        raise FedGAError(f"{path} does not exist: check the path") from error
    except PermissionError as error:
        raise FedGAError(f"{path} may not be read: check its permissions") from error
    except Exception as error:
        detail = " ".join(str(error).split())[:160] or type(error).__name__
        raise FedGAError(f"{path} is not {what}, or is damaged ({detail}): replace it by an intact copy") from error


def guarded(path: Path, what: str, values: Iterator[Any]) -> Iterator[Any]:
    """The values of a parser's iterator, each taken inside `reading`."""
    while True:
        with reading(path, what):
            value = next(values, None)
        if value is None:
            return
        yield value


@contextmanager
def within_memory(what: Path | str) -> Iterator[None]:
    """Where memory ends although nothing promised it would, name the file that it was needed for."""
    try:
        yield
    except MemoryError as error:
        raise FedGAError(f"{what} does not fit into the memory that is free here: {FEWER_SAMPLES}") from error


def read_whole(path: Path, what: str) -> bytes:
    """The bytes of a file that is a file and fits into memory; ``what`` it should be is said where it is not."""
    with reading(path, what), open_regular(path) as file:
        require_memory(os.fstat(file.fileno()).st_size, str(path), f"replace it by {what}")
        return file.read()
