"""The strong setting against everything that is printed, and against the same samples partitioned evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedga.drawing.style import algorithm_rank, display_name
from fedga.paper.printed import SCORE_TABLES, PrintedScore, printed_score
from fedga.paper.report.arms import NO_SKEW, line_without_skew, points
from fedga.paper.report.scores import Reading, best_text, score_of, score_text
from fedga.paper.runs import ALGORITHMS
from fedga.report.curves import Curve
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.words import plural
from fedga.spec.catalog import dataset_name, dataset_rank
from fedga.spec.settings import RunSpec

LAST, AVERAGED = Reading("accuracy", "last", "last"), Reading("accuracy", "last", "averaged")
_DatasetAlpha = tuple[str, float]
_MODELS = ("", ", averaged")  # as headings end


def strong_table(curves: Sequence[Curve], specs: Mapping[str, RunSpec]) -> Table:
    """A row per data set and α: the best printed accuracy of all algorithms, and ours in the strong setting."""
    skewed, even = _by_place(curves, specs, "dirichlet"), _by_place(curves, specs, "even")
    names = sorted({name for found in skewed.values() for name in found}, key=algorithm_rank)
    places = sorted(skewed, key=lambda place: (dataset_rank(place[0]), place[1]))
    rows = []
    for place in places:
        scores = [score_of(skewed[place].get(name, ()), reading) for name in names for reading in (LAST, AVERAGED)]
        ours = [score.cell(bold=score.mean_text == best_text(scores)) for score in scores]
        line = (line_without_skew(even.get(place, {})).cell(),) if even else ()
        best = best_printed(*place)
        text = NOTHING if best is None else f"{score_text(best.mean, best.deviation)} {display_name(best.algorithm)}"
        head = (Cell(dataset_name(place[0]), place[0]), Cell(f"{place[1]:g}", place[1]))
        rows.append((*head, Cell(text, None if best is None else best.mean), *ours, *line))
    breaks = tuple(at for at in range(len(places) - 1) if places[at][0] != places[at + 1][0])
    caption = (
        "Accuracy after the last round, mean (deviation) over seeds; averaged: the model averaged over rounds on the "
        "server. Best printed: of all algorithms in either of the paper's tables. Bold: the best of ours in a row."
    )
    headings = ("data set", "α", "best printed", *(f"{display_name(name)}{of}" for name in names for of in _MODELS))
    if even:
        headings, caption = (*headings, "no skew"), f"{caption} {NO_SKEW}"
    title = "The strong setting beside the best printed number"
    return Table("strong", title, headings, tuple(rows), caption, breaks)


def strong_headline(curves: Sequence[Curve], specs: Mapping[str, RunSpec]) -> str:
    """In how many data sets and α FedGA's averaged model is above everything printed; empty without any."""
    leads = []
    for place, of in _by_place(curves, specs, "dirichlet").items():
        found, best = score_of(of.get("fedga", ()), AVERAGED), best_printed(*place)
        leads += [100 * (found.mean - best.mean)] if found.known and best is not None else []
    if not leads:
        return ""
    above, span = sum(points(lead).startswith("+") for lead in leads), f"{points(min(leads))} to {points(max(leads))}"
    where = f"in {above} of {plural(len(leads), 'setting')} (by {span} points)"
    return f"FedGA's averaged model in the strong setting is above the best printed accuracy {where}."


def best_printed(dataset: str, alpha: float) -> PrintedScore | None:
    """The highest accuracy of both printed tables, whichever algorithm has it."""
    cells = [printed_score(which, dataset, alpha, name) for which in SCORE_TABLES for name in ALGORITHMS]
    found = [cell for cell in cells if cell is not None and cell.dataset == dataset]  # not those of one it stands for
    return max(found, key=lambda cell: cell.mean, default=None)


def _by_place(
    curves: Sequence[Curve], specs: Mapping[str, RunSpec], partition: str
) -> dict[_DatasetAlpha, dict[str, list[Curve]]]:
    """The runs of the strong setting by data set and α, then by algorithm."""
    found: dict[_DatasetAlpha, dict[str, list[Curve]]] = {}
    for curve in curves:
        spec = specs[curve.run_id]
        if (spec.preset, spec.partition) == ("strong", partition) and spec.alpha is not None:
            found.setdefault((spec.dataset, spec.alpha), {}).setdefault(spec.algorithm, []).append(curve)
    return found
