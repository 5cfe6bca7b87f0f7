"""Cells of tables that people open in a spreadsheet, where a text may be taken for a formula."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def text_cell(value: Any) -> Any:
    """A text that a spreadsheet would compute gets an apostrophe, which makes it text there; numbers stay numbers.

    >>> [text_cell(value) for value in ("=1+1", "-x", "mlp", -0.5, None)]
    ["'=1+1", "'-x", 'mlp', -0.5, None]
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def text_cells(row: Iterable[Any]) -> list[Any]:
    """A row of a CSV export."""
    return [text_cell(value) for value in row]
