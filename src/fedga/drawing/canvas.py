"""A sheet for panels, placed in inches from measured text: nothing overlaps, and the same picture is the same bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedga.drawing.style import FONT, LARGE, MUTED, SMALL
from fedga.drawing.style import Axes as Axes
from fedga.drawing.style import Figure as Figure

_EDGE = 0.15
_LEADING = 1.35
_LEADER = {"arrowstyle": "-", "lw": 0.7, "shrinkA": 1, "shrinkB": 1, "relpos": (0, 0.5)}
_LEGEND: Any = {"borderpad": 0, "borderaxespad": 0, "handlelength": 2.6, "columnspacing": 1.6, "labelspacing": 0.45}
_HANDLE = 0.55  # inches of a legend's line with the space after it


@dataclass(frozen=True)
class PanelSize:
    """One panel in inches: its axes, and the room for labels around them."""

    width: float
    height: float
    left: float = 0.62
    right: float = 0.2
    top: float = 0.36
    bottom: float = 0.52


@dataclass(frozen=True)
class LineEnd:
    x: float
    y: float
    text: str
    color: str


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Inches of a line of text, with a little to spare: what is drawn is rounded to pixels letter by letter."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return 1.02 * float(width) / 72


def wrap(text: str, width: float, size: float, bold: bool = False) -> list[str]:
    """Lines of at most ``width`` inches, broken at spaces, as few as it takes and of about equal length."""
    lines = _break(text, width, size, bold)
    for share in (0.6, 0.7, 0.8, 0.9):
        narrower = _break(text, share * width, size, bold)
        if len(narrower) == len(lines) > 1:
            return narrower
    return lines


def _break(text: str, width: float, size: float, bold: bool) -> list[str]:
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and text_width(longer, size, bold) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line]


def compose(
    rows: int,
    columns: int,
    sizes: PanelSize | Sequence[PanelSize],
    *,
    title: str = "",
    legend: Mapping[str, Mapping[str, Any]] | None = None,
    caption: str = "",
    least_width: float = 5.0,
    number: int | None = None,
) -> tuple[Figure, list[Axes]]:
    """A figure with ``rows × columns`` axes (or the first ``number``); ``sizes``: one for all, or one per column.

    ``legend``: label -> what matplotlib takes for its line, or for its patch where it has a ``facecolor``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    across = [sizes] * columns if isinstance(sizes, PanelSize) else list(sizes)
    tall = max(size.top + size.height + size.bottom for size in across)
    width = max(2 * _EDGE + sum(size.left + size.width + size.right for size in across), least_width)
    inner = width - 2 * _EDGE
    title_lines = wrap(title, inner, LARGE, bold=True) if title else []
    caption_lines = wrap(caption, inner, SMALL) if caption else []
    labels = list(legend or ())
    per_row = _legend_columns(labels, inner)
    legend_rows = -(-len(labels) // per_row)
    heights = (
        _lines(title_lines, LARGE) + (0.1 if title_lines else 0),
        legend_rows * FONT * 1.6 / 72 + (0.08 if legend_rows else 0),
        rows * tall,
        _lines(caption_lines, SMALL) + (0.05 if caption_lines else 0),
    )
    height = 2 * _EDGE + sum(heights)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)

    def write(lines: Sequence[str], top: float, size: float, **keywords: Any) -> None:
        for number, line in enumerate(lines):
            at = top - number * size * _LEADING / 72
            figure.text(_EDGE / width, at / height, line, size=size, va="top", **keywords)

    top = height - _EDGE
    write(title_lines, top, LARGE, weight="bold")
    if legend:
        by_column = {label: legend[label] for column in range(per_row) for label in labels[column::per_row]}
        handles = [Patch(**of) if "facecolor" in of else Line2D([], [], **of) for of in by_column.values()]
        corner = (_EDGE / width, (top - heights[0]) / height)
        figure.legend(handles, list(by_column), ncols=per_row, loc="upper left", bbox_to_anchor=corner, **_LEGEND)
    write(caption_lines, _EDGE + _lines(caption_lines, SMALL), SMALL, color=MUTED)
    axes: list[Axes] = []
    for row in range(rows):
        left, upper = _EDGE, top - heights[0] - heights[1] - row * tall
        for size in across[: None if number is None else max(number - len(axes), 0)]:
            bottom = upper - size.top - size.height
            box = ((left + size.left) / width, bottom / height, size.width / width, size.height / height)
            axes.append(figure.add_axes(box))
            left += size.left + size.width + size.right
    return figure, axes


def rows_and_columns(panels: int, most: int = 3) -> tuple[int, int]:
    """A grid of at most ``most`` columns.

    >>> rows_and_columns(2), rows_and_columns(4), rows_and_columns(5)
    ((1, 2), (2, 2), (2, 3))
    """
    columns = min(most, 2 if panels == 4 else panels)
    return -(-panels // columns), columns


def _lines(lines: Sequence[str], size: float) -> float:
    return len(lines) * size * _LEADING / 72


def _legend_columns(labels: Sequence[str], width: float) -> int:
    if not labels:
        return 1
    widest = max(text_width(label, FONT) for label in labels) + _HANDLE + 0.25
    most = max(1, min(len(labels), int(width / widest)))
    return -(-len(labels) // -(-len(labels) // most))  # as even as the number of rows allows


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The positions nearest to the wanted ones that are ``gap`` apart and stay inside.

    >>> spread([1.0, 1.0, 5.0], gap=1.0, low=0.0, high=10.0)
    [0.5, 1.5, 5.0]
    """
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    blocks: list[list[float]] = []  # isotonic regression of the positions less their share of gaps
    for rank, at in enumerate(order):
        blocks.append([wanted[at] - rank * gap])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = [float(np.mean(block)) for block in blocks for _ in block]
    most = max(low, high - (len(wanted) - 1) * gap)
    placed = [0.0] * len(wanted)
    for rank, at in enumerate(order):
        placed[at] = min(max(level[rank], low), most) + rank * gap
    return placed


def label_ends(axes: Axes, ends: Sequence[LineEnd]) -> None:
    """Write beside the end of every line, moved apart, the lowest left out if need be; set the axes' limits before."""
    width, height = (side / axes.figure.dpi * 72 for side in axes.bbox.size)  # in points
    gap = SMALL * 1.22
    room = max(1, int(height / gap) + 1)
    kept = sorted(ends, key=lambda end: end.y, reverse=True)[:room]
    places = [axes.transAxes.inverted().transform(axes.transData.transform((end.x, end.y))) for end in kept]
    heights = spread([float(place[1]) * height for place in places], gap, 0.0, height)
    moved = [abs(at - place[1] * height) > 1.5 or place[0] < 0.995 for place, at in zip(places, heights, strict=True)]
    for end, at, leader in zip(kept, heights, moved, strict=True):
        arrow = dict(_LEADER, color=end.color) if leader else None
        place = (1 + (13 if any(moved) else 4) / width, at / height)
        how: Any = {"textcoords": "axes fraction", "va": "center", "annotation_clip": False, "arrowprops": arrow}
        axes.annotate(end.text, (end.x, end.y), place, color=end.color, size=SMALL, **how)
