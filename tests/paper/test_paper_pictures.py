"""The paper's figures: the numbers behind every line, dot and cell, and that nothing covers or leaves the picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedga.drawing import style
from fedga.engine.evaluation.metrics import ClientRecord
from fedga.errors import FedGAError
from fedga.paper.binary import LOSSES, BinaryRuns
from fedga.paper.report import pictures
from fedga.paper.report.binary import binary_picture
from fedga.report.curves import Curve, curves_from_rows
from fedga.report.figures import clients
from tests.paper.test_beyond import assert_no_text_covers_another
from tests.report.made_up import make_rows
from tests.report.test_figures import NAMES, assert_nothing_is_clipped, line, records, texts

LEVELS = {"fedavg": 0.7, "fedga": 0.8}
CLASSES = [str(number) for number in range(10)]


def made(levels: dict[str, float] = LEVELS, seeds: int = 3, **settings: Any) -> list[Curve]:
    """Runs in the paper's setting, with an averaged model two points above the last."""
    rows = [
        row
        for seed in range(seeds)
        for name, level in levels.items()
        for row in make_rows(name, seed, level, **settings)
    ]
    return curves_from_rows([row | {"averaged_accuracy": row["accuracy"] + 0.02} for row in rows])


def means(curves: list[Curve], metric: str, **settings: Any) -> np.ndarray:
    chosen = [one for one in curves if all(one.settings[name] == value for name, value in settings.items())]
    return np.mean([one.metric(metric) for one in chosen], axis=0)


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def rounds_of(number: int, classes: int = 10, algorithms: tuple[str, ...] = tuple(LEVELS)) -> dict[str, Any]:
    """What was seen of the same clients under every algorithm; the second algorithm forgets nothing."""
    found: dict[str, Any] = {}
    for rank, algorithm in enumerate(algorithms):
        draw = np.random.default_rng(0)
        found[algorithm] = []
        for client in range(number):
            counts = draw.integers(0, 3, classes) * draw.integers(1, 99, classes)
            before = draw.uniform(0.4, 1, classes)
            after = np.where(counts > 0, 1.0, before - 0.3 * (rank != 1))
            nothing = [1.0] * classes
            record = ClientRecord(40 + client, counts.tolist(), before.tolist(), after.tolist(), nothing, nothing)
            found[algorithm].append(record)
    return found


def test_curves_are_of_one_model_at_a_time() -> None:
    curves = made()
    [axes] = pictures.curves_picture(curves).axes
    np.testing.assert_allclose(line(axes, "FedGA")[:, 1], means(curves, "accuracy", algorithm="fedga"))
    assert "FedGA, averaged" not in [one.get_label() for one in axes.get_lines()]
    [axes] = pictures.curves_picture(curves, averaged=True).axes
    np.testing.assert_allclose(line(axes, "FedGA")[:, 1], means(curves, "averaged_accuracy", algorithm="fedga"))


def test_zoom_shows_the_first_rounds_alone_and_all_of_them() -> None:
    curves = made()
    figure = pictures.zoom_picture(curves, 5)
    [axes] = figure.axes
    drawn = line(axes, "FedAvg")
    np.testing.assert_array_equal(drawn[:, 0], [1, 2, 3, 4, 5])
    np.testing.assert_allclose(drawn[:, 1], means(curves, "accuracy", algorithm="fedavg")[:5])
    low, high = axes.get_ylim()
    assert low <= drawn[:, 1].min()
    assert line(axes, "FedGA")[:, 1].max() <= high < 0.7
    assert axes.get_xlim() == (0, 5)
    assert_nothing_is_clipped(figure)


def test_alphas_share_a_colour_and_are_named_at_their_ends() -> None:
    curves = [
        one
        for alpha, cost in ((0.05, 0.3), (0.5, 0.1), (10.0, 0.0))
        for one in made({"fedavg": 0.9 - 2 * cost, "fedga": 0.9 - cost}, alpha=alpha)
    ]
    figure = pictures.alphas_picture(curves)
    [axes] = figure.axes
    names = [f"{name}, α = {alpha}" for name in ("FedAvg", "FedGA") for alpha in ("0.05", "0.5", "10")]
    lines = {one.get_label(): one for one in axes.get_lines()}
    assert set(names) == set(lines)
    expected = means(curves, "accuracy", algorithm="fedga", alpha=0.05)
    np.testing.assert_allclose(line(axes, "FedGA, α = 0.05")[:, 1], expected)
    assert len({one.get_color() for one in lines.values()}) == len(names)
    assert (
        lines["FedGA, α = 0.05"].get_marker()
        == lines["FedGA, α = 10"].get_marker()
        != lines["FedAvg, α = 10"].get_marker()
    )
    written = texts(figure)
    assert all(f"{line(axes, name)[-1, 1]:.3f} {name}" in written for name in names)
    assert_no_text_covers_another(figure)
    assert_nothing_is_clipped(figure)


