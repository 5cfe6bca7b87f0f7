"""Curves, series and their statistics."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedga.errors import FedGAError
from fedga.report.curves import Curve, curves_from_rows, deviation, mean, median, read_curves
from fedga.report.series import make_panels, panels_with
from fedga.spec.settings import RunSpec
from fedga.store.store import RoundMetrics, Store
from tests.report.made_up import make_rows


def fill(folder: Path, specs: list[RunSpec], statuses: list[str]) -> None:
    with Store(folder) as store:
        store.register(specs, {spec.run_id: "hash" for spec in specs}, axes=("lr",))
        [group] = store.create_groups([[spec.run_id for spec in specs]])
        assert store.claim(group.id)
        rows = [
            RoundMetrics(spec.run_id, number, accuracy=number / 10 + spec.seed, forgetting_rare=math.nan)
            for spec in specs
            for number in (1, 2)
        ]
        ended = {spec.run_id: status for spec, status in zip(specs, statuses, strict=True) if status}
        store.commit(group.id, 2, rows, finished=ended)


def test_a_results_folder_is_read_with_status_and_the_settings_that_tell_runs_apart(tmp_path: Path) -> None:
    specs = [RunSpec(alpha=0.1, algorithm="fedavg", seed=seed, lr=lr) for lr in (0.1, 0.3) for seed in (0, 1)]
    fill(tmp_path, specs, ["done", "diverged", "done", ""])
    read = read_curves(tmp_path)
    found = {(curve.settings["lr"], curve.seed): curve for curve in read}
    assert {key: curve.status for key, curve in found.items()} == {
        (0.1, 0): "done",
        (0.1, 1): "diverged",
        (0.3, 0): "done",
        (0.3, 1): "pending",
    }
    assert found[0.3, 1].rounds.tolist() == [1, 2]
    assert found[0.3, 1].metric("accuracy").tolist() == [1.1, 1.2]
    assert np.isnan(found[0.3, 1].metric("forgetting_rare")).all()
    [panel] = make_panels(read)
    assert [series.label for series in panel.series] == ["FedAvg, lr 0.1", "FedAvg, lr 0.3"]
    [only] = read_curves(tmp_path, [specs[0].run_id])
    assert only.seed == 0
    assert "lr" not in only.settings


def test_a_run_without_results_is_a_curve_without_rounds(tmp_path: Path) -> None:
    spec = RunSpec(alpha=0.1)
    with Store(tmp_path) as store:
        store.register([spec], {spec.run_id: "hash"})
    [curve] = read_curves(tmp_path)
    assert (curve.status, len(curve.rounds)) == ("pending", 0)
    assert math.isnan(curve.last("accuracy"))
    with pytest.raises(FedGAError, match="nothing to draw"):
        panels_with([curve], ("accuracy",))


def test_statistics_leave_out_what_was_not_measured() -> None:
    values = np.array([1.0, np.nan, 3.0, np.inf])
    assert mean(values) == 2.0
    assert deviation(values) == pytest.approx(math.sqrt(2))
    assert median(values) == 3.0
    assert math.isnan(mean(values[1:2]))
    assert math.isnan(deviation(values[:2]))
    assert math.isnan(median(values[1:2]))
    assert median(np.array([np.inf, np.inf])) == np.inf


def test_means_over_seeds_are_those_of_the_rows() -> None:
    rows = [row for seed in (0, 1, 2) for row in make_rows("fedga", seed, 0.8)]
    [panel] = make_panels(curves_from_rows(rows))
    [series] = panel.series
    expected = [np.mean([row["accuracy"] for row in rows if row["round"] == number]) for number in range(1, 21)]
    np.testing.assert_allclose(series.per_round("accuracy", mean), expected)
    assert series.rounds.tolist() == list(range(1, 21))


def test_runs_of_unequal_length_are_averaged_over_those_that_are_there() -> None:
    rows = make_rows("fedga", 0, 0.8) + make_rows("fedga", 1, 0.8)[:5]
    [panel] = make_panels(curves_from_rows(rows))
    values = panel.series[0].per_round("accuracy", mean)
    assert values[0] == pytest.approx((rows[0]["accuracy"] + rows[20]["accuracy"]) / 2)
    assert values[-1] == pytest.approx(rows[19]["accuracy"])


def test_labels_name_what_tells_series_apart_and_no_more(curves: list[Curve]) -> None:
    [panel] = make_panels(curves)
    assert [series.label for series in panel.series] == [
        "FedAvg, paper",
        "FedGA, paper",
        "FedAvg, strong",
        "FedGA, strong",
    ]
    rows = make_rows("fedprox:mu=0.1", 0, 0.7) + make_rows("fedprox:mu=0.01", 0, 0.7)
    [panel] = make_panels(curves_from_rows(rows))
    assert [series.label for series in panel.series] == ["FedProx (mu=0.01)", "FedProx (mu=0.1)"]
    assert [series.variant for series in panel.series] == [0, 1]


def test_panels_are_in_the_order_of_alpha_and_named_by_the_last_part_of_a_path() -> None:
    rows = [row for alpha in (10, 0.5, None) for row in make_rows("fedga", 0, 0.8, alpha=alpha)]
    rows = [row | {"dataset": "/data/cats.csv"} for row in rows]
    titles = [panel.title for panel in make_panels(curves_from_rows(rows))]
    assert titles == ["cats.csv", "cats.csv, α = 0.5", "cats.csv, α = 10"]


def test_importing_the_package_does_not_import_matplotlib() -> None:
    script = "import sys, fedga.report.figures, fedga.report.tables; print('matplotlib' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
