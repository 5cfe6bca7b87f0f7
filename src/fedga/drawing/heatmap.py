"""Who holds what: samples of every class at every client, as a picture and as coloured blocks in the terminal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.color import blend_rgb, parse_rgb_hex
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from fedga.drawing.canvas import Axes, Figure, PanelSize, compose, text_width
from fedga.drawing.style import GRID, SMALL, TEXT, QuadMesh, drawing
from fedga.errors import FedGAError

RAMP = ("#deebf7", "#9ecae1", "#4292c6", "#08519c", "#08306b")  # few samples to many; none is no colour at all
_MOST_NAMED = 40  # classes
_MOST_NUMBERS = 400  # cells
_MOST_PATHS = 2000  # cells: an SVG of more holds them as a picture, since each would take it 100 bytes and time to draw
_BLOCKS = ("46327e", "365c8d", "1fa187", "a0da39", "fde725")  # few to many, seen on black and on white
_SHADES, _ASCII_SHADES = "░▒▓█", ".+*#"
_MOST_LISTED = 40  # classes whose names are listed below, where they do not fit above


def check_counts(class_counts: np.ndarray, class_names: Sequence[str]) -> np.ndarray:
    counts = np.asarray(class_counts)
    if counts.ndim != 2 or counts.shape[1] != len(class_names) or not counts.size:
        raise FedGAError(f"class_counts must be [clients, {len(class_names)}], but is {list(counts.shape)}")
    return counts


def depth(counts: np.ndarray, largest: int) -> np.ndarray:
    """Place of each count on the colour scale, 0 for one sample to 1 for the largest, on a logarithm."""
    return np.log(np.maximum(counts, 1)) / np.log(max(largest, 2))


def counts_summary(counts: np.ndarray) -> str:
    """The skew in one sentence, over all clients."""
    clients, classes = counts.shape
    held = (counts > 0).sum(1)
    largest = counts.max(1).sum() / max(counts.sum(), 1)
    return (
        f"{clients:,} clients hold {held.mean():.1f} of {classes} classes on average (fewest {held.min()}, most "
        f"{held.max()}); {100 * largest:.0f} % of the samples belong to their client's largest class."
    )


def label_heatmap(
    class_counts: np.ndarray,
    class_names: Sequence[str],
    title: str = "",
    *,
    client_names: Sequence[str] = (),
    most_clients: int = 100,
) -> Figure:
    """Samples of each class at each client, ``[clients, classes]``; a class that a client misses is left white."""
    every = check_counts(class_counts, class_names)
    counts = every[:most_clients]
    clients, classes = counts.shape
    largest = int(every.max())
    with drawing():
        side = min(0.42, max(9.6 / clients, 0.075)) if clients > 12 else 0.45
        tall = min(max(side, 0.2), 0.45) if classes <= _MOST_NAMED else max(4.5 / classes, 0.035)
        caption = f"Empty: the client has no sample of the class. {counts_summary(every)}"
        if clients < len(every):
            caption += f" Shown: the first {clients} of {len(every):,} clients."
        named = bool(client_names) and side >= 0.2
        below = max(text_width(name, SMALL) for name in client_names[:clients]) if named else 0.1
        left = names_width(class_names) + 0.45
        cell = PanelSize(side * clients, tall * classes, left=left, right=0.95, top=0.1, bottom=below + 0.42)
        figure, [axes] = compose(1, 1, cell, title=title, caption=caption, least_width=6.0)
        mesh = draw_counts(axes, counts, class_names, largest, numbers=counts.size <= _MOST_NUMBERS and side >= 0.3)
        if named:
            axes.set_xticks(np.arange(clients) + 0.5, client_names[:clients], rotation=90)
        draw_scale(figure, mesh, largest, axes, axes)
    return figure


def names_width(class_names: Sequence[str]) -> float:
    """Inches of the labels that `draw_counts` puts beside a map."""
    return max(text_width(name, SMALL) for name in class_names) if len(class_names) <= _MOST_NAMED else 0.3


def draw_counts(
    axes: Axes, counts: np.ndarray, class_names: Sequence[str], largest: int, *, numbers: bool = False
) -> QuadMesh:
    """The map of ``counts``, ``[clients, classes]``: a column per client, colours on a logarithm up to ``largest``."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    clients, classes = counts.shape
    tall = axes.bbox.height / axes.figure.dpi / classes
    scale = LogNorm(vmin=1, vmax=max(largest, 2))
    ramp = LinearSegmentedColormap.from_list("counts", RAMP)
    masked = np.ma.masked_equal(counts.T, 0)
    # Lines between cells, where cells are tall enough to be told apart by them.
    edges: Any = {"edgecolors": "white", "linewidth": 0.6} if tall > 0.1 else {"edgecolors": "none"}
    mesh = axes.pcolormesh(masked, cmap=ramp, norm=scale, rasterized=counts.size > _MOST_PATHS, **edges)
    if numbers:
        for client, of_class in zip(*np.nonzero(counts), strict=True):
            value = int(counts[client, of_class])
            color = "white" if depth(np.array(value), largest) > 0.5 else TEXT
            at = (client + 0.5, of_class + 0.5)
            axes.text(*at, f"{value}", ha="center", va="center", size=0.8 * SMALL, color=color)
    axes.set(xlim=(0, clients), ylim=(classes, 0), xlabel="client", ylabel="class")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set(visible=True, color=GRID)
    _number(axes.xaxis, clients)
    if classes <= _MOST_NAMED:
        axes.set_yticks(np.arange(classes) + 0.5, class_names)
    else:
        _number(axes.yaxis, classes)
    return mesh


