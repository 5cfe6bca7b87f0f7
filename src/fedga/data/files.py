"""Small helpers that every reader shares."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedga.errors import FedGAError, needs_extra

Progress = Callable[[str, int, int], None]  # what is being done, how many are done, out of how many


def optional(module: str, package: str, purpose: str) -> Any:
    """Import ``module`` now that it is needed; without ``package``, say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise needs_extra(package, "data", purpose) from error


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turn whatever a parser raises on a damaged file into one sentence that names the file.

    Parsers of damaged input raise anything from EOFError to IndexError, so this is deliberately wide; it wraps the
    parser's call and nothing else.
    """
    try:
        yield
    except (FedGAError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise FedGAError(f"{path} does not exist: check the path") from error
    except PermissionError as error:
        raise FedGAError(f"{path} may not be read: check its permissions") from error
    except Exception as error:
        detail = " ".join(str(error).split())[:160] or type(error).__name__
        raise FedGAError(f"{path} is not {what}, or is damaged ({detail}): replace it by an intact copy") from error
