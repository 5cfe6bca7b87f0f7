"""What is drawn: the numbers behind every line and bar, and the files they are saved to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from fedga.drawing import style
from fedga.engine.evaluation.metrics import ClientRecord
from fedga.errors import FedGAError
from fedga.report import figures
from fedga.report.curves import Curve, curves_from_rows
from tests.report.made_up import make_curves, make_rows

NAMES = ["cat", "dog", "a very long name", "$5 or $6"]
COUNTS = np.array([[90, 10, 0, 0], [0, 0, 5, 1], [1, 1, 1, 1]])


def records(clients: int = 3) -> list[ClientRecord]:
    nan = float("nan")
    return [
        ClientRecord(
            7 + k, COUNTS[k % 3].tolist(), [0.5, 0.5, 0.5, nan], [0.75, 0.25, 0.0, nan], [1.0] * 4, [1.0, 2.0, 3.0, nan]
        )
        for k in range(clients)
    ]


def line(axes: Any, label: str) -> np.ndarray:
    [found] = [line for line in axes.get_lines() if line.get_label() == label]
    return np.column_stack(found.get_data())


def texts(figure: Figure) -> str:
    inside = [text.get_text() for axes in figure.axes for text in axes.texts]
    return " ".join([text.get_text() for text in figure.texts] + inside).replace("\u00a0", " ")


def assert_nothing_is_clipped(figure: Figure) -> None:
    """Every text that is drawn lies inside the picture."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    undrawn = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            undrawn |= {tick.label1 for tick in ticks if not axes.get_visible() or not low <= tick.get_loc() <= high}
        if not axes.get_visible():
            undrawn |= set(axes.findobj(lambda artist: hasattr(artist, "get_text")))
    for text in figure.findobj(lambda artist: hasattr(artist, "get_text")):
        if text.get_visible() and text.get_text().strip() and text not in undrawn:
            box = text.get_window_extent(renderer)
            inside = (
                box.x0 >= -1 and box.y0 >= -1 and box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height + 1
            )
            assert inside, (text.get_text(), box)


def value_of(curves: list[Curve], metric: str, algorithm: str, preset: str) -> np.ndarray:
    chosen = [c for c in curves if (c.settings["algorithm"], c.settings["preset"]) == (algorithm, preset)]
    return np.array([curve.metric(metric) for curve in chosen])


def test_accuracy_lines_are_the_means_of_the_rows_and_bands_their_deviation(curves: list[Curve]) -> None:
    figure = figures.accuracy_curves(curves)
    [axes] = figure.axes
    of_seeds = value_of(curves, "accuracy", "fedga", "paper")
    drawn = line(axes, "FedGA, paper")
    np.testing.assert_array_equal(drawn[:, 0], np.arange(1, 21))
    np.testing.assert_allclose(drawn[:, 1], of_seeds.mean(0))
    averaged = value_of(curves, "averaged_accuracy", "fedga", "strong")
    np.testing.assert_allclose(line(axes, "FedGA, strong, averaged")[:, 1], averaged.mean(0))
    edges = np.array([band.get_paths()[0].vertices[1:21] for band in axes.collections])
    upper_or_lower = of_seeds.mean(0) - of_seeds.std(0, ddof=1)
    assert any(np.allclose(edge[:, 1], upper_or_lower) for edge in edges)
    assert f"{of_seeds.mean(0)[-1]:.3f} FedGA, paper" in texts(figure)
    assert "Mean over 3 seeds" in texts(figure)
    assert_nothing_is_clipped(figure)


def test_an_algorithm_has_one_colour_everywhere_and_a_preset_one_line_style(curves: list[Curve]) -> None:
    [axes] = figures.accuracy_curves(curves).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["FedGA, paper"].get_color() == lines["FedGA, strong"].get_color() == style.algorithm_color("fedga")
    assert lines["FedGA, paper"].get_linestyle() == lines["FedAvg, paper"].get_linestyle() == "-"
    assert lines["FedGA, strong"].get_linestyle() == "--"
    assert lines["FedGA, paper"].get_marker() != lines["FedAvg, paper"].get_marker()
    known = [style.algorithm_color(name) for name in ("fedavg", "fedprox", "fedrl", "climb", "fedntd", "fedga")]
    assert len(set(known)) == len(known)
    assert style.algorithm_color("mine") == style.algorithm_color("mine:option=1")


def test_one_panel_per_data_set_and_alpha_with_a_legend() -> None:
    many = [curve for alpha in (0.05, 0.1, 0.5, 1.0, 10.0) for curve in make_curves(2, alpha=alpha)]
    figure = figures.accuracy_curves(many)
    shown = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert shown == [f"digits, α = {alpha}" for alpha in ("0.05", "0.1", "0.5", "1", "10")]
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    kinds = ("paper", "strong", "strong, averaged")
    assert sorted(entries) == [f"{name}, {kind}" for name in ("FedAvg", "FedGA") for kind in kinds]
    assert_nothing_is_clipped(figure)


