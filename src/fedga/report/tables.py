"""The settings of a command, and who decided them, for the terminal and as plain rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text

from fedga.report.series import setting_text
from fedga.report.terminal import Column, TitledTable, make_table
from fedga.spec.grid import Provenance


def values_text(values: Sequence[Any]) -> str:
    """Values as on a flag: whole numbers that follow each other become a range.

    >>> values_text((0, 1, 2, 3)), values_text((0.1, None)), values_text((True,)), values_text((7, 8))
    ('0-3', '0.1,none', 'true', '7,8')
    """
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if whole and len(values) > 2 and list(values) == list(range(values[0], values[0] + len(values))):
        return f"{values[0]}-{values[-1]}"
    return ",".join(setting_text(value) or "none" for value in values)


def settings_table(provenance: Iterable[Provenance], *, width: int | None = None) -> TitledTable:
    """What every setting is and who decided so; what the user gave stands out, defaults step back."""
    lines, before = [], ""
    for line in provenance:
        style = "dim" if line.source == "default" else "" if line.source.startswith(("default", "preset")) else "bold"
        shown = "" if line.setting == before else line.setting, values_text(line.values).replace(",", ", ")
        lines.append([Text(text, style=style) for text in (*shown, line.source)])
        before = line.setting
    columns = [Column(heading, [line[at] for line in lines]) for at, heading in enumerate(("setting", "value", "from"))]
    return make_table(columns, width=width)
