"""What the paper leaves out: how far plain settings of training explain FedGA's lead, in a table and in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedga.drawing.style import display_name
from fedga.paper.report.arms import (
    ALGORITHMS,
    ALIGNED,
    ALL,
    AXES,
    NO_SKEW,
    NONE,
    PLAIN,
    SETTINGS,
    Arm,
    Place,
    distance_text,
    even_name,
    places,
    points,
    row_name,
    seeds_text,
    setting_name,
    share,
)
from fedga.paper.report.scores import MODELS, Score
from fedga.report.documents import Cell, Table
from fedga.report.summary import number_text
from fedga.spec.catalog import dataset_name

_Change = tuple[str, frozenset[str], str]  # its name in a sentence, the axes that are on, and the model


def beyond_table(of: Sequence[Arm]) -> Table:
    """Every setting in numbers: both models of both algorithms, FedGA's lead, and what is left of it.

    The highest accuracy under skew is bold.
    """
    rows: list[tuple[Cell, ...]] = []
    breaks = []
    found = places(of)
    for place in found:
        rows += [_table_row(place, axes) for axes in SETTINGS if place.shown(axes)]
        rows += [_even_row(place, axes) for axes in (NONE, ALL) if place.without_skew(axes).known]
        breaks.append(len(rows) - 1)
    each = ("FedAvg", "FedGA", "lead", "lead left")
    headings = ("data set", "α", "setting", *each, *(f"{heading}, averaged" for heading in each))
    caption = (
        f"Accuracy after the last round, mean (deviation) over {seeds_text(found)}, of the last model and of the one "
        "averaged over rounds on the server. Lead: FedGA less FedAvg, in points. Left: as a share of the last model's "
        "lead in the paper's setting; a dash where that is within two standard errors (paired by seed) of 0, or where "
        f"either algorithm does not train or has runs that never left the start plateau. {NO_SKEW}"
    )
    title = "What explains FedGA's lead, and what is left to gain"
    return Table("beyond", title, headings, tuple(rows), caption, tuple(breaks[:-1]))


def _table_row(place: Place, axes: frozenset[str]) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for model in MODELS:
        for one in ((PLAIN, axes, model), (ALIGNED, axes, model)):
            cells += [place.score(*one).cell(bold=place.best == one)]
        lead, left = place.lead(axes, model), place.remains(axes, model)
        cells += [Cell(points(lead), _known(lead)), Cell(share(left), _known(left))]
    return (*_head(place, row_name(axes)), *cells)


def _even_row(place: Place, axes: frozenset[str]) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for model in MODELS:
        found = [place.find(algorithm, axes, even=True) for algorithm in ALGORITHMS]
        scores = [Score(()) if arm is None else arm.scores[model] for arm in found]
        lead = 100 * (scores[1].mean - scores[0].mean)
        cells += [*(one.cell() for one in scores), Cell(points(lead), _known(lead)), Cell("–")]
    return (*_head(place, even_name(axes)), *cells)


def _head(place: Place, setting: str) -> tuple[Cell, ...]:
    name = dataset_name(place.dataset)
    alpha = "–" if place.alpha is None else f"{place.alpha:g}"
    return Cell(name, name), Cell(alpha, place.alpha), Cell(setting, setting)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def beyond_words(of: Sequence[Arm]) -> tuple[str, ...]:
    """The answers in sentences, each from the numbers: who leads where, what does not train, what closes the distance.

    After one that names the changes, for who has not seen the picture, there are at most five per data set and α.
    """
    said = [_changes_words()]
    tellers = (_lead_words, _failed_words, _stuck_words, _closing_words, _needed_words, _best_words)
    for place in places(of):
        said += [f"{place.name}: {sentence}." for tell in tellers if (sentence := tell(place))]
    return tuple(said)


def _changes_words() -> str:
    *names, last = (_said(frozenset({axis})) for axis in AXES)
    changes = f"{', '.join(names)} and {last}"
    return (
        f"Four changes to the paper's setting, alone and together: {changes}; "
        "a fifth reads the model averaged over rounds on the server in place of the last one."
    )


def _single() -> list[_Change]:
    return [("the averaged model", NONE, "averaged"), *((_said(axes), axes, "last") for axes in SETTINGS[1:5])]


def _lead_words(place: Place) -> str:
    """The lead in the paper's setting, with one change, and with all.

    In points, since a share of a small lead is a large number that means little.
    """
    if not np.isfinite(place.lead(NONE, "last")):
        return ""
    single = dict(sorted(_leads(place, _single()).items(), key=lambda named: named[1]))
    together = _leads(place, [("all four", ALL, "last"), ("all four and the averaged model", ALL, "averaged")])
    told = [_paper_lead(place)]
    if single:
        what = "lead" if place.leads else "difference"
        told.append(
            f"with one change the {what} is {', '.join(f'{_bare(lead)} ({name})' for name, lead in single.items())}"
        )
    if together:
        told.append(", ".join(f"with {name} {_bare(lead)}" for name, lead in together.items()))
    if any(_is_below(lead) for lead in (*single.values(), *together.values())):
        told.append("below 0 FedAvg is ahead")
    return "; ".join(told)


def _leads(place: Place, changes: Sequence[_Change]) -> dict[str, float]:
    return {name: place.lead(axes, model) for name, axes, model in changes if place.both_train(axes, model)}


def _paper_lead(place: Place) -> str:
    lead = place.lead(NONE, "last")
    where = f"{_where(NONE)} ({_accuracies(place, NONE, 'last')})"
    if _bare(lead) == "0.0":
        return f"neither FedAvg nor FedGA leads {where}"
    if not place.leads:
        return f"FedGA is {distance_text(lead)} FedAvg {where}, within two standard errors of no difference"
    if lead < 0:
        return f"FedGA is {_bare(-lead)} points behind FedAvg {where}"
    return f"FedGA's lead over FedAvg is {_bare(lead)} points {where}"


def _accuracies(place: Place, axes: frozenset[str], model: str) -> str:
    found = {one: place.accuracy(one, axes, model) for one in ALGORITHMS}
    return ", ".join(f"{display_name(one)} {number_text(found[one])}" for one in found if np.isfinite(found[one]))


def _failed_words(place: Place) -> str:
    """What does not train at all, by who fails: its numbers are near chance, and in no comparison."""
    failed: dict[tuple[str, ...], list[str]] = {}
    for axes in SETTINGS:
        for model in MODELS:
            who = tuple(one for one in ALGORITHMS if place.fails(one, axes, model))
            if who:
                failed.setdefault(who, []).append(_failure(place, axes, model))
                break  # the averaged model is no news where the last one fails
    told = []
    for who, settings in failed.items():
        subject = "neither algorithm trains" if who == ALGORITHMS else f"{display_name(who[0])} does not train"
        told.append(f"{subject} {', nor '.join(settings)}")
    return "; ".join(told)


def _failure(place: Place, axes: frozenset[str], model: str) -> str:
    raw = ", on raw pixels" if len(axes) == 1 and "pixels" not in axes else ""
    averaged = "averaged model: " if model == "averaged" else ""
    return f"{_where(axes)}{raw} ({averaged}{_accuracies(place, axes, model)})"


def _stuck_words(place: Place) -> str:
    """Where single runs never began to learn, although the setting trains."""
    stuck: dict[str, list[str]] = {}
    for algorithm in ALGORITHMS:
        for axes in SETTINGS:
            arm = place.find(algorithm, axes)
            if arm and arm.stuck and not place.fails(algorithm, axes, "last"):
                runs = f"{arm.stuck} of {len(arm.curves)} {display_name(algorithm)} runs"
                stuck.setdefault(runs, []).append(_where(axes))
    if not stuck:
        return ""
    told = [f"{' and '.join(where)} {runs}{' each' if len(where) > 1 else ''}" for runs, where in stuck.items()]
    mean = "its mean says" if sum(map(len, stuck.values())) == 1 else "their means say"
    return f"{' and '.join(told)} never left the start plateau, so {mean} little"


def _closing_words(place: Place) -> str:
    """How much of the way from plain FedAvg to no skew every change that trains goes by itself."""
    _, goal = place.goal
    start = place.accuracy(PLAIN, NONE, "last")
    distance = goal.mean - start
    if not np.isfinite(distance) or not place.trains(PLAIN, NONE, "last"):
        return ""
    told = [f"FedAvg in the paper's setting is {distance_text(-100 * distance)} {_line_words(place)}"]
    if distance < 0.005:
        return told[0]
    gains = {name: gain - start for name, gain in _reached(place).items()}
    order = sorted(gains, key=lambda name: -gains[name])
    closing = [f"{name} {share(gains[name] / distance)}" for name in order if not _is_below(100 * gains[name])]
    losing = [f"{name} alone loses {-100 * gains[name]:.1f} points" for name in order if _is_below(100 * gains[name])]
    told += [f"of this distance each alone closes: {', '.join(closing)}"] if closing else []
    return "; ".join([*told, *losing])


def _reached(place: Place) -> dict[str, float]:
    """Accuracy after every change by itself, FedGA being one."""
    changed = [(name, (PLAIN, axes, model)) for name, axes, model in _single()]
    changed.append((display_name(ALIGNED), (ALIGNED, NONE, "last")))
    return {name: place.accuracy(*arm) for name, arm in changed if place.trains(*arm)}


def _bare(value: float) -> str:
    """Points without the sign of a plus."""
    return points(value).removeprefix("+")


def _is_below(value: float) -> bool:
    """Whether points are below 0 as they are written."""
    return points(value).startswith("−")


def _needed_words(place: Place) -> str:
    """Which of the four FedGA would miss most; where some setting does not train, that has been said and is more."""
    if _failed_words(place) or _stuck_words(place):
        return ""
    full = place.accuracy(ALIGNED, ALL, "last")
    drops = {axis: 100 * (full - place.accuracy(ALIGNED, ALL - {axis}, "last")) for axis in AXES}
    if not np.isfinite(list(drops.values())).all():
        return ""
    axis = max(drops, key=lambda axis: drops[axis])
    if drops[axis] < 0.05:
        return f"leaving out any one of the four costs FedGA's last model nothing ({number_text(full)} with all)"
    without = number_text(place.accuracy(ALIGNED, ALL - {axis}, "last"))
    cost = f"{drops[axis]:.1f} points (from {number_text(full)} to {without})"
    return f"of the four, leaving out {_said(frozenset({axis}))} costs FedGA's last model most, {cost}"


def _best_words(place: Place) -> str:
    if place.best is None:
        return ""
    algorithm, axes, model = place.best
    reached = place.accuracy(*place.best)
    best = f"the best is {display_name(algorithm)}'s {model} model {_where(axes)}, {number_text(reached)}"
    _, goal = place.goal
    return f"{best}, {distance_text(100 * (reached - goal.mean))} {_line_words(place)}" if goal.known else best


def _line_words(place: Place) -> str:
    axes, goal = place.goal
    return f"the same samples dealt evenly {_where(axes)} ({number_text(goal.mean)})"


def _where(axes: frozenset[str]) -> str:
    """A setting as the place in which something happens.

    >>> [_where(axes) for axes in (NONE, frozenset({"decay"}), ALL)]
    ["in the paper's setting", 'with weight decay alone', 'with all four']
    """
    return f"with {_said(axes)}{' alone' if len(axes) == 1 else ''}" if axes else f"in {_said(axes)}"


def _said(axes: frozenset[str]) -> str:
    """A setting inside a sentence.

    >>> _said(frozenset({"schedule"})), _said(ALL - {"schedule"})
    ('a falling rate', 'all but a falling rate')
    """
    return setting_name(axes).replace("falling rate", "a falling rate")
