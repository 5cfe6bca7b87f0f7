"""The learning rate that a grid search chooses: per data set and α the one with the highest accuracy at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedga.report.curves import Curve
from fedga.report.documents import Cell, Table
from fedga.report.paper.printed import dataset_name, dataset_rank
from fedga.report.paper.scores import Reading, Score

_LAST = Reading("accuracy", "last", "last")
Place = tuple[str, float | None]


def chosen_rates(curves: Sequence[Curve]) -> dict[Place, float]:
    """The best learning rate of every data set and α, the smaller of equal ones; none at which a run diverged."""
    chosen = {}
    for place, by_rate in _by_rate(curves).items():
        ended = {rate: _score(of).mean for rate, of in by_rate.items() if _score(of).known and not _diverged(of)}
        if ended:
            chosen[place] = max(sorted(ended), key=lambda rate: ended[rate])
    return chosen


def tuning_table(curves: Sequence[Curve]) -> Table:
    """A row per data set and α, a column per learning rate: accuracy after the last round, the chosen one in bold."""
    found, chosen = _by_rate(curves), chosen_rates(curves)
    rates = sorted({rate for by_rate in found.values() for rate in by_rate}, reverse=True)
    rows = []
    for place, by_rate in found.items():
        cells = [_cell(by_rate.get(rate, ()), bold=chosen.get(place) == rate) for rate in rates]
        dataset, alpha = place
        rows.append((Cell(dataset_name(dataset), dataset), Cell("" if alpha is None else f"{alpha:g}", alpha), *cells))
    caption = (
        "Accuracy after the last round, mean (deviation) over seeds. Bold: the rate chosen. The choice looks at the"
    )
    caption += " test split, as published choices of these rates did: what it reaches there is a little flattered."
    headings = ("data set", "α", *(f"{rate:g}" for rate in rates))
    return Table("tuning", "Accuracy by learning rate", headings, tuple(rows), caption)


def tuning_words(rates: Mapping[Place, float]) -> tuple[str, ...]:
    """The chosen rates, one sentence per data set."""
    by_dataset: dict[str, list[str]] = {}
    for (dataset, alpha), rate in rates.items():
        by_dataset.setdefault(dataset, []).append(f"{rate:g}" + ("" if alpha is None else f" at α = {alpha:g}"))
    return tuple(f"{dataset_name(name)}: the best learning rate is {', '.join(of)}." for name, of in by_dataset.items())


def _by_rate(curves: Sequence[Curve]) -> dict[Place, dict[float, list[Curve]]]:
    found: dict[Place, dict[float, list[Curve]]] = {}
    for curve in curves:
        place = (str(curve.settings["dataset"]), curve.settings["alpha"])
        found.setdefault(place, {}).setdefault(float(curve.settings.get("lr", math.nan)), []).append(curve)
    order = sorted(found, key=lambda place: (dataset_rank(place[0]), place[1] or 0.0))
    return {place: found[place] for place in order}


def _cell(curves: Sequence[Curve], *, bold: bool) -> Cell:
    gone = _diverged(curves)
    score = _score(curves)
    note = f"{gone} of {len(curves)} runs diverged" if gone else ""
    return Cell(score.text if score.known else "diverged" if gone else "–", _value(score), bold, note)


def _value(score: Score) -> float | None:
    return score.mean if score.known else None


def _score(curves: Sequence[Curve]) -> Score:
    values = [_LAST.of(curve) for curve in curves if curve.status == "done"]
    return Score(tuple(value for value in values if math.isfinite(value)))


def _diverged(curves: Sequence[Curve]) -> int:
    return sum(curve.diverged for curve in curves)
