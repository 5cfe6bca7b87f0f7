"""Named sets of settings: ``paper`` is the paper's own setting, ``strong`` the one that composes what is known to help.

All numbers that are a choice stand in ``presets.toml`` and ``paper_settings.csv`` (model, rounds and learning rate per
data set and α). Without a preset a run takes the values of ``paper`` too: plain flags start from the published setting.
"""

import csv
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fedga.errors import unknown_name
from fedga.spec.settings import Options

_FILES = resources.files("fedga.spec")
_CHOICES: Mapping[str, Mapping[str, Any]] = tomllib.loads(_FILES.joinpath("presets.toml").read_text(encoding="utf-8"))
PAPER, STRONG, OTHERS, OWN_DATA, SAME_AS, CLIMB = (
    _CHOICES[name] for name in ("paper", "strong", "others", "own_data", "same_as", "climb")
)
_CHANGES: Mapping[str, Mapping[str, Any]] = {"": {}, "paper": {}, "strong": STRONG}
PRESETS = tuple(name for name in _CHANGES if name)


@dataclass(frozen=True)
class Preset:
    """The values of a preset for one data set and α; those ``looked_up`` depend on the two, and ``row`` says how."""

    values: Mapping[str, Any]
    looked_up: frozenset[str]
    row: str


def preset_settings(name: str, dataset: str, alpha: float | None) -> Preset:
    """The settings of preset ``name`` ("" for none) on this data set.

    An α the paper does not list takes the nearest listed one on a logarithmic scale; no α at all (partitions without
    one) takes the largest, the mildest skew.

    >>> preset = preset_settings("strong", "svhn", 0.3)
    >>> preset.values["lr"], preset.values["rounds"], preset.values["lr_schedule"], preset.row
    (0.1, 300, 'cosine', 'svhn, α=0.5 row')
    """
    if name not in _CHANGES:
        raise unknown_name("preset", name, PRESETS)
    table = _paper_table().get(SAME_AS.get(dataset, dataset))
    if table is None:
        special: Mapping[str, Any] = OTHERS.get(dataset, OWN_DATA)
        row = dataset
    else:
        listed = max(table) if alpha is None else min(table, key=lambda row: (abs(math.log(row / alpha)), row))
        special = table[listed]
        row = f"{SAME_AS.get(dataset, dataset)}, α={listed:g}" + ("" if listed == alpha else " row")
    values = {**PAPER, **special, **_CHANGES[name]}
    return Preset(values, frozenset(special) - set(_CHANGES[name]), row)


def algorithm_defaults(dataset: str, name: str) -> Options:
    """Options of algorithm ``name`` that the paper sets per data set; the user's own win over them.

    >>> algorithm_defaults("svhn", "climb")
    (('dual_rate', 0.5), ('epsilon', 0.1))
    >>> algorithm_defaults("svhn", "fedga")
    ()
    """
    dataset = SAME_AS.get(dataset, dataset)
    if name != "climb" or dataset not in CLIMB:
        return ()
    epsilon, dual_rate = CLIMB[dataset]
    return (("dual_rate", dual_rate), ("epsilon", epsilon))


@cache
def _paper_table() -> Mapping[str, Mapping[float, Mapping[str, Any]]]:
    """Data set -> α -> model, rounds and learning rate, from the file that ships with the package."""
    table: dict[str, dict[float, Mapping[str, Any]]] = {}
    text = _FILES.joinpath("paper_settings.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        cell = {"model": row["model"], "rounds": int(row["rounds"]), "lr": float(row["lr"])}
        table.setdefault(row["dataset"], {})[float(row["alpha"])] = cell
    return table
