"""The command line: `fedga run`, `results`, `evaluate`, `algorithms` and `data`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from fedga import __version__
from fedga.cli.console import fail
from fedga.errors import FedGAError

app = typer.Typer(
    name="fedga",
    help="Federated learning when clients hold skewed, partly missing classes.\n\n"
    "Start with `fedga run`: it needs no arguments, no download and a few seconds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fedga {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the command."""


def _register() -> None:
    """Commands live in modules of their own, loaded here once so that ``fedga --help`` knows them all."""
    from fedga.cli import data, inspect, run

    app.command("run")(run.command)
    app.command("results")(inspect.results)
    app.command("evaluate")(inspect.evaluate_model)
    app.command("algorithms")(inspect.algorithms)
    app.add_typer(data.app, name="data")


def _with_bare_switches(arguments: Sequence[str]) -> list[str]:
    """``--standardize`` alone means true, ``--no-standardize`` false; with a value it is taken as written."""
    spelled = []
    for position, argument in enumerate(arguments):
        following = arguments[position + 1] if position + 1 < len(arguments) else "--"
        if argument == "--no-standardize":
            spelled += ["--standardize", "false"]
        elif argument == "--standardize" and following.startswith("-"):
            spelled += ["--standardize", "true"]
        else:
            spelled.append(argument)
    return spelled


_FILE_TROUBLES = {
    errno.ENOSPC: "the disk is full: free some space and give the same command again, it continues",
    errno.EDQUOT: "the disk quota is used up: free some space and give the same command again, it continues",
    errno.EACCES: "permission denied: choose a folder you may write to with --out",
    errno.EROFS: "the file system is read-only: choose another folder with --out",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The program ``fedga``. Exit codes: 0 done, 1 a run diverged or a bug, 2 bad input, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    traceback = "--traceback" in given or bool(os.environ.get("FEDGA_TRACEBACK"))
    given = [argument for argument in given if argument != "--traceback"]
    try:
        _register()
        app(_with_bare_switches(given))
    except FedGAError as error:
        if traceback:
            raise
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted", code=130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # a reader such as `head` has seen enough
    except OSError as error:
        if traceback or error.errno not in _FILE_TROUBLES:
            raise
        where = f"{error.filename}: " if error.filename else ""
        fail(where + _FILE_TROUBLES[error.errno])