def test_one_seed_has_a_line_and_no_band(one_seed: list[Curve]) -> None:
    figure = figures.accuracy_curves(one_seed)
    np.testing.assert_allclose(line(figure.axes[0], "FedGA, paper")[:, 1], one_seed[1].metric("accuracy"))
    edges = [path.vertices for band in figure.axes[0].collections for path in band.get_paths()]
    assert all(not len(edge) or np.isnan(edge).any() or np.ptp(edge) == 0 for edge in edges)
    assert "One seed." in texts(figure)


def test_diverged_runs_end_in_a_cross_and_are_in_no_mean(with_diverged: list[Curve]) -> None:
    figure = figures.accuracy_curves(with_diverged)
    [axes] = figure.axes
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert sorted(cross.get_xdata()[0] for cross in crosses) == [5, 6, 6, 8]  # the last one has no accuracy in round 7
    sound = [c for c in with_diverged if c.settings["algorithm"] == "fedavg" and c.status == "done"]
    np.testing.assert_allclose(line(axes, "FedAvg")[:, 1], np.mean([c.metric("accuracy") for c in sound], axis=0))
    assert "FedNTD" not in [line.get_label() for line in axes.get_lines()]
    assert "1 of 3 of FedAvg; 3 of 3 of FedNTD" in texts(figure)


def test_ea_ratio_is_the_median_over_seeds_on_a_logarithmic_scale(curves: list[Curve]) -> None:
    figure = figures.ea_ratio_curves(curves)
    model, clients = figure.axes
    assert model.get_yscale() == clients.get_yscale() == "log"
    expected = np.median(value_of(curves, "ea_ratio", "fedga", "paper"), axis=0)
    np.testing.assert_allclose(line(model, "FedGA, paper")[:, 1], expected)
    np.testing.assert_allclose(line(clients, "FedGA, paper"), [[5, 105], [10, 110], [15, 115], [20, 120]])
    assert_nothing_is_clipped(figure)


def test_forgetting_bars_are_means_over_examined_rounds_and_seeds(curves: list[Curve]) -> None:
    figure = figures.forgetting_bars(curves)
    drawn = [bars for bars in figure.axes[0].containers if isinstance(bars, BarContainer)]
    bars = {bars.get_label(): [bar.get_height() for bar in bars] for bars in drawn}
    np.testing.assert_allclose(bars["FedAvg, paper"], [-0.1, 0.15, 0.3])
    np.testing.assert_allclose(bars["FedGA, strong"], [-0.1, 0.05, 0.1])
    assert_nothing_is_clipped(figure)


def test_forgetting_of_runs_without_evaluated_clients_is_refused_in_one_sentence() -> None:
    bare = curves_from_rows([{"dataset": "d", "algorithm": "fedga", "round": 1, "accuracy": 0.5}])
    with pytest.raises(FedGAError, match="no run has evaluated its active clients"):
        figures.forgetting_bars(bare)
    assert len(figures.demo_picture(bare).axes) == 1


def test_before_and_after_are_the_clients_own_numbers() -> None:
    figure = figures.before_after(records(), NAMES, client_names=["x"] * 7 + ["Oslo"])
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown[::2]] == ["Oslo", "client 8", "client 9"]
    assert [bar.get_height() for bar in shown[0].containers[0]] == [90, 10, 0, 0]
    np.testing.assert_array_equal(line(shown[1], "before")[:3, 1], [0.5, 0.5, 0.5])
    [after] = [dots for dots in shown[1].collections if dots.get_label() == "after"]
    np.testing.assert_array_equal(np.asarray(after.get_offsets())[:3, 1], [0.75, 0.25, 0.0])
    assert len(shown[1].patches) == 2  # two missing classes are shaded
    assert "missing −25" in texts(figure)
    assert "2 a very long name" in texts(figure)
    assert_nothing_is_clipped(figure)


def test_before_and_after_take_stored_arrays_and_say_what_they_leave_out() -> None:
    many = records(12)
    arrays = {name: [getattr(record, name) for record in many] for name in ClientRecord.__dataclass_fields__}
    figure = figures.before_after(arrays, NAMES)
    assert "the first 10 of 12 clients" in texts(figure)
    with pytest.raises(FedGAError, match="4 classes, but 2 are named"):
        figures.before_after(arrays, NAMES[:2])
    with pytest.raises(FedGAError, match="no clients"):
        figures.before_after([], NAMES)


