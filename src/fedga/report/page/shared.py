"""What the pages of ``fedga report`` and ``fedga diagnose`` have in common; the latter does without torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

from fedga.errors import needs_extra
from fedga.report.documents import Cell, Table
from fedga.report.writers import marks_of
from fedga.version import __version__

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

    @cached_property
    def kinds(self) -> list[dict[str, str]]:
        """The class of every column: numbers stand to the right, and long texts need room."""
        return [self._kind(column) for column in range(len(self.table.headings))]

    def _kind(self, column: int) -> dict[str, str]:
        cells = [row[column] for row in self.table.rows]
        numbers = [isinstance(cell.value, (int, float)) for cell in cells]
        if any(numbers) and all(number or len(cell.text) < 2 for number, cell in zip(numbers, cells, strict=True)):
            return {"class": "number"}
        return {"class": "long"} if any(len(cell.text) > LONG for cell in cells) else {}

    def attributes(self, cell: Cell, column: int) -> dict[str, str]:
        """Of a cell: what it is, and what is sorted and goes into CSV where that is not what it shows."""
        found = {"scope": "row"} if column == 0 else {}
        found |= {name: kind for name, kind in self.kinds[column].items() if kind == "number"}
        key = f"{cell.value:.10g}" if isinstance(cell.value, (int, float)) else cell.value
        found |= {"data-value": key} if key is not None and key != cell.text else {}
        return found | ({} if cell.deviation is None else {"data-deviation": f"{cell.deviation:.10g}"})


def page_of(
    template: str, packages: Sequence[str], styles: Sequence[str], scripts: Sequence[str]
) -> Callable[..., str]:
    """A template of a folder ``page`` in one of the packages, to be rendered with what is in it.

    Everything is escaped, and a misspelt name is an error.
    """
    try:
        import jinja2
    except ImportError:
        raise needs_extra("jinja2", "report", "writing a page") from None
    from markupsafe import Markup

    def read(name: str) -> str:
        files = (resources.files(package).joinpath("page", name) for package in packages)
        return next(file for file in files if file.is_file()).read_text(encoding="utf-8")

    made: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    made = jinja2.Environment(loader=jinja2.FunctionLoader(read), undefined=jinja2.StrictUndefined, **made)
    css, script = Markup("".join(map(read, styles))), Markup("\n".join(map(read, scripts)))
    made.globals.update(version=__version__, css=css, script=script, view_of=TableView)
    return made.get_template(template).render
