"""What explains FedGA's lead: runs sorted into arms, and what picture and table show of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedga.drawing import style
from fedga.errors import FedGAError
from fedga.paper.report.arms import ALL, AXES, NO_SKEW, NONE, SETTINGS, Arm, ablations, arms, setting_name
from fedga.paper.report.beyond import beyond_headline, beyond_picture, beyond_table
from fedga.report.curves import Curve
from fedga.spec.settings import RunSpec
from tests.report.test_figures import assert_nothing_is_clipped, texts

SWITCHED = {
    "pixels": {"standardize": True},
    "momentum": {"server": "momentum"},
    "schedule": {"lr_schedule": "cosine"},
    "decay": {"weight_decay": 0.001},
}
PIXELS, MOMENTUM, SCHEDULE, DECAY = (frozenset({axis}) for axis in SWITCHED)
# Setting -> accuracy of FedAvg and FedGA, last model; the averaged one is two points above FedAvg's, one above FedGA's.
LEVELS: Mapping[frozenset[str], tuple[float, float]] = {
    NONE: (0.70, 0.80),
    PIXELS: (0.86, 0.88),
    MOMENTUM: (0.88, 0.85),
    SCHEDULE: (0.65, 0.75),
    DECAY: (0.69, 0.81),
    **{ALL - {axis}: (0.90, 0.91 - 0.02 * (axis == "momentum")) for axis in AXES},
    ALL: (0.90, 0.92),
}
EVEN = {NONE: 0.85, ALL: 0.94}
FAILED = {**LEVELS, MOMENTUM: (0.08, 0.09), DECAY: (0.20, 0.81), ALL - {"pixels"}: (0.10, 0.12)}


def spec(algorithm: str, axes: Iterable[str], seed: int = 0, **settings: object) -> RunSpec:
    switched = {name: value for axis in axes for name, value in SWITCHED[axis].items()}
    return RunSpec(dataset="mnist", alpha=0.05, algorithm=algorithm, seed=seed, **{**switched, **settings})  # type: ignore[arg-type]


def curve(of: RunSpec, accuracy: float, averaged: float, status: str = "done") -> Curve:
    values = {"accuracy": np.array([0.1, accuracy]), "averaged_accuracy": np.array([0.1, averaged])}
    return Curve({"algorithm": of.algorithm}, of.seed, np.array([1, 20]), values, status, of.run_id)


def make_arms(
    levels: Mapping[frozenset[str], tuple[float, float]] = LEVELS,
    seeds: int = 3,
    even: bool = True,
    stuck: Collection[tuple[str, frozenset[str]]] = (),
) -> list[Arm]:
    """Arms of these levels; of those ``stuck`` the first seed stays where it began."""
    specs, curves = {}, []
    for seed in range(seeds):
        noise = 0.01 * (seed - (seeds - 1) / 2)
        for axes, of_setting in levels.items():
            for algorithm, level, bonus in zip(("fedavg", "fedga"), of_setting, (0.02, 0.01), strict=True):
                one = spec(algorithm, axes, seed)
                specs[one.run_id] = one
                began = seed == 0 and (algorithm, axes) in stuck
                ends = (0.1, 0.1) if began else (level + noise, level + bonus + noise)
                curves.append(curve(one, *ends))
        for axes, level in EVEN.items() if even else ():
            one = spec("fedavg", axes, seed, partition="even")
            specs[one.run_id] = one
            curves.append(curve(one, level + noise, level - 0.01 + noise))
    return arms(curves, specs)


def test_runs_are_sorted_by_what_is_switched_on() -> None:
    found = {(arm.algorithm, arm.axes, arm.partition): arm for arm in make_arms()}
    assert len(found) == 2 * len(LEVELS) + len(EVEN)
    assert [one.seed for one in found["fedga", PIXELS, "dirichlet"].curves] == [0, 1, 2]
    assert found["fedavg", ALL, "even"].even
    [place] = ablations(list(found.values()))
    assert place.name == "MNIST, α = 0.05"
    assert place.lead(NONE, "last") == pytest.approx(10)
    assert place.lead(NONE, "averaged") == pytest.approx(9)
    assert place.remains(PIXELS, "last") == pytest.approx(0.2)
    assert place.without_skew(ALL).mean == pytest.approx(0.94)
    assert place.best == ("fedga", ALL, "averaged")


def test_an_arm_fails_below_half_of_its_own_paper_setting_and_says_little_with_a_stuck_run() -> None:
    levels = {NONE: (0.60, 0.90), PIXELS: (0.31, 0.447), DECAY: (0.62, 0.91)}
    [place] = ablations(make_arms(levels, stuck=[("fedavg", DECAY)]))
    assert [place.fails(name, PIXELS, "last") for name in ("fedavg", "fedga")] == [False, True]
    assert not place.fails("fedga", PIXELS, "averaged")  # 0.457 of 0.91
    assert not place.fails("fedavg", ALL, "last")  # there is none
    decay = place.find("fedavg", DECAY)
    assert decay is not None
    assert decay.stuck == 1
    assert not place.fails("fedavg", DECAY, "last")
    assert [place.trains(name, DECAY, "last") for name in ("fedavg", "fedga")] == [False, True]
    assert np.isnan(place.remains(DECAY, "last"))
    assert place.lead(DECAY, "last") > 40


def test_two_settings_under_one_name_and_a_run_without_settings_are_refused() -> None:
    first, second = spec("fedavg", ()), spec("fedavg", (), 1, lr=0.3)
    curves = [curve(first, 0.5, 0.5), curve(second, 0.6, 0.6)]
    with pytest.raises(FedGAError, match="fedavg on mnist have the same axes but differ in lr"):
        arms(curves, {first.run_id: first, second.run_id: second})
    with pytest.raises(FedGAError, match=r"settings of run .* are missing"):
        arms(curves, {first.run_id: first})
    looked_at = spec("fedavg", (), 1, evaluate_every=7)
    assert len(arms([curves[0], curve(looked_at, 0.6, 0.6)], {one.run_id: one for one in (first, looked_at)})) == 1


def test_a_dot_is_an_accuracy_and_the_line_between_two_is_the_lead() -> None:
    figure = beyond_picture(make_arms())
    [axes] = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[:2] == ["the paper's setting", "with standardised pixels"]
    assert names[-1] == "all four (strong)"
    assert len(names) == len(SETTINGS)
    dots = {(line.get_label(), round(line.get_ydata()[0])): line.get_xdata()[0] for line in axes.get_lines()}
    assert dots["fedavg, last", 0] == pytest.approx(0.70)
    assert dots["fedga, averaged", 1] == pytest.approx(0.89)
    lines = {
        line.get_label(): line.get_xdata()[0] for line in axes.get_lines() if line.get_label().startswith("no skew")
    }
    assert lines == {"no skew, paper's setting": pytest.approx(0.85), "no skew, all four": pytest.approx(0.94)}
    leads = [line.get_xdata() for line in axes.get_lines() if line.get_label() == "_lead"]
    np.testing.assert_allclose(leads[0], [0.70, 0.80])
    written = [text.get_text() for text in axes.texts]
    assert written[:4] == ["+10.0", "+9.0", "+2.0", "+1.0"]
    assert "−3.0" in written
    assert_nothing_is_clipped(figure)


def test_a_setting_in_which_training_failed_is_an_arrow_at_the_edge() -> None:
    [axes] = beyond_picture(make_arms({**LEVELS, DECAY: (0.20, 0.62)})).axes
    arrows = [line for line in axes.get_lines() if line.get_marker() == "<"]
    assert [line.get_label() for line in arrows] == ["_fedavg", "_fedavg"]
    left = axes.get_xlim()[0]
    assert left > 0.5
    assert {line.get_xdata()[0] for line in arrows} == {left}
    assert len([line for line in axes.get_lines() if line.get_marker() in ("o", "*")]) == 4 * len(LEVELS) - 2
    assert not [line for line in beyond_picture(make_arms()).axes[0].get_lines() if line.get_marker() == "<"]


def test_the_caption_counts_the_runs_that_are_not_like_the_others() -> None:
    assert _caption(make_arms()).endswith(NO_SKEW)
    odd = make_arms(FAILED, stuck=[("fedavg", PIXELS), ("fedga", SCHEDULE)])
    runs = 3 * 2 * len(LEVELS)
    assert f"2 of {runs} runs never left the start plateau" in _caption(odd)
    assert NO_SKEW not in _caption([arm for arm in odd if not arm.even])


def _caption(found: list[Arm]) -> str:
    """What stands around the panels, which ends with the caption."""
    return " ".join(text.get_text() for text in beyond_picture(found).texts)


def test_no_text_of_the_picture_covers_another() -> None:
    for figure in (
        beyond_picture(make_arms(FAILED)),
        beyond_picture(three_data_sets()),
        beyond_picture(three_data_sets(FAILED)),
    ):
        assert_no_text_covers_another(figure)
        assert_nothing_is_clipped(figure)


def three_data_sets(levels: Mapping[frozenset[str], tuple[float, float]] = LEVELS) -> list[Arm]:
    return [replace(arm, dataset=name) for name in ("svhn", "mnist", "cifar10") for arm in make_arms(levels)]


def assert_no_text_covers_another(figure: Figure) -> None:
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    figure.draw_without_rendering()
    written = [text for axes in figure.axes if axes.get_visible() for text in axes.texts if text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in written]
    for number, (first, box) in enumerate(boxes):
        for second, other in boxes[number + 1 :]:
            apart = box.x1 <= other.x0 or other.x1 <= box.x0 or box.y1 <= other.y0 + 2 or other.y1 <= box.y0 + 2
            assert apart, (first, second)


def test_data_sets_stand_side_by_side_in_the_order_of_the_paper() -> None:
    figure = beyond_picture(three_data_sets())
    heads = [axes.get_title() or axes.get_title("left") for axes in figure.axes]
    assert heads == ["MNIST, α = 0.05", "CIFAR-10, α = 0.05", "SVHN, α = 0.05"]
    table = beyond_table(three_data_sets())
    per_place = len(SETTINGS) + len(EVEN)
    assert table.breaks == (per_place - 1, 2 * per_place - 1)


def test_the_table_has_accuracy_lead_and_what_is_left_of_it() -> None:
    table = beyond_table(make_arms())
    rows = {row[2].text: dict(zip(table.headings, row, strict=True)) for row in table.rows}
    paper, pixels, momentum = (
        rows[name] for name in ("the paper's setting", "with standardised pixels", "with server momentum")
    )
    assert paper["FedAvg"].text == "0.700 (0.010)"
    assert paper["lead"].text == "+10.0"
    assert paper["lead left"].text == "100 %"
    assert pixels["lead left"].value == pytest.approx(0.2)
    assert pixels["lead left, averaged"].text == "10 %"
    assert momentum["lead"].text == "−3.0"
    assert momentum["lead left"].text == "−30 %"
    assert rows["no skew, all four"]["FedAvg"].text == "0.940 (0.010)"
    assert rows["no skew, all four"]["FedGA"].text == "–"
    assert "mean (deviation) over 3 seeds" in table.caption
    assert "within two standard errors (paired by seed)" in table.caption
    assert table.caption.endswith(NO_SKEW)
    bold = [cell.text for row in table.rows for cell in row if cell.bold]
    assert bold == ["0.930 (0.010)"]


def test_the_table_has_no_share_of_a_lead_where_an_arm_fails_or_a_run_of_it_is_stuck() -> None:
    table = beyond_table(make_arms(FAILED, stuck=[("fedavg", SCHEDULE)]))
    rows = {row[2].text: dict(zip(table.headings, row, strict=True)) for row in table.rows}
    for name in ("with server momentum", "with falling rate", "with weight decay", "all but standardised pixels"):
        assert {rows[name][heading].text for heading in ("lead left", "lead left, averaged")} == {"–"}
        assert rows[name]["lead"].text != "–"
    assert rows["with weight decay"]["lead"].text == "+61.0"
    assert rows["with falling rate"]["FedAvg"].note == "1 of 3 runs never left the start plateau"
    assert rows["with standardised pixels"]["lead left"].text == "20 %"


def test_the_headline_has_every_lead_here_and_in_the_strong_setting() -> None:
    assert beyond_headline(make_arms()).endswith("(averaged model): +10.0 and +1.0 on MNIST")
    one_algorithm = [arm for arm in make_arms() if arm.algorithm == "fedga"]
    assert beyond_headline(one_algorithm) == "FedGA's lead over FedAvg in points, α = 0.05"


@pytest.mark.parametrize(
    "found",
    [
        make_arms(stuck=[("fedavg", NONE)]),
        make_arms({NONE: (0.8, 0.7), ALL: (0.9, 0.95)}),
        make_arms({NONE: (0.8, 0.8), ALL: (0.9, 0.9)}),
    ],
    ids=["a stuck run", "behind", "level"],
)
def test_without_a_lead_in_the_papers_setting_there_is_nothing_to_be_a_share_of(found: list[Arm]) -> None:
    assert {row[6].text for row in beyond_table(found).rows} == {"–"}
    assert_nothing_is_clipped(beyond_picture(found))


@pytest.mark.parametrize(("lead", "is_lead"), [(0.024, True), (0.022, False)])
def test_a_lead_is_one_beyond_two_standard_errors_of_pairs(lead: float, is_lead: bool) -> None:
    specs, curves = {}, []
    for seed, noise in enumerate((-0.02, 0.0, 0.02)):  # of the pairs: a standard error of 1.15 points
        for algorithm, accuracy in (("fedavg", 0.7 + 0.1 * seed), ("fedga", 0.7 + 0.1 * seed + lead + noise)):
            one = spec(algorithm, (), seed)
            specs[one.run_id] = one
            curves.append(curve(one, accuracy, accuracy))
    found = arms(curves, specs)
    [place] = ablations(found)
    assert place.noise == pytest.approx(200 * 0.02 / np.sqrt(3))
    assert beyond_table(found).rows[0][6].text == ("100 %" if is_lead else "–")


def test_missing_arms_and_a_single_seed_leave_out_what_they_would_say() -> None:
    few = make_arms({NONE: (0.7, 0.8), PIXELS: (0.85, 0.855)}, seeds=1, even=False)
    [axes] = beyond_picture(few).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["the paper's setting", "with standardised pixels"]
    assert "One seed." in texts(axes.figure)
    assert "No skew" not in texts(axes.figure)
    assert beyond_table(few).rows[0][3].text == "0.700"
    one_algorithm = [arm for arm in few if arm.algorithm == "fedga"]
    assert beyond_table(one_algorithm).rows[0][5].text == "–"
    assert_nothing_is_clipped(beyond_picture(one_algorithm))


def test_diverged_runs_are_in_no_mean_and_are_told() -> None:
    specs, curves = {}, []
    for seed in range(2):
        one = spec("fedga", (), seed)
        specs[one.run_id] = one
        curves.append(curve(one, 0.8 if seed else 0.1, 0.8, "done" if seed else "diverged"))
    found = arms(curves, specs)
    assert beyond_table(found).rows[0][4].text == "0.800"
    assert "1 of 2 runs diverged" in texts(beyond_picture(found))


def test_runs_partitioned_evenly_alone_are_nothing_to_compare() -> None:
    only_even = [arm for arm in make_arms() if arm.even]
    for draw in (beyond_picture, beyond_table, beyond_headline):
        with pytest.raises(FedGAError, match="nothing to compare"):
            draw(only_even)  # type: ignore[operator]


def test_the_same_arms_are_the_same_bytes(tmp_path: Path) -> None:
    first, again = (style.save(beyond_picture(make_arms()), tmp_path / name) for name in ("first", "again"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_every_setting_has_a_name_of_its_own() -> None:
    assert len({setting_name(axes) for axes in SETTINGS}) == len(SETTINGS)
