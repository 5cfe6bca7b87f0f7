"""The command line: one module per command, or per few that belong together."""

import errno
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from fedga.cli.console import fail
from fedga.cli.loading import watch_loading
from fedga.cli.usage import UsageError, checked_arguments, usage_sentence
from fedga.errors import FedGAError
from fedga.version import __version__

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
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from as well.")] = False,
) -> None:
    """Options of every command; ``main`` takes ``--traceback`` out first, so that it may stand anywhere."""


# Command -> its module in `fedga.cli.commands` and its function there, or the `app` of a group; in the order of --help.
_HOMES = {
    "run": ("run", "command"),
    "choose": ("choose", "choose"),
    "paper": ("paper", "paper"),
    "tune": ("tune", "tune"),
    "report": ("inspect", "report"),
    "results": ("inspect", "results"),
    "archive": ("inspect", "archive"),
    "unpack": ("inspect", "unpack"),
    "repair": ("inspect", "repair"),
    "evaluate": ("evaluate", "evaluate_model"),
    "predict": ("predict", "predict"),
    "export": ("predict", "export"),
    "diagnose": ("diagnose", "diagnose"),
    "algorithms": ("algorithms", "algorithms"),
    "new": ("new", "app"),
    "data": ("data", "app"),
    "flower": ("flower", "app"),
}


class _Commands(Mapping[str, Any]):
    """The commands by name; the module of one is loaded when that command is asked for."""

    def __getitem__(self, name: str) -> Any:
        if name not in _HOMES:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


@cache
def _command(name: str) -> Any:
    module, attribute = _HOMES[name]
    found = getattr(import_module(f"fedga.cli.commands.{module}"), attribute)
    alone = typer.Typer(add_completion=False, rich_markup_mode=app.rich_markup_mode, callback=lambda: None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name)(found)
    group: Any = get_command(alone)
    return group.commands[name]


@cache
def _program() -> Any:
    program: Any = get_command(app)
    program.commands = _Commands()
    return program


_FILE_ERRORS = {
    errno.ENOSPC: "the disk is full: free some space and give the same command again, it continues",
    errno.EDQUOT: "the disk quota is used up: free some space and give the same command again, it continues",
    errno.EACCES: "permission denied: choose a folder you may write to with --out",
    errno.EROFS: "the file system is read-only: choose another folder with --out",
    errno.EPERM: "the system does not permit it: choose another folder with --out",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n 1024) and give the same command again",
    errno.ENFILE: "too many files are open on this machine: close other programs and give the same command again",
    errno.ENAMETOOLONG: "the name is too long: give a shorter one",
    errno.ENOTDIR: "a part of this path is a file and no folder: give another path",
    errno.EISDIR: "this is a folder where a file is expected: give the file",
    errno.ELOOP: "links lead in a circle here: give the path of the file itself",
}
_NO_THREAD = ("can't start new thread", "Failed to launch worker thread")  # in the words of Python, and of Arrow
_CANNOT_LOAD = ("failed to map segment", "cannot allocate memory", "static TLS block")  # in those of the loader


def main(arguments: Sequence[str] | None = None) -> None:
    """The program ``fedga``.

    Exit codes: 0 done (a diverged run is a result), 1 a bug or a limit that was asked for and passed, 2 bad input,
    130 interrupted, 141 nobody reads any more.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    traceback = "--traceback" in given or bool(os.environ.get("FEDGA_TRACEBACK"))
    given = [argument for argument in given if argument != "--traceback"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # as α on some Windows consoles: a "?" is better than a lost result
            stream.reconfigure(errors="replace")
    watch_loading()
    try:
        code = _invoke(given)
        sys.stdout.flush()  # here, where a closed pipe is still caught
        sys.exit(code)
    except BrokenPipeError:
        _leave_quietly()
    except KeyboardInterrupt:
        _stop_at_once()
    except Exception as error:
        sentence = None if traceback else _sentence(error)
        if sentence is None:
            raise
        fail(sentence)


def _invoke(arguments: list[str]) -> int:
    program = _program()
    arguments = checked_arguments(arguments, program)
    try:
        with program.make_context("fedga", arguments) as context:
            program.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _sentence(error: Exception) -> str | None:
    """What the user should know and do; None for a bug of ours."""
    number = error.errno if isinstance(error, OSError) else None
    more_memory = "close other programs, or raise the limit (ulimit -v)"
    if isinstance(error, FedGAError):
        return str(error)
    if isinstance(error, UsageError):
        return usage_sentence(error)
    if isinstance(error, OSError) and number in _FILE_ERRORS:
        return (f"{str(error.filename)[:200]}: " if error.filename else "") + _FILE_ERRORS[number]
    if any(sign in str(error) for sign in _NO_THREAD):
        return "no further thread can be started: raise the limit (ulimit -u), close other programs or give --threads 1"
    if reason := _why_not_loaded(error):
        return f"too little memory to load PyTorch ({reason}): {more_memory}"
    is_loaded = hasattr(sys.modules.get("torch"), "OutOfMemoryError")
    if isinstance(error, (RuntimeError, MemoryError)) and is_loaded:
        from fedga.engine.stack.budget import is_out_of_memory

        if is_out_of_memory(error):
            return "out of memory, however little is done at once: use a smaller --batch-size, --model or data set"
    return f"out of memory: {more_memory}" if isinstance(error, MemoryError) or number == errno.ENOMEM else None


def _why_not_loaded(error: BaseException | None) -> str:
    """Of an error while a library was loaded, the line about memory; empty for all others."""
    while error is not None:
        lines = str(error).splitlines() if isinstance(error, ImportError | OSError) else []
        for line in lines:
            if any(sign in line for sign in _CANNOT_LOAD):
                return line.strip()[:200]
        error = error.__cause__ or error.__context__
    return ""


def _leave_quietly() -> NoReturn:
    """A reader such as `head` has seen enough: nothing is left to say, and to nobody."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    sys.exit(128 + 13)  # as of a program that SIGPIPE ended


def _stop_at_once() -> NoReturn:
    """What is saved is saved; threads in the middle of a client's training are not waited for."""
    try:
        fail("interrupted", code=130)
    finally:
        if threading.active_count() > 1:
            os._exit(130)
