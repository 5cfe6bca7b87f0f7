"""What one round of local training does to each active client, class by class: the paper's Fig. 2 and 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.drawing.canvas import Cell, compose, text_width
from fedga.drawing.style import GAINED, GRID, LOST, MUTED, SMALL, TEXT, display_name, drawing, shade
from fedga.errors import FedGAError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from fedga.engine.evaluation.metrics import ClientRecord

_FIELDS = ("client", "class_counts", "accuracy_before", "accuracy_after")
_MOST_NAMED = 20  # classes; with more of them a panel sorts its classes by count and names none
_MOST_LETTERS = 14  # of a client's name above its panel
_COUNTS = 0.55  # inches of the bars below a panel
_ABSENT = "#eceff2"
_HELD, _ROW, _GAP = 0.5, 0.72, 0.12  # inches of the counts, of an algorithm's row, and between the two
_MOST_NUMBERED = 10  # classes; of more, every fifth has its number below a narrow panel


def client_arrays(records: Sequence[ClientRecord] | Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The records of one round as arrays whose first axis is the client; such arrays (of a ClientRound) as they are."""
    if isinstance(records, Mapping):
        return {name: np.asarray(records[name]) for name in _FIELDS}
    return {name: np.array([getattr(record, name) for record in records]) for name in _FIELDS}


