"""Arguments as they were typed: spellings, what is given twice or empty or is no folder, mistakes in one sentence."""

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from fedga.errors import FedGAError, quoted

# Of its parser's errors typer names this one in public. Its base class is what every misuse of the command line raises,
# whether typer brings the parser along, as it does now, or takes it from the package click, as it did.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# One setting, one flag; a command takes all spellings of it and shows its own.
_SPELLINGS = (
    ("--dataset", "--datasets", "--data"),
    ("--seeds", "--seed"),
    ("--alpha", "--alphas"),
    ("--algorithm", "--algorithms"),
    ("--class-counts", "--prior"),
)
_SWITCHES = {"--standardize": "true", "--centralize": "true", "--adjust": "1"}  # and what each means without a value


_NO_VALUE = re.compile(r"-(?![.\d])|.*\.[A-Za-z]+$")  # the next flag, or a file


def checked_arguments(arguments: Sequence[str], program: Any) -> list[str]:
    """The arguments in the spelling of their command; what is given twice or is empty is refused."""
    spelled = _with_bare_switches(_own_spelling(arguments, program))
    options = [argument.partition("=")[0] for argument in spelled if argument.startswith("--")]
    for option in options:  # the parser would keep the last of two and say nothing
        if f"--no-{option[2:]}" in options:
            raise FedGAError(f"{option} and --no-{option[2:]} are both given: give one of them")
        if options.count(option) > 1:
            several = "'A;B'" if option == "--augment" else "A,B"
            raise FedGAError(f"{option} is given twice: give it once, with a list such as {option} {several}")
    for before, argument in zip(("", *spelled), spelled, strict=False):
        if not argument and before != "--preset":  # which may be none; elsewhere it is an unset variable in a script
            what = f"the value of {before}" if before.startswith("--") else "an argument"
            raise FedGAError(f"{what} is empty: give one, or leave it out")
    return spelled


def _own_spelling(arguments: Sequence[str], command: Any) -> list[str]:
    for argument in arguments:
        command = getattr(command, "commands", {}).get(argument, command)
    own = {flag: option.opts[0] for option in command.params for flag in option.opts if flag.startswith("--")}
    for names in _SPELLINGS:
        flag = next((own[name] for name in names if name in own), None)
        own |= {name: flag for name in names if flag and name not in own}
    split = (argument.split("=", 1) for argument in arguments)
    return ["=".join([own.get(flag, flag), *value]) for flag, *value in split]


def _with_bare_switches(arguments: Sequence[str]) -> list[str]:
    """``--standardize`` alone means true, ``--no-standardize`` false; with a value it is taken as written."""
    negated = {f"--no-{flag[2:]}": flag for flag, alone in _SWITCHES.items() if alone == "true"}
    spelled: list[str] = []
    for argument, following in zip(arguments, (*arguments[1:], "--"), strict=False):
        if argument in negated:
            spelled += [negated[argument], "false"]
        elif argument in _SWITCHES and _NO_VALUE.match(following):
            spelled += [argument, _SWITCHES[argument]]
        else:
            spelled.append(argument)
    return spelled


def usage_sentence(error: Exception) -> str:
    """The sentence for a `UsageError`; empty where the help text has been printed already."""
    context = getattr(error, "ctx", None)
    help_text = f"see '{context.command_path if context else 'fedga'} --help'"
    unknown = getattr(error, "option_name", None)
    if unknown is not None and hasattr(error, "possibilities"):
        names = [name for option in context.command.params for name in option.opts] if context else []
        near = difflib.get_close_matches(unknown, names, n=1)
        return f"unknown option {unknown}: " + (f"did you mean {near[0]}? ({help_text})" if near else help_text)
    text = error.format_message().strip().replace(". Did you mean", ": did you mean")  # type: ignore[attr-defined]
    if not text:
        return ""
    text, _, again = text.partition("? Did you mean")  # typer and its parser both say it
    text += "?" if again else ""
    text = text[0].lower() + text[1:].rstrip(".")
    return f"{text} ({help_text})" if text.endswith("?") else f"{text}: {help_text}"


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
    from fedga.spec.catalog import find_source

    written = os.environ.get("FEDGA_DATA")
    sources = [find_source(name) for name in datasets]
    if written and any(source is not None and source.files for source in sources):
        check_data_dir(Path(written), "the variable FEDGA_DATA")
