"""What `fedga`, `pip`, `make` and Flower's programs are where a block is checked instead of run.

Each reads its arguments as the real program does, down to the values of `fedga run`, and then does nothing.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def fedga(arguments: list[str]) -> None:
    from fedga.cli import _program, main

    idle(_program())
    _program().commands["run"].callback = only_settings
    main(arguments)


def idle(command: Any) -> None:
    """The command, and those below it, read what they are given and do nothing."""
    command.callback = lambda **_: None
    for below in getattr(command, "commands", {}).values():
        idle(below)


def only_settings(**values: Any) -> None:
    """Of `fedga run`, what comes before the data are read."""
    from fedga.spec.grid import build_sweep, parse_list
    from fedga.spec.settings import SETTINGS

    given = {name: parse_list(name, values[name]) for name in SETTINGS if values[name] is not None}
    build_sweep(given, values["config"])


def flwr(arguments: list[str]) -> None:
    from flwr.cli.app import app
    from typer.main import get_command

    program = get_command(app)
    idle(program)
    program(arguments)


def flower_superlink(arguments: list[str]) -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    _parse_args_run_superlink().parse_args(arguments)


def flower_supernode(arguments: list[str]) -> None:
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    _parse_args_run_supernode().parse_args(arguments)


def make(targets: list[str]) -> None:
    known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    if unknown := set(targets) - set(known):
        sys.exit(f"make: no target {', '.join(unknown)} among {', '.join(known)}")


def pip(arguments: list[str]) -> None:
    command, *wanted = arguments
    if command != "install" or any(word.startswith("-") for word in wanted):
        sys.exit(f"pip: only `pip install REQUIREMENT…` is understood here, not {' '.join(arguments)}")
    for text in wanted:
        require(Requirement(re.sub(r"^\.", "fedga", text)))


def require(requirement: Requirement) -> None:
    """Refuse what is not installed, and an extra of ours that there is not."""
    if requirement.name != "fedga":
        installed = version(requirement.name)
        if not requirement.specifier.contains(installed, prereleases=True):
            sys.exit(f"pip: {requirement} is wanted, {installed} is installed")
        return
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in requirement.extras:
        if extra not in extras:
            sys.exit(f"pip: fedga has no extra {extra}, but {', '.join(extras)}")
        for below in extras[extra]:
            require(Requirement(below))


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "fedga": fedga,
    "flower-superlink": flower_superlink,
    "flower-supernode": flower_supernode,
    "flwr": flwr,
    "make": make,
    "pip": pip,
}

if __name__ == "__main__":
    sys.path[0] = ""
    PROGRAMS[sys.argv[1]](sys.argv[2:])
