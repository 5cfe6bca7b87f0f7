"""Ours beside theirs: differences, counts and orders."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedga.errors import FedGAError
from fedga.paper.printed import printed_score
from fedga.paper.report.agreement import agreement_summary, agreement_table, compare, kendall_tau, ranking_table
from fedga.report.curves import Curve
from tests.paper.runs import column, level_runs, make_run, texts

ALPHAS = (0.05, 0.1, 0.5, 1.0, 10.0)
NAMES = ("fedavg", "fedntd", "fedga")


def printed_mean(algorithm: str, alpha: float, dataset: str = "mnist") -> float:
    found = printed_score("at_80", dataset, alpha, algorithm)
    assert found is not None
    return found.mean


@pytest.fixture(scope="module")
def near_print() -> list[Curve]:
    """Two data sets whose runs lie around the printed means, some of them far off."""
    noise = np.random.default_rng(3)
    return [
        run
        for dataset, alpha, name in itertools.product(("mnist", "svhn"), ALPHAS, NAMES)
        for run in level_runs(
            name,
            printed_mean(name, alpha, dataset) + noise.normal(0, 0.02) + noise.normal(0, 0.003, 3),
            dataset=dataset,
            alpha=alpha,
        )
    ]


def test_counts_are_those_of_a_naive_recount(near_print: list[Curve]) -> None:
    within: dict[tuple[str, str], list[bool]] = {}
    for dataset, alpha, name in itertools.product(("mnist", "svhn"), ALPHAS, NAMES):
        runs = [
            run.last("accuracy")
            for run in near_print
            if (run.settings["dataset"], run.settings["alpha"], run.settings["algorithm"]) == (dataset, alpha, name)
        ]
        theirs = printed_score("at_80", dataset, alpha, name)
        assert theirs is not None
        pooled = math.sqrt((np.var(runs, ddof=1) + theirs.deviation**2) / 2)
        off = abs(np.mean(runs) - theirs.mean)
        within.setdefault((dataset, name), []).append(bool(off <= 2 * pooled or off <= 0.01))
    agreement = compare(near_print)
    every = list(itertools.chain(*within.values()))
    assert (agreement.compared, agreement.within) == (30, sum(every))
    assert 0 < agreement.within < 30
    table = agreement_table(compare(near_print))
    assert texts(table, "within").count("yes") == agreement.within
    assert table.breaks == (14,)


def test_difference_is_ours_less_theirs_in_numbers_and_in_pooled_deviations() -> None:
    theirs = printed_score("at_80", "mnist", 0.05, "fedga")
    assert theirs is not None
    table = agreement_table(compare(level_runs("fedga", (0.92, 0.94), alpha=0.05)))
    [difference], [deviations] = column(table, "difference"), column(table, "in deviations")
    pooled = math.sqrt((0.0002 + theirs.deviation**2) / 2)
    assert difference.value == pytest.approx(0.03)
    assert difference.text == "+0.030"
    assert deviations.value == pytest.approx(0.03 / pooled)
    assert texts(table, "printed") == ["0.900 (0.007)"]
    assert texts(table, "within") == ["no"]


@pytest.mark.parametrize(("off", "within"), [(0.01, "yes"), (-0.01, "yes"), (0.0102, "no"), (0.0, "yes")])
def test_with_one_seed_a_hundredth_decides(off: float, within: str) -> None:
    table = agreement_table(compare(level_runs("fedavg", (printed_mean("fedavg", 0.1) + off,))))
    assert texts(table, "within") == [within]
    assert texts(table, "in deviations") == ["–"]


def test_zero_has_no_sign() -> None:
    table = agreement_table(compare(level_runs("fedavg", (printed_mean("fedavg", 0.1) - 1e-5,) * 2)))
    assert texts(table, "difference") == ["0.000"]


def test_runs_without_an_end_are_shown_and_not_counted() -> None:
    runs = [make_run("fedavg", [0.1] * 4, status="diverged"), *level_runs("fedga", (printed_mean("fedga", 0.1),))]
    agreement = compare(runs)
    assert (len(agreement.cells), agreement.compared, agreement.within) == (2, 1, 1)
    table = agreement_table(compare(runs))
    assert texts(table, "here")[0] == texts(table, "within")[0] == "–"
    assert column(table, "here")[0].note == "1 of 1 runs diverged"


def test_a_stand_in_is_shown_beside_the_others_numbers_and_only_ranked() -> None:
    runs = [
        run
        for name, level in zip(NAMES, (0.5, 0.6, 0.7), strict=True)
        for run in level_runs(name, (level,), dataset="digits")
    ]
    table = agreement_table(compare(runs))
    assert [float(text[:5]) for text in texts(table, "MNIST, printed")] == [printed_mean(name, 0.1) for name in NAMES]
    for heading in ("difference", "in deviations", "within"):
        assert {cell.text for cell in column(table, heading)} == {"–"}
        assert {cell.value for cell in column(table, heading)} == {None}
    assert "digits stand in for MNIST" in table.caption
    assert compare(runs).compared == 0
    order = ranking_table(compare(runs))
    assert texts(order, "here") == texts(order, "MNIST, printed") == ["FedGA > FedNTD > FedAvg"]
    assert texts(order, "Kendall's τ") == ["1.00"]
    summary = agreement_summary([compare(runs)], "s", NAMES)
    assert [cell.text for cell in summary.rows[0]] == ["digits", "at 80 % of the rounds", "–", "–", "1 of 1", "1.00"]
    assert "digits stand in for MNIST" in summary.caption
    beside = agreement_table(compare(runs + level_runs("fedga", (0.9,))))
    assert texts(beside, "printed")[-1] == f"MNIST: {texts(table, 'MNIST, printed')[-1]}"
    assert ": " not in texts(beside, "printed")[0]


def test_orders_level_what_prints_alike() -> None:
    levels = {"fedavg": 0.92, "fedntd": 0.9401, "fedga": 0.9399}  # α = 1: FedNTD and FedGA are printed alike
    runs = [run for name, level in levels.items() for run in level_runs(name, (level,), alpha=1.0)]
    table = ranking_table(compare(runs))
    assert texts(table, "here") == texts(table, "printed") == ["FedNTD = FedGA > FedAvg"]
    assert column(table, "Kendall's τ")[0].value == pytest.approx(1)
    lower = [run for run in runs if run.settings["algorithm"] != "fedga"] + level_runs("fedga", (0.91,), alpha=1.0)
    assert texts(ranking_table(compare(lower)), "same winner") == ["yes"]
    avg_first = [*level_runs("fedavg", (0.95,), alpha=1.0), *level_runs("fedga", (0.91,), alpha=1.0)]
    assert texts(ranking_table(compare(avg_first)), "same winner") == ["no"]
    assert column(ranking_table(compare(avg_first)), "Kendall's τ")[0].value == pytest.approx(-1)


def test_kendalls_tau_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    noise = np.random.default_rng(1)
    for _ in range(50):
        one, other = noise.integers(0, 4, (2, 6))
        np.testing.assert_allclose(kendall_tau(one, other), stats.kendalltau(one, other).statistic, atol=1e-12)
    assert math.isnan(kendall_tau([], []))


def test_fedga_with_batch_counts_stands_beside_the_printed_fedga_and_ranks_only_alone() -> None:
    runs = [run for name in ("fedavg", "fedga-batch", "fedga") for run in level_runs(name, (0.9,))]
    table = agreement_table(compare(runs))
    assert texts(table, "algorithm") == ["FedAvg", "FedGA (batch)", "FedGA"]
    assert texts(table, "printed")[1] == texts(table, "printed")[2]
    assert texts(ranking_table(compare(runs)), "printed") == ["FedGA > FedAvg"]
    without = [run for run in runs if run.settings["algorithm"] != "fedga"]
    assert texts(ranking_table(compare(without)), "printed") == ["FedGA (batch) > FedAvg"]


def test_the_summary_counts_what_the_tables_show(near_print: list[Curve]) -> None:
    agreement = compare(near_print)
    [row] = agreement_summary([agreement], "s", NAMES).rows
    assert [cell.text for cell in row[:3]] == ["MNIST and SVHN", "at 80 % of the rounds", f"{agreement.within} of 30"]
    assert row[3].value == pytest.approx(np.mean([cell.difference for cell in agreement.cells]))
    same = texts(ranking_table(agreement), "same winner").count("yes")
    assert row[4].text == f"{same} of 10"
    taus = [cell.value for cell in column(ranking_table(agreement), "Kendall's τ")]
    assert row[5].value == pytest.approx(np.mean([tau for tau in taus if tau is not None]))


def test_other_settings_than_the_papers_reproduce_nothing() -> None:
    strong = [make_run("fedga", [0.99], preset="strong"), make_run("fedprox:mu=1", [0.9])]
    momentum, rate = make_run("fedga", [0.9], server="momentum"), make_run("fedga", [0.9], lr=0.3)
    with pytest.raises(FedGAError, match="nothing to compare: the paper's table at 80 % of the rounds has none"):
        compare([*strong, momentum, rate])
    theirs = [make_run("fedga", [0.9], preset="paper", lr=0.1), make_run("fedavg", [0.9], preset="", rounds=50)]
    cells = compare([*strong, momentum, rate, *theirs]).cells
    assert {cell.series.algorithm for cell in cells} == {"fedavg", "fedga"}
    assert [cell.series.curves for cell in cells] == [(theirs[1],), (theirs[0],)]
    assert texts(agreement_table(compare([*strong, theirs[0]])), "algorithm") == ["FedGA"]


def test_nothing_to_compare_or_rank_is_one_sentence() -> None:
    with pytest.raises(FedGAError, match="nothing to put into a table"):
        agreement_table(compare([]))
    with pytest.raises(FedGAError, match="nothing to compare"):
        compare(level_runs("fedga", (0.9,), dataset="cats.csv"))
    with pytest.raises(FedGAError, match="nothing to rank: no data set and α has finished runs of two"):
        ranking_table(compare(level_runs("fedga", (0.9,))))
