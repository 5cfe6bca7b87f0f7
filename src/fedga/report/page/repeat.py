"""What it takes to repeat a study: its settings, its data, the versions at work and the commands."""

from __future__ import annotations

import dataclasses
import math
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedga.errors import FedGAError
from fedga.paper.runs import EXPERIMENTS, Scope, all_runs, asked
from fedga.report.documents import Cell, Table
from fedga.report.page.study import Study
from fedga.report.series import setting_text
from fedga.report.tables import values_text
from fedga.spec.grid import build_sweep, parse_list
from fedga.spec.settings import SETTINGS, SITES, RunSpec
from fedga.store.code import stored_code
from fedga.version import __version__

# What a varying setting may depend on, the simplest first.
_REASONS = (
    ("preset",),
    ("dataset",),
    ("algorithm",),
    ("dataset", "preset"),
    ("dataset", "alpha"),
    ("dataset", "algorithm"),
    ("dataset", "alpha", "preset"),
)
_LISTED = ("dataset", "algorithm", "alpha", "preset", "seed")
_PARTS = ((), ("dataset",), ("dataset", "preset"), ("dataset", "preset", "alpha"), ("dataset", "preset", "lr"))
_LONGEST = 90  # letters of a setting's reasons


@dataclass(frozen=True)
class Repeat:
    """Tables of settings and data, versions by name, and commands; ``strays`` are runs that no command covers.

    ``code`` is what of the user's own the runs were made with, in words.
    """

    settings: Table
    data: Table
    versions: Mapping[str, str]
    commands: tuple[str, ...]
    strays: int
    code: tuple[str, ...]


def repeat(study: Study) -> Repeat:
    specs = [run.spec for run in study.runs]
    commands, strays = _commands(study, specs)
    settings, data = _settings_table(study, specs), _data_table(study)
    return Repeat(settings, data, _versions(), tuple(commands), strays, _code(study))


def _code(study: Study) -> tuple[str, ...]:
    return tuple(f"{one}, which {one.fate}" if one.fate else str(one) for one in stored_code(study.folder))


def _versions() -> dict[str, str]:
    import numpy as np
    import torch

    return {
        "fedga": __version__,
        "Python": platform.python_version(),
        "PyTorch": torch.__version__,
        "NumPy": np.__version__,
    }


def _data_table(study: Study) -> Table:
    found: dict[tuple[str, str], int] = {}
    for run in study.runs:
        place = (run.spec.dataset, run.fingerprint)
        found[place] = found.get(place, 0) + 1
    rows = tuple(
        (Cell(study.labels[dataset]), Cell(dataset), Cell(fingerprint), Cell(f"{number:,}", float(number)))
        for (dataset, fingerprint), number in found.items()
    )
    caption = "The fingerprint is a hash of the samples and labels that were read: equal data have equal ones."
    return Table("data", "Data", ("data set", "given as", "fingerprint", "runs"), rows, caption)


def _settings_table(study: Study, specs: Sequence[RunSpec]) -> Table:
    """One row per setting: its only value, or its values and what they depend on."""
    rows = []
    for name in (field.name for field in dataclasses.fields(RunSpec)):
        values = list(dict.fromkeys(getattr(spec, name) for spec in specs))
        meaning = SETTINGS[name].help if name in SETTINGS else "options of the algorithms"
        if len(values) == 1:
            text = setting_text(values[0])
        else:
            text = _by_reason(study, specs, name) or values_text(_ordered(values)).replace(",", ", ")
        kind = Cell("all runs" if len(values) == 1 else f"{len(values)} values")
        rows.append((Cell(name), Cell(text or "–"), kind, Cell(meaning)))
    caption = "Together with the data these settings determine every number; a run is named by a hash of its own."
    return Table("settings", "Settings", ("setting", "value", "varies", "what it is"), tuple(rows), caption)


def _ordered(values: Sequence[Any]) -> list[Any]:
    known = [value for value in values if value is not None]
    numbers = all(isinstance(value, (int, float)) for value in known)
    return [None] * (len(known) < len(values)) + sorted(known, key=None if numbers else str)


