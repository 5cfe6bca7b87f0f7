"""Tables that fit a terminal: columns shrink to their longest word before anything is cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


class TitledTable(Table):
    """A rich table whose heading and footnote take the width of the terminal, however narrow the table is."""

    heading = ""
    footnote = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.heading:
            yield Text(self.heading, style="italic")  # a text, since a name in brackets is no markup
        yield from super().__rich_console__(console, options)
        if self.footnote:
            yield Text(self.footnote, style="dim italic")


@dataclass(frozen=True)
class Column:
    heading: str
    cells: Sequence[Text]
    justify: Literal["left", "right"] = "left"

    @property
    def widest(self) -> int:
        """Cells a line takes that is not wrapped."""
        return max(cell_len(line) for text in self._texts() for line in text.split("\n"))

    @property
    def narrowest(self) -> int:
        """Cells of the longest word."""
        return max(cell_len(word) for text in self._texts() for word in text.replace("\n", " ").split(" "))

    def _texts(self) -> list[str]:
        return [self.heading, *(cell.plain for cell in self.cells)]


def full_width(columns: Sequence[Column]) -> int:
    """The width at which nothing wraps and columns stand two apart."""
    return sum(column.widest + 2 for column in columns) - 2


def least_width(columns: Sequence[Column]) -> int:
    """The width below which words would be cut."""
    return sum(column.narrowest for column in columns) + len(columns) - 1


def make_table(
    columns: Sequence[Column],
    *,
    title: str = "",
    caption: str = "",
    width: int | None = None,
    sections: Sequence[int] = (),
    leading: int = 0,
) -> TitledTable:
    """A rich table of these columns; ``width`` is the terminal's, ``sections`` the rows after which one ends."""
    roomy = width is None or full_width(columns) <= width
    padding = (0, 1 if roomy else 0, 0, 0)
    table = TitledTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding, leading=leading)
    table.heading, table.footnote = title, caption
    widths: Sequence[int | None] = [None] * len(columns)
    if width is not None and not roomy and least_width(columns) <= width:
        widths = shrink([c.widest for c in columns], [c.narrowest for c in columns], width - len(columns) + 1)
    for column, wide in zip(columns, widths, strict=True):
        table.add_column(Text(column.heading), justify=column.justify, width=wide, overflow="fold")
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        table.add_row(*cells, end_section=number in sections)
    return table


def shrink(widest: Sequence[int], narrowest: Sequence[int], room: int) -> list[int]:
    """Column widths that sum to at most ``room``: the widest give way first, none below its narrowest.

    >>> shrink([30, 10, 5], [12, 4, 5], 30)
    [15, 10, 5]
    """
    widths = list(widest)
    while sum(widths) > room:
        able = [at for at in range(len(widths)) if widths[at] > narrowest[at]]
        if not able:
            break
        widths[max(able, key=lambda at: widths[at])] -= 1
    return widths
