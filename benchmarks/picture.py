"""Bars: seconds per round, one panel per model, fedga highlighted, and how many times its time the others take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from summary import MODEL_NAMES, Row, in_order

HIGHLIGHT, PLAIN, INK, FAINT = "#c2410c", "#94a3b8", "#1f2937", "#6b7280"
BAR_HEIGHT, PANEL_MARGIN, WIDTH = 0.32, 0.75, 8.5  # inches


def draw(rows: Mapping[str, Sequence[Row]], stem: Path) -> None:
    """Write ``stem.png`` and ``stem.svg``."""
    heights = [BAR_HEIGHT * len(some) + PANEL_MARGIN for some in rows.values()]
    with mpl.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "fedga"}):
        figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        figure.get_layout_engine().set(h_pad=0.12)
        panels = figure.subplots(len(rows), height_ratios=heights, squeeze=False)[:, 0]
        for axes, (model, some) in zip(panels, rows.items(), strict=True):
            _panel(axes, MODEL_NAMES[model], in_order(some))
        figure.savefig(stem.with_suffix(".png"), dpi=160)
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})


def _panel(axes: Axes, title: str, rows: Sequence[Row]) -> None:
    longest = max(row.quartiles[1] for row in rows if row.seconds)
    for place, row in enumerate(rows):
        if row.not_run:
            axes.text(0, place, " not run", va="center", color=FAINT, style="italic")
            continue
        low, high = row.quartiles
        axes.barh(place, row.median, color=HIGHLIGHT if row.name == "fedga" else PLAIN, height=0.72)
        axes.hlines(place, low, high, color=INK, linewidth=1)
        words = f"{row.median:#.3g} s" + ("" if row.name == "fedga" else f"   {row.ratio:.2f} × fedga")
        axes.text(max(high, row.median) + 0.01 * longest, place, words, va="center", color=INK)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.tick_params(left=False, colors=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.4 * longest)
    axes.set_title(f"{title}: seconds per round, median and quartiles", loc="left", fontsize=10, color=INK, pad=4)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.name == "fedga" else "normal")
