"""Methods beside FedAvg: what is paired with what, whose interval excludes 0, who is ranked, and the two pictures."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from fedga.algorithms import ALGORITHMS
from fedga.errors import FedGAError
from fedga.paper.report.related import (
    Comparison,
    Difference,
    Method,
    Place,
    Ranking,
    compare_methods,
    differences_table,
    ranks_table,
    related_headline,
)
from fedga.paper.report.related_pictures import differences_picture, ranks_picture
from fedga.paper.runs import EXPERIMENTS, Scope
from fedga.report.curves import Curve
from fedga.selection import SELECTIONS
from fedga.servers import SERVERS
from fedga.spec.settings import RunSpec
from tests.paper.test_beyond import assert_no_text_covers_another
from tests.report.test_figures import assert_nothing_is_clipped

STUDY = EXPERIMENTS["related"]
ROWS = len(ALGORITHMS) + len(SELECTIONS) + len(SERVERS) - 2  # FedAvg as it is has a rule and an optimiser already
Levels = Mapping[str, tuple[float, ...]]


def ended(spec: RunSpec, accuracy: float, status: str = "done") -> Curve:
    values = {name: np.array([0.1, accuracy]) for name in ("accuracy", "averaged_accuracy")}
    return Curve({"algorithm": spec.algorithm}, spec.seed, np.array([1, 30]), values, status, spec.run_id)


def study(levels: Levels, *, presets: tuple[str, ...] = ("paper", "strong")) -> tuple[list[Curve], dict[str, RunSpec]]:
    """Runs on digits at two α in which an algorithm ends at these levels by seed; without one, 0.5."""
    specs = {spec.run_id: spec for spec in STUDY.runs(Scope("quick", alphas=(0.1, 0.5))) if spec.preset in presets}
    curves = []
    for spec in specs.values():
        own = levels.get(_name(spec), (0.5, 0.5, 0.5))
        if spec.seed < len(own):
            level = own[spec.seed]
            curves.append(ended(spec, abs(level), "diverged" if level < 0 else "done"))
    return curves, specs


def _name(spec: RunSpec) -> str:
    if spec.algorithm != "fedavg":
        return spec.algorithm
    changed = (spec.select, spec.server) not in (("uniform", "sgd"), ("in-turn", "momentum"))
    return f"{spec.select} {spec.server}" if changed else "fedavg"


PLAIN = (0.5, 0.6, 0.7)
LEVELS: Levels = {
    "fedavg": PLAIN,
    "fedga": (0.6, 0.71, 0.8),
    "fedntd": (0.9, 0.1, 0.9),
    "climb": (0.4, 0.49, 0.6),
    "scaffold": (-0.1, 0.99, 0.99),
    "focal": (-0.1, -0.1, -0.1),
}


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare_methods(*study(LEVELS))


def test_the_study_has_every_built_in_name_in_both_settings() -> None:
    runs = STUDY.runs(Scope("full", ("mnist",), (0.05, 0.5), (0,)))
    for preset, alpha in itertools.product(("paper", "strong"), (0.05, 0.5)):
        here = [spec for spec in runs if (spec.preset, spec.alpha) == (preset, alpha)]
        assert len(here) == ROWS
        assert {spec.algorithm for spec in here} == set(ALGORITHMS)
        assert {spec.select for spec in here} == set(SELECTIONS)
        assert {spec.server for spec in here} == set(SERVERS)


def test_pictures_are_changed_where_that_is_usual_and_in_the_strong_setting_alone() -> None:
    runs = STUDY.runs(Scope("full", alphas=(0.5,), seeds=(0,), algorithms=("fedga",)))
    used = {(spec.dataset, spec.augment) for spec in runs if spec.preset == "strong"}
    assert used == {("mnist", ""), ("cifar10", "mirror,shift:4"), ("svhn", "shift:4")}
    assert {spec.augment for spec in runs if spec.preset == "paper"} == {""}


def test_a_difference_is_one_of_pairs_and_its_interval_student_s(found: Comparison) -> None:
    place = found.places[0]
    ahead = found.at(Method("fedga"), place)
    assert ahead.values == pytest.approx((10, 11, 10))
    assert ahead.half == pytest.approx(4.3027 * np.std([10, 11, 10], ddof=1) / np.sqrt(3), rel=1e-4)
    signs = {name: found.at(Method(name), place).sign for name in ("fedga", "fedntd", "climb", "focal")}
    assert signs == {"fedga": 1, "fedntd": 0, "climb": -1, "focal": -1}
    assert found.signs(Method("fedga")) == (4, 0)
    assert found.at(Method("fedavg"), place).itself
    assert Difference((1.0,)).sign == 0  # one pair has no interval


def test_seeds_that_fedavg_does_not_have_are_left_out() -> None:
    found = compare_methods(*study({**LEVELS, "fedavg": (0.5, 0.6)}))
    assert found.at(Method("fedga"), found.places[0]).values == pytest.approx((10, 11))


def test_fedavg_with_the_rule_and_optimiser_of_its_setting_is_fedavg_itself(found: Comparison) -> None:
    paper, strong = (Place(preset, "digits", 0.1) for preset in ("paper", "strong"))
    for method, itself, other in (
        (Method("fedavg", select="uniform"), paper, strong),
        (Method("fedavg", select="in-turn"), strong, paper),
        (Method("fedavg", server="sgd"), paper, strong),
        (Method("fedavg", server="momentum"), strong, paper),
    ):
        assert found.at(method, itself).itself
        assert found.at(method, itself).sign == 0
        assert not found.at(method, other).itself
    assert len(found.methods) == len(ALGORITHMS) + len(SELECTIONS) + len(SERVERS)


def test_ranks_put_a_diverged_method_last_and_leave_out_fedavg_under_another_name(found: Comparison) -> None:
    ranking = found.ranking
    assert ranking is not None
    assert len(ranking.methods) == len(found.methods) - 4
    assert ranking.methods[0] == Method("fedga")
    last = {method.algorithm for method in ranking.methods[-2:]}
    assert last == {"scaffold", "focal"}
    np.testing.assert_allclose(ranking.ranks.sum(1), len(ranking.methods) * (len(ranking.methods) + 1) / 2)


def test_a_method_that_lacks_a_setting_has_differences_and_no_rank() -> None:
    curves, specs = study(LEVELS)
    of = [curve for curve in curves if (specs[curve.run_id].algorithm, specs[curve.run_id].alpha) != ("fedga", 0.5)]
    found = compare_methods(of, specs)
    assert found.signs(Method("fedga")) == (2, 0)
    assert found.ranking is not None
    assert Method("fedga") not in found.ranking.methods


def test_bars_join_the_largest_groups_within_the_critical_difference() -> None:
    methods = tuple(Method(name) for name in ("fedga", "fedntd", "fedavg", "climb"))
    ranking = Ranking(methods, np.tile([1.0, 2.0, 3.0, 4.0], (14, 1)))  # the critical difference is 1.25
    assert ranking.groups == [(0, 1), (1, 2), (2, 3)]
    assert Ranking(methods, np.tile([1.0, 2.0, 3.0, 4.0], (2, 1))).groups == [(0, 3)]


def test_the_headline_names_who_is_ahead_and_who_behind(found: Comparison) -> None:
    headline = related_headline(found)
    assert headline.startswith("Ahead of FedAvg in at least half of the 4 settings: FedGA. Behind ")
    assert "Focal loss" in headline.partition("Behind")[2]


def test_tables_have_differences_and_never_bare_means_but_of_fedavg(found: Comparison) -> None:
    table = differences_table(found, "paper")
    rows = {row[0].text: row[1:] for row in table.rows}
    assert [cell.text for cell in rows["FedAvg, accuracy in %"]] == ["60.0", "60.0"]
    assert rows["FedGA"][0].text == "+10.3 ± 1.4"
    assert rows["FedGA"][0].bold
    assert not rows["FedNTD"][0].bold
    assert rows["SCAFFOLD"][0].note == "1 of 3 runs diverged"
    assert rows["Focal loss"][0].text == "–"
    assert rows["Focal loss"][0].note == "3 of 3 runs diverged"
    assert "FedAvg, select uniform" not in rows
    assert found.ranking is not None
    ranks = {row[0].text: row for row in ranks_table(found, found.ranking).rows}
    assert [cell.text for cell in ranks["FedGA"][2:]] == ["4", "0", "+10.3"]


def test_the_map_has_a_number_for_every_difference_and_a_mark_where_the_interval_excludes_0(found: Comparison) -> None:
    figure = differences_picture(found)
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(names) == len(found.methods)
    ahead = names.index("FedGA") + 0.5
    written = [text for text in axes.texts if abs(text.get_position()[1] - ahead) < 1e-9]
    assert [text.get_text() for text in written] == ["+10.3"] * 4 + ["4 / 0"]
    clear = [line for line in axes.get_lines() if line.get_label() == "_clear"]
    assert len(clear) == sum(sum(found.signs(method)) for method in found.methods)
    assert_nothing_is_clipped(figure)
    assert_no_text_covers_another(figure)


def test_the_diagram_has_every_method_at_its_mean_rank_and_a_bar_per_group(found: Comparison) -> None:
    ranking = found.ranking
    assert ranking is not None
    figure = ranks_picture(ranking)
    [axes] = figure.axes
    places = {line.get_label(): line.get_xdata()[0] for line in axes.get_lines()}
    for method, mean in zip(ranking.methods, ranking.means, strict=True):
        assert places[f"_{method.name}"] == pytest.approx(mean)
    assert len([line for line in axes.get_lines() if line.get_label() == "_group"]) == len(ranking.groups)
    assert_nothing_is_clipped(figure)
    assert_no_text_covers_another(figure)


def test_fedavg_alone_and_two_scales_in_one_are_refused() -> None:
    curves, specs = study(LEVELS, presets=("paper",))
    alone = [curve for curve in curves if specs[curve.run_id].algorithm != "fedavg"]
    with pytest.raises(FedGAError, match="nothing to compare"):
        compare_methods(alone, specs)
    other = next(spec for spec in specs.values() if spec.algorithm == "fedga")
    longer = dataclasses.replace(other, rounds=60)
    with pytest.raises(FedGAError, match=r"two runs of FedGA on digits, α = 0\.1 have seed 0"):
        compare_methods([*curves, ended(longer, 0.5)], {**specs, longer.run_id: longer})
