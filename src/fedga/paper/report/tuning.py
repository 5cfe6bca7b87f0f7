"""The learning rate that a grid search chooses: per data set and α the one with the highest accuracy at the end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedga.errors import FedGAError
from fedga.paper.report.scores import Reading, score_of
from fedga.report.curves import Curve, measured_split
from fedga.report.documents import Cell, Table
from fedga.report.series import setting_text, varying_settings
from fedga.report.words import grouped
from fedga.spec.catalog import dataset_name, dataset_rank, place_name

DatasetAlpha = tuple[str, float | None]


@dataclass(frozen=True, eq=False)
class _Search:
    """Runs that differ in their learning rate and seed alone: only these may be set against each other."""

    settings: Mapping[str, Any]
    by_rate: Mapping[float, Sequence[Curve]]

    @property
    def place(self) -> DatasetAlpha:
        return str(self.settings["dataset"]), self.settings["alpha"]

    @property
    def chosen(self) -> float | None:
        """The best rate, the smaller of equal ones; none at which a run diverged."""
        sound = {rate: of for rate, of in self.by_rate.items() if not any(curve.diverged for curve in of)}
        scores = {rate: score_of(of, Reading()) for rate, of in sound.items()}
        ended = {rate: one.mean for rate, one in scores.items() if one.known}
        return max(sorted(ended), key=lambda rate: ended[rate]) if ended else None


def chosen_rates(curves: Sequence[Curve]) -> dict[DatasetAlpha, float]:
    """The best rate of every data set and α, the smaller of equal ones; runs that differ in more are refused."""
    searches = _searches(curves)
    for place, differing in _differing(searches).items():
        if differing:
            flag = f"--{differing[0].replace('_', '-')}"
            what = f"differ in {', '.join(differing)}, not in their learning rate alone"
            raise FedGAError(f"the runs on {dataset_name(place[0])} {what}: give one value of {flag}")
    return {search.place: search.chosen for search in searches if search.chosen is not None}


def tuning_table(curves: Sequence[Curve]) -> Table:
    """A row per data set, α and what else differs, a column per rate: accuracy at the end, the chosen one in bold."""
    searches = _searches(curves)
    rates = sorted({rate for search in searches for rate in search.by_rate}, reverse=True)
    differing = list(dict.fromkeys(name for names in _differing(searches).values() for name in names))
    rows = []
    for search in searches:
        (dataset, alpha), chosen = search.place, search.chosen
        setting = ", ".join(f"{name} {setting_text(search.settings.get(name))}" for name in differing)
        head = [Cell(dataset_name(dataset), dataset), Cell("" if alpha is None else f"{alpha:g}", alpha)]
        head += [Cell(setting, setting)] if differing else []
        rows.append((*head, *(_cell(search.by_rate.get(rate, ()), bold=chosen == rate) for rate in rates)))
    split = measured_split(curves)
    caption = "Accuracy after the last round, mean (deviation) over seeds. Bold: the rate chosen, "
    if split == "test":
        caption += "on the test split as published choices were: what it reaches there is a little flattered."
    else:
        caption += "on samples held out of the clients' training."
    headings = ("data set", "α", *(("setting",) if differing else ()), *(f"{rate:g}" for rate in rates))
    return Table("tuning", f"{split.capitalize()} accuracy by learning rate", headings, tuple(rows), caption)


def tuning_headline(rates: Mapping[DatasetAlpha, float]) -> str:
    """The chosen rates; empty where there are none."""
    chosen = [f"{rate:g} on {place_name(*place)}" for place, rate in rates.items()]
    return f"The best learning rate is {'; '.join(chosen)}." if chosen else ""


def _searches(curves: Sequence[Curve]) -> list[_Search]:
    """The runs by everything but rate and seed, data sets in the paper's order."""
    alike = grouped(curves, lambda curve: tuple(setting for setting in curve.settings.items() if setting[0] != "lr"))
    found = [
        _Search(dict(of), grouped(runs, lambda run: float(run.settings.get("lr", math.nan))))
        for of, runs in alike.items()
    ]
    return sorted(found, key=lambda search: (dataset_rank(search.place[0]), search.place[1] or 0.0))


def _differing(searches: Sequence[_Search]) -> dict[DatasetAlpha, list[str]]:
    """The settings in which searches of one data set and α differ; places may differ in theirs by design."""
    by_place = grouped(searches, lambda search: search.place)
    return {place: varying_settings([search.settings for search in found]) for place, found in by_place.items()}


def _cell(curves: Sequence[Curve], *, bold: bool) -> Cell:
    found = score_of(curves, Reading())
    lost = curves and all(curve.diverged for curve in curves)
    return Cell("diverged", note=found.note) if lost else found.cell(bold=bold)
