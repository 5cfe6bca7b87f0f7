"""Results in a notebook: a folder's numbers as tidy tables, and its curves as a picture."""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedga.drawing.style import Figure
from fedga.errors import FedGAError
from fedga.measures.columns import COLUMNS
from fedga.report.curves import Curve, read_curves
from fedga.report.figures.lines import accuracy_curves, ea_ratio_curves
from fedga.store.archive import opened
from fedga.store.records import ClientRound
from fedga.store.results import ResultsReader

_OF_CLASSES = {"samples": "class_counts", "accuracy_before": "accuracy_before", "accuracy_after": "accuracy_after"}


@dataclass(frozen=True, eq=False)
class Results:
    """What `fedga.load_results` returns: tidy tables, one observation per row, as pandas DataFrames.

    - ``runs``: a row per run: its settings, seed, status and the metrics of its last evaluated round.
    - ``metrics``: a row per run and evaluated round: settings, seed, round, and a column per metric.
    - ``clients``: a row per run, evaluated round, active client and class (its place, from 0): samples of the class
      that the client holds, and the accuracy on it of the model before and after the client's training. An archive has
      the last round alone.
    - ``curves``: the same numbers as ``metrics``, as arrays, for code without pandas.
    - ``plot(metric)``: the curves, one line per setting, as a matplotlib figure.

    Settings are the columns that name a run, and those in which runs differ.
    """

    folder: Path
    curves: Sequence[Curve]
    evaluations: Sequence[ClientRound]

    def __repr__(self) -> str:
        algorithms = ", ".join(sorted({str(curve.settings["algorithm"]) for curve in self.curves}))
        return f"Results({str(self.folder)!r}: {len(self.curves)} runs of {algorithms or 'nothing'})"

    @cached_property
    def metrics(self) -> Any:
        frames = []
        for curve in self.curves:
            values = {name: curve.metric(name) for name in self._names}
            frames.append(_frame(self._named(curve) | {"round": curve.rounds} | values, len(curve.rounds)))
        return _joined(frames, ("round", *self._names))

    @cached_property
    def runs(self) -> Any:
        rows = []
        for curve in self.curves:
            last = int(curve.rounds[-1]) if len(curve.rounds) else 0
            of_run = self._named(curve) | {"status": curve.status, "round": last}
            rows.append(of_run | {name: curve.last(name) for name in self._names})
        return _pandas().DataFrame(rows)

    @cached_property
    def clients(self) -> Any:
        named = {curve.run_id: self._named(curve) for curve in self.curves}
        frames = []
        for each in self.evaluations:
            counts = each.arrays["class_counts"]
            clients, classes = counts.shape
            columns: dict[str, Any] = {"round": each.round, "client": np.repeat(each.arrays["client"], classes)}
            columns["class"] = np.tile(np.arange(classes), clients)
            columns |= {name: each.arrays[array].reshape(-1) for name, array in _OF_CLASSES.items()}
            frames.append(_frame(named[each.run_id] | columns, counts.size))
        return _joined(frames, ("round", "client", "class", *_OF_CLASSES))

    def plot(self, metric: str = "accuracy", *, title: str = "") -> Figure:
        """One panel per data set and α, one line per setting: the mean over seeds, and its deviation as a band."""
        if metric not in self._names:
            raise FedGAError(f"{self.folder} has no metric {metric!r}: give one of {', '.join(self._names) or 'none'}")
        if metric == "ea_ratio":
            return ea_ratio_curves(self.curves, title=title)
        return accuracy_curves(self.curves, metric=metric, title=title)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Metrics that some run has, built-in ones first."""
        found = {name for curve in self.curves for name in curve.values}
        return (*(name for name in COLUMNS if name in found), *sorted(found - COLUMNS.keys()))

    def _named(self, curve: Curve) -> dict[str, Any]:
        return {"run_id": curve.run_id, **curve.settings, "seed": curve.seed}


def load_results(folder: str | os.PathLike[str], *, notice: Callable[[str], None] = warnings.warn) -> Results:
    """The numbers of a results folder, or of its archive, as tables: `Results`.

    ```
    results = fedga.load_results("runs/digits-0f3a")
    results.metrics.groupby(["algorithm", "round"])["accuracy"].mean()
    results.plot("macro_f1")
    ```
    """
    folder = Path(folder)
    with opened(folder, notice) as here:
        curves, reader = read_curves(here), ResultsReader(here)
        evaluations = [each for curve in curves for each in reader.client_rounds(curve.run_id)]
    return Results(folder, curves, evaluations)


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise FedGAError("tables need pandas, which is not installed: pip install pandas") from None


def _frame(columns: dict[str, Any], rows: int) -> Any:
    """A table in which a single value stands in every row."""
    return _pandas().DataFrame(columns, index=range(rows))


def _joined(frames: list[Any], columns: Sequence[str]) -> Any:
    pandas = _pandas()
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame(columns=list(columns))
