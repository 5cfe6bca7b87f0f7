"""Who holds what, in the terminal: coloured blocks, with the counts in them where they fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.color import blend_rgb, parse_rgb_hex
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from fedga.drawing.heatmap import check_counts, counts_summary, depth

_RAMP = ("46327e", "365c8d", "1fa187", "a0da39", "fde725")  # few to many, seen on black and on white
_SHADES, _ASCII_SHADES = "░▒▓█", ".+*#"
_MOST_LISTED = 40  # classes whose names are listed below, where they do not fit above


@dataclass(frozen=True)
class LabelHeatmapText:
    """A rich renderable that fits itself to the width and colours of the console it is printed on."""

    counts: np.ndarray  # [clients, classes]
    class_names: Sequence[str]
    title: str
    client_names: Sequence[str]
    most_clients: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self.counts[: self.most_clients]
        labels = [*(self.client_names or map(str, range(len(self.counts))))][: len(shown)]
        totals = [f"{total:,}" for total in shown.sum(1)]
        margin = min(max(cell_len(label) for label in ["client", *labels]), max(options.max_width // 3, 1)) + 1
        tail = max(len(total) for total in ["total", *totals]) + 1
        room = options.max_width - margin - tail
        if room < 1:
            room, tail = max(options.max_width - margin, 1), 0
        columns = _Columns.fit(shown, self.class_names, room)
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

    def _notes(self, columns: _Columns, colored: bool, shades: str, clients: int) -> Iterable[str]:
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


@dataclass(frozen=True)
class _Columns:
    """How wide the classes' columns are, how many there is room for, and what stands above them."""

    width: int
    number: int
    numbers: bool  # counts are written into the cells
    numbered: bool  # classes are headed by their place instead of their name
    header: str

    @classmethod
    def fit(cls, counts: np.ndarray, names: Sequence[str], room: int) -> _Columns:
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
        plain = all(name == str(at) for at, name in enumerate(names))
        return cls(width, number, width >= digits, not plain, header)

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


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def _block(place: float) -> Style:
    """A background, and letters that can be read on it."""
    at = min(max(place, 0.0), 1.0) * (len(_RAMP) - 1)
    low = min(int(at), len(_RAMP) - 2)
    mixed = blend_rgb(parse_rgb_hex(_RAMP[low]), parse_rgb_hex(_RAMP[low + 1]), at - low)
    return Style(color="#1f2328" if place > 0.55 else "#ffffff", bgcolor=mixed.hex)


def label_heatmap_text(
    class_counts: np.ndarray,
    class_names: Sequence[str],
    title: str = "",
    *,
    client_names: Sequence[str] = (),
    most_clients: int = 20,
) -> LabelHeatmapText:
    """Samples of each class at each client, ``[clients, classes]``, to be printed on a rich console of any width."""
    counts = check_counts(class_counts, class_names)
    return LabelHeatmapText(counts, tuple(class_names), title, tuple(client_names), most_clients)
