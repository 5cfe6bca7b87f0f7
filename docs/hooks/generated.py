"""The pages that the program writes about itself: its commands, and the settings of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedga.cli import _program
from fedga.cli.commands.run import NAMES, PANELS
from fedga.spec.kinds import OneOf
from fedga.spec.presets import OTHERS, OWN_DATA, PAPER, PRESETS, STRONG, _paper_table
from fedga.spec.settings import SETTINGS


def pages() -> dict[str, str]:
    """Name and text of each."""
    return {
        "reference/command-line.md": "\n".join(_command_line()),
        "reference/settings.md": "\n".join(_settings()),
    }


# --- commands --------------------------------------------------------------------------------------------------------


def _command_line() -> Iterator[str]:
    yield "# Command line\n"
    yield "This page is written by the program itself when the site is built; `fedga COMMAND --help` says the same."
    yield (
        "\nExit codes: 0 done, 1 a bug or above `--fail-above`, 2 bad input, 130 interrupted, 141 nobody reads the "
        "output any more.\n"
    )
    yield from _command(_program(), "fedga")


def _command(command: Any, path: str) -> Iterator[str]:
    below = getattr(command, "commands", {})
    options = [option for option in command.params if option.param_type_name == "option" and not option.hidden]
    arguments = [argument for argument in command.params if argument.param_type_name == "argument"]
    yield f"## `{path}`\n\n{command.help or ''}\n"
    if not below:
        words = [path, *(argument.make_metavar(None) for argument in arguments), *(["[OPTIONS]"] if options else [])]
        yield f"```text\n{' '.join(words)}\n```\n"
    rows = [(f"`{argument.make_metavar(None)}`", argument.help or "") for argument in arguments]
    if rows:
        yield from _table(("argument", ""), rows)
    for panel in dict.fromkeys(getattr(option, "rich_help_panel", None) for option in options):
        listed = [option for option in options if getattr(option, "rich_help_panel", None) == panel]
        yield from _table((panel or "option", ""), [(_spelled(option), _meaning(option)) for option in listed])
    if below:
        yield from _table(("command", ""), [(_to(f"{path} {name}"), _first(sub)) for name, sub in below.items()])
    for name, sub in below.items():
        yield from _command(sub, f"{path} {name}")


def _spelled(option: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    return flags if option.is_flag else f"{flags} `{option.metavar or option.type.name.upper()}`"


def _meaning(option: Any) -> str:
    text = option.help or ""
    if option.required:
        return f"{text} **Required.**"
    shown = option.show_default and not option.is_flag and option.default not in (None, (), [])
    return f"{text} Default: `{option.default}`." if shown else text


def _to(path: str) -> str:
    return f"[`{path}`](#{path.replace(' ', '-')})"


def _first(command: Any) -> str:
    return (command.help or "").partition("\n\n")[0].replace("\n", " ")


# --- settings --------------------------------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    yield "# Settings of a run\n"
    yield (
        "Everything that determines the numbers of a run. The name is the key in a TOML file (`fedga run --config`), "
        "the column of `fedga results` and the field of `RunSpec`; its flag is the name with hyphens (the flag of "
        "`seed` is `--seeds`). Every flag takes a comma list, and lists make a grid. This page is written by the "
        "program when the site is built.\n"
    )
    for panel, names in PANELS.items():
        yield f"## {panel}\n"
        rows = [(f"`{name}`", SETTINGS[name].help, _allowed(name), _value(SETTINGS[name].default)) for name in names]
        yield from _table(("name", "", "values", "default"), rows)
    yield from _presets()


def _allowed(name: str) -> str:
    kind = SETTINGS[name].kind
    known: Sequence[str] = NAMES.get(name) or (kind.names if isinstance(kind, OneOf) else ())
    return ", ".join(f"`{word}`" for word in known) or str(kind)


def _presets() -> Iterator[str]:
    yield "## Presets\n"
    yield (
        f"`--preset` names a set of settings: {' or '.join(f'`{name}`' for name in PRESETS)}. Without one, a run takes "
        "those of `paper`. A flag or a TOML file wins over a preset.\n"
    )
    names = list(dict.fromkeys([*PAPER, *STRONG]))
    rows = [
        (f"`{name}`", _value(PAPER.get(name, "by data set")), _value({**PAPER, **STRONG}.get(name))) for name in names
    ]
    yield from _table(("setting", "`paper`", "`strong`"), rows)
    yield "Model, rounds and rate by data set and α:\n"
    per_data = [
        (dataset, f"{alpha:g}", cell["model"], cell["rounds"], f"{cell['lr']:g}")
        for dataset, table in _paper_table().items()
        for alpha, cell in table.items()
    ]
    yield from _table(("data set", "α", "model", "rounds", "rate"), per_data)
    others = {f"`{name}`": values for name, values in OTHERS.items()} | {"Data of your own": OWN_DATA}
    for dataset, values in others.items():
        listed = ", ".join(f"`{name}` {_value(value)}" for name, value in values.items())
        yield f"{dataset}, at every α: {listed}.\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""
