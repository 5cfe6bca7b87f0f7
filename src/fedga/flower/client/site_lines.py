"""What local training does to a site's classes: a headline and a table, for the site's owner.

A class without a sample to measure it on has no numbers. What the federation changed is shown only where the model
trained here before was measured on the same samples.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedga.measures.asymmetry import forgetting

WIDTH = 100  # columns of a line
_MOST_CLASSES = 7  # in the table; of more, one fewer and a line that says so
_SITE, _NAME = 30, 20  # columns for names
_BAR = 10


@dataclass(frozen=True)
class ClassRow:
    """One class after one local training; recalls are NaN if the class was not measured.

    With nothing held out (``held_out_samples`` 0), recalls are those on the training samples.
    """

    run: str
    round: int
    name: str
    kind: str  # frequent, rare or missing
    training_samples: int
    held_out_samples: int
    before: float  # recall of the received model
    after: float  # recall of the model trained here

    @property
    def measured(self) -> bool:
        return math.isfinite(self.before) and math.isfinite(self.after)


@dataclass(frozen=True)
class Earlier:
    """The model that the site trained in an earlier round: its recall of classes with the same samples as now."""

    round: int
    recall: Mapping[str, float]


def class_lines(site: str, rows: Sequence[ClassRow], samples: int, earlier: Earlier | None = None) -> list[str]:
    """At most 12 lines, 100 columns wide, on one local training; recalls were measured on so many ``samples``."""
    headline = f"site {_cut(plain(site), _SITE)}, round {rows[0].round}: "
    if not any(row.measured for row in rows):
        return [headline + "no samples to compare the received model with the one trained here"]
    held_out = any(row.held_out_samples for row in rows)
    known = earlier.recall if earlier else {}
    changes = [f"local training: {_points(rows, [row.after for row in rows], [row.before for row in rows])}"]
    if any(row.measured and math.isfinite(known.get(row.name, math.nan)) for row in rows):
        changes.insert(0, f"the federation: {_points(rows, [row.before for row in rows], _recalls(rows, known))}")
    else:
        earlier = None
    shown = _shown(rows)
    lines = [headline + f"recall on {samples:,} {'held-out' if held_out else 'training'} samples", *changes]
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown):,} classes left out; shown: the rarest, and those that moved most")
    return [_cut(line) for line in lines] + _table(shown, earlier)


def _shown(rows: Sequence[ClassRow]) -> list[ClassRow]:
    """The classes of the table in their own order: of many the rarest and, as many, those that moved most."""
    if len(rows) <= _MOST_CLASSES:
        return list(rows)
    rarest = sorted(rows, key=lambda row: (not row.measured, row.training_samples))[: (_MOST_CLASSES - 1) // 2]
    others = [row for row in rows if row not in rarest]
    others.sort(key=lambda row: (-abs(row.after - row.before) if row.measured else 1.0, row.training_samples))
    return [row for row in rows if row in [*rarest, *others[: _MOST_CLASSES - 1 - len(rarest)]]]


def _recalls(rows: Sequence[ClassRow], known: Mapping[str, float]) -> list[float]:
    return [known.get(row.name, math.nan) for row in rows]


def _points(rows: Sequence[ClassRow], now: Sequence[float], then: Sequence[float]) -> str:
    """The mean change in whole percentage points, by kind of class, for the kinds that are measured."""
    counts = torch.tensor([row.training_samples for row in rows])
    lost = forgetting(torch.tensor(then), torch.tensor(now), counts)
    changes = {kind: -100 * getattr(lost, kind).item() for kind in ("frequent", "rare", "missing")}
    told = [f"{kind} {round(change):+d}" for kind, change in changes.items() if math.isfinite(change)]
    return f"{', '.join(told)} points"


def _table(rows: Sequence[ClassRow], earlier: Earlier | None) -> list[str]:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    then = [f"round {earlier.round}"] if earlier else []
    for name in ("class", "kind", "training", "held out", *then, "received", "trained here"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("training", "held out", *then) else "left")
    for row in rows:
        figures = [_percent(earlier.recall.get(row.name, math.nan))] if earlier else []
        figures += [_bar(row.before), _bar(row.after)] if row.measured else ["not measured"]
        counts = (f"{row.training_samples:,}", f"{row.held_out_samples:,}")
        table.add_row(Text(_cut(row.name, _NAME)), row.kind, *counts, *figures)
    out = io.StringIO()
    Console(file=out, width=WIDTH - 2, color_system=None, legacy_windows=False).print(table)
    return [f"  {line.rstrip()}" for line in out.getvalue().splitlines()]


def _bar(recall: float) -> str:
    filled = min(max(round(recall * _BAR), 0), _BAR)
    return f"{_percent(recall)} {'█' * filled}{'░' * (_BAR - filled)}"


def _percent(recall: float) -> str:
    return "" if math.isnan(recall) else f"{100 * recall:3.0f}%"


def plain(text: str) -> str:
    """On one line, without characters that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)).strip()


def _cut(text: str, width: int = WIDTH) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
