"""The strong setting against everything that is printed, and against the same samples dealt evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedga.drawing.style import algorithm_rank, display_name
from fedga.paper.printed import SCORE_TABLES, PrintedScore, printed_score
from fedga.paper.report.arms import NO_SKEW, line_without_skew, points
from fedga.paper.report.scores import Reading, best_text, score_of, score_text
from fedga.paper.runs import ALGORITHMS
from fedga.report.curves import Curve
from fedga.report.documents import NOTHING, Cell, Table
from fedga.spec.catalog import dataset_name, dataset_rank, place_name
from fedga.spec.settings import RunSpec

LAST, AVERAGED = Reading("accuracy", "last", "last"), Reading("accuracy", "last", "averaged")
_Place = tuple[str, float]
_MODELS = ("", ", averaged")  # as headings end
_LEVEL = 0.05  # points that print as 0.0
_Runs = Mapping[str, Sequence[Curve]]  # by algorithm


def strong_table(curves: Sequence[Curve], specs: Mapping[str, RunSpec]) -> Table:
    """A row per data set and α: the best printed accuracy of all algorithms, and ours in the strong setting."""
    skewed, even = _by_place(curves, specs, "dirichlet"), _by_place(curves, specs, "even")
    names = sorted({name for found in skewed.values() for name in found}, key=algorithm_rank)
    places = sorted(skewed, key=lambda place: (dataset_rank(place[0]), place[1]))
    rows = []
    for place in places:
        line = (line_without_skew(even.get(place, {})).cell(),) if even else ()
        rows.append((*_head(place), *_ours(skewed[place], names), *line))
    breaks = tuple(at for at in range(len(places) - 1) if places[at][0] != places[at + 1][0])
    caption = (
        "Accuracy after the last round, mean (deviation) over seeds; averaged: the model averaged over rounds on the "
        "server. Best printed: of all algorithms in either of the paper's tables. Bold: the best of ours in a row."
    )
    headings = ("data set", "α", "best printed", *(f"{display_name(name)}{of}" for name in names for of in _MODELS))
    return Table(
        "strong",
        "The strong setting beside the best printed number",
        (*headings, "no skew") if even else headings,
        tuple(rows),
        f"{caption} {NO_SKEW}" if even else caption,
        breaks,
    )


def _head(place: _Place) -> tuple[Cell, ...]:
    best = best_printed(*place)
    text = NOTHING if best is None else f"{score_text(best.mean, best.deviation)} {display_name(best.algorithm)}"
    dataset, alpha = place
    printed = Cell(text, None if best is None else best.mean)
    return Cell(dataset_name(dataset), dataset), Cell(f"{alpha:g}", alpha), printed


def _ours(runs: _Runs, names: Sequence[str]) -> list[Cell]:
    scores = [score_of(runs.get(name, ()), reading) for name in names for reading in (LAST, AVERAGED)]
    best = best_text(scores)
    return [score.cell(bold=score.mean_text == best) for score in scores]


def strong_words(curves: Sequence[Curve], specs: Mapping[str, RunSpec]) -> tuple[str, ...]:
    """Where FedGA's averaged model is above print, and how far it is from the line without skew."""
    skewed, even = _by_place(curves, specs, "dirichlet"), _by_place(curves, specs, "even")
    scores = {place: score_of(of.get("fedga", ()), AVERAGED) for place, of in skewed.items()}
    reached = {place: score.mean for place, score in scores.items() if score.known}
    lines = {place: line_without_skew(of) for place, of in even.items() if place in reached}
    costs = [_cost_text(place, reached[place], line.mean) for place, line in lines.items() if line.known]
    return (*_print_words(reached), *costs)


def _print_words(reached: Mapping[_Place, float]) -> tuple[str, ...]:
    """True whichever is higher: differences have their signs."""
    printed = {place: best_printed(*place) for place in reached}
    leads = {place: 100 * (reached[place] - best.mean) for place, best in printed.items() if best is not None}
    if not leads:
        return ()
    above = sum(points(lead).startswith("+") for lead in leads.values())
    least, most = min(leads, key=lambda place: leads[place]), max(leads, key=lambda place: leads[place])
    span = f"is {points(leads[least])} points ({place_name(*least)})"
    if len(leads) > 1:
        span = f"lies between {points(leads[least])} ({place_name(*least)}) and {points(leads[most])} points"
        span += f" ({place_name(*most)})"
    return (
        "FedGA in the strong setting, averaged model, is above the best printed accuracy of all algorithms in "
        f"{above} of {len(leads)} settings; the difference {span}.",
    )


def _cost_text(place: _Place, reached: float, line: float) -> str:
    cost = 100 * (line - reached)
    skew = "That is no less than the line without skew"
    if cost > _LEVEL:
        skew = f"Skew still costs {points(cost).removeprefix('+')} points"
    return (
        f"{place_name(*place)}: FedGA's averaged model reaches {reached:.3f}; the same samples dealt evenly over the "
        f"clients reach {line:.3f} at best. {skew}."
    )


def best_printed(dataset: str, alpha: float) -> PrintedScore | None:
    """The highest accuracy of both printed tables, whichever algorithm has it."""
    cells = [printed_score(which, dataset, alpha, name) for which in SCORE_TABLES for name in ALGORITHMS]
    found = [cell for cell in cells if cell is not None and cell.dataset == dataset]  # not those of one it stands for
    return max(found, key=lambda cell: cell.mean, default=None)


def _by_place(
    curves: Sequence[Curve], specs: Mapping[str, RunSpec], partition: str
) -> dict[_Place, dict[str, list[Curve]]]:
    """The runs of the strong setting by data set and α, then by algorithm."""
    found: dict[_Place, dict[str, list[Curve]]] = {}
    for curve in curves:
        spec = specs[curve.run_id]
        if (spec.preset, spec.partition) == ("strong", partition) and spec.alpha is not None:
            found.setdefault((spec.dataset, spec.alpha), {}).setdefault(spec.algorithm, []).append(curve)
    return found
