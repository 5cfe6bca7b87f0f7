"""The strong setting beside the best printed number and beside the samples partitioned evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedga.paper.printed import printed_score
from fedga.paper.report.arms import NO_SKEW, line_without_skew
from fedga.paper.report.beyond import best_printed, strong_headline, strong_table
from fedga.paper.runs import ALGORITHMS
from fedga.report.curves import Curve
from fedga.spec.settings import RunSpec
from tests.paper.runs import make_run, texts


def strong_runs(
    algorithm: str, ends: Sequence[float], *, partition: str = "dirichlet", dataset: str = "mnist", alpha: float = 0.05
) -> tuple[list[Curve], dict[str, RunSpec]]:
    """Runs that end there; the averaged model ends 0.02 above."""
    curves, specs = [], {}
    for seed, end in enumerate(ends):
        spec = RunSpec(
            dataset=dataset, alpha=alpha, algorithm=algorithm, preset="strong", partition=partition, seed=seed
        )
        curve = make_run(algorithm, [0.1, end], seed=seed, dataset=dataset, alpha=alpha, preset="strong")
        curves.append(replace(curve, run_id=spec.run_id))
        specs[spec.run_id] = spec
    return curves, specs


def together(*parts: tuple[list[Curve], dict[str, RunSpec]]) -> tuple[list[Curve], dict[str, RunSpec]]:
    return [curve for curves, _ in parts for curve in curves], {k: v for _, specs in parts for k, v in specs.items()}


def test_the_best_printed_is_the_highest_of_all_columns() -> None:
    every = [printed_score(which, "svhn", 10.0, name) for which in ("main", "at_80") for name in ALGORITHMS]
    best = best_printed("svhn", 10.0)
    assert best is not None
    assert best.mean == max(cell.mean for cell in every if cell is not None)
    mnist = [best_printed("mnist", alpha) for alpha in (0.05, 0.1, 0.5, 1.0, 10.0)]  # higher at 80 % of the rounds
    assert [one.mean for one in mnist if one is not None] == [0.9, 0.915, 0.937, 0.94, 0.944]
    assert best_printed("digits", 10.0) is None  # it stands in for MNIST, but nothing of it is printed


def test_the_table_has_both_models_of_every_algorithm_and_the_best_in_bold() -> None:
    table = strong_table(*together(strong_runs("fedavg", (0.9, 0.92)), strong_runs("fedga", (0.95, 0.97))))
    assert table.headings == ("data set", "α", "best printed", "FedAvg", "FedAvg, averaged", "FedGA", "FedGA, averaged")
    [row] = table.rows
    assert [cell.value for cell in row[3:]] == [pytest.approx(value) for value in (0.91, 0.93, 0.96, 0.98)]
    assert [cell.bold for cell in row[3:]] == [False, False, False, True]
    assert texts(table, "best printed") == ["0.900 (0.007) FedGA"]
    assert "in either of the paper's tables" in table.caption


def test_the_headline_counts_the_settings_above_print() -> None:
    curves, specs = together(strong_runs("fedga", (0.95, 0.97)), strong_runs("fedga", (0.10, 0.10), dataset="svhn"))
    assert "in 1 of 2 settings (by −69.5 to +8.0 points)" in strong_headline(curves, specs)
    assert "in 0 of 1 setting (by −38.0 to −38.0 points)" in strong_headline(*strong_runs("fedga", (0.5,)))


def test_the_line_without_skew_is_that_of_the_other_tables() -> None:
    even = together(
        strong_runs("fedavg", (0.97,), partition="even"),
        strong_runs("fedga", (0.96,), partition="even"),
        strong_runs("fedntd", (0.99,), partition="even"),  # neither FedAvg nor FedGA: not of the line
    )
    table = strong_table(*together(strong_runs("fedga", (0.95,)), even))
    assert texts(table, "no skew") == ["0.990"]
    assert table.caption.endswith(NO_SKEW)
    by_algorithm = {name: [one for one in even[0] if one.settings["algorithm"] == name] for name in ALGORITHMS}
    assert line_without_skew(by_algorithm).mean == pytest.approx(0.99)


def test_odd_runs_are_noted_and_what_prints_alike_is_bold_together() -> None:
    curves, specs = together(strong_runs("fedavg", (0.9701, 0.9701)), strong_runs("fedga", (0.9699, 0.9699, 0.5)))
    curves[-1] = replace(curves[-1], status="diverged")
    table = strong_table(curves, specs)
    [row] = table.rows
    assert [cell.bold for cell in row[3:]] == [False, True, False, True]
    assert row[-1].note == "1 of 3 runs diverged"


def test_without_strong_runs_nothing_is_said() -> None:
    assert strong_headline([], {}) == ""
    assert strong_table([], {}).rows == ()
