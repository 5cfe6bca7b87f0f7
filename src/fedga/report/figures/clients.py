"""What one round of local training does to each active client, class by class: the paper's Fig. 2 and 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.drawing.canvas import Axes, Figure, PanelSize, compose, text_width
from fedga.drawing.style import GAINED, GRID, LOST, MUTED, SMALL, TEXT, display_name, drawing, shade
from fedga.errors import FedGAError

if TYPE_CHECKING:
    from fedga.engine.evaluation.metrics import ClientRecord

_FIELDS = ("client", "class_counts", "accuracy_before", "accuracy_after")
_MOST_NAMED = 20  # classes; with more of them a panel sorts its classes by count and names none
_MOST_NUMBERED = 10  # classes; of more, every fifth has its number below a narrow panel
_MOST_LETTERS = 10  # of a client's name above its panel
_ABSENT = "#eceff2"
_HELD, _ROW, _GAP = 0.5, 0.72, 0.12  # inches of the counts, of an algorithm's row, and between the two
_ALONE = 1.5  # inches of the row of a single algorithm
_BESIDE: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center", "size": SMALL}

_DOT: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 7}
_LEGEND = {
    "model the client received": {"mfc": "white", "mec": MUTED, "mew": 1.2, **_DOT},
    "after its local training: worse": {"color": LOST, **_DOT},
    "after its local training: not worse": {"color": GAINED, **_DOT},
}


def before_after(
    records: Sequence[ClientRecord] | Mapping[str, Any],
    class_names: Sequence[str],
    *,
    title: str = "",
    client_names: Sequence[str] = (),
    most_clients: int = 10,
) -> Figure:
    """Class accuracy of the active clients of one round before and after local training, below their label counts.

    records: the engine's records of a round's clients, or the arrays of a stored ``ClientRound``.
    client_names: of all clients or of the first ones; the others are called by their numbers.
    """
    named = {"title": title, "client_names": client_names, "most_clients": most_clients}
    return before_after_algorithms({"": records}, class_names, **named)  # type: ignore[arg-type]


def before_after_algorithms(
    rounds: Mapping[str, Sequence[ClientRecord] | Mapping[str, Any]],
    class_names: Sequence[str],
    *,
    title: str = "",
    client_names: Sequence[str] = (),
    most_clients: int = 10,
) -> Figure:
    """`before_after` of several algorithms: a row for each, a column per active client, its label counts on top.

    rounds: the records or arrays of one round for every algorithm. The same seed and round have the same clients under
    every algorithm; of others there is nothing to compare.
    """
    arrays = _same_clients(rounds, class_names)
    first = next(iter(arrays.values()))
    shown = min(len(first["client"]), most_clients)
    with drawing():
        changes = {algorithm: class_changes(of) for algorithm, of in arrays.items()}
        heights = [_HELD, *[_ALONE if len(arrays) == 1 else _ROW for _ in arrays]]
        wide, tall = min(max(7.8 / shown, 0.78), 2.0), sum(heights) + _GAP * len(arrays)
        left = max(text_width(name, SMALL, bold=True) for name in ["samples", *map(display_name, arrays)]) + 0.42
        right = text_width("frequent +100", SMALL) + 0.15
        sides = [(left if at == 0 else 0.05, right if at == shown - 1 else 0.05) for at in range(shown)]
        sizes = [PanelSize(wide, tall, *side, 0.3, 0.42) for side in sides]
        caption = _caption(class_names, shown, len(first["client"]))
        heading = title or _headline(changes)
        figure, axes = compose(1, shown, sizes, title=heading, legend=_LEGEND, caption=caption, least_width=7.0)
        tallest = int(first["class_counts"][:shown].max())
        for column, frame in enumerate(axes):
            upper, *rows = _split(frame, heights)
            counts, client = first["class_counts"][column], int(first["client"][column])
            order = np.arange(len(counts)) if len(counts) <= _MOST_NAMED else np.argsort(-counts, kind="stable")
            _draw_held(upper, counts[order], tallest, first=column == 0)
            name = client_names[client] if client < len(client_names) else f"client {client}"
            short = name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"
            upper.set_title(short, size=SMALL, weight="normal", loc="center")
            for at, (algorithm, of) in zip(rows, arrays.items(), strict=True):
                before, after = (of[name][column][order] for name in ("accuracy_before", "accuracy_after"))
                _draw_small(at, counts[order], before, after, first=column == 0)
                if column == 0:
                    text = display_name(algorithm)
                    at.annotate(text, (0, 0.5), (-24, 0), ha="right", color=TEXT, weight="bold", **_BESIDE)
                if column == shown - 1:
                    _write_changes(at, changes[algorithm])
            _number_classes(rows[-1], len(class_names))
    return figure


def _same_clients(
    rounds: Mapping[str, Sequence[ClientRecord] | Mapping[str, Any]], class_names: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of every algorithm, clients in the order of the first one's."""
    arrays = {
        algorithm: {
            name: np.asarray(of[name]) if isinstance(of, Mapping) else np.array([getattr(one, name) for one in of])
            for name in _FIELDS
        }
        for algorithm, of in rounds.items()
    }
    if not arrays or not all(len(of["client"]) for of in arrays.values()):
        raise FedGAError("there are no clients to draw: none was evaluated in this round")
    (_, first), *others = arrays.items()
    if first["class_counts"].shape[1] != len(class_names):
        raise FedGAError(f"the clients have {first['class_counts'].shape[1]} classes, but {len(class_names)} are named")
    wanted = first["client"].tolist()
    for algorithm, of in others:
        found = of["client"].tolist()
        if sorted(found) != sorted(wanted):
            names = f"{algorithm} was evaluated on other clients than {next(iter(arrays))}"
            raise FedGAError(f"{names}: give one seed and round of both")
        order = [found.index(client) for client in wanted]
        arrays[algorithm] = {name: values[order] for name, values in of.items()}
    return arrays


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
    return f"{round(points) or 0:+.0f}".replace("-", "−")


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
        axes.annotate("samples", (0, 0.5), (-24, 0), ha="right", color=MUTED, **_BESIDE)


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


def _write_changes(axes: Axes, changes: Mapping[str, float]) -> None:
    """The mean over all clients of the row, to its right."""
    for line, (kind, points) in enumerate(changes.items()):
        offset = (7, SMALL * 1.3 * ((len(changes) - 1) / 2 - line))
        color = shade(LOST if points < 0 else GAINED, -0.25)
        axes.annotate(f"{kind} {points_text(points)}", (1, 0.5), offset, color=color, **_BESIDE)


def _caption(class_names: Sequence[str], shown: int, number: int) -> str:
    caption = "Grey columns: classes of which the client has no sample. Right: mean change in points of the clients' "
    caption += "frequent, rare and missing classes."
    if len(class_names) > _MOST_NAMED:
        caption += " Each client's classes stand in the order of their counts."
    elif list(class_names) != [str(at) for at in range(len(class_names))]:
        caption += f" Classes: {', '.join(f'{at} {name}' for at, name in enumerate(class_names))}."
    return caption + (f" Shown: the first {shown} of {number} clients." if shown < number else "")


def _headline(changes: Mapping[str, Mapping[str, float]]) -> str:
    """The change of the missing classes (of others where no client misses one) for every algorithm."""
    heading = "Accuracy after a round of local training"
    for kind in ("missing", "rare", "frequent"):
        if all(kind in of for of in changes.values()):
            points = [f"{display_name(name)}\u00a0{points_text(of[kind])}".strip() for name, of in changes.items()]
            return f"{heading}, {kind} classes, in points: {', '.join(points)}"
    return heading
