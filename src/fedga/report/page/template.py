"""Where the templates of our pages are rendered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedga.errors import needs_extra

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(read: Callable[[str], str]) -> Environment:
    """For templates that ``read`` gives by name: everything is escaped, and a misspelt name is an error."""
    try:
        import jinja2
    except ImportError:
        raise needs_extra("jinja2", "report", "writing a page") from None
    made: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    return jinja2.Environment(loader=jinja2.FunctionLoader(read), undefined=jinja2.StrictUndefined, **made)
