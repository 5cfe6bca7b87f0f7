"""Runs of digits, on the built-in engine and through messages, and what it means that they are equal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedga.common.sealed import unseal
from fedga.flower import client_app
from fedga.flower.server.app import _simulate
from fedga.spec.settings import RunSpec
from fedga.store.records import METRICS
from fedga.store.store import Store
from fedga.study.model_files import model_path
from fedga.study.sweep import Observer, run_sweep
from tests.flower.loopback import Loopback

CLIENTS = 8


def make_spec(**settings: Any) -> RunSpec:
    small = {"clients": CLIENTS, "active": 3, "alpha": 0.2, "rounds": 2, "batch_size": 16, "diagnose_every": 1}
    return RunSpec(**{"dataset": "digits", "algorithm": "fedavg", **small, **settings})


def partitions(clients: int = CLIENTS) -> list[dict[str, Any]]:
    return [{"partition-id": client, "num-partitions": clients} for client in range(clients)]


def on_engine(specs: Sequence[RunSpec], folder: Path) -> Path:
    with Store(folder) as store:
        run_sweep(specs, store, torch.device("cpu"), axes=differing(specs))
    return folder


def by_messages(
    specs: Sequence[RunSpec], folder: Path, grid: Loopback | None = None, observer: Observer | None = None
) -> Loopback:
    grid = grid or Loopback(client_app, partitions())
    _simulate(grid, specs, differing(specs), str(folder), "", "cpu", observer or Observer())
    return grid


def differing(specs: Sequence[RunSpec]) -> list[str]:
    names = [name for name in RunSpec.__dataclass_fields__ if name != "algorithm_options"]
    return [name for name in names if len({getattr(spec, name) for spec in specs}) > 1]


def assert_equal_results(one: Path, other: Path, specs: Sequence[RunSpec], *, diagnosed: bool = True) -> None:
    """Every number of every round, what was seen of every client, and the models, to the rounding of float32."""
    tables = [_rows(one), _rows(other)]
    assert tables[0].keys() == tables[1].keys() >= {(spec.run_id, spec.rounds) for spec in specs}
    for key, row in tables[0].items():
        same = tables[1][key]
        if not diagnosed:
            row, same = row[: METRICS.index("client_ea_ratio")], same[: METRICS.index("client_ea_ratio")]
        np.testing.assert_allclose(np.array(same, float), np.array(row, float), rtol=2e-3, atol=1e-5, err_msg=str(key))
    with Store(one) as first, Store(other) as second:
        for spec in specs:
            seen, again = first.client_rounds(spec.run_id), second.client_rounds(spec.run_id)
            assert [each.round for each in seen] == [each.round for each in again]
            for before, after in zip(seen, again, strict=True):
                np.testing.assert_array_equal(before.arrays["client"], after.arrays["client"])
                np.testing.assert_array_equal(before.arrays["class_counts"], after.arrays["class_counts"])
            assert_equal_models(model_path(one, spec), model_path(other, spec))


def assert_equal_models(one: Path, other: Path) -> None:
    first, second = unseal(one).tensors, unseal(other).tensors
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=1e-3, atol=1e-5)


def _rows(folder: Path) -> dict[tuple[str, int], list[float | None]]:
    """Metrics by run and round, as they lie in the file."""
    import sqlite3

    with sqlite3.connect(folder / "results.sqlite") as connection:
        query = f"SELECT run_id, round, {', '.join(METRICS)} FROM metrics JOIN runs ON runs.key = metrics.run"
        found = {(run_id, number): list(values) for run_id, number, *values in connection.execute(query)}
    connection.close()
    return found
