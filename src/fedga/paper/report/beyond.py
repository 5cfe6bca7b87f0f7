"""How far plain settings of training explain FedGA's lead, which the paper leaves out: table, headline and picture."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedga.drawing import style
from fedga.drawing.canvas import Axes, Figure, PanelSize, compose, text_width
from fedga.drawing.style import GRID, MUTED, SMALL, TEXT, LineStyle, display_name, drawing, line_style, shade
from fedga.paper import runs
from fedga.paper.printed import SCORE_TABLES, PrintedScore, printed_score
from fedga.paper.report import arms
from fedga.paper.report.arms import ALGORITHMS, ALIGNED, ALL, NO_SKEW, NONE, PLAIN, Ablation, Arm, ablations
from fedga.paper.report.scores import MODELS, Reading, Score, best_text, score_of, score_text
from fedga.report.curves import Curve
from fedga.report.documents import NOTHING, Cell, Table, number_cell
from fedga.report.words import plural, signed
from fedga.spec.catalog import dataset_name, dataset_rank
from fedga.spec.settings import RunSpec

LAST, AVERAGED = Reading(), Reading(model="averaged")
_DatasetAlpha = tuple[str, float]
_ENDS = ("", ", averaged")  # of headings
_ROW = 0.36  # inches of a setting: two models
_BETWEEN = 0.19  # of a row, from its middle to either model


def beyond_table(of: Sequence[Arm]) -> Table:
    """Both models of both algorithms in every setting, FedGA's lead and what is left of it; the best is bold."""
    rows: list[tuple[Cell, ...]] = []
    breaks = []
    found = ablations(of)
    for place in found:
        rows += [_row(place, axes) for axes in arms.SETTINGS if place.shown(axes)]
        rows += [_row(place, axes, even=True) for axes in (NONE, ALL) if place.without_skew(axes).known]
        breaks.append(len(rows) - 1)
    each = ("FedAvg", "FedGA", "lead", "lead left")
    headings = ("data set", "α", "setting", *each, *(f"{heading}, averaged" for heading in each))
    caption = (
        f"Accuracy after the last round, mean (deviation) over {arms.seeds_text(found)}; averaged: the model averaged "
        "over rounds. Lead: FedGA less FedAvg, in points. Left: as a share of the last model's lead in the paper's "
        "setting; a dash where that is within two standard errors (paired by seed) of 0, or where either does not "
        f"train. {NO_SKEW}"
    )
    title = "What explains FedGA's lead, and what is left to gain"
    return Table("beyond", title, headings, tuple(rows), caption, tuple(breaks[:-1]))


def _row(place: Ablation, axes: frozenset[str], *, even: bool = False) -> tuple[Cell, ...]:
    name, setting = dataset_name(place.dataset), arms.even_name(axes) if even else arms.row_name(axes)
    alpha = "–" if place.alpha is None else f"{place.alpha:g}"
    cells = [Cell(name, name), Cell(alpha, place.alpha), Cell(setting, setting)]
    for model in MODELS:
        scores = {algorithm: place.score(algorithm, axes, model, even=even) for algorithm in ALGORITHMS}
        best = "" if even or place.best is None or place.best[1:] != (axes, model) else place.best[0]
        cells += [score.cell(bold=algorithm == best) for algorithm, score in scores.items()]
        lead = 100 * (scores[ALIGNED].mean - scores[PLAIN].mean)
        left = np.nan if even else place.remains(axes, model)
        cells += [number_cell(signed(lead, 1), lead), number_cell(arms.share(left), left)]
    return tuple(cells)


def beyond_headline(of: Sequence[Arm]) -> str:
    """Every lead in the paper's setting, and what is left of it in the strong one."""
    found = ablations(of)
    together = len({place.alpha for place in found}) == 1
    parts = []
    for place in found:
        leads = [place.lead(NONE, "last"), place.lead(ALL, "averaged")]
        name = dataset_name(place.dataset) if together else place.name
        parts += [f"{signed(leads[0], 1)} and {signed(leads[1], 1)} on {name}"] if np.isfinite(leads).all() else []
    heading = "FedGA's lead over FedAvg in points"
    heading += f", α = {found[0].alpha:g}" if together and found[0].alpha is not None else ""
    if not parts:
        return heading
    return f"{heading}, in the paper's setting and in the strong one (averaged model): {'; '.join(parts)}"


