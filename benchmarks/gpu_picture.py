"""The picture of `benchmarks/gpu.py`: client steps against the central floor and the plain loop, a panel per network.

PYTHONPATH=src:. python benchmarks/gpu_picture.py benchmarks/results/gpu.json   # draws it again
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedga.drawing.canvas import PanelSize, compose
from fedga.drawing.style import MUTED, SMALL, drawing, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {"mlp": "MLP 784-128-10", "lenet": "LeNet, 3×32×32", "resnet20": "ResNet-20, 3×32×32"}
# Contender and precision -> label, colour, marker, line.
LOOKS = {
    ("plain", "float32"): ("plain loop, client after client", "#4d4d4d", "s", "-"),
    ("fedga", "float32"): ("fedga", "#d55e00", "o", "-"),
    ("fedga", "tf32"): ("fedga, TF32", "#e69f00", "o", "-"),
    ("central", "float32"): ("central training (floor)", "#0072b2", "v", (0, (4, 2))),
    ("central", "tf32"): ("central training (floor), TF32", "#56b4e9", "v", (0, (4, 2))),
}


def draw(report: dict[str, Any], path: Path) -> None:
    """Write ``path`` + .png and .svg."""
    models = list(dict.fromkeys(row["model"] for row in report["cases"]))
    machine = report["machine"].get("gpu", "CPU")
    with drawing():
        drawn = [key for key in LOOKS if any(line(report["cases"], model, *key) for model in models)]
        legend = {LOOKS[key][0]: style(key) for key in drawn}
        batch = report["scale"]["batch"]
        figure, axes = compose(
            1,
            len(models),
            PanelSize(3.3, 2.9, left=0.75),
            title=f"One local step of one client on one {machine}: time for a batch of {batch} samples, forward to "
            "update, by the number of stacked clients",
            legend=legend,
            caption="Medians and quartiles, overhead of the round included; all three took turns in the same run.",
        )
        for at, model in zip(axes, models, strict=True):
            draw_panel(at, report["cases"], model, drawn)
    save(figure, path)


def style(key: tuple[str, str]) -> dict[str, Any]:
    _, color, marker, dashes = LOOKS[key]
    return {"color": color, "marker": marker, "linestyle": dashes, "linewidth": 1.8, "markersize": 6}


def line(rows: Sequence[dict[str, Any]], model: str, contender: str, precision: str) -> dict[int, dict[str, Any]]:
    """What a contender took, by number of clients. Plain and central ran beside every row: one precision's suffice."""
    name = f"central {precision}" if contender == "central" else contender
    own = contender == "fedga"
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        times = row["us_per_client_step"]
        if row["model"] == model and name in times and (not own or row["precision"] == precision):
            found.setdefault(row["clients"], times[name])
    return found


def draw_panel(axes: Axes, rows: Sequence[dict[str, Any]], model: str, keys: Sequence[tuple[str, str]]) -> None:
    clients = sorted({row["clients"] for row in rows if row["model"] == model})
    for key in keys:
        times = line(rows, model, *key)
        if not times:
            continue
        x = [clients.index(number) for number in times]
        y = [each["median"] for each in times.values()]
        below = [each["median"] - each["quartiles"][0] for each in times.values()]
        above = [each["quartiles"][1] - each["median"] for each in times.values()]
        axes.errorbar(x, y, (below, above), elinewidth=1, **style(key))
        if key[0] == "fedga":
            write_times(axes, x, y, above=key[1] == "float32")
    axes.set_yscale("log")
    axes.set_ylim(*whole_decades(axes.get_ylim()))
    axes.set_xlim(-0.35, len(clients) - 0.65)
    axes.set_xticks(range(len(clients)), [f"{number:,}" for number in clients])
    axes.yaxis.set_major_formatter(lambda value, _: readable(value))
    axes.yaxis.set_minor_formatter(lambda *_: "")
    axes.set_xlabel("stacked clients", color=MUTED)
    axes.set_title(NAMES[model])


def write_times(axes: Axes, x: Sequence[int], y: Sequence[float], above: bool) -> None:
    from matplotlib.patheffects import withStroke

    for place, value in zip(x, y, strict=True):
        axes.annotate(
            readable(value),
            (place, value),
            (0, 7 if above else -7),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            size=SMALL,
            path_effects=[withStroke(linewidth=3, foreground="white")],  # legible where a line passes behind
        )


def whole_decades(limits: tuple[float, float]) -> tuple[float, float]:
    """Limits with at least one power of ten inside, so that the axis has a number to read."""
    low, high = (floor(log10(limit)) for limit in limits)
    return 10.0**low, 10.0 ** (high + 1)


def readable(microseconds: float) -> str:
    """
    >>> readable(7.25), readable(1100)
    ('7.25 µs', '1.1 ms')
    """
    size, unit = next((size, unit) for size, unit in ((1e6, "s"), (1e3, "ms"), (0, "µs")) if microseconds >= size)
    return f"{microseconds / (size or 1):.3g} {unit}"


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw(json.loads(source.read_text()), source.with_suffix(""))
