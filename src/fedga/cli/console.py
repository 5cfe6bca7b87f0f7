"""Where text goes: results to standard output, everything said to the user to standard error."""

from __future__ import annotations

import sys
from typing import NoReturn

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def fail(sentence: str, code: int = 2) -> NoReturn:
    """One sentence and an exit code."""
    err.print(f"[bold red]fedga:[/] {_escape(sentence)}", soft_wrap=True)
    sys.exit(code)


def say(sentence: str) -> None:
    err.print(_escape(sentence), soft_wrap=True)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