def draw_scale(figure: Figure, mesh: QuadMesh, largest: int, highest: Axes, lowest: Axes) -> None:
    """What the colours mean, in a bar to the right that reaches from the lowest to the highest of the maps."""
    upper, lower, (width, _) = highest.get_position(), lowest.get_position(), figure.get_size_inches()
    beside = figure.add_axes((upper.x1 + 0.15 / width, lower.y0, 0.14 / width, upper.y1 - lower.y0))
    bar = figure.colorbar(mesh, cax=beside)
    steps = (1, 10, 100, 1000, 10_000, 100_000) if largest >= 100 else (1, 2, 5, 10, 20, 50)
    ticks = [*(step for step in steps if step < 0.7 * largest), largest]
    bar.set_ticks(ticks, labels=[f"{value:,}" for value in ticks])
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("samples")


def _number(axis: object, number: int) -> None:
    """Every so many-th number under the middle of its cell."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if number / step <= 25 or step == 1000)
    places = np.arange(0, number, step)
    axis.set_ticks(places + 0.5, labels=[str(place) for place in places])  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _ClassColumns:
    """How wide the classes' columns are, how many there is room for, and what stands above them."""

    width: int
    number: int
    numbers: bool  # counts are written into the cells
    numbered: bool  # classes are headed by their place instead of their name
    header: str

    @classmethod
    def fit(cls, counts: np.ndarray, names: Sequence[str], room: int) -> Self:
        classes = len(names)
        digits = len(str(int(counts.max()))) + 1
        longest = max(cell_len(name) for name in names) + 1
        for width in (max(digits, longest), max(digits, 3), digits, 2, 1):
            if width * classes <= room:
                break
        number = min(classes, max(room // width, 1))
        if longest <= max(width, 2) and (width > 1 or longest == 1):
            header = "".join(_right(name, width) for name in names[:number])
            return cls(width, number, width >= digits, False, header)
        step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if len(str(number - 1)) < step * width or step == 100)
        marks = (_right(str(at), width if width > 1 else 0).ljust(width * step) for at in range(0, number, step))
        header = set_cell_size("".join(marks), number * width)
        numbered = any(name != str(at) for at, name in enumerate(names))
        return cls(width, number, width >= digits, numbered, header)

    def cells(self, row: np.ndarray, largest: int, colored: bool, shades: str) -> Text:
        """The blocks of one client; without colour, numbers or characters of growing darkness."""
        text = Text()
        for count, place in zip(row.tolist(), depth(row, largest).tolist(), strict=True):
            if count == 0:
                text.append(" " * self.width)
            elif self.numbers:
                text.append(_right(str(count), self.width), _block(place) if colored else None)
            elif colored:
                text.append(" " * self.width, _block(place))
            else:
                text.append(shades[min(int(place * len(shades)), len(shades) - 1)] * self.width)
        return text


@dataclass(frozen=True)
class LabelHeatmapText:
    """Samples of each class at each client, which fits itself to the console that it is printed on."""

    counts: np.ndarray  # [clients, classes]
    class_names: Sequence[str]
    title: str = ""
    client_names: Sequence[str] = ()
    most_clients: int = 20

    def __post_init__(self) -> None:
        check_counts(self.counts, self.class_names)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self.counts[: self.most_clients]
        labels = [*(self.client_names or map(str, range(len(self.counts))))][: len(shown)]
        totals = [f"{total:,}" for total in shown.sum(1)]
        margin = min(max(cell_len(label) for label in ["client", *labels]), max(options.max_width // 3, 1)) + 1
        tail = max(len(total) for total in ["total", *totals]) + 1
        room = options.max_width - margin - tail
        if room < 1:
            room, tail = max(options.max_width - margin, 1), 0
        columns = _ClassColumns.fit(shown, self.class_names, room)
        if self.title:
            yield Text(self.title, style="bold")
        if columns.header:
            yield self._line("client", columns.header, "total" if tail else "", margin, tail)
        largest = int(self.counts.max())
        colored = console.color_system is not None and not console.no_color
        shades = _ASCII_SHADES if options.ascii_only else _SHADES
        for label, row, total in zip(labels, shown, totals, strict=True):
            cells = columns.cells(row[: columns.number], largest, colored, shades)
            yield self._line(label, cells, total if tail else "", margin, tail)
        for note in self._notes(columns, colored, shades, len(shown)):
            yield Text(note, style="dim")

    @staticmethod
    def _line(label: str, cells: Text | str, total: str, margin: int, tail: int) -> Text:
        line = Text(set_cell_size(label, margin - 1).replace("\n", " ") + " ", no_wrap=True, overflow="crop")
        return line.append(cells).append(total.rjust(tail))

    def _notes(self, columns: _ClassColumns, colored: bool, shades: str, clients: int) -> Iterable[str]:
        if columns.numbered and columns.number <= _MOST_LISTED:
            names = ", ".join(f"{at} {name}" for at, name in enumerate(self.class_names[: columns.number]))
            yield f"Classes: {names}."
        few = "; the brighter, the more" if colored else f"; {' '.join(shades)} few to many"
        scale = "" if columns.numbers else few
        left_out = []
        if clients < len(self.counts):
            left_out.append(f"the first {clients} of {len(self.counts):,} clients")
        if columns.number < len(self.class_names):
            left_out.append(f"the first {columns.number} of {len(self.class_names)} classes")
        shown = f" Shown: {' and '.join(left_out)}." if left_out else ""
        yield f"Blank: the client has no sample of the class{scale}.{shown}"
        yield counts_summary(self.counts)


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def _block(place: float) -> Style:
    """A background, and letters that can be read on it."""
    at = min(max(place, 0.0), 1.0) * (len(_BLOCKS) - 1)
    low = min(int(at), len(_BLOCKS) - 2)
    mixed = blend_rgb(parse_rgb_hex(_BLOCKS[low]), parse_rgb_hex(_BLOCKS[low + 1]), at - low)
    return Style(color="#1f2328" if place > 0.55 else "#ffffff", bgcolor=mixed.hex)
