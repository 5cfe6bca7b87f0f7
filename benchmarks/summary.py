"""From seconds to a table: medians, spreads, and ratios of neighbouring rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MODEL_NAMES = {"mlp": "MLP 784-128-10", "lenet": "LeNet, 32×32×3", "resnet20": "ResNet-20, 32×32×3"}


@dataclass
class Row:
    """One contender on one model; ``not_run`` says why there are no numbers, where there are none."""

    name: str
    label: str
    seconds: list[float] = field(default_factory=list)
    fedga_seconds: list[float] = field(default_factory=list)  # of fedga's round beside each of them
    start_seconds: float | None = None
    accuracy: float | None = None
    memory_mib: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    tried: dict[str, float] = field(default_factory=dict)  # ways to run it: median seconds of warm-up rounds
    not_run: str = ""
    log: str = ""

    def add(self, seconds: float, fedga_seconds: float) -> None:
        self.seconds.append(seconds)
        self.fedga_seconds.append(fedga_seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.seconds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.seconds, method="inclusive")
        return low, high

    @property
    def ratio(self) -> float:
        """How many times fedga's time it takes: the median over pairs of neighbours, since a machine's speed drifts."""
        return statistics.median(own / fedga for own, fedga in zip(self.seconds, self.fedga_seconds, strict=True))

    def as_json(self) -> dict[str, Any]:
        numbers = {"median": self.median, "quartiles": self.quartiles, "ratio": self.ratio} if self.seconds else {}
        return asdict(self) | numbers


HEADS = ("", "s/round", "quartiles", "× fedga", "accuracy", "start, s", "peak MiB", "versions")
LEFT = (0, len(HEADS) - 1)  # columns of words


def table(rows: Sequence[Row]) -> str:
    """A table in Markdown with columns aligned, fastest first, those that did not run at the end."""
    cells = [HEADS, *(_cells(row) for row in in_order(rows))]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADS))]
    rule = tuple("-" * width if column in LEFT else "-" * (width - 1) + ":" for column, width in enumerate(widths))
    return "\n".join(_line(row, widths) for row in [cells[0], rule, *cells[1:]])


def in_order(rows: Sequence[Row]) -> list[Row]:
    ran = [row for row in rows if not row.not_run]
    return sorted(ran, key=lambda row: row.ratio) + [row for row in rows if row.not_run]


def _cells(row: Row) -> tuple[str, ...]:
    if row.not_run:
        reason = f"{row.not_run} ({row.log})".replace("|", "/")
        return (row.label, "not run", *[""] * (len(HEADS) - 3), reason)
    low, high = row.quartiles
    return (
        *(row.label, f"{row.median:.3f}", f"{low:.3f}–{high:.3f}", f"{row.ratio:.2f}"),
        *(f"{row.accuracy:.3f}", f"{row.start_seconds:.1f}"),
        "" if row.memory_mib is None else f"{row.memory_mib:.0f}",
        ", ".join(f"{name} {number}" for name, number in row.versions.items() if name != "python"),
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if column in LEFT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"
