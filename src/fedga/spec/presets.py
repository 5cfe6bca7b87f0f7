"""Named sets of settings: ``paper`` is the paper's own setting, ``strong`` the one that composes what is known to help.

All numbers that are a choice stand in this file and in ``paper_settings.csv`` (model, rounds and learning rate per data
set and α). Without a preset a run takes the values of ``paper`` too: plain flags start from the published setting.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fedga.errors import unknown_name
from fedga.spec.settings import Options

PAPER: Mapping[str, Any] = {
    "clients": 100,
    "active": 10,
    "local_epochs": 2,
    "batch_size": 64,
    "optimizer": "sgd",
    "momentum": 0.0,  # the paper's text says 0.9; its tables are reproduced by 0
    "weight_decay": 0.0,
    "clip": 5.0,
    "lr_schedule": "constant",
    "server": "sgd",
    "server_rate": 1.0,
    "server_average": 0.0,
    "standardize": False,
    "aggregation": "samples",
    "evaluate_every": 5,  # every round would be a fifth of the work
    "diagnose_every": 25,
}

# What `strong` changes: one setting for every data set and α, nothing of it tuned per data set.
STRONG: Mapping[str, Any] = {
    "lr": 0.1,
    "lr_schedule": "cosine",
    "weight_decay": 0.001,
    "server": "momentum",
    "server_rate": 1.0,
    "server_average": 0.05,
    "standardize": True,
}

# Data sets the paper does not use. `digits` is small (1,797 pictures of 8x8), hence fewer clients and smaller batches.
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "digits": {"model": "mlp", "clients": 20, "active": 5, "rounds": 60, "lr": 0.1, "batch_size": 16},
}
SAME_AS: Mapping[str, str] = {"fashion-mnist": "mnist"}  # same shape and size
OWN_DATA: Mapping[str, Any] = {"model": "mlp", "rounds": 100, "lr": 0.1}

# CLIMB's tolerance and dual step per data set. The paper's table prints the two columns swapped.
CLIMB: Mapping[str, tuple[float, float]] = {
    "mnist": (0.01, 2.0),
    "cifar10": (0.1, 0.1),
    "svhn": (0.1, 0.5),
    "cifar100": (1.0, 0.05),
    "tiny-imagenet": (0.1, 0.1),
}

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
        listed = _nearest(alpha, tuple(table))
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


def _nearest(alpha: float | None, listed: tuple[float, ...]) -> float:
    if alpha is None:
        return max(listed)
    return min(listed, key=lambda row: (abs(math.log(row / alpha)), row))


@cache
def _paper_table() -> Mapping[str, Mapping[float, Mapping[str, Any]]]:
    """Data set -> α -> model, rounds and learning rate, from the file that ships with the package."""
    table: dict[str, dict[float, Mapping[str, Any]]] = {}
    text = resources.files("fedga.spec").joinpath("paper_settings.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        cell = {"model": row["model"], "rounds": int(row["rounds"]), "lr": float(row["lr"])}
        table.setdefault(row["dataset"], {})[float(row["alpha"])] = cell
    return table
