"""Where text goes: results to standard output, everything said to the user to standard error."""

import sys
from typing import NoReturn

from rich.console import Console
from rich.text import Text


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Where nobody reads any more, `main` ends the program as it should; rich alone would exit with code 1."""
        raise BrokenPipeError


out = _Console(highlight=False)
err = _Console(stderr=True, highlight=False)


def fail(sentence: str, code: int = 2) -> NoReturn:
    """One sentence and an exit code."""
    if sentence:
        err.print(Text.assemble(("fedga:", "bold red"), " ", sentence), soft_wrap=True)
    sys.exit(code)


def say(sentence: str) -> None:
    """A sentence as it is: what a user wrote may look like markup and is none."""
    err.print(Text(sentence), soft_wrap=True)