def before_after(
    records: Sequence[ClientRecord] | Mapping[str, Any],
    class_names: Sequence[str],
    *,
    title: str = "",
    client_names: Sequence[str] = (),
    most_clients: int = 10,
) -> Figure:
    """Class accuracy of the active clients of one round before and after local training, above their label counts.

    records: what the engine saw of a round's clients, or the arrays of a stored ``ClientRound``.
    client_names: of all clients or of the first ones; the others are called by their numbers.
    """
    arrays = client_arrays(records)
    called = dict(enumerate(client_names))
    number = len(arrays["client"])
    if not number:
        raise FedGAError("there are no clients to draw: none was examined in this round")
    if arrays["class_counts"].shape[1] != len(class_names):
        raise FedGAError(
            f"the clients have {arrays['class_counts'].shape[1]} classes, but {len(class_names)} are named"
        )
    shown = min(number, most_clients)
    columns = min(shown, 5)
    named = len(class_names) <= _MOST_NAMED
    with drawing():
        upright = all(text_width(name, SMALL) < 0.17 for name in class_names)
        depth = max(text_width(name, SMALL) for name in class_names) - 0.1 if named and not upright else 0.2 * named
        below = _COUNTS + 0.12 + depth + 0.28
        cells = [_cell(column == 0, len(class_names), below) for column in range(columns)]
        caption = "Grey columns: classes of which the client has no sample. Bars: its samples of each class."
        caption += "" if named else " Each client's classes stand in the order of their counts."
        caption += f" Shown: the first {shown} of {number} clients." if shown < number else ""
        heading = title or _what_is_seen(arrays)
        rows = -(-shown // columns)
        figure, axes = compose(rows, columns, cells, title=heading, legend=_legend(), caption=caption)
        tallest = arrays["class_counts"][:shown].max()
        for at, place in enumerate(axes):
            if at >= shown:
                place.set_visible(False)
                continue
            order = np.arange(len(class_names)) if named else np.argsort(-arrays["class_counts"][at], kind="stable")
            one = {name: values[at][order] if values.ndim > 1 else values[at] for name, values in arrays.items()}
            client = int(arrays["client"][at])
            _entitle(place, called.get(client, f"client {client}"), int(arrays["class_counts"][at].sum()))
            low = _draw(place, one, first=at % columns == 0, tallest=tallest)
            if named:
                low.set_xticks(range(len(class_names)), class_names, rotation=0 if upright else 90)
                low.set_xlabel("class" if upright else "")
            else:
                low.set_xticks([])
                low.set_xlabel(f"{len(class_names)} classes")
    return figure


def _cell(first: bool, classes: int, below: float) -> Cell:
    width = min(max(0.19 * classes, 1.5), 2.2)
    return Cell(width, 1.55, left=0.72 if first else 0.08, right=0.12, top=0.34, bottom=below)


def _entitle(axes: Axes, called: str, samples: int) -> None:
    short = called if len(called) <= _MOST_LETTERS else f"{called[: _MOST_LETTERS - 1]}…"
    axes.set_title(f"{short}, {samples:,} samples", size=SMALL, weight="normal", color=TEXT)


def _draw(axes: Axes, one: Mapping[str, Any], *, first: bool, tallest: int) -> Axes:
    """One client: accuracies in ``axes``, counts in new axes below them, which are returned."""
    counts, before, after = one["class_counts"], one["accuracy_before"], one["accuracy_after"]
    place = np.arange(len(counts))
    figure, box = axes.figure, axes.get_position()
    inch = box.height * figure.dpi / axes.bbox.height  # of the figure's height
    low = figure.add_axes((box.x0, box.y0 - (_COUNTS + 0.12) * inch, box.width, _COUNTS * inch), sharex=axes)
    for at in place[counts == 0]:
        for both in (axes, low):
            both.axvspan(at - 0.5, at + 0.5, color=_ABSENT, linewidth=0, zorder=0)
    colors = np.where(after < before, LOST, GAINED).tolist()
    small = len(counts) > _MOST_NAMED
    axes.vlines(place, before, after, colors=colors, linewidth=1.0 if small else 2.4, zorder=2)
    if not small:
        axes.plot(place, before, "o", ms=5, mfc="white", mec=MUTED, mew=1.2, zorder=3, label="before", clip_on=False)
        axes.scatter(place, after, s=30, color=colors, zorder=4, label="after", clip_on=False)
    else:
        axes.plot(place, before, ".", ms=2.5, color=MUTED, zorder=3, label="before")
        axes.scatter(place, after, s=5, color=colors, zorder=4, label="after")
    axes.set(ylim=(-0.03, 1.03), xlim=(-0.6, len(counts) - 0.4), yticks=(0, 0.5, 1))
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    axes.spines["bottom"].set_color(GRID)
    low.bar(place, counts, 0.8, color=MUTED)
    low.set_ylim(0, 1.05 * max(tallest, 1))
    low.set_yticks([int(tallest)])
    low.tick_params(axis="x", length=0)
    for both in (axes, low):
        both.grid(axis="x", visible=False)
        both.tick_params(axis="y", labelleft=first)
    axes.set_ylabel("class accuracy" if first else "")
    low.set_ylabel("samples" if first else "", size=SMALL, rotation=90)
    return low


def _legend() -> list[Line2D]:
    from matplotlib.lines import Line2D

    none: dict[str, Any] = {"linestyle": "none", "markersize": 7}
    return [
        Line2D([], [], marker="o", mfc="white", mec=MUTED, mew=1.2, label="model the client received", **none),
        Line2D([], [], marker="o", color=LOST, label="after its local training: worse", **none),
        Line2D([], [], marker="o", color=GAINED, label="after its local training: not worse", **none),
    ]


def _what_is_seen(arrays: Mapping[str, np.ndarray]) -> str:
    """The mean change of the clients' frequent, rare and missing classes in words."""
    changes = [f"{kind} {points_text(points)} points" for kind, points in class_changes(arrays).items()]
    heading = "Class accuracy after a round of local training"
    return f"{heading}: {', '.join(changes)}" if changes else heading


def class_changes(arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Mean change of accuracy, in points, of the clients' frequent, rare and missing classes, of those they have."""
    import torch

    from fedga.measures.asymmetry import forgetting

    before, after, counts = (torch.as_tensor(arrays[name]) for name in _FIELDS[2:] + _FIELDS[1:2])
    lost = forgetting(before.double(), after.double(), counts)
    points = {kind: -100 * getattr(lost, kind).nanmean().item() for kind in ("frequent", "rare", "missing")}
    return {kind: value for kind, value in points.items() if np.isfinite(value)}


def points_text(points: float) -> str:
    """A change in whole points.

    >>> points_text(-31.4), points_text(-0.2), points_text(3)
    ('−31', '+0', '+3')
    """
    text = f"{points:+.0f}".replace("-", "−")
    return "+0" if text == "−0" else text


def before_after_algorithms(
    rounds: Mapping[str, Sequence[ClientRecord] | Mapping[str, Any]],
    class_names: Sequence[str],
    *,
    title: str = "",
    most_clients: int = 10,
) -> Figure:
    """`before_after` of several algorithms: a row for each, a column per active client, its label counts on top.

    rounds: the records or arrays of one round for every algorithm. The same seed and round have the same clients under
    every algorithm; of others there is nothing to compare.
    """
    arrays = _same_clients(rounds, class_names)
    first = next(iter(arrays.values()))
    number = len(first["client"])
    shown = min(number, most_clients)
    with drawing():
        changes = {algorithm: class_changes(of) for algorithm, of in arrays.items()}
        wide = min(max(7.8 / shown, 0.78), 2.0)
        tall = _HELD + len(arrays) * (_ROW + _GAP)
        left = max(text_width(display_name(algorithm), SMALL, bold=True) for algorithm in arrays) + 0.42
        right = text_width("frequent +100", SMALL) + 0.15
        cells = [
            Cell(wide, tall, left if column == 0 else 0.05, right if column == shown - 1 else 0.05, 0.3, 0.42)
            for column in range(shown)
        ]
        caption = _algorithms_caption(class_names, shown, number)
        heading = title or _compared(changes)
        figure, axes = compose(1, shown, cells, title=heading, legend=_legend(), caption=caption, least_width=7.0)
        tallest = int(first["class_counts"][:shown].max())
        for column, frame in enumerate(axes):
            upper, *rows = _split(frame, (_HELD, *(_ROW for _ in arrays)))
            counts = first["class_counts"][column]
            order = np.arange(len(counts)) if len(counts) <= _MOST_NAMED else np.argsort(-counts, kind="stable")
            _draw_held(upper, counts[order], tallest, first=column == 0)
            upper.set_title(f"client {first['client'][column]}", size=SMALL, weight="normal", loc="center")
            for at, (algorithm, of) in zip(rows, arrays.items(), strict=True):
                before, after = (of[name][column][order] for name in ("accuracy_before", "accuracy_after"))
                _draw_small(at, counts[order], before, after, first=column == 0)
                if column == 0:
                    _write_beside(at, display_name(algorithm), -24, TEXT, weight="bold")
                if column == shown - 1:
                    _write_changes(at, changes[algorithm])
            _number_classes(rows[-1], len(class_names))
    return figure


def _same_clients(
    rounds: Mapping[str, Sequence[ClientRecord] | Mapping[str, Any]], class_names: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of every algorithm, clients in the order of the first one's."""
    arrays = {algorithm: client_arrays(records) for algorithm, records in rounds.items()}
    if not arrays or not all(len(of["client"]) for of in arrays.values()):
        raise FedGAError("there are no clients to draw: none was examined in this round")
    (_, first), *others = arrays.items()
    if first["class_counts"].shape[1] != len(class_names):
        raise FedGAError(f"the clients have {first['class_counts'].shape[1]} classes, but {len(class_names)} are named")
    wanted = first["client"].tolist()
    for algorithm, of in others:
        found = of["client"].tolist()
        if sorted(found) != sorted(wanted):
            raise FedGAError(
                f"{algorithm} was examined on other clients than {next(iter(arrays))}: give one seed and round of both"
            )
        order = [found.index(client) for client in wanted]
        arrays[algorithm] = {name: values[order] for name, values in of.items()}
    return arrays


def _split(frame: Axes, heights: Sequence[float]) -> list[Axes]:
    """Axes one below the other in place of ``frame``, in inches."""
    figure, box = frame.figure, frame.get_position()
    inch = box.height * figure.dpi / frame.bbox.height  # of the figure's height
    frame.set_visible(False)
    parts, top = [], box.y1
    for height in heights:
        parts.append(figure.add_axes((box.x0, top - height * inch, box.width, height * inch)))
        top -= (height + _GAP) * inch
    return parts


def _draw_held(axes: Axes, counts: np.ndarray, tallest: int, *, first: bool) -> None:
    axes.bar(np.arange(len(counts)), counts, 0.8, color=MUTED, label="counts")
    axes.set(xlim=(-0.6, len(counts) - 0.4), ylim=(0, 1.05 * max(tallest, 1)), xticks=(), yticks=(tallest,))
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="y", labelleft=first, length=0)
    if first:
        _write_beside(axes, "samples", -24, MUTED)


def _draw_small(axes: Axes, counts: np.ndarray, before: np.ndarray, after: np.ndarray, *, first: bool) -> None:
    """One client under one algorithm in less than an inch: hollow before, filled after, a line between the two."""
    place = np.arange(len(counts))
    for at in place[counts == 0]:
        axes.axvspan(at - 0.5, at + 0.5, color=_ABSENT, linewidth=0, zorder=0)
    colors = np.where(after < before, LOST, GAINED).tolist()
    size = 3.4 if len(counts) <= _MOST_NUMBERED else 1.8 if len(counts) <= _MOST_NAMED else 1.0
    axes.vlines(place, before, after, colors=colors, linewidth=1.4 if len(counts) <= _MOST_NAMED else 0.8, zorder=2)
    edge: dict[str, Any] = {"mfc": "white", "mec": MUTED, "mew": min(size / 3, 0.8)}
    axes.plot(place, before, "o", ms=size, zorder=3, label="before", clip_on=False, **edge)
    axes.scatter(place, after, s=size**2, color=colors, zorder=4, label="after", clip_on=False, linewidth=0)
    axes.set(xlim=(-0.6, len(counts) - 0.4), ylim=(-0.05, 1.05), xticks=(), yticks=(0, 1))
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="y", labelleft=first, length=0)
    axes.spines["bottom"].set_color(GRID)


def _number_classes(axes: Axes, classes: int) -> None:
    if classes > _MOST_NAMED:
        axes.set_xlabel(f"{classes} classes", size=SMALL)
        return
    places = np.arange(0, classes, 1 if classes <= _MOST_NUMBERED else 5)
    axes.set_xticks(places, [str(place) for place in places])
    axes.tick_params(axis="x", length=0, labelsize=0.78 * SMALL, pad=2)
    axes.set_xlabel("class", size=SMALL, labelpad=1)


def _write_beside(axes: Axes, text: str, points: float, color: str, **keywords: Any) -> None:
    """Left of the axes and half way up."""
    axes.annotate(
        text,
        (0, 0.5),
        (points, 0),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        va="center",
        size=SMALL,
        color=color,
        **keywords,
    )


def _write_changes(axes: Axes, changes: Mapping[str, float]) -> None:
    """The mean over all clients of the row, to its right."""
    for line, (kind, points) in enumerate(changes.items()):
        axes.annotate(
            f"{kind} {points_text(points)}",
            (1, 0.5),
            (7, SMALL * 1.3 * ((len(changes) - 1) / 2 - line)),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            size=SMALL,
            color=shade(LOST if points < 0 else GAINED, -0.25),
        )


def _algorithms_caption(class_names: Sequence[str], shown: int, number: int) -> str:
    caption = "Grey columns: classes of which the client has no sample. Right: mean change in points of the clients' "
    caption += "frequent, rare and missing classes."
    if len(class_names) > _MOST_NAMED:
        caption += " Each client's classes stand in the order of their counts."
    elif list(class_names) != [str(at) for at in range(len(class_names))]:
        caption += f" Classes: {', '.join(f'{at} {name}' for at, name in enumerate(class_names))}."
    return caption + (f" Shown: the first {shown} of {number} clients." if shown < number else "")


def _compared(changes: Mapping[str, Mapping[str, float]]) -> str:
    """The change that tells most of forgetting, for every algorithm, in words."""
    for kind in ("missing", "rare", "frequent"):
        if all(kind in of for of in changes.values()):
            told = [f"{display_name(algorithm)}\u00a0{points_text(of[kind])}" for algorithm, of in changes.items()]
            heading = f"What a round of local training does to the accuracy of the clients' {kind} classes"
            return f"{heading}, in points: {', '.join(told)}"
    return "Class accuracy after a round of local training"
