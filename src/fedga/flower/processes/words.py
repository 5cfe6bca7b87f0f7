"""Text for Flower's programs, and text of theirs: settings as TOML, what they print without a terminal's colours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

Value = str | int | float | bool

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def as_toml(values: Mapping[str, Value]) -> str:
    """Keys and values as lines of TOML.

    >>> print(as_toml({"rounds": 3, "lr": 0.1, "test": True, "out": "my results"}), end="")
    rounds = 3
    lr = 0.1
    test = true
    out = "my results"
    """
    import tomli_w  # comes with Flower

    return tomli_w.dumps(dict(values))


def plain(text: str) -> str:
    """Without the colours of a terminal."""
    return _COLOURS.sub("", text)


def last_words(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in plain(text).splitlines() if line.strip(" \t│╰╯╭╮─")]
    return lines[-1] if lines else ""


def tail(path: Path) -> str:
    """The end of a file, as far as it can be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        return file.read().decode("utf-8", errors="replace")
    return ""
