"""Made-up runs, and a machine without matplotlib."""

from __future__ import annotations

import sys

import pytest

from fedga.report.curves import Curve, curves_from_rows
from tests.report.made_up import make_curves, make_rows


@pytest.fixture(scope="session")
def curves() -> list[Curve]:
    return make_curves()


@pytest.fixture(scope="session")
def one_seed() -> list[Curve]:
    return make_curves(seeds=1)


@pytest.fixture(scope="session")
def with_diverged() -> list[Curve]:
    """Of FedAvg's runs one diverged in round 8; of FedNTD's all did."""
    rows = [row | {"status": "done"} for seed in (0, 1) for row in make_rows("fedavg", seed, 0.7)]
    rows += [row | {"status": "done"} for seed in (0, 1, 2) for row in make_rows("fedga", seed, 0.8)]
    rows += [row | {"status": "diverged"} for row in make_rows("fedavg", 2, 0.7)[:8]]
    for seed in (0, 1, 2):
        rows += [row | {"status": "diverged"} for row in make_rows("fedntd", seed, 0.6)[: 5 + seed]]
    rows[-1] |= {"accuracy": None, "loss": float("nan"), "ea_ratio": float("inf")}
    return curves_from_rows(rows)


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
