"""Numbers of README and pages, recomputed from the committed archive ``results/``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedga.paper.report.agreement import Comparison, compare, is_papers
from fedga.report.curves import Curve, read_curves
from fedga.store.archive import opened

ROOT = Path(__file__).parents[2]
README, READING, BEYOND, METHOD = (
    " ".join((ROOT / name).read_text().split())
    for name in ("README.md", "docs/reading-the-paper.md", "docs/beyond-the-paper.md", "docs/method.md")
)
DATASETS, ALPHAS = ("mnist", "cifar10", "svhn"), (0.05, 0.1, 0.5, 1.0, 10.0)
PRINTED = ("fedavg", "fedprox", "climb", "fedntd", "fedga")


@pytest.fixture(scope="module")
def curves() -> list[Curve]:
    with opened(ROOT / "results") as folder:
        return read_curves(folder)


def of(curves: Sequence[Curve], preset: str, dataset: str, alpha: float, algorithm: str) -> list[Curve]:
    wanted = {"preset": preset, "dataset": dataset, "alpha": alpha, "algorithm": algorithm, "partition": "dirichlet"}
    found = [curve for curve in curves if all(curve.settings[name] == value for name, value in wanted.items())]
    found = [each for each in found if preset != "paper" or is_papers(each.settings, dataset, alpha)]
    assert len(found) == 5
    return sorted(found, key=lambda curve: curve.seed)


def first_at(curve: Curve, target: float) -> int:
    return int(curve.rounds[np.argmax(curve.metric("accuracy") >= target)])


def test_rounds_saved_of_single_runs(curves: list[Curve]) -> None:
    """Each run of FedGA beside FedAvg's of the same seed, to 90 % of the best of that run of FedAvg."""
    ratios = []
    for dataset in DATASETS:
        for alpha in (0.05, 0.1):
            pairs = zip(*(of(curves, "paper", dataset, alpha, name) for name in ("fedavg", "fedga")), strict=True)
            targets = [(plain, aligned, 0.9 * plain.metric("accuracy").max()) for plain, aligned in pairs]
            ratios.append(np.mean([first_at(plain, at) / first_at(aligned, at) for plain, aligned, at in targets]))
    assert f"needs {100 / max(ratios):.0f} to 80 %" in BEYOND
    assert 75 < 100 / min(ratios) < 80
    said = f"{min(ratios):.1f} to {max(ratios):.1f} times as many rounds"
    assert said in README
    assert said in READING
    assert said in METHOD


def best_in_print(cells: Sequence[Comparison], algorithms: Sequence[str]) -> int:
    """Data sets and α whose best algorithm here is the best in print, or level with it there."""
    right = 0
    for place in {(cell.panel.dataset, cell.panel.alpha) for cell in cells}:
        here = [c for c in cells if (c.panel.dataset, c.panel.alpha) == place and c.series.algorithm in algorithms]
        best = max(here, key=lambda cell: cell.ours.mean)
        right += best.printed.mean == max(cell.printed.mean for cell in here)
    return right


def test_agreement_with_print(curves: list[Curve]) -> None:
    cells = compare(curves).cells
    three = [cell for cell in cells if cell.series.algorithm in ("fedavg", "fedntd", "fedga")]
    within, below = sum(cell.within for cell in three), sum(cell.difference < 0 for cell in three)
    assert f"**{within} of the {len(three)}** printed cells" in README
    assert f"**{within} of {len(three)}** printed accuracies" in READING
    assert f"{below} of ours are below print" in README
    assert f"{below} of ours are below print" in READING
    assert f"the same in {best_in_print(cells, PRINTED)} of the 15 settings" in READING


def at_80(curves: Sequence[Curve], dataset: str, alpha: float, algorithm: str) -> float:
    runs = of(curves, "paper", dataset, alpha, algorithm)
    return float(np.mean([run.metric("accuracy")[run.rounds == 0.8 * run.rounds[-1]] for run in runs]))


