"""Docstrings as Markdown: examples become blocks of code, Sphinx's roles and literal blocks plain Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([^`]+)`")
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*(?:\n+\1>>> .*(?:\n(?! *$).*)*)*", re.MULTILINE)


def as_markdown(text: str) -> str:
    """The text of a docstring, for Markdown."""
    text = _ROLE.sub(r"`\1`", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)\[(?=[^]]*\]:)", r"\1\\[", text, flags=re.MULTILINE)  # a shape, not the target of a link
    return _EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", text)


class Docstrings(griffe.Extension):
    """Named in mkdocs.yml."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is None and obj.is_attribute:
            obj.docstring = _comment(obj)
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def _comment(field: Any) -> griffe.Docstring | None:
    """What stands behind a field in its line: as good as a docstring."""
    _, _, comment = field.source.partition("  # ")
    return griffe.Docstring(comment, parent=field) if comment and "\n" not in field.source else None