def _by_reason(study: Study, specs: Sequence[RunSpec], name: str) -> str:
    """Each value of a setting behind what it depends on; empty where that is nothing simple."""
    if name in _LISTED:
        return ""
    for reason in _REASONS:
        found: dict[tuple[Any, ...], Any] = {}
        for spec in specs:
            key = tuple(getattr(spec, part) for part in reason)
            if found.setdefault(key, getattr(spec, name)) != getattr(spec, name):
                break
        else:
            by_value: dict[Any, list[str]] = {}
            for key, value in found.items():
                by_value.setdefault(value, []).append(_place_text(study, reason, key))
            text = "; ".join(f"{setting_text(value)} ({', '.join(where)})" for value, where in by_value.items())
            return text if len(text) <= _LONGEST * max(len(by_value), 2) else ""
    return ""


def _place_text(study: Study, reason: Sequence[str], key: Sequence[Any]) -> str:
    parts = []
    for part, value in zip(reason, key, strict=True):
        if part == "dataset":
            parts.append(study.labels[value])
        elif part == "alpha":
            parts.append("" if value is None else f"α {value:g}")
        else:
            parts.append(str(value) or "no preset")
    return " ".join(part for part in parts if part)


def _commands(study: Study, specs: Sequence[RunSpec]) -> tuple[list[str], int]:
    """Commands that train exactly these runs, each proved by building its grid; and how many runs are left over."""
    at_sites = [spec for spec in specs if spec.dataset.startswith(SITES)]
    commands, left = _paper_commands(study, [spec for spec in specs if spec not in at_sites])
    if at_sites:
        commands.append("fedga flower serve DIR  # the folder of the federation's server, while its sites take part")
    for parts in _PARTS:
        if not left:
            break
        groups: dict[tuple[Any, ...], list[RunSpec]] = {}
        for spec in left:
            groups.setdefault(tuple(getattr(spec, part) for part in parts), []).append(spec)
        made = {key: _run_command(group, study.again) for key, group in groups.items()}
        if parts is _PARTS[-1] or all(made.values()):
            commands += [command for command in made.values() if command]
            left = [spec for key, group in groups.items() if not made[key] for spec in group]
    return commands, len(left)


def _paper_commands(study: Study, specs: Sequence[RunSpec]) -> tuple[list[str], list[RunSpec]]:
    """The commands of the paper's experiments that were asked of this folder, and the runs they do not cover."""
    by_scope: dict[Scope, list[str]] = {}
    for name, scopes in asked(study.folder).items():
        for scope in scopes:
            by_scope.setdefault(scope, []).append(name)
    commands, covered = [], set()
    for scope, names in by_scope.items():
        chosen = ["all"] if set(names) == set(EXPERIMENTS) else names
        words = ["--scale", scope.scale]
        for flag, values in (
            ("--datasets", scope.datasets),
            ("--alphas", scope.alphas),
            ("--seeds", scope.seeds),
            ("--algorithms", scope.algorithms),
        ):
            words += [flag, values_text(values)] if values else []
        commands += [shlex.join(["fedga", "paper", name, *words, "--out", study.again]) for name in chosen]
        covered |= {spec.run_id for spec in all_runs([EXPERIMENTS[name] for name in names], scope)}
    return commands, [spec for spec in specs if spec.run_id not in covered]


def _run_command(specs: Sequence[RunSpec], called: str) -> str:
    """The `fedga run` that makes exactly these runs; empty where no single one does."""
    flags = {name: values for name in _LISTED if (values := _values(specs, name)) not in ([""], [None])}
    flags |= {name: _values(specs, name) for name in ("partition", "client_column", "label_column")}
    flags = {name: values for name, values in flags.items() if values != [SETTINGS[name].default] or name in _LISTED}
    wanted = {spec.run_id for spec in specs}
    for _ in range(2):
        runs = _grid(flags, len(specs))
        if {run.run_id for run in runs} == wanted:
            words = [word for name, values in flags.items() for word in (SETTINGS[name].flag, _flag_text(name, values))]
            return shlex.join(["fedga", "run", *words, "--out", called])
        by_place = {_place(run): run for run in runs}
        for spec in specs:
            made = by_place.get(_place(spec))
            for name in SETTINGS:
                if made is not None and name not in flags and getattr(made, name) != getattr(spec, name):
                    flags[name] = _values(specs, name)
    return ""


def _place(spec: RunSpec) -> tuple[Any, ...]:
    return tuple(getattr(spec, name) for name in _LISTED)


def _values(specs: Iterable[RunSpec], name: str) -> list[Any]:
    return _ordered(list(dict.fromkeys(getattr(spec, name) for spec in specs)))


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
