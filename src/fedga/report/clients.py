"""What one round of local training does to each active client, class by class: the paper's Fig. 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.errors import FedGAError
from fedga.report.canvas import Cell, compose, text_width
from fedga.report.style import GAINED, GRID, LOST, MUTED, SMALL, TEXT, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from fedga.simulation.metrics import ClientRecord

_FIELDS = ("client", "class_counts", "accuracy_before", "accuracy_after")
_MOST_NAMED = 20  # classes; with more of them a panel sorts its classes by count and names none
_COUNTS = 0.55  # inches of the bars below a panel
_ABSENT = "#eceff2"


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
    most_clients: int = 10,
) -> Figure:
    """Class accuracy of the active clients of one round before and after local training, above their label counts.

    records: what the engine saw of a round's clients, or the arrays of a stored ``ClientRound``.
    """
    arrays = client_arrays(records)
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
    axes.set_title(f"client {one['client']}, {int(counts.sum()):,} samples", size=SMALL, weight="normal", color=TEXT)
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
    import torch

    from fedga.asymmetry import forgetting

    before, after, counts = (torch.as_tensor(arrays[name]) for name in _FIELDS[2:] + _FIELDS[1:2])
    lost = forgetting(before.double(), after.double(), counts)
    changes = []
    for kind in ("frequent", "rare", "missing"):
        points = 100 * getattr(lost, kind).nanmean().item()
        if np.isfinite(points):
            changes.append(f"{kind} {-points:+.0f} points".replace("-", "−").replace("−0 ", "+0 "))
    heading = "Class accuracy after a round of local training"
    return f"{heading}: {', '.join(changes)}" if changes else heading
