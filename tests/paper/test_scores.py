"""Score tables: which number of a run they show, how seeds become one, and what is bold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedga.errors import FedGAError
from fedga.paper.report.scores import Reading, paper_table
from fedga.paper.report.scores import score_table as table_of_scores
from fedga.report.curves import Curve
from fedga.report.documents import Table
from tests.paper.runs import column, level_runs, make_run, texts
from tests.report.made_up import make_curves


def score_table(runs: list[Curve], **reading: str) -> Table:
    return table_of_scores(runs, [Reading(**reading)], "scores")


def test_a_cell_is_mean_and_sample_deviation_over_seeds() -> None:
    runs = level_runs("fedavg", (0.8, 0.9)) + level_runs("fedga", (0.7,))
    table = score_table(runs)
    assert table.headings == ("data set", "α", "FedAvg", "FedGA")
    assert texts(table, "FedAvg") == [f"0.850 ({np.std([0.8, 0.9], ddof=1):.3f})"]
    assert texts(table, "FedGA") == ["0.700"]
    assert column(table, "FedAvg")[0].value == pytest.approx(0.85)
    assert "1 to 2 seeds" in table.caption


def test_the_best_of_a_row_is_bold_and_so_is_what_prints_alike() -> None:
    runs = level_runs("fedavg", (0.90004,)) + level_runs("fedntd", (0.90001,)) + level_runs("fedga", (0.89949,))
    [row] = score_table(runs).rows
    assert [cell.bold for cell in row] == [False, False, True, True, False]
    [alone] = score_table(level_runs("fedga", (0.9,))).rows
    assert not any(cell.bold for cell in alone)


def test_bold_is_the_largest_value_of_every_row() -> None:
    noise = np.random.default_rng(0)
    runs = [
        run
        for alpha in (0.05, 0.1, 10.0)
        for name in ("fedavg", "fedprox", "fedga")
        for run in level_runs(name, noise.uniform(0.1, 0.9, 3), alpha=alpha)
    ]
    for row in score_table(runs).rows:
        values = [cell.value for cell in row[2:]]
        assert [cell.bold for cell in row[2:]] == [value == max(values) for value in values]


@pytest.mark.parametrize(("rounds", "every", "read"), [(10, 1, 8), (9, 1, 7), (10, 3, 24), (4, 5, 15), (1, 1, None)])
def test_80_percent_is_the_evaluation_at_or_before_four_fifths_of_the_rounds(
    rounds: int, every: int, read: int | None
) -> None:
    run = make_run("fedga", [number * every / 100 for number in range(1, rounds + 1)], every=every)
    value = Reading(at="80").of(run)
    if read is None:
        assert math.isnan(value)
    else:
        assert value == pytest.approx(read / 100)


def test_last_round_curve_mean_macro_f1_and_averaged_model() -> None:
    run = make_run("fedga", [0.2, 0.4, 0.9])
    assert Reading().of(run) == pytest.approx(0.9)
    assert Reading(at="mean").of(run) == pytest.approx(0.5)
    assert Reading("macro_f1").of(run) == pytest.approx(0.89)
    assert Reading(model="averaged").of(run) == pytest.approx(0.92)
    start = Curve(run.settings, 0, np.array([0, 1, 2]), {"accuracy": np.array([0.1, 0.3, 0.5])})
    assert Reading(at="mean").of(start) == pytest.approx(0.4)


def test_diverged_and_unfinished_runs_are_in_no_mean_and_are_said() -> None:
    runs = level_runs("fedavg", (0.8, 0.9))
    runs += [make_run("fedavg", [0.1] * 4, seed=2, status="diverged")]
    runs += [
        make_run("fedavg", [0.5] * 4, seed=seed, status=status) for seed, status in ((3, "running"), (4, "pending"))
    ]
    runs += [make_run("fedga", [], status="pending")]
    table = score_table(runs)
    [cell] = column(table, "FedAvg")
    assert cell.value == pytest.approx(0.85)
    assert cell.note == "1 of 5 runs diverged; 2 of 5 runs unfinished"
    [nothing] = column(table, "FedGA")
    assert (nothing.text, nothing.value, nothing.bold) == ("–", None, False)
    assert nothing.note == "1 of 1 runs unfinished"


def test_a_run_that_never_left_the_start_is_kept_in_the_mean_and_said() -> None:
    [cell] = column(score_table(level_runs("fedavg", (0.8, 0.85, 0.1, 0.82))), "FedAvg")
    assert cell.value == pytest.approx((0.8 + 0.85 + 0.1 + 0.82) / 4)
    assert cell.note == "1 of 4 runs never left the start plateau"
    fell = [*level_runs("fedavg", (0.8, 0.85)), make_run("fedavg", [0.7, 0.1], seed=2)]
    assert column(score_table(fell), "FedAvg")[0].note == ""
    assert column(score_table(level_runs("fedavg", (0.1,))), "FedAvg")[0].note == ""


def test_rows_are_in_the_papers_order_with_a_rule_between_data_sets() -> None:
    names = ("digits", "svhn", "cifar10", "mnist")
    runs = [
        run for name in names for alpha in (10, 0.05) for run in level_runs("fedga", (0.5,), dataset=name, alpha=alpha)
    ]
    table = score_table(runs)
    assert texts(table, "data set") == [name for name in ("MNIST", "CIFAR-10", "SVHN", "digits") for _ in range(2)]
    assert texts(table, "α") == ["0.05", "10"] * 4
    assert [cell.value for cell in column(table, "data set")][:3] == ["mnist", "mnist", "cifar10"]
    assert table.breaks == (1, 3, 5)


def test_columns_are_in_the_order_of_every_legend() -> None:
    runs = [run for name in ("fedga", "mine", "fedprox:mu=1", "fedavg") for run in level_runs(name, (0.5,))]
    assert score_table(runs).headings[2:] == ("FedAvg", "FedProx (mu=1)", "FedGA", "mine")


def test_an_algorithm_that_some_rows_lack_has_empty_cells_there() -> None:
    runs = level_runs("fedga", (0.5,), alpha=0.1) + level_runs("fedavg", (0.5,), alpha=1.0)
    table = score_table(runs)
    assert texts(table, "FedAvg") == ["–", "0.500"]
    assert texts(table, "FedGA") == ["0.500", "–"]


def test_presets_are_columns_of_their_own() -> None:
    table = score_table(make_curves(2), model="averaged")
    assert table.headings[2:] == ("FedAvg, paper", "FedGA, paper", "FedAvg, strong", "FedGA, strong")
    assert texts(table, "FedGA, paper") == ["–"]


def test_the_papers_layout_has_macro_f1_above_accuracy() -> None:
    runs = level_runs("fedavg", (0.8, 0.9)) + level_runs("fedga", (0.9, 0.9))
    table = paper_table(runs, "t", at="80")
    assert table.headings == ("data set", "α", "metric", "FedAvg", "FedGA")
    assert texts(table, "metric") == ["F1", "Acc."]
    one_by_one = [score_table(runs, metric=metric, at="80").rows[0][2:] for metric in ("macro_f1", "accuracy")]
    assert [row[3:] for row in table.rows] == one_by_one


def test_nothing_to_show_and_unknown_names_are_one_sentence() -> None:
    with pytest.raises(FedGAError, match="nothing to put into a table: no runs were given"):
        score_table([])
    with pytest.raises(FedGAError, match="unknown metric 'acuracy': did you mean 'accuracy'"):
        score_table(level_runs("fedga", (0.5,)), metric="acuracy")
    with pytest.raises(FedGAError, match="unknown moment 'best'"):
        score_table(level_runs("fedga", (0.5,)), at="best")
    with pytest.raises(FedGAError, match="unknown model 'average': did you mean 'averaged'"):
        score_table(level_runs("fedga", (0.5,)), model="average")
