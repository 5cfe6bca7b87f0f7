"""The value that pictures and tables are made of: what each run measured, round by round."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedga.measures.columns import COLUMNS, metric_column
from fedga.store.database import IDENTITY, reading
from fedga.store.digests import Digests
from fedga.store.metrics import read_metrics
from fedga.store.records import METRICS
from fedga.store.results import read_runs, telling_fields

_NO_SETTINGS = ("run_id", "seed", "round", "status", *COLUMNS)


@dataclass(frozen=True, eq=False)
class Curve:
    """One run: the settings that name it, and its metrics per evaluated round (NaN where not measured)."""

    settings: Mapping[str, Any]  # dataset, alpha, algorithm, preset, server, and what else tells runs apart
    seed: int
    rounds: np.ndarray  # int64 [evaluated rounds], ascending
    values: Mapping[str, np.ndarray]  # metric -> float64 [evaluated rounds]
    status: str = "done"  # pending, running, done or diverged
    run_id: str = ""

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    def metric(self, name: str) -> np.ndarray:
        """All evaluated rounds of a metric; NaN everywhere for one that was never measured."""
        return self.values.get(name, np.full(len(self.rounds), np.nan))

    def last(self, name: str) -> float:
        return float(self.metric(name)[-1]) if len(self.rounds) else np.nan

    def over_rounds(self, name: str) -> float:
        """The mean over the rounds from 1 on in which the metric was measured."""
        return mean(self.metric(name)[self.rounds >= 1])


def measured_split(curves: Iterable[Curve]) -> str:
    """What numbers are measured on: the test split, samples held out of training (``validate``), or now this, now that.

    >>> measured_split([Curve({"validate": 0.1}, 0, np.zeros(0), {})])
    'validation'
    """
    kinds = {bool(curve.settings.get("validate")) for curve in curves}
    return "validation" if kinds == {True} else "test or validation" if True in kinds else "test"


def metric_title(name: str, curves: Iterable[Curve]) -> str:
    """The title of a metric, which says what it was measured on.

    >>> metric_title("accuracy", [Curve({"validate": 0.1}, 0, np.zeros(0), {})])
    'validation accuracy'
    """
    return metric_column(name).title.replace("test ", f"{measured_split(curves)} ")


def main_accuracy(curves: Iterable[Curve]) -> str:
    """The accuracy that is shown first: of the global model, or of the clients' own where no run has a global head."""
    found = {name for curve in curves for name in curve.values}
    return "client_accuracy" if "client_accuracy" in found and "accuracy" not in found else "accuracy"


def mean(values: np.ndarray) -> float:
    """Mean of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else np.nan


def deviation(values: np.ndarray) -> float:
    """Sample standard deviation (over n - 1) of the finite values; NaN for fewer than two."""
    finite = values[np.isfinite(values)]
    return float(finite.std(ddof=1)) if len(finite) > 1 else np.nan


def median(values: np.ndarray) -> float:
    """Median of the values that are not NaN; an infinite EA ratio is a value. NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else np.nan


def curves_from_rows(rows: Iterable[Mapping[str, Any]]) -> list[Curve]:
    """Curves of rows as ``fedga results --format json`` prints them: one per run and evaluated round.

    Columns that are no metric are settings. A column ``status`` says which runs diverged.

    >>> rows = [{"dataset": "mnist", "algorithm": "fedga", "seed": 0, "round": r, "accuracy": r / 10} for r in (1, 2)]
    >>> [curve] = curves_from_rows(rows)
    >>> curve.rounds, curve.metric("accuracy")
    (array([1, 2]), array([0.1, 0.2]))
    """
    runs: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        named = tuple((name, value) for name, value in row.items() if name not in _NO_SETTINGS)
        runs.setdefault((named, row.get("seed", 0)), []).append(row)
    curves = []
    for (named, seed), of_run in runs.items():
        ordered = sorted(of_run, key=lambda row: row["round"])
        metrics = [name for name in COLUMNS if any(row.get(name) is not None for row in ordered)]
        values = {name: np.array([row.get(name) for row in ordered], dtype=np.float64) for name in metrics}
        rounds = np.array([row["round"] for row in ordered], dtype=np.int64)
        curves.append(Curve(dict(named), seed, rounds, values, ordered[-1].get("status") or "done"))
    return curves


def read_curves(
    folder: str | os.PathLike[str], run_ids: Collection[str] | None = None, settings: Collection[str] = ()
) -> list[Curve]:
    """All runs of a folder, or ``run_ids``; ``settings``: fields of curves besides those that tell runs apart."""
    with reading(Path(folder)) as connection:
        runs = [run for run in read_runs(connection) if run_ids is None or run.run_id in run_ids]
        named = (*(name for name in IDENTITY if name != "seed"), *telling_fields(runs), *settings)
        names = tuple(dict.fromkeys(named))
        curves, digests = [], Digests(connection)
        for run in runs:
            measured = read_metrics(digests, run.key, run.run_id)
            values = {name: of for name, of in measured.values.items() if name not in METRICS or not np.isnan(of).all()}
            settings = {name: getattr(run.spec, name) for name in names}
            curves.append(Curve(settings, run.spec.seed, measured.rounds, values, run.status, run.run_id))
    return curves
