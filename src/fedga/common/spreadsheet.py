"""Cells of tables that people open in a spreadsheet, where a text may be taken for a formula."""

import csv
import io
from collections.abc import Iterable
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def text_cell(value: Any) -> Any:
    """A text that a spreadsheet would compute gets an apostrophe, which makes it text there; numbers stay numbers.

    The csv module leaves a carriage return without quotes, where a spreadsheet begins a new row: it becomes a blank.

    >>> [text_cell(value) for value in ("=1+1", "-x", "mlp", "a\\r=1", -0.5, None)]
    ["'=1+1", "'-x", 'mlp', 'a =1', -0.5, None]
    """
    if not isinstance(value, str):
        return value
    return ("'" * value.startswith(_FORMULA) + value).replace("\r", " ")


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of comma-separated cells: floats by repr, None as an empty cell."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(map(text_cell, row) for row in rows)
    return stream.getvalue()
