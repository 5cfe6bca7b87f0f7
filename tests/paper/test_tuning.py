"""The learning rate that a grid search chooses."""

from __future__ import annotations

from typing import Any

import pytest

from fedga.errors import FedGAError
from fedga.paper.report.tuning import chosen_rates, tuning_headline, tuning_table
from fedga.report.curves import Curve
from tests.paper.runs import make_run, texts


def runs_at(
    rate: float, ends: dict[int, float], *, alpha: float = 0.1, status: str = "done", **settings: Any
) -> list[Curve]:
    return [
        make_run("fedavg", [0.1, end], seed=seed, alpha=alpha, lr=rate, status=status, **settings)
        for seed, end in ends.items()
    ]


def test_the_best_mean_of_the_last_round_wins_in_every_data_set_and_alpha() -> None:
    runs = runs_at(1.0, {0: 0.9, 1: 0.2}) + runs_at(0.1, {0: 0.6, 1: 0.7}) + runs_at(0.01, {0: 0.3, 1: 0.3})
    runs += runs_at(1.0, {0: 0.95, 1: 0.9}, alpha=10.0) + runs_at(0.1, {0: 0.8, 1: 0.8}, alpha=10.0)
    rates = chosen_rates(runs)
    assert rates == {("mnist", 0.1): 0.1, ("mnist", 10.0): 1.0}
    assert tuning_headline(rates) == "The best learning rate is 0.1 on MNIST, α = 0.1; 1 on MNIST, α = 10."


def test_of_equal_rates_the_smaller_is_taken() -> None:
    assert chosen_rates(runs_at(1.0, {0: 0.5}) + runs_at(0.1, {0: 0.5})) == {("mnist", 0.1): 0.1}


def test_a_rate_at_which_a_run_diverged_is_not_taken_however_good_the_others_are() -> None:
    good = runs_at(1.0, {0: 0.99})
    runs = good + runs_at(1.0, {1: 0.0}, status="diverged") + runs_at(0.1, {0: 0.4, 1: 0.4})
    assert chosen_rates(runs) == {("mnist", 0.1): 0.1}
    table = tuning_table(runs)
    [cell] = [row[table.headings.index("1")] for row in table.rows]
    assert cell.note == "1 of 2 runs diverged"


def test_where_all_diverged_nothing_is_chosen() -> None:
    runs = runs_at(1.0, {0: 0.0}, status="diverged")
    assert chosen_rates(runs) == {}
    assert texts(tuning_table(runs), "1") == ["diverged"]
    assert tuning_headline({}) == ""


def test_the_table_has_a_column_per_rate_and_the_chosen_one_in_bold() -> None:
    table = tuning_table(runs_at(0.1, {0: 0.6, 1: 0.7}) + runs_at(1.0, {0: 0.9, 1: 0.9}))
    assert table.headings == ("data set", "α", "1", "0.1")
    [row] = table.rows
    assert [cell.bold for cell in row] == [False, False, True, False]


def test_runs_that_differ_in_more_than_their_rate_are_rows_of_their_own_and_have_no_common_choice() -> None:
    sgd = runs_at(1.0, {0: 0.9}, optimizer="sgd") + runs_at(0.1, {0: 0.5}, optimizer="sgd")
    adam = runs_at(1.0, {0: 0.1}, optimizer="adam") + runs_at(0.1, {0: 0.7}, optimizer="adam")
    table = tuning_table(sgd + adam)
    assert table.headings == ("data set", "α", "setting", "1", "0.1")
    assert texts(table, "setting") == ["optimizer sgd", "optimizer adam"]
    assert [[cell.text for cell in row if cell.bold] for row in table.rows] == [["0.900"], ["0.700"]]
    with pytest.raises(FedGAError, match=r"runs on MNIST differ in optimizer.*: give one value of --optimizer$"):
        chosen_rates(sgd + adam)
    elsewhere = runs_at(0.1, {0: 0.7}, alpha=10.0, optimizer="adam")  # one setting per data set and α is a choice each
    assert chosen_rates(sgd + elsewhere) == {("mnist", 0.1): 1.0, ("mnist", 10.0): 0.1}
    assert "setting" not in tuning_table(sgd + elsewhere).headings


def test_unfinished_runs_are_noted() -> None:
    table = tuning_table(runs_at(0.1, {0: 0.6}) + runs_at(0.1, {1: 0.3}, status="running"))
    [cell] = [row[table.headings.index("0.1")] for row in table.rows]
    assert (cell.text, cell.note) == ("0.600", "1 of 2 runs unfinished")
