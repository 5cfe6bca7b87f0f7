"""The strong setting against everything that is printed, and against the same samples dealt evenly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedga.experiments.paper import ALGORITHMS
from fedga.experiments.spec import RunSpec
from fedga.report.curves import Curve
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.paper.printed import PrintedScore, dataset_name, dataset_rank, printed_score
from fedga.report.paper.scores import Reading, Score, score_text
from fedga.report.series import Series
from fedga.report.style import algorithm_rank, display_name

LAST, AVERAGED = Reading("accuracy", "last", "last"), Reading("accuracy", "last", "averaged")
_Place = tuple[str, float]


def strong_table(curves: Sequence[Curve], specs: Mapping[str, RunSpec]) -> Table:
    """A row per data set and α: the best printed accuracy of all algorithms, and ours in the strong setting."""
    skewed = _by_place(curves, specs, "strong", "dirichlet")
    names = sorted({name for found in skewed.values() for name in found}, key=algorithm_rank)
    rows, breaks = [], []
    places = sorted(skewed, key=lambda place: (dataset_rank(place[0]), place[1]))
    for at, place in enumerate(places):
        ours = [_score(skewed[place].get(name, []), reading) for name in names for reading in (LAST, AVERAGED)]
        best = best_printed(*place)
        printed = NOTHING if best is None else f"{score_text(best.mean, best.deviation)} {display_name(best.algorithm)}"
        most = max((score.mean for score in ours if score.known), default=math.nan)
        head = (Cell(dataset_name(place[0]), place[0]), Cell(f"{place[1]:g}", place[1]))
        middle = Cell(printed, None if best is None else best.mean)
        rows.append((*head, middle, *(score.cell(bold=score.mean == most) for score in ours)))
        if at + 1 < len(places) and places[at + 1][0] != place[0]:
            breaks.append(at)
    headings = [f"{display_name(name)}{model}" for name in names for model in ("", ", averaged")]
    caption = "Accuracy after the last round, mean (deviation) over seeds; averaged: the model averaged over rounds on"
    caption += " the server. Printed: the best of all algorithms in the paper's main table. Bold: the best of a row."
    heading, title = ("data set", "α", "best printed", *headings), "The strong setting beside the best printed number"
    return Table("strong", title, heading, tuple(rows), caption, tuple(breaks))


def strong_words(curves: Sequence[Curve], specs: Mapping[str, RunSpec]) -> tuple[str, ...]:
    """Whether FedGA's averaged model beats print everywhere, and how far it is from the line without skew."""
    skewed, even = _by_place(curves, specs, "strong", "dirichlet"), _by_place(curves, specs, "strong", "even")
    found = {place: _score(of.get("fedga", []), AVERAGED) for place, of in skewed.items()}
    compared = [(place, score, best_printed(*place)) for place, score in found.items() if score.known]
    pairs = [(place, score.mean - best.mean) for place, score, best in compared if best is not None]
    said = []
    if pairs:
        above = sum(lead > 0 for _, lead in pairs)
        least = min(pairs, key=lambda pair: pair[1])
        most = max(pairs, key=lambda pair: pair[1])
        said.append(
            f"FedGA in the strong setting, averaged model, is above the best printed accuracy of all algorithms in "
            f"{above} of {len(pairs)} settings: by {_points(least[1])} points at least ({_named(least[0])}) and "
            f"{_points(most[1])} at most ({_named(most[0])})."
        )
    for place, of in even.items():
        line = max((_score(runs, AVERAGED).mean for runs in of.values()), default=math.nan)
        ours = found.get(place)
        if ours is not None and ours.known and math.isfinite(line):
            said.append(
                f"{_named(place)}: FedGA's averaged model reaches {ours.mean:.3f}; the same samples dealt evenly over "
                f"the clients reach {line:.3f}. Skew still costs {_points(line - ours.mean)} points."
            )
    return tuple(said)


def best_printed(dataset: str, alpha: float) -> PrintedScore | None:
    """The highest accuracy of the main table, whichever algorithm has it."""
    cells = [printed_score("main", dataset, alpha, name) for name in ALGORITHMS]
    found = [cell for cell in cells if cell is not None and cell.dataset == dataset]  # not those of one it stands for
    return max(found, key=lambda cell: cell.mean, default=None)


def _by_place(
    curves: Sequence[Curve], specs: Mapping[str, RunSpec], preset: str, partition: str
) -> dict[_Place, dict[str, list[Curve]]]:
    """Runs by data set and α, then by algorithm."""
    found: dict[_Place, dict[str, list[Curve]]] = {}
    for curve in curves:
        spec = specs[curve.run_id]
        if (spec.preset, spec.partition) == (preset, partition) and spec.alpha is not None:
            found.setdefault((spec.dataset, spec.alpha), {}).setdefault(spec.algorithm, []).append(curve)
    return found


def _score(curves: Sequence[Curve], reading: Reading) -> Score:
    series = Series({}, "", tuple(curves))
    values = [reading.of(curve) for curve in series.curves if curve.status == "done"]
    return Score(tuple(value for value in values if math.isfinite(value)))


def _points(value: float) -> str:
    return f"{100 * value:.1f}".replace("-", "−")


def _named(place: _Place) -> str:
    return f"{dataset_name(place[0])}, α = {place[1]:g}"
