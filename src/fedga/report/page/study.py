"""What a page is about: a results folder, read once and put in order.

A scenario is a data set and an α. In it, the runs that differ in their algorithm alone form a cohort: only inside one
is "better than FedAvg" a statement about the algorithm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from fedga.drawing.style import LineStyle, base_name, display_name, line_style
from fedga.errors import FedGAError
from fedga.report.curves import Curve, read_curves
from fedga.report.series import Series, make_panels, setting_text, varying_settings
from fedga.report.summary import Row, summary_metrics, summary_rows
from fedga.report.words import grouped
from fedga.spec.catalog import dataset_name, dataset_rank, find_source
from fedga.spec.presets import PRESETS, preset_settings
from fedga.spec.settings import SETTINGS, RunSpec
from fedga.store.records import PartitionRecord, Run
from fedga.store.store import Store

_ONLY_EVALUATES = ("evaluate_every", "diagnose_every", "server_average")  # they leave the trained model as it is
_NO_SETTING = ("dataset", "alpha", "algorithm", "algorithm_options", "seed")  # in which members of a cohort may differ


@dataclass(frozen=True, eq=False)
class Member:
    """One algorithm of a cohort: its runs, its row of the summary and how its line looks."""

    name: str
    series: Series
    row: Row
    style: LineStyle

    @cached_property
    def finished(self) -> bool:
        """Whether the row is of runs that trained to their end."""
        return any(of.status == "done" and of.rounds[-1] == self.row["round"] for of in self.series.sound)

    @property
    def why_not(self) -> str:
        """What keeps it out of a comparison, if it is in none."""
        return "diverged" if self.row["diverged"] == self.row["runs"] else "unfinished"


@dataclass(frozen=True, eq=False)
class Cohort:
    """Runs of one place that differ in algorithm and seed alone; ``name`` is what sets them apart from the others."""

    preset: str
    own: str  # the settings in which it is not its preset, in words
    members: tuple[Member, ...]

    @property
    def name(self) -> str:
        return ", ".join(part for part in (self.preset, self.own) if part)

    @cached_property
    def finished(self) -> bool:
        return any(member.finished for member in self.members)

    @cached_property
    def contestants(self) -> tuple[Member, ...]:
        """Who can be compared: those at the end of their training; while nobody is, those who are furthest."""
        if self.finished:
            return tuple(member for member in self.members if member.finished)
        reached = [member.row["round"] for member in self.members if member.row["round"] is not None]
        return tuple(member for member in self.members if reached and member.row["round"] == max(reached))

    def label(self, member: Member) -> str:
        return f"{member.name}, {self.name}" if self.name else member.name


@dataclass(frozen=True, eq=False)
class Scenario:
    dataset: str
    alpha: float | None
    dataset_label: str
    cohorts: tuple[Cohort, ...]  # presets as they are first, then those of many algorithms

    @property
    def alpha_label(self) -> str:
        return "–" if self.alpha is None else f"{self.alpha:g}"

    @property
    def title(self) -> str:
        return self.dataset_label if self.alpha is None else f"{self.dataset_label}, α = {self.alpha:g}"

    @property
    def members(self) -> list[tuple[Cohort, Member]]:
        return [(cohort, member) for cohort in self.cohorts for member in cohort.members]


@dataclass(frozen=True, eq=False)
class Study:
    folder: Path
    called: str  # its name on the page
    runs: tuple[Run, ...]
    curves: tuple[Curve, ...]
    places: tuple[Scenario, ...]
    partitions: tuple[PartitionRecord, ...]
    labels: Mapping[str, str]  # data set -> its name on the page

    @property
    def dataset_labels(self) -> list[str]:
        return list(dict.fromkeys(place.dataset_label for place in self.places))

    @property
    def again(self) -> str:
        """Where its runs would be trained anew: an archive is read somewhere else, and nothing is trained into it."""
        return self.called if self.called == str(self.folder) else f"{self.called}-again"

    def class_names(self, dataset: str) -> tuple[str, ...]:
        """The names of its classes; none where neither the folder nor the catalogue knows them."""
        source = find_source(dataset)
        usual = () if source is None else source.class_names
        return next((one.class_names for one in self.partitions if one.dataset == dataset), usual)

    def client_names(self, dataset: str) -> tuple[str, ...]:
        """What its clients are called, where they are not numbers: sites, or those of a natural partition."""
        named = [one.client_names for one in self.partitions if one.dataset == dataset]
        return named[0] if len(named) == 1 else ()

    def classes(self, dataset: str) -> int | None:
        """How many classes it has; None where nobody knows."""
        source = find_source(dataset)
        return len(self.class_names(dataset)) or (source.classes if source else None)


def read_study(folder: Path, called: str = "") -> Study:
    """Everything a page needs but the evaluations of clients, which are read one by one when they are packed."""
    with Store(folder) as store:
        runs, partitions = store.runs(), store.partitions()
    curves = read_curves(folder)
    if not any(len(curve.rounds) for curve in curves):
        why, diverged = "no run has been evaluated yet", sum(curve.diverged for curve in curves)
        if diverged and diverged == len(curves):  # waiting helps those that are still to train, and not these
            why = "every run diverged before it was evaluated: train again with a smaller --lr"
        elif diverged:
            why += f", and {diverged} of {len(curves)} diverged"
        raise FedGAError(f"there is nothing to report in {called or str(folder)!r}: {why}")
    labels = dataset_labels([run.spec.dataset for run in runs] + [str(curve.settings["dataset"]) for curve in curves])
    kept = sorted(partitions, key=lambda one: (*_order(one), one.partition != "dirichlet"))  # the usual one first
    places = _places(curves, labels, {run.run_id: run.spec for run in runs})
    return Study(folder, called or str(folder), tuple(runs), tuple(curves), tuple(places), tuple(kept), labels)


def _order(one: PartitionRecord | Scenario) -> tuple[Any, ...]:
    return dataset_rank(one.dataset), one.alpha is not None, one.alpha or 0


def dataset_labels(datasets: Sequence[str]) -> dict[str, str]:
    """A name to show for each data set: short, but longer where two would be called the same.

    >>> dataset_labels(["mnist", "a/table.csv", "b/table.csv"])
    {'mnist': 'MNIST', 'a/table.csv': 'a/table.csv', 'b/table.csv': 'b/table.csv'}
    """
    names = {dataset: dataset_name(dataset) for dataset in dict.fromkeys(datasets)}
    shown = list(names.values())
    return {dataset: name if shown.count(name) == 1 else str(PurePath(dataset)) for dataset, name in names.items()}


def _places(curves: Sequence[Curve], labels: Mapping[str, str], specs: Mapping[str, RunSpec]) -> list[Scenario]:
    rows = iter(summary_rows(curves, summary_metrics(curves)))
    places = []
    for panel in make_panels(curves):
        found = [(series, next(rows)) for series in panel.series]
        cohorts = _cohorts(found, specs, panel.dataset, panel.alpha)
        places.append(Scenario(panel.dataset, panel.alpha, labels[panel.dataset], tuple(cohorts)))
    return sorted(places, key=_order)


def _cohorts(
    found: Sequence[tuple[Series, Row]], specs: Mapping[str, RunSpec], dataset: str, alpha: float | None
) -> list[Cohort]:
    groups = grouped(found, lambda one: tuple(_shared(one[0], specs).items()))
    names = _names([dict(shared) for shared in groups], dataset, alpha)
    # Presets as they are first, then what compares most algorithms.
    ordered = sorted(zip(groups.values(), names, strict=True), key=lambda one: (one[1][1] != "", -len(one[0]), one[1]))
    used: dict[tuple[str, str], int] = {}
    cohorts = []
    for group, (preset, own) in ordered:
        members = []
        for series, row in group:
            kind = (base_name(series.algorithm), series.preset)
            style = line_style(series.algorithm, series.preset, variant=used.setdefault(kind, 0))
            used[kind] += 1
            name = display_name(series.algorithm)
            if sum(other.algorithm == series.algorithm for other, _ in group) > 1:  # only its options tell it apart
                name += f" [{setting_text(series.settings['algorithm_options'])}]"
            members.append(Member(name, series, row, style))
        cohorts.append(Cohort(preset, own, tuple(members)))
    return cohorts


def _shared(series: Series, specs: Mapping[str, RunSpec]) -> dict[str, Any]:
    """All settings that a cohort has in common; what only evaluates counts where series differ in nothing else."""
    spec = specs.get(series.curves[0].run_id)
    every = {} if spec is None else {name: getattr(spec, name) for name in SETTINGS if name not in _ONLY_EVALUATES}
    return {name: value for name, value in {**every, **series.settings}.items() if name not in _NO_SETTING}


def _names(cohorts: Sequence[Mapping[str, Any]], dataset: str, alpha: float | None) -> list[tuple[str, str]]:
    """Preset and own settings of each cohort, as few of them as tell all apart."""
    varying = [name for name in varying_settings(cohorts) if name != "preset"]
    several = len({settings.get("preset") for settings in cohorts}) > 1
    telling = [name for name in varying if name not in _ONLY_EVALUATES]
    for names in (telling, varying):
        found = [(str(of.get("preset") or ""), _own_settings(of, names, dataset, alpha)) for of in cohorts]
        if len(set(found)) == len(found):
            break
    else:
        found = [(str(settings.get("preset") or ""), _settings(settings, varying)) for settings in cohorts]
    return [(preset or ("no preset" if several else ""), own) for preset, own in found]


def _own_settings(settings: Mapping[str, Any], names: Sequence[str], dataset: str, alpha: float | None) -> str:
    """Those of the settings that its preset would have at another value."""
    preset = settings.get("preset")
    usual = preset_settings(preset if preset in PRESETS else "", dataset, alpha).values
    if settings.get("server_rate") is None:
        usual = {**usual, "server_rate": None}  # the rate that goes with the optimiser is no choice of its own
    return _settings(settings, [name for name in names if settings[name] != usual.get(name, SETTINGS[name].default)])


def _settings(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {setting_text(settings[name])}" for name in names)
