"""Where in a plugin an error came from."""

import os
import traceback
from collections.abc import Collection
from pathlib import Path


def format_error(error: BaseException, path: Path | None = None) -> str:
    """An error of a plugin, with the line of its file that it came from."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} of {Path(error.filename or '').name} is not Python ({error.msg}): correct it"
    words = f"{type(error).__name__}: {' '.join(str(error).split())[:200].rstrip('.')}"
    line = line_of(error, path) if path else ""
    hint = ": write @dataclass(frozen=True)" if "non-frozen dataclass" in words else ""
    return f"{line} raised {words}{hint}" if line else words + hint


def line_of(error: BaseException, *paths: Path) -> str:
    """The line of these files that an error came through last; empty where it never came there."""
    return line_among(traceback.extract_tb(error.__traceback__), paths)


def line_among(frames: traceback.StackSummary, paths: Collection[Path]) -> str:
    """The innermost line of these files; empty where there is none."""
    found = [frame for frame in frames if Path(frame.filename) in paths]
    return f"line {found[-1].lineno} of {found[-1].filename.rpartition(os.sep)[2]}" if found else ""
