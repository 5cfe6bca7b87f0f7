"""Rounds to a fraction of FedAvg's best, on curves whose crossings are known."""

from __future__ import annotations

import math

import pytest

from fedga.errors import FedGAError
from fedga.paper.printed import printed_rounds
from fedga.paper.report.speed import speed_headline, speed_table
from fedga.report.curves import Curve
from fedga.report.documents import Cell, Table
from tests.paper.runs import column, level_runs, make_run


def line(top: float, reached: int, rounds: int = 20) -> list[float]:
    """Rises evenly to ``top`` in round ``reached`` and stays."""
    return [top * min(1.0, number / reached) for number in range(1, rounds + 1)]


def ours(table: Table, heading: str) -> list[Cell]:
    """The cells of a column in the rows that are not printed ones."""
    sources = column(table, "from")
    return [cell for cell, source in zip(column(table, heading), sources, strict=True) if source.text == "here"]


@pytest.mark.parametrize(("fraction", "fedavg", "fedga"), [(0.8, 8, 4), (0.9, 9, 5), (1.0, 10, 5), (0.05, 1, 1)])
def test_the_first_round_at_the_target_and_fedavgs_over_it(fraction: float, fedavg: int, fedga: int) -> None:
    runs = [make_run("fedavg", line(0.8, 10)), make_run("fedga", line(0.8, 5))]
    table = speed_table(runs, fraction)
    assert [cell.text for cell in ours(table, "FedAvg")] == [f"{fedavg} (1.00×)"]
    [found] = ours(table, "FedGA")
    assert found.text == f"{fedga} ({fedavg / fedga:.2f}×)"
    assert found.value == fedga
    assert [cell.bold for cell in (*ours(table, "FedAvg"), found)] == [fedavg == fedga, True]
    assert f"Rounds to {100 * fraction:g} % of FedAvg's best accuracy" in table.title


def test_rounds_are_those_of_the_mean_curve() -> None:
    runs = [make_run("fedavg", line(0.8, 10), seed=seed) for seed in (0, 1)]
    runs += [make_run("fedga", line(0.8, reached), seed=seed) for seed, reached in enumerate((2, 10))]
    [cell] = ours(speed_table(runs, 1.0), "FedGA")
    assert cell.text == "10 (1.00×)"


def test_what_is_never_reached_has_no_number_and_says_so() -> None:
    runs = [make_run("fedavg", line(0.8, 10)), make_run("climb", line(0.5, 3)), make_run("fedga", line(0.8, 9))]
    [cell] = ours(speed_table(runs, 0.9), "CLIMB")
    assert (cell.text, cell.value, cell.bold) == ("–", None, False)
    assert "not there in 20 rounds" in cell.note


def test_only_seeds_that_ended_under_both_count() -> None:
    runs = [make_run("fedavg", line(0.8, 10), seed=seed) for seed in (0, 1)]
    runs += [make_run("fedga", line(0.8, 5)), make_run("fedga", [0.8], seed=1, status="running")]
    runs += [make_run("fedntd", [0.8], seed=seed, status="diverged") for seed in (0, 1)]
    table = speed_table(runs, 1.0)
    [cell], [nothing] = ours(table, "FedGA"), ours(table, "FedNTD")
    assert cell.text == "5 (2.00×)"
    assert cell.note.startswith("1 of 2 runs left out")
    assert not cell.bold
    assert (nothing.text, nothing.value) == ("–", None)
    assert nothing.note.startswith("2 of 2 runs left out")


def test_printed_rounds_stand_below_and_keep_their_bold() -> None:
    runs = [*level_runs("fedavg", (0.8,), alpha=0.05), *level_runs("fedga", (0.8,), alpha=0.05)]
    table = speed_table(runs)
    assert [cell.text for cell in column(table, "from")] == ["here", "printed"]
    theirs = printed_rounds("mnist", 0.05, "fedga")
    assert theirs is not None
    cell = column(table, "FedGA")[1]
    assert cell == Cell(f"{theirs.rounds} ({theirs.speedup:.2f}×)", theirs.rounds, theirs.bold)
    assert not column(table, "FedAvg")[1].bold
    assert "The first round is 1 here and 0 in the paper" in table.caption