def test_alphas_of_two_data_sets_are_two_panels_and_a_single_alpha_is_a_line() -> None:
    both = [*made(alpha=0.1), *made(alpha=1.0), *made(alpha=0.1, dataset="mnist")]
    figure = pictures.alphas_picture(both)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["MNIST", "digits"]
    assert_nothing_is_clipped(figure)
    assert_nothing_is_clipped(pictures.alphas_picture(made(alpha=None)))


def test_data_without_an_alpha_beside_some_are_the_mildest() -> None:
    curves = [one for alpha in (None, 0.1) for one in made(alpha=alpha)]
    figure = pictures.alphas_picture(curves)
    assert_nothing_is_clipped(figure)


def test_client_ea_is_the_median_of_the_examined_rounds_connected() -> None:
    figure = pictures.client_ea_picture(made())
    [axes] = figure.axes
    assert axes.get_yscale() == "log"
    np.testing.assert_allclose(line(axes, "FedGA"), [[5, 105], [10, 110], [15, 115], [20, 120]])
    assert "120 FedGA" in texts(figure)
    assert_no_text_covers_another(figure)
    assert_nothing_is_clipped(figure)
    panels = pictures.client_ea_picture([*made(alpha=0.1), *made(alpha=1.0)])
    assert len(panels.axes) == 2
    assert legend(panels) == ["FedAvg", "FedGA"]
    assert_nothing_is_clipped(panels)
    with pytest.raises(FedGAError, match="no run has a value of client_ea_ratio"):
        pictures.client_ea_picture([replace(one, values={}) for one in made()])


def test_local_epochs_are_drawn_over_the_work_done_with_one_axis() -> None:
    curves = [*made(local_epochs=2), *made({"fedavg": 0.6, "fedga": 0.75}, local_epochs=5), *made(local_epochs=10)]
    figure = pictures.epochs_picture(curves)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"{n} local epochs" for n in (2, 5, 10)]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    drawn = line(figure.axes[1], "FedGA")
    np.testing.assert_array_equal(drawn[:, 0], 5 * np.arange(1, 21))
    np.testing.assert_allclose(drawn[:, 1], means(curves, "accuracy", algorithm="fedga", local_epochs=5))
    assert legend(figure) == ["FedAvg", "FedGA"]
    assert_nothing_is_clipped(figure)
    with pytest.raises(FedGAError, match="differ in --local-epochs"):
        pictures.epochs_picture(made())


def test_local_epochs_of_two_data_sets_are_rows_with_room_for_what_is_missing() -> None:
    curves = [*made(local_epochs=2), *made(local_epochs=5), *made(local_epochs=2, dataset="mnist")]
    figure = pictures.epochs_picture(curves)
    assert [axes.get_visible() for axes in figure.axes] == [True, False, True, True]
    assert [axes.get_ylabel().partition("\n")[0] for axes in figure.axes[::2]] == ["mnist, α = 0.1", "digits, α = 0.1"]
    assert_nothing_is_clipped(figure)


def test_label_maps_stand_on_one_scale() -> None:
    draw = np.random.default_rng(0)
    counts = {0.5: draw.integers(0, 90, (40, 10)), 0.05: draw.integers(0, 2, (40, 10)) * 200}
    figure = pictures.labels_picture(counts, CLASSES)
    mild, strong, scale = figure.axes
    assert [axes.get_title(loc="left") for axes in (mild, strong)] == ["α = 0.5", "α = 0.05"]
    for axes, given in zip((mild, strong), counts.values(), strict=True):
        [mesh] = axes.collections
        cells = mesh.get_array().reshape(10, 30)
        np.testing.assert_array_equal(cells.filled(0), given[:30].T)
        assert mesh.norm.vmax == 200
    assert scale.get_position().height > 2 * mild.get_position().height
    assert "α = 0.05: 40 clients hold" in texts(figure)
    assert_nothing_is_clipped(figure)
    with pytest.raises(FedGAError, match="no label counts"):
        pictures.labels_picture({}, CLASSES)