def test_fedrl_beside_the_five(curves: list[Curve]) -> None:
    cells = [cell for cell in compare(curves).cells if cell.series.algorithm in PRINTED]
    leads, right = [], 0
    for dataset in DATASETS:
        for alpha in ALPHAS:
            here = [cell for cell in cells if (cell.panel.dataset, cell.panel.alpha) == (dataset, alpha)]
            best = max(here, key=lambda cell: cell.ours.mean)
            assert best.ours.mean == pytest.approx(at_80(curves, dataset, alpha, best.series.algorithm))
            if at_80(curves, dataset, alpha, "fedrl") > best.ours.mean:
                leads.append((dataset, alpha))
            else:
                right += best.printed.mean == max(cell.printed.mean for cell in here)
    assert leads == [("mnist", alpha) for alpha in ALPHAS[1:]] + [("svhn", 0.1)]
    assert f"best here on MNIST from α = 0.1 on and on SVHN at 0.1, it is the same in {right}." in READING


def test_fedavg_beside_fedga_in_the_strong_setting() -> None:
    table = [line.split("|") for line in (ROOT / "results/tables/strong.md").read_text().splitlines()]
    rows = [[re.sub(r"[*]|[(].*", "", cell).strip() for cell in row] for row in table if len(row) == 12]
    heads, rows = rows[0], rows[2:]
    plain, aligned = (heads.index(f"{name}, averaged") for name in ("FedAvg", "FedGA"))
    above, level = sum(row[plain] > row[aligned] for row in rows), sum(row[plain] == row[aligned] for row in rows)
    assert (len(rows), level) == (15, 1)
    assert f"above FedGA in {above} of them and level in one" in BEYOND
    assert f"above FedGA in {above} of 15 cases" in METHOD


def test_where_fedrl_leads(curves: list[Curve]) -> None:
    def means(dataset: str, alpha: float, moment: str) -> list[float]:
        value = Curve.over_rounds if moment == "mean" else Curve.last
        names = ("fedrl", "fedga")
        return [np.mean([value(run, "accuracy") for run in of(curves, "paper", dataset, alpha, n)]) for n in names]

    leads = {m: [a for a in ALPHAS if np.subtract(*means("mnist", a, m)) > 0] for m in ("mean", "last")}
    assert leads == {"mean": [0.5, 1.0, 10.0], "last": [0.05, 0.1, 0.5, 1.0, 10.0]}
    assert f"({means('svhn', 10.0, 'last')[0]:.3f} at α = 10 after the last round".replace("0.", ".", 1) in READING


def test_what_averaging_costs(curves: list[Curve]) -> None:
    def gain(dataset: str, alpha: float, algorithm: str) -> float:
        runs = of(curves, "paper", dataset, alpha, algorithm)
        return 100 * float(np.mean([run.last("averaged_accuracy") - run.last("accuracy") for run in runs]))

    for algorithm, most in (("fedavg", 5), ("fedga", 2)):
        least = 2 if algorithm == "fedavg" else 0
        assert [round(extreme([gain(d, 0.05, algorithm) for d in DATASETS])) for extreme in (min, max)] == [least, most]
    lost = [-gain("mnist", alpha, name) for alpha in (1.0, 10.0) for name in ("fedavg", "fedga")]
    assert f"{min(lost):.1f} to {max(lost):.1f} points on MNIST at α ≥ 1" in BEYOND


def test_forgetting_in_the_strong_setting(curves: list[Curve]) -> None:
    alphas = (0.1, 0.5, 1.0)
    lost = [
        100 * np.mean([run.over_rounds("forgetting_missing") for run in of(curves, "strong", "cifar10", a, "fedavg")])
        for a in alphas
    ]
    assert f"{min(lost):.0f} to {max(lost):.0f} points" in README


def test_the_grid_on_a_gpu() -> None:
    """A rate that a file has, times the runs and rounds of the grid."""
    row = next(
        line
        for line in (ROOT / "benchmarks/results/gpu.md").read_text().splitlines()
        if "| MLP | float32 | 100 | 0." in line
    )
    per_round = float(re.split(r"\s*\|\s*", row)[4])
    assert f"{per_round:.2f} ms" in README
    assert f"{150 * 100 * per_round / 1000:.0f} s" in README
