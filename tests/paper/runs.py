"""Made-up runs whose numbers a test can say beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedga.report.curves import Curve
from fedga.report.documents import Cell, Table


def make_run(
    algorithm: str,
    accuracy: Sequence[float],
    *,
    seed: int = 0,
    dataset: str = "mnist",
    alpha: float | None = 0.1,
    preset: str = "paper",
    every: int = 1,
    status: str = "done",
    **settings: Any,
) -> Curve:
    """A run evaluated every so many rounds; macro F1 lies 0.01 below accuracy, the averaged model 0.02 above."""
    values = np.array(accuracy, dtype=np.float64)
    named = {"dataset": dataset, "alpha": alpha, "algorithm": algorithm, "preset": preset, "server": "sgd"}
    metrics = {"accuracy": values, "macro_f1": values - 0.01, "averaged_accuracy": values + 0.02}
    return Curve(named | settings, seed, every * np.arange(1, len(values) + 1), metrics, status)


def level_runs(algorithm: str, levels: Sequence[float], *, dataset: str = "mnist", alpha: float = 0.1) -> list[Curve]:
    """A run of ten rounds per seed that has the same accuracy throughout."""
    return [
        make_run(algorithm, [level] * 10, seed=seed, dataset=dataset, alpha=alpha) for seed, level in enumerate(levels)
    ]


def column(table: Table, heading: str) -> list[Cell]:
    at = table.headings.index(heading)
    return [row[at] for row in table.rows]


def texts(table: Table, heading: str) -> list[str]:
    return [cell.text for cell in column(table, heading)]
