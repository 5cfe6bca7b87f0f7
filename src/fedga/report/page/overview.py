"""A page's first picture, drawn without a script: accuracy after the last round, over α or as one dot each."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedga.drawing.style import drawing
from fedga.report.curves import main_accuracy, metric_title
from fedga.report.page.shared import Tick
from fedga.report.page.study import Cohort, Member, Scenario, Study
from fedga.report.page.svg import svg_style
from fedga.report.page.tables import Found, ended_of
from fedga.report.summary import plus_minus
from fedga.report.words import grouped

WIDTH, HEIGHT = 310, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 10, 40
_MOST_LINES = 16


def draw_overview(study: Study) -> dict[str, Any]:
    """What the template needs; ``left_out`` counts settings of a single algorithm, which the tables have."""
    metric = main_accuracy(study.curves)
    by_dataset = grouped(study.places, lambda place: place.dataset)
    left_out = {
        (place.dataset, cohort.name)
        for place in study.places
        for cohort in set(place.cohorts) - set(shown_cohorts(place.cohorts))
    }
    panels = [_over_alpha(places, metric) for places in by_dataset.values() if len(places) > 1]
    dots = [_dots(places[0], metric) for places in by_dataset.values() if len(places) == 1]
    measured = metric_title(metric, study.curves) + (" of the global model" if metric == "accuracy" else "")
    return {
        "measured": measured[0].upper() + measured[1:],
        "over_alpha": [panel for panel in panels if panel["lines"]],
        "dots": [panel for panel in dots if panel["dots"]],
        "legend": {line["label"]: line for panel in panels for line in panel["lines"]},
        "left_out": len(left_out),
    }


def _title(title: str, drawn: Found) -> str:
    """With a remark where no run is at its last round."""
    return title if any(cohort.finished for _, cohort in drawn) else f"{title}, unfinished"


def compared(cohorts: Sequence[Cohort]) -> list[Cohort]:
    """The cohorts that compare algorithms; all of them where none does."""
    return [cohort for cohort in cohorts if len(cohort.members) > 1] or list(cohorts)


def shown_cohorts(cohorts: Sequence[Cohort], most: int = _MOST_LINES) -> list[Cohort]:
    """Of the cohorts that compare algorithms, presets as they are, as many as one picture can hold."""
    kept: list[Cohort] = []
    lines = 0
    several = compared(cohorts)
    for cohort in [cohort for cohort in several if not cohort.own] or several:
        lines += len(cohort.members)
        if kept and lines > most:
            break
        kept.append(cohort)
    return kept


def _edges(member: Member, metric: str) -> tuple[float, float, float]:
    middle, wide = member.row[metric], member.row[f"{metric}_deviation"] or 0.0
    return middle - wide, middle, middle + wide


def _over_alpha(places: Sequence[Scenario], metric: str) -> dict[str, Any]:
    """One data set: lines over α, in pixels of a picture of WIDTH × HEIGHT."""
    found: dict[str, list[tuple[int, Member]]] = {}
    drawn = ended_of([(place, cohort) for place in places for cohort in shown_cohorts(place.cohorts)])
    for place, cohort in drawn:
        for member in cohort.contestants:
            if member.row[metric] is not None:
                found.setdefault(cohort.label(member), []).append((places.index(place), member))
    least = len({place for place, _ in drawn}) / 2
    found = {label: entries for label, entries in found.items() if len(entries) > least}
    # Means set the scale: one whisker of many must not flatten all lines.
    means = [member.row[metric] for entries in found.values() for _, member in entries]
    room = 0.08 * (max(means, default=1) - min(means, default=0)) or 0.01
    low, high = min(means, default=0) - room, max(means, default=1) + room
    ticks = nice_ticks(low, high, 6)
    step = (WIDTH - _LEFT - _RIGHT) / max(len(places) - 1, 1)

    def height(value: float) -> float:
        share = min(max((high - value) / (high - low), 0.0), 1.0)
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * share, 1)

    lines = []
    for number, (label, entries) in enumerate(found.items()):
        shift = 1.6 * (number % 5 - 2)  # whiskers side by side
        marks = []
        for at, member in entries:
            below, middle, above = map(height, _edges(member, metric))
            marks.append({"x": round(_LEFT + at * step + shift, 1), "y": middle, "low": below, "high": above})
        path = "M" + "L".join(f"{mark['x']} {mark['y']}" for mark in marks)
        values = (f"α = {places[at].alpha_label}: {_value(member, metric)}" for at, member in entries)
        style = svg_style(entries[0][1].style)
        said = f"{label}. " + "; ".join(values)
        lines.append({"label": label, "style": style, "path": path, "marks": marks, "said": said})
    across = [Tick(round(_LEFT + at * step, 1), place.alpha_label) for at, place in enumerate(places)]
    up = [Tick(height(tick), tick_text(tick, ticks)) for tick in ticks]
    return {"title": _title(places[0].dataset_label, drawn), "across": across, "up": up, "lines": lines}


def _dots(place: Scenario, metric: str) -> dict[str, Any]:
    """One data set at its only α: a row per algorithm and setting; places are per cent of the width."""
    drawn = ended_of([(place, cohort) for cohort in shown_cohorts(place.cohorts)])
    chosen = [(of, member) for _, of in drawn for member in of.contestants if member.row[metric] is not None]
    edges = [edge for _, member in chosen for edge in _edges(member, metric)]
    ticks = nice_ticks(min(edges, default=0), max(edges, default=1), 4)
    low, high = min([*edges, *ticks[:1]]), max([*edges, *ticks[-1:]])

    def across(value: float) -> float:
        return round(100 * (value - low) / ((high - low) or 1), 2)

    dots = []
    for cohort, member in chosen:
        below, middle, above = map(across, _edges(member, metric))
        dot = {"label": cohort.label(member), "value": _value(member, metric), "style": svg_style(member.style)}
        dots.append({**dot, "at": middle, "low": below, "high": above})
    shown = [Tick(across(tick), tick_text(tick, ticks)) for tick in ticks]
    return {"title": _title(place.title, drawn), "ticks": shown, "dots": dots}


def _value(member: Member, metric: str) -> str:
    return plus_minus(member.row[metric], member.row[f"{metric}_deviation"])


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two values, at most ``most`` of them.

    >>> nice_ticks(0.71, 0.93, 5)
    [0.75, 0.8, 0.85, 0.9]
    """
    with drawing():
        from matplotlib.ticker import MaxNLocator

        ticks = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)
    inside = [round(float(tick), 12) for tick in ticks if low - 1e-9 <= tick <= high + 1e-9]
    return inside if high > low and inside else [low]


def tick_text(tick: float, ticks: Iterable[float]) -> str:
    """With as many decimals as the ticks need."""
    decimals = max(len(f"{value:.10f}".rstrip("0").partition(".")[2]) for value in ticks)
    return f"{tick:.{min(decimals, 4)}f}".replace("-", "−")
