"""Runs grouped over seeds, and series by data set and α: alike for a table and a picture of the same runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np

from fedga.drawing.style import LineStyle, algorithm_rank, base_name, display_name, line_style
from fedga.errors import FedGAError
from fedga.report.curves import Curve

_PANEL = ("dataset", "alpha")


@dataclass(frozen=True, eq=False)
class Series:
    """Runs that differ in their seed alone. A diverged one counts in no mean; it is shown as what it is."""

    settings: Mapping[str, Any]
    label: str
    curves: tuple[Curve, ...]
    variant: int = 0  # counts the series of one algorithm and preset

    @property
    def algorithm(self) -> str:
        return str(self.settings.get("algorithm", ""))

    @property
    def preset(self) -> str:
        return str(self.settings.get("preset") or "")

    def style(self, *, averaged: bool = False) -> LineStyle:
        return line_style(self.algorithm, self.preset, variant=self.variant, averaged=averaged)

    @property
    def diverged(self) -> list[Curve]:
        return [curve for curve in self.curves if curve.diverged]

    @property
    def sound(self) -> list[Curve]:
        """The runs with something to show that did not diverge."""
        return [curve for curve in self.curves if not curve.diverged and len(curve.rounds)]

    def has(self, metric: str) -> bool:
        return any(np.isfinite(curve.metric(metric)).any() for curve in self.curves)

    @cached_property
    def rounds(self) -> np.ndarray:
        """All rounds in which a sound run was evaluated."""
        every = [curve.rounds for curve in self.sound]
        return np.unique(np.concatenate(every)) if every else np.zeros(0, dtype=np.int64)

    def by_seed(self, metric: str) -> np.ndarray:
        """``[sound runs, rounds]``, NaN where a run has no value."""
        table = np.full((len(self.sound), len(self.rounds)), np.nan)
        for row, curve in enumerate(self.sound):
            table[row, np.searchsorted(self.rounds, curve.rounds)] = curve.metric(metric)
        return table

    def per_round(self, metric: str, statistic: Callable[[np.ndarray], float]) -> np.ndarray:
        """A statistic over the seeds of every round, ``[rounds]``."""
        return np.array([statistic(column) for column in self.by_seed(metric).T])


@dataclass(frozen=True, eq=False)
class Panel:
    """The series of one data set and α: what one part of a picture shows, what one table section compares."""

    dataset: str
    alpha: float | None
    series: tuple[Series, ...]

    @property
    def title(self) -> str:
        name = PurePath(self.dataset).name or self.dataset  # of one's own data, which are named by their path
        return name if self.alpha is None else f"{name}, α = {self.alpha:g}"


def make_panels(curves: Sequence[Curve]) -> list[Panel]:
    """Runs grouped over seeds, by data set and α; a series has the same label and variant in every panel."""
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Curve]]] = {}
    for curve in curves:
        place = tuple(curve.settings.get(name) for name in _PANEL)
        identity = tuple((name, value) for name, value in curve.settings.items() if name not in _PANEL)
        groups.setdefault(place, {}).setdefault(identity, []).append(curve)
    identities = sorted({identity for group in groups.values() for identity in group}, key=_order)
    settings = [dict(identity) for identity in identities]
    telling = telling_settings(settings)
    labels = [_label(of, telling) for of in settings]
    kinds = [(base_name(str(of.get("algorithm", ""))), of.get("preset") or "") for of in settings]
    variants = [kinds[:at].count(kind) for at, kind in enumerate(kinds)]
    panels = []
    for dataset, alpha in sorted(groups, key=lambda place: (str(place[0]), place[1] is not None, place[1])):
        group = groups[dataset, alpha]
        series = [
            Series(dict(identity), label, tuple(sorted(group[identity], key=lambda curve: curve.seed)), variant)
            for identity, label, variant in zip(identities, labels, variants, strict=True)
            if identity in group
        ]
        panels.append(Panel(str(dataset), alpha, tuple(series)))
    return panels


def measured(panels: Sequence[Panel], metric: str) -> bool:
    return any(series.has(metric) for panel in panels for series in panel.series)


def panels_with(curves: Sequence[Curve], metrics: Sequence[str]) -> list[Panel]:
    """The panels in which any of the metrics was measured; that there is none is the user's error."""
    panels = [panel for panel in make_panels(curves) if any(measured([panel], metric) for metric in metrics)]
    if not panels:
        raise FedGAError(f"there is nothing to draw: no run has a value of {' or '.join(metrics)} yet")
    return panels


def _order(identity: tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
    settings = dict(identity)
    rest = tuple((value is not None, str(value)) for value in settings.values())
    return (str(settings.get("preset") or ""), algorithm_rank(str(settings.get("algorithm", ""))), rest)


def varying_settings(series: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for settings in series for name in settings)
    return [name for name in names if len({settings.get(name) for settings in series}) > 1]


def telling_settings(series: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the settings in which these differ, those it takes to tell them apart.

    >>> telling_settings([{"preset": "paper", "server": "sgd"}, {"preset": "strong", "server": "momentum"}])
    ['preset']
    """
    varying = varying_settings(series)
    shown = [name for name in (*_PANEL, "preset") if name in varying]
    shown += ["algorithm"] if any("algorithm" in settings for settings in series) else []

    def distinct(names: Sequence[str]) -> int:
        return len({tuple(settings.get(name) for name in names) for settings in series})

    for name in varying:
        if name not in shown and distinct([*shown, name]) > distinct(shown):
            shown.append(name)
    return shown


def _label(settings: Mapping[str, Any], shown: Sequence[str]) -> str:
    """Algorithm and preset, and of the other settings as many as it takes to tell all series apart."""
    preset = [str(settings.get("preset") or "")] if "preset" in shown else []
    others = [f"{name} {setting_text(settings.get(name))}" for name in shown if name not in ("algorithm", "preset")]
    return ", ".join(filter(None, [display_name(str(settings.get("algorithm", ""))), *preset, *others]))


def setting_text(value: Any) -> str:
    """A setting's value as a user would type it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ":".join(f"{name}={setting_text(option)}" for name, option in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
