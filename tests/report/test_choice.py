"""The verdict of a tournament: the method to use, and words that claim no more than the numbers do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedga.drawing.style import save
from fedga.errors import FedGAError
from fedga.report.choice import Lead, decide, draw_tournament, standings_table
from fedga.report.writers import markdown
from fedga.spec.settings import RunSpec
from fedga.study.tournament import Candidate, Outcome, Rung, Standing


def standing(algorithm: str, *scores: float, rounds: int = 20) -> Standing:
    specs = tuple(RunSpec(alpha=1, algorithm=algorithm, preset="strong", seed=seed) for seed in range(len(scores)))
    values = np.array(scores)
    return Standing(Candidate(specs), rounds, values, np.array([1, rounds]), np.array([0.3, values.mean()]))


def outcome(*standings: Standing) -> Outcome:
    return Outcome((Rung(10, 2), Rung(20, 0)), standings)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 11, 30])
def test_the_interval_is_that_of_a_paired_t_test(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    one, other = generator.normal(0.9, 0.03, seeds), generator.normal(0.89, 0.03, seeds)
    lead = Lead.of(standing("fedga", *one), standing("fedavg", *other))
    expected = stats.ttest_rel(100 * one, 100 * other).confidence_interval(0.95)
    assert (lead.low, lead.high) == pytest.approx((expected.low, expected.high), abs=1e-3)  # in points


@pytest.mark.parametrize(
    ("best", "reference", "picked", "words"),
    [
        ((0.9, 0.91, 0.92), (0.85, 0.86, 0.87), 0, "beats FedAvg: it leads FedAvg, strong by +5.0 points"),
        ((0.9, 0.8, 0.7), (0.88, 0.79, 0.71), 1, "Nothing beats FedAvg: FedGA, strong is the best of 2 candidates"),
        ((0.9, 0.91, 0.94), (0.88, 0.9, 0.94), 0, "Nothing beats FedAvg for certain: FedGA, strong is the best of 2"),
        ((0.9,), (0.8,), 1, "one seed, no interval"),
    ],
)
def test_the_simplest_within_one_standard_error_is_the_answer(
    best: tuple[float, ...], reference: tuple[float, ...], picked: int, words: str
) -> None:
    found = outcome(standing("fedga", *best), standing("fedavg", *reference))
    verdict, lead = decide(found), Lead.of(*found.standings)
    assert verdict.pick is found.standings[picked]
    assert words in verdict.words
    assert (picked == 0) == (lead.points > lead.error)
    assert verdict.other is (None if lead.is_clear else found.standings[1 - picked])


def test_fedavg_may_be_the_best_or_gone_and_all_may_be() -> None:
    first = outcome(standing("fedavg", 0.9, 0.9), standing("fedga", 0.8, 0.8))
    assert decide(first).words == "Nothing beats FedAvg here: FedAvg, strong is the best of 2 candidates. Use FedAvg."
    equal = outcome(standing("fedga", 0.9, 0.9), standing("fedavg", 0.9, 0.9))
    assert decide(equal).pick is equal.standings[1]
    assert "FedAvg, strong is as good as any of 2 candidates" in decide(equal).words
    gone = outcome(standing("fedga", 0.8, 0.8), standing("fedavg", np.nan, 0.8, rounds=10))
    assert decide(gone).words.startswith("FedAvg diverged under all settings. FedGA, strong is the best of 2")
    with pytest.raises(FedGAError, match="every candidate diverged"):
        decide(outcome(standing("fedga", np.nan), standing("fedavg", np.nan, rounds=10)))


def test_the_table_and_the_picture_show_everybody(tmp_path: Path) -> None:
    found = outcome(
        standing("fedga", 0.9, 0.92),
        standing("fedavg", 0.8, 0.9),
        standing("fedprox", 0.5, 0.6, rounds=10),
        standing("fedntd", np.nan, 0.6, rounds=10),
    )
    text = markdown(standings_table(found, found.standings[0], "accuracy"))
    assert "| **FedGA, strong** | **20** | **0.910" in text
    assert "diverged" in text
    assert "And 2 candidates that stopped before." in standings_table(found, found.standings[0], "accuracy", 2).caption
    figure = draw_tournament(found, found.standings[0], "accuracy")
    lines = [np.asarray(line.get_xdata()).tolist() for line in figure.axes[0].lines]
    assert [ends for ends in lines if len(ends) == 2 and ends[0] == 1].count([1, 20]) == 2
    assert lines.count([1, 10]) == 2
    assert lines.count([10, 10]) == 1  # where candidates stopped
    assert all(path.stat().st_size for path in save(figure, tmp_path / "choice"))