def test_tuning_marks_the_best_rate_and_that_of_the_paper() -> None:
    by_rate = {0.01: 0.5, 0.1: 0.7, 0.3: 0.9}
    curves = [one for rate, level in by_rate.items() for one in made({"fedavg": level}, lr=rate, alpha=0.05)]
    broken = [replace(one, status="diverged") for one in made({"fedavg": 0.1}, lr=1.0, alpha=0.05)]
    figure = pictures.tuning_picture([*curves, *broken])
    [axes] = figure.axes
    assert axes.get_xscale() == "log"
    drawn = line(axes, "FedAvg, α = 0.05")
    np.testing.assert_array_equal(drawn[:, 0], list(by_rate))
    np.testing.assert_allclose(drawn[1, 1], means(curves, "accuracy", lr=0.1)[-1])
    assert line(axes, "_star")[:, 0].tolist() == [0.3]
    assert line(axes, "_ring")[:, 0].tolist() == [0.1]
    assert line(axes, "_diverged")[:, 0].tolist() == [1.0]
    assert set(legend(figure)) == {"α = 0.05", "chosen rate", "rate of preset paper", "a run diverged"}
    assert_nothing_is_clipped(figure)
    others = made({"fedavg": 0.9}, lr=0.1, alpha=0.05, rounds=7)
    with pytest.raises(FedGAError, match="differ in"):
        pictures.tuning_picture([*curves, *others])
    with pytest.raises(FedGAError, match="differ in --lr"):
        pictures.tuning_picture(made())


def test_tuning_has_a_panel_per_data_set_and_a_line_per_alpha() -> None:
    curves = [
        one
        for dataset in ("svhn", "mnist", "cifar10", "digits")
        for alpha in (0.05, 0.1, 0.5, 1.0, 10.0)
        for rate in (1.0, 0.3, 0.1, 0.01, 0.001, 0.0001)
        for one in made({"fedavg": 0.5 + 0.04 * alpha}, seeds=1, lr=rate, alpha=alpha, dataset=dataset)
    ]
    figure = pictures.tuning_picture(curves)
    shown = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert shown == ["MNIST", "CIFAR-10", "SVHN", "digits"]
    assert_nothing_is_clipped(figure)


def test_clients_that_have_names_are_called_by_them() -> None:
    called = [*map(str, range(7)), "Torgersen", "St. Mary's General Hospital"]  # the records are of clients 7, 8 and 9
    figure = clients.before_after(records(), NAMES, client_names=called)
    titles = [title for axes in figure.axes if (title := axes.get_title())]
    assert titles == ["Torgersen", "St. Mary'…", "client 9"]
    assert_no_text_covers_another(figure)


def test_clients_of_several_algorithms_are_one_column_each() -> None:
    rounds = rounds_of(3)
    figure = clients.before_after_algorithms(rounds, CLASSES)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 3 * (1 + 2)  # counts, then a row per algorithm
    held, plain, aligned = shown[:3]
    record, other = rounds["fedavg"][0], rounds["fedga"][0]
    assert held.get_title(loc="center") == "client 40"
    assert [bar.get_height() for bar in held.containers[0]] == record.class_counts
    for axes, seen in ((plain, record), (aligned, other)):
        np.testing.assert_array_equal(line(axes, "before")[:, 1], seen.accuracy_before)
        [after] = [dots for dots in axes.collections if dots.get_label() == "after"]
        np.testing.assert_array_equal(np.asarray(after.get_offsets())[:, 1], seen.accuracy_after)
    assert len(plain.patches) == record.class_counts.count(0)
    written = texts(figure)
    assert "missing −30" in written
    assert "classes, in points: FedAvg −30, FedGA +0" in written
    assert_no_text_covers_another(figure)
    assert_nothing_is_clipped(figure)


def test_six_algorithms_and_ten_clients_fit_and_more_are_said_to_be_left_out() -> None:
    six = ("fedavg", "fedprox", "fedrl", "climb", "fedntd", "fedga")
    figure = clients.before_after_algorithms(rounds_of(12, algorithms=six), [f"class {number}" for number in CLASSES])
    assert "the first 10 of 12 clients" in texts(figure)
    assert "0 class 0, 1 class 1" in texts(figure)
    assert figure.get_size_inches()[0] < 12
    assert_no_text_covers_another(figure)
    assert_nothing_is_clipped(figure)
    assert_nothing_is_clipped(clients.before_after_algorithms(rounds_of(10, 200), [f"{n}" for n in range(200)]))
    assert_nothing_is_clipped(clients.before_after_algorithms(rounds_of(1, 3), ["a", "b", "c"]))


