"""Text for Flower's programs, and text of theirs: settings as TOML, what they print without a terminal's colours."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from fedga.errors import FedGAError, quoted

Value = str | int | float | bool

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def as_toml(values: Mapping[str, Value]) -> str:
    """Keys and values as lines of TOML.

    >>> as_toml({"lr": 0.1, "test": True, "out": "my results"})
    'lr = 0.1\\ntest = true\\nout = "my results"\\n'
    """
    import tomli_w  # comes with Flower

    return tomli_w.dumps(dict(values))


def split_names(text: str, flag: str, least: int = 1) -> list[str]:
    """The names in a comma list, each once."""
    names = [name.strip() for name in text.split(",")]
    twice = [name for name in names if names.count(name) > 1]
    wrong = "has an empty name" if "" in names else f"has {quoted(twice[0])} twice" if twice else ""
    if wrong or len(names) < least:
        raise FedGAError(f"{flag} {quoted(text)} {wrong or 'is a single name'}: write all, each once, as a,b,c")
    return names


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
