"""The settings of a command, and who decided them, for the terminal and as plain rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text

from fedga.report.series import setting_text
from fedga.report.terminal import Column, TitledTable, make_table
from fedga.spec.grid import Provenance


def settings_rows(provenance: Iterable[Provenance]) -> list[dict[str, str]]:
    """One row per setting and source: name, values as a user would type them, and where they came from."""
    return [{"setting": line.setting, "value": values_text(line.values), "source": line.source} for line in provenance]


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
    rows = settings_rows(provenance)
    lines, before = [], ""
    for row in rows:
        source = row["source"]
        style = "dim" if source == "default" else "" if source.startswith(("default", "preset")) else "bold"
        texts = ("" if row["setting"] == before else row["setting"], row["value"].replace(",", ", "), source)
        lines.append([Text(text, style=style) for text in texts])
        before = row["setting"]
    columns = [Column(heading, [line[at] for line in lines]) for at, heading in enumerate(("setting", "value", "from"))]
    return make_table(columns, width=width)
