"""What the pages of ``fedga report`` and ``fedga diagnose`` have in common; the latter does without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedga.errors import needs_extra
from fedga.report.documents import Cell, Table
from fedga.report.writers import marks_of

if TYPE_CHECKING:
    from jinja2 import Environment

LONG = 36  # letters


@dataclass(frozen=True)
class Tick:
    """A place on an axis, in pixels or per cent, and what stands there."""

    at: float
    text: str


@dataclass(frozen=True)
class TableView:
    """A table as the page shows it: numbers to the right, and what is said of single cells below it."""

    table: Table

    @cached_property
    def notes(self) -> dict[str, str]:
        """What is said of single cells, each text once, and the letter it goes by."""
        return marks_of(self.table)

    def kind(self, column: int) -> dict[str, str]:
        """The class of a column: numbers stand to the right, and long texts need room."""
        cells = [row[column] for row in self.table.rows]
        numbers = [isinstance(cell.value, (int, float)) for cell in cells]
        if any(numbers) and all(number or len(cell.text) < 2 for number, cell in zip(numbers, cells, strict=True)):
            return {"class": "number"}
        return {"class": "long"} if any(len(cell.text) > LONG for cell in cells) else {}

    @cached_property
    def _kinds(self) -> list[dict[str, str]]:
        return [self.kind(column) for column in range(len(self.table.headings))]

    def attributes(self, cell: Cell, column: int) -> dict[str, str]:
        """Of a cell: what it is, and what is sorted and goes into CSV where that is not what it shows."""
        found = {"scope": "row"} if column == 0 else {}
        found |= {name: kind for name, kind in self._kinds[column].items() if kind == "number"}
        key = f"{cell.value:.10g}" if isinstance(cell.value, (int, float)) else cell.value
        found |= {"data-value": key} if key is not None and key != cell.text else {}
        return found | ({} if cell.deviation is None else {"data-deviation": f"{cell.deviation:.10g}"})


def environment(read: Callable[[str], str]) -> Environment:
    """For templates that ``read`` gives by name: everything is escaped, and a misspelt name is an error."""
    try:
        import jinja2
    except ImportError:
        raise needs_extra("jinja2", "report", "writing a page") from None
    made: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    return jinja2.Environment(loader=jinja2.FunctionLoader(read), undefined=jinja2.StrictUndefined, **made)