def beyond_picture(of: Sequence[Arm]) -> Figure:
    """FedAvg and FedGA in every setting, joined by FedGA's lead; filled the last model, hollow the averaged one."""
    found = ablations(of)
    rows = [axes for axes in arms.SETTINGS if any(place.shown(axes) for place in found)]
    with drawing():
        names = [arms.row_name(axes) for axes in rows]
        left = max(text_width(name, SMALL) for name in names) + 0.2
        right = text_width("−10.0", SMALL) + 0.3
        across = min(3, len(found))
        width, high = 4.6 if across == 1 else 2.35, _ROW * len(rows) + 0.1
        sizes = [PanelSize(width, high, left if at == 0 else 0.2, right, top=0.5) for at in range(across)]
        around: Any = {"title": beyond_headline(of), "legend": _legend(found), "caption": _caption(found, rows)}
        figure, axes = compose(-(-len(found) // across), across, sizes, **around, number=len(found))
        for number, (at, place) in enumerate(zip(axes, found, strict=True)):
            _draw_place(at, place, rows)
            at.set_yticks(range(len(rows)), names if number % across == 0 else [])
            at.set_title(place.name, pad=16)
    return figure


def _draw_place(axes: Axes, place: Ablation, rows: Sequence[frozenset[str]]) -> None:
    from matplotlib.ticker import MaxNLocator

    low, high = _limits(place, rows)
    axes.set(xlim=(low, high), ylim=(len(rows) - 0.5, -0.5), xlabel="test accuracy")
    ticks = MaxNLocator(4, steps=[1, 2, 2.5, 4, 5, 10]).tick_values(low, high)
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    for number, setting in enumerate(rows):
        for model, offset in zip(MODELS, (-_BETWEEN, _BETWEEN), strict=True):
            _draw_pair(axes, place, setting, model, number + offset, low)
        if number and len(setting) > len(rows[number - 1]):
            axes.axhline(number - 0.5, color=GRID, linewidth=0.8, zorder=0)
    for setting in (NONE, ALL):
        line = place.without_skew(setting)
        if line.known:
            axes.axvline(line.mean, label=arms.even_name(setting), zorder=1, **_even_style(setting))
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelcolor=TEXT, pad=7)
    axes.annotate("lead", (1, 1), (8, 4), xycoords="axes fraction", textcoords="offset points", size=SMALL, color=MUTED)


def _limits(place: Ablation, rows: Sequence[frozenset[str]]) -> tuple[float, float]:
    """From a little below the paper's setting up; one in which training failed must not squeeze all others."""
    lines = [place.without_skew(axes).mean for axes in (NONE, ALL)]
    every = [*_means(place, rows), *(line for line in lines if np.isfinite(line))]
    high, base = max(every), min(_means(place, [NONE]) or every)
    low = max(min(every), base - 0.4 * (high - base)) if base < high else min(every)
    pad = max(0.06 * (high - low), 0.004)
    return low - pad, high + pad


def _means(place: Ablation, settings: Sequence[frozenset[str]]) -> list[float]:
    every = [place.accuracy(one, axes, model) for one in ALGORITHMS for axes in settings for model in MODELS]
    return [value for value in every if np.isfinite(value)]


def _draw_pair(axes: Axes, place: Ablation, setting: frozenset[str], model: str, y: float, low: float) -> None:
    lead = place.lead(setting, model)
    ends = {algorithm: place.score(algorithm, setting, model) for algorithm in ALGORITHMS}
    if np.isfinite(lead):
        ahead = ALIGNED if lead >= 0 else PLAIN
        color = shade(line_style(ahead).color, 0.45)
        x = np.maximum([one.mean for one in ends.values()], low)
        axes.plot(x, (y, y), color=color, linewidth=4, solid_capstyle="butt", zorder=3, label="_lead")
        where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        color = shade(line_style(ahead).color, -0.25) if signed(lead, 1) != "0.0" else MUTED
        axes.annotate(signed(lead, 1), (1, y), (8, 0), va="center", size=SMALL, color=color, **where)
    for algorithm, one in ends.items():
        if one.known and one.mean < low:
            axes.plot(low, y, "<", ms=6, color=MUTED, zorder=4, label=f"_{algorithm}", clip_on=False)
        elif one.known:
            _draw_dot(axes, algorithm, one, y, model)


def _draw_dot(axes: Axes, algorithm: str, one: Score, y: float, model: str) -> None:
    style = replace(line_style(algorithm), filled=model == "last")
    if np.isfinite(one.deviation):
        color = shade(style.color, 0.3)
        axes.errorbar(one.mean, y, xerr=one.deviation, fmt="none", ecolor=color, elinewidth=0.8, zorder=2)
    axes.plot(one.mean, y, label=f"{algorithm}, {model}", zorder=4, **{**style.keywords(), "linestyle": "none"})


def _even_style(axes: frozenset[str]) -> dict[str, Any]:
    return {"color": TEXT, "linewidth": 1.2, "linestyle": "-" if axes else (0, (2, 2))}


def _legend(found: Sequence[Ablation]) -> dict[str, dict[str, Any]]:
    styles = {display_name(name): line_style(name).keywords() | {"linestyle": "none"} for name in ALGORITHMS}
    for model in MODELS:
        if any(arm.scores[model].known for place in found for arm in place.arms):
            styles[f"{model} model"] = LineStyle(MUTED, "o", "none", 1.0, model == "last").keywords()
    for axes in (NONE, ALL):
        if any(place.without_skew(axes).known for place in found):
            styles[arms.even_name(axes)] = _even_style(axes)
    return styles


def _caption(found: Sequence[Ablation], rows: Sequence[frozenset[str]]) -> str:
    seeds = arms.seeds_text(found)
    caption = "One seed." if seeds == "one seed" else f"Mean over {seeds}, whiskers: their standard deviation."
    caption += " Lead: FedGA less FedAvg, in points."
    caption += f" {NO_SKEW}" if any(place.without_skew(axes).known for place in found for axes in (NONE, ALL)) else ""
    if any(min(_means(place, rows)) < _limits(place, rows)[0] for place in found):
        caption += " Arrows at the edge: off the scale; the table has their numbers."
    skewed = [arm for place in found for arm in place.arms if not arm.even]
    statuses = [curve.status for arm in skewed for curve in arm.curves]
    counts = {
        "never left the start plateau": sum(arm.stuck for arm in skewed),
        "diverged": statuses.count("diverged"),
        "are unfinished": sum(status not in ("done", "diverged") for status in statuses),
    }
    odd = [f"{count} of {len(statuses)} runs {what}" for what, count in counts.items() if count]
    return f"{caption} {'; '.join(odd)}." if odd else caption


def strong_table(curves: Sequence[Curve], specs: Mapping[str, RunSpec]) -> Table:
    """A row per data set and α: the best printed accuracy of all algorithms, and ours in the strong setting."""
    skewed, even = _by_place(curves, specs, "dirichlet"), _by_place(curves, specs, "even")
    names = sorted({name for found in skewed.values() for name in found}, key=style.algorithm_rank)
    places = sorted(skewed, key=lambda place: (dataset_rank(place[0]), place[1]))
    rows = []
    for place in places:
        scores = [score_of(skewed[place].get(name, ()), reading) for name in names for reading in (LAST, AVERAGED)]
        ours = [score.cell(bold=score.mean_text == best_text(scores)) for score in scores]
        line = (arms.line_without_skew(even.get(place, {})).cell(),) if even else ()
        best = best_printed(*place)
        text = NOTHING if best is None else f"{score_text(best.mean, best.deviation)} {display_name(best.algorithm)}"
        head = (Cell(dataset_name(place[0]), place[0]), Cell(f"{place[1]:g}", place[1]))
        rows.append((*head, Cell(text, None if best is None else best.mean), *ours, *line))
    breaks = tuple(at for at in range(len(places) - 1) if places[at][0] != places[at + 1][0])
    caption = (
        "Accuracy after the last round, mean (deviation) over seeds; averaged: the model averaged over rounds on the "
        "server. Best printed: of all algorithms in either of the paper's tables. Bold: the best of ours in a row."
    )
    headings = ("data set", "α", "best printed", *(f"{display_name(name)}{of}" for name in names for of in _ENDS))
    if even:
        headings, caption = (*headings, "no skew"), f"{caption} {NO_SKEW}"
    return Table("strong", "The strong setting beside the best printed number", headings, tuple(rows), caption, breaks)


def strong_headline(curves: Sequence[Curve], specs: Mapping[str, RunSpec]) -> str:
    """In how many data sets and α FedGA's averaged model is above everything printed; empty without any."""
    leads = []
    for place, of in _by_place(curves, specs, "dirichlet").items():
        found, best = score_of(of.get("fedga", ()), AVERAGED), best_printed(*place)
        leads += [100 * (found.mean - best.mean)] if found.known and best is not None else []
    if not leads:
        return ""
    above = sum(signed(lead, 1).startswith("+") for lead in leads)
    span = f"{signed(min(leads), 1)} to {signed(max(leads), 1)}"
    where = f"in {above} of {plural(len(leads), 'setting')} (by {span} points)"
    return f"FedGA's averaged model in the strong setting is above the best printed accuracy {where}."


def best_printed(dataset: str, alpha: float) -> PrintedScore | None:
    """The highest accuracy of both printed tables, whichever algorithm has it."""
    cells = [printed_score(which, dataset, alpha, name) for which in SCORE_TABLES for name in runs.ALGORITHMS]
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