def test_clients_are_put_in_one_order_and_others_are_refused() -> None:
    rounds = rounds_of(3)
    turned = {"fedavg": rounds["fedavg"], "fedga": rounds["fedga"][::-1]}
    first, second = (clients.before_after_algorithms(one, CLASSES).axes for one in (rounds, turned))
    for axes, other in zip(first, second, strict=True):
        for drawn, again in zip(axes.get_lines(), other.get_lines(), strict=True):
            np.testing.assert_array_equal(drawn.get_ydata(), again.get_ydata())
    with pytest.raises(FedGAError, match="fedga was evaluated on other clients than fedavg"):
        clients.before_after_algorithms({"fedavg": rounds["fedavg"], "fedga": rounds["fedga"][:2]}, CLASSES)
    with pytest.raises(FedGAError, match="no clients to draw"):
        clients.before_after_algorithms({}, CLASSES)
    with pytest.raises(FedGAError, match="10 classes, but 2 are named"):
        clients.before_after_algorithms(rounds, CLASSES[:2])


def errors(loss: str, counts: tuple[int, int], seeds: int = 2) -> BinaryRuns:
    """Errors that approach their end as 1 / epoch."""
    epochs = np.arange(101)
    wanted = counts[0] / counts[1] if loss == LOSSES[0] else 1.0
    false_alarm = 0.5 / (1 + epochs) + 0.01 * np.ones((seeds, 1))
    missed = false_alarm * (wanted + (1 - wanted) / (1 + epochs) ** 2) * (1 + 0.001 * np.arange(seeds)[:, None])
    return BinaryRuns("mnist", "6", "0", loss, counts, tuple(range(seeds)), epochs, missed, false_alarm)


def test_binary_lines_are_the_means_of_error_asymmetry_and_of_its_sums() -> None:
    runs = [errors(loss, counts) for counts in ((1000, 100), (1000, 10)) for loss in LOSSES]
    figure = binary_picture(runs)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "r = 10: 1,000 against 100 samples",
        "r = 100: 1,000 against 10 samples",
    ]
    axes = figure.axes[1]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    np.testing.assert_allclose(line(axes, "cross-entropy")[:, 1], runs[2].asymmetry.mean(0)[1:])
    np.testing.assert_allclose(line(axes, "its sums")[:, 1], runs[2].cumulative.mean(0)[1:])
    np.testing.assert_allclose(line(axes, "alignment")[:, 1], runs[3].asymmetry.mean(0)[1:])
    aims = [one.get_ydata()[0] for one in axes.get_lines() if one.get_label() == "_aim"]
    assert aims == [100, 1]
    assert figure.axes[0].get_ylim() == axes.get_ylim()
    assert "1.00 alignment" in texts(figure)
    assert "Mean over 2 seeds" in texts(figure)
    assert_no_text_covers_another(figure)
    assert_nothing_is_clipped(figure)
    assert "1.00 (r = 10) and 1.00 (r = 100) with gradient alignment" in texts(figure)


def test_binary_of_one_seed_and_one_loss_and_of_nothing() -> None:
    figure = binary_picture([errors(LOSSES[1], (50, 5), seeds=1)])
    assert "One seed." in texts(figure)
    assert_nothing_is_clipped(figure)
    with pytest.raises(FedGAError, match="no binary runs to draw"):
        binary_picture([])


DRAWN: list[Callable[[], Figure]] = [
    lambda: pictures.alphas_picture(made()),
    lambda: pictures.client_ea_picture(made()),
    lambda: pictures.zoom_picture(made(), 5),
    lambda: pictures.epochs_picture(made(local_epochs=2)),
    lambda: pictures.labels_picture({0.5: np.ones((3, 10), dtype=int)}, CLASSES),
    lambda: pictures.tuning_picture(made({"fedavg": 0.5}, lr=0.1)),
    lambda: clients.before_after_algorithms(rounds_of(3), CLASSES),
    lambda: binary_picture([errors(LOSSES[0], (50, 5))]),
]


@pytest.mark.parametrize("draw", DRAWN)
def test_the_same_picture_is_the_same_bytes(draw: Callable[[], Figure], tmp_path: Path) -> None:
    first, again = (style.save(draw(), tmp_path / name) for name in ("first", "again"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


@pytest.mark.usefixtures("without_matplotlib")
@pytest.mark.parametrize("draw", DRAWN)
def test_without_matplotlib_every_picture_says_what_to_install(draw: Callable[[], Figure]) -> None:
    with pytest.raises(FedGAError, match=r"drawing pictures needs matplotlib.*pip install 'fedga\[report\]'"):
        draw()


def test_diverged_runs_are_in_no_mean_and_are_said(with_diverged: list[Curve]) -> None:
    for draw in (pictures.alphas_picture, pictures.client_ea_picture, pictures.curves_picture):
        figure = draw(with_diverged)  # type: ignore[operator]
        assert "1 of 3 of FedAvg; 3 of 3 of FedNTD" in texts(figure)
        assert_nothing_is_clipped(figure)