def test_a_stand_in_says_whose_rounds_are_printed_and_others_have_none() -> None:
    runs = [run for name in ("digits", "cats") for run in level_runs("fedavg", (0.8,), dataset=name)]
    table = speed_table(runs)
    assert [cell.text for cell in column(table, "from")] == ["here", "here", "MNIST, printed"]
    assert "digits stand in for MNIST" in table.caption
    assert "paper" not in speed_table([run for run in runs if run.settings["dataset"] == "cats"]).caption


def test_every_preset_is_measured_against_its_own_fedavg() -> None:
    runs = [make_run("fedavg", line(0.8, 10)), make_run("fedga", line(0.8, 5))]
    runs += [make_run("fedavg", line(0.9, 4), preset="strong"), make_run("fedga", line(0.9, 2), preset="strong")]
    table = speed_table(runs, 1.0)
    assert ours(table, "FedGA, paper")[0].text == "5 (2.00×)"
    assert ours(table, "FedGA, strong")[0].text == "2 (2.00×)"
    assert column(table, "FedGA, strong")[1].text == "–"
    lonely = speed_table([run for run in runs if run is not runs[2]], 1.0)
    assert ours(lonely, "FedGA, strong")[0].text == "–"


def test_sparse_evaluations_are_said() -> None:
    runs = [make_run("fedavg", line(0.8, 10), every=5), make_run("fedga", line(0.8, 5), every=5)]
    table = speed_table(runs, 1.0)
    assert ours(table, "FedGA")[0].text == "25 (2.00×)"
    assert "evaluated every 5 rounds: a number is known to within 5" in table.caption
    assert "known to within" not in speed_table([make_run("fedavg", line(0.8, 10))]).caption


def test_rounds_without_a_measurement_are_passed_over() -> None:
    gap = [math.nan, 0.8, math.nan, 0.8]
    table = speed_table([make_run("fedavg", [0.2, 0.4, 0.6, 0.8]), make_run("fedga", gap)], 0.5)
    assert ours(table, "FedGA")[0].value == 2
    never: list[Curve] = [make_run("fedavg", [math.nan] * 3), make_run("fedga", [0.5] * 3)]
    assert {cell.text for cell in (*ours(speed_table(never), "FedAvg"), *ours(speed_table(never), "FedGA"))} == {"–"}


def test_no_fedavg_no_run_and_no_such_fraction_are_one_sentence() -> None:
    with pytest.raises(FedGAError, match="no FedAvg to compare with"):
        speed_table([make_run("fedga", [0.5])])
    with pytest.raises(FedGAError, match="nothing to put into a table"):
        speed_table([])
    for fraction in (0, 1.1):
        with pytest.raises(FedGAError, match="above 0 and at most 1"):
            speed_table([make_run("fedavg", [0.5])], fraction)


def test_the_headline_is_the_median_speed_up_whoever_is_sooner() -> None:
    runs = [make_run("fedavg", line(0.8, 10)), make_run("fedga", line(0.8, 5))]
    assert "are 1.80 (median of 1 setting, 1.80 to 1.80)" in speed_headline(runs, 0.9)
    runs += [make_run("fedavg", line(0.8, 5), alpha=1.0), make_run("fedga", line(0.8, 10), alpha=1.0)]
    assert "median of 2 settings, 0.50 to 2.00" in speed_headline(runs, 0.8)
    assert speed_headline([make_run("fedavg", line(0.8, 10)), make_run("fedga", line(0.2, 5))], 0.9) == ""
    assert speed_headline([make_run("fedavg", line(0.8, 10))], 0.9) == ""
