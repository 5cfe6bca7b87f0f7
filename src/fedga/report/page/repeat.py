"""What it takes to repeat a study: its settings, its data, the versions at work and the commands."""

import dataclasses
import math
import platform
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedga.errors import FedGAError
from fedga.report.documents import Cell, Table
from fedga.report.page.study import Study
from fedga.report.series import setting_text
from fedga.report.tables import values_text
from fedga.spec.grid import build_sweep, parse_list
from fedga.spec.settings import SETTINGS, SITES, RunSpec
from fedga.store.code import stored_code
from fedga.version import __version__

_LISTED = ("dataset", "algorithm", "alpha", "preset", "seed")
_place = attrgetter(*_LISTED)
_PARTS = ((), ("dataset",), ("dataset", "preset"), ("dataset", "preset", "alpha"), ("dataset", "preset", "lr"))

# Given a folder and the name to train into, the commands that the caller knows made runs of it, and the ids of these.
KnownCommands = Callable[[Path, str], tuple[Sequence[str], Iterable[str]]]


@dataclass(frozen=True)
class Repeat:
    """How to train it again; ``strays`` are runs that no command covers, ``code`` is the user's own."""

    settings: Table
    data: Table
    versions: Mapping[str, str]
    commands: tuple[str, ...]
    strays: int
    code: tuple[str, ...]


def repeat(study: Study, known: KnownCommands | None = None) -> Repeat:
    """How to train the runs of a study again; ``known`` are commands other than ``fedga run``."""
    specs = [run.spec for run in study.runs]
    commands, strays = _commands(study, specs, known)
    code = tuple(f"{one}, which {one.fate}" if one.fate else str(one) for one in stored_code(study.folder))
    versions = {"fedga": __version__, "Python": platform.python_version()}
    versions |= {"PyTorch": torch.__version__, "NumPy": np.__version__}
    return Repeat(_settings_table(specs), _data_table(study), versions, tuple(commands), strays, code)


def _data_table(study: Study) -> Table:
    found = Counter((run.spec.dataset, run.fingerprint.partition("+")[0]) for run in study.runs)
    rows = tuple(
        (Cell(study.labels[dataset]), Cell(dataset), Cell(fingerprint), Cell(f"{number:,}", float(number)))
        for (dataset, fingerprint), number in found.items()
    )
    caption = "The fingerprint is a hash of the samples and labels that were read: equal data have equal ones."
    return Table("data", "Data", ("data set", "given as", "fingerprint", "runs"), rows, caption)


def _settings_table(specs: Sequence[RunSpec]) -> Table:
    rows = []
    for name in (field.name for field in dataclasses.fields(RunSpec)):
        values = _values(specs, name)
        text = setting_text(values[0]) if len(values) == 1 else values_text(values).replace(",", ", ")
        kind = "all runs" if len(values) == 1 else f"{len(values)} values"
        meaning = SETTINGS[name].help if name in SETTINGS else "options of the algorithms"
        rows.append((Cell(name), Cell(text or "–"), Cell(kind), Cell(meaning)))
    caption = "Together with the data these settings determine every number; a run is named by a hash of its own."
    return Table("settings", "Settings", ("setting", "value", "varies", "what it is"), tuple(rows), caption)


def _commands(study: Study, specs: Sequence[RunSpec], known: KnownCommands | None) -> tuple[list[str], int]:
    """Commands that train exactly these runs, each proved by building its grid; and how many runs are left over."""
    given, covered = known(study.folder, study.again) if known else ((), ())
    commands, done = list(given), set(covered)
    left = [spec for spec in specs if spec.run_id not in done and not spec.dataset.startswith(SITES)]
    if any(spec.dataset.startswith(SITES) for spec in specs):
        commands.append("fedga flower serve DIR  # the folder of the federation's server, while its sites take part")
    for parts in _PARTS:
        if not left:
            break
        groups: dict[tuple[Any, ...], list[RunSpec]] = {}
        for spec in left:
            groups.setdefault(tuple(getattr(spec, part) for part in parts), []).append(spec)
        made = {key: run_command(group, study.again) for key, group in groups.items()}
        if parts is _PARTS[-1] or all(made.values()):
            commands += [command for command in made.values() if command]
            left = [spec for key, group in groups.items() if not made[key] for spec in group]
    return commands, len(left)


def run_command(specs: Sequence[RunSpec], called: str = "") -> str:
    """The `fedga run` that makes exactly these runs, in a folder ``called`` so; empty where no single one does."""
    flags = {name: values for name in _LISTED if (values := _values(specs, name)) not in ([""], [None])}
    others = {name: _values(specs, name) for name in ("partition", "client_column", "label_column")}
    flags |= {name: values for name, values in others.items() if values != [SETTINGS[name].default]}
    wanted = {spec.run_id for spec in specs}
    for _ in range(2):
        runs = _grid(flags, len(specs))
        if {run.run_id for run in runs} == wanted:
            words = [word for name, values in flags.items() for word in (SETTINGS[name].flag, _flag_text(name, values))]
            return shlex.join(["fedga", "run", *words, *(["--out", called] if called else [])])
        by_place = {_place(run): run for run in runs}
        for spec in specs:
            made = by_place.get(_place(spec))
            for name in SETTINGS:
                if made is not None and name not in flags and getattr(made, name) != getattr(spec, name):
                    flags[name] = _values(specs, name)
    return ""


def _values(specs: Iterable[RunSpec], name: str) -> list[Any]:
    values = list(dict.fromkeys(getattr(spec, name) for spec in specs))
    given = [value for value in values if value is not None]
    numbers = all(isinstance(value, (int, float)) for value in given)
    return [None] * (len(given) < len(values)) + sorted(given, key=None if numbers else str)


def _flag_text(name: str, values: Sequence[Any]) -> str:
    """A comma list that is read back as the same values: as short as it can be, in full where digits would be lost."""
    text = values_text(values)
    return text if parse_list(name, text) == values else ",".join(str(value) for value in values)


def _grid(flags: Mapping[str, list[Any]], number: int) -> Sequence[RunSpec]:
    """The runs of these flags as a user would type them; none where they cannot be typed or are far too many."""
    if math.prod(len(values) for values in flags.values()) > 4 * number + 100:
        return ()
    try:
        return build_sweep({name: parse_list(name, _flag_text(name, values)) for name, values in flags.items()}).runs
    except FedGAError:
        return ()
