"""Mistakes in the command itself, told like any other: in one sentence."""

from __future__ import annotations

import difflib

import typer

# Of its parser's errors typer names this one in public. Its base class is what every misuse of the command line raises,
# whether typer brings the parser along, as it does now, or takes it from the package click, as it did.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def usage_sentence(error: Exception) -> str:
    """The sentence for a `UsageError`; empty where the help text has been printed already."""
    context = getattr(error, "ctx", None)
    help_text = f"see '{context.command_path if context else 'fedga'} --help'"
    unknown = getattr(error, "option_name", None)
    if unknown is not None and hasattr(error, "possibilities"):
        names = [name for option in context.command.params for name in option.opts] if context else []
        near = difflib.get_close_matches(unknown, names, n=1)
        return f"unknown option {unknown}: " + (f"did you mean {near[0]}? ({help_text})" if near else help_text)
    text = error.format_message().strip().replace(". Did you mean", ": did you mean")  # type: ignore[attr-defined]
    if not text:
        return ""
    text = text[0].lower() + text[1:].rstrip(".")
    return f"{text} ({help_text})" if text.endswith("?") else f"{text}: {help_text}"