def test_heat_map_leaves_missing_classes_white_and_writes_the_counts() -> None:
    figure = figures.label_heatmap(COUNTS, NAMES, "three clients")
    [mesh] = figure.axes[0].collections
    cells = mesh.get_array().reshape(4, 3)
    np.testing.assert_array_equal(np.ma.getmaskarray(cells), COUNTS.T == 0)
    np.testing.assert_array_equal(cells.filled(0), COUNTS.T)
    assert sorted(text.get_text() for text in figure.axes[0].texts) == sorted(str(n) for n in COUNTS.ravel() if n)
    assert "three clients" in texts(figure)
    assert "2.7 of 4 classes on average (fewest 2, most 4)" in texts(figure)
    assert_nothing_is_clipped(figure)


@pytest.mark.parametrize(("clients", "classes"), [(130, 10), (100, 200), (1, 1)])
def test_heat_map_of_any_size_says_what_it_leaves_out(clients: int, classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 3, (clients, classes))
    counts[0, 0] = 1
    figure = figures.label_heatmap(counts, [f"class {number}" for number in range(classes)])
    assert ("the first 100 of 130 clients" in texts(figure)) == (clients == 130)
    assert_nothing_is_clipped(figure)


def test_heat_map_names_natural_clients_and_refuses_what_does_not_fit() -> None:
    figure = figures.label_heatmap(COUNTS, NAMES, client_names=["Oslo", "Bergen", "Trondheim"])
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["Oslo", "Bergen", "Trondheim"]
    assert_nothing_is_clipped(figure)
    with pytest.raises(FedGAError, match=r"class_counts must be \[clients, 3\], but is \[3, 4\]"):
        figures.label_heatmap(COUNTS, NAMES[:3])


def test_demo_picture_names_the_best_and_draws_what_clients_forget(curves: list[Curve]) -> None:
    figure = figures.demo_picture(curves)
    strong = value_of(curves, "accuracy", "fedga", "strong").mean(0)[-1]
    assert f"Test accuracy on digits, α = 0.1: best is FedGA, strong with {strong:.3f}" in texts(figure)
    lengths = [
        bars[0].get_width() for bars in figure.axes[1].containers if bars.get_label().endswith("missing classes")
    ]
    np.testing.assert_allclose(lengths, [0.3, 0.2, 0.2, 0.1])
    assert_nothing_is_clipped(figure)


def test_demo_picture_takes_the_strongest_skew_or_the_one_asked_for() -> None:
    both = make_curves(1, alpha=10.0) + make_curves(1, alpha=0.05)
    assert "α = 0.05" in texts(figures.demo_picture(both))
    assert "α = 10" in texts(figures.demo_picture(both, alpha=10.0))
    with pytest.raises(FedGAError, match="nothing to draw of mnist"):
        figures.demo_picture(both, dataset="mnist")


def test_demo_picture_of_diverged_runs_and_of_many_series(with_diverged: list[Curve]) -> None:
    figure = figures.demo_picture(with_diverged)
    assert "FedNTD" not in figure.texts[0].get_text()
    rows = [row for mu in range(12) for row in make_rows(f"fedprox:mu=0.{mu:02}", 0, 0.5 + mu / 30)]
    assert_nothing_is_clipped(figures.demo_picture(curves_from_rows(rows)))


def test_saved_as_png_and_svg_whole_and_the_same_each_time(curves: list[Curve], tmp_path: Path) -> None:
    first = figures.save(figures.demo_picture(curves), tmp_path / "new folder" / "demo")
    again = figures.save(figures.demo_picture(curves), tmp_path / "again")
    assert [path.name for path in first] == ["demo.png", "demo.svg"]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert first[0].stat().st_size > 10_000
    assert "</svg>" in first[1].read_text()
    assert "<dc:date>" not in first[1].read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.png", "again.svg", "new folder"]


def test_a_picture_that_cannot_be_written_is_one_sentence_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(FedGAError, match="cannot be written"):
        figures.save(figures.label_heatmap(COUNTS, NAMES), tmp_path / "taken" / "map")
    [saved, _] = figures.save(figures.label_heatmap(COUNTS, NAMES), tmp_path / "map")
    before = saved.read_bytes()

    def half(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(FedGAError, match="No space left on device"):
        figures.save(figures.label_heatmap(COUNTS, NAMES), tmp_path / "map")
    assert saved.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("without_matplotlib")
@pytest.mark.parametrize(
    "draw",
    [
        figures.accuracy_curves,
        figures.forgetting_bars,
        figures.ea_ratio_curves,
        figures.demo_picture,
        lambda _: figures.label_heatmap(COUNTS, NAMES),
        lambda _: figures.before_after(records(), NAMES),
    ],
)
def test_without_matplotlib_every_picture_says_what_to_install(
    draw: Callable[[list[Curve]], Figure], curves: list[Curve]
) -> None:
    with pytest.raises(FedGAError, match=r"drawing pictures needs matplotlib.*pip install 'fedga\[report\]'"):
        draw(curves)
