"""Error asymmetry of a binary classifier over training: the paper's Fig. 3."""

from collections.abc import Sequence

import numpy as np

from fedga.drawing.canvas import Axes, Figure, LineEnd, PanelSize, compose, label_ends, text_width
from fedga.drawing.style import BAND, MUTED, SMALL, algorithm_color, drawing, shade
from fedga.errors import FedGAError
from fedga.paper.binary import LOSSES, BinaryRuns
from fedga.report.summary import number_text
from fedga.report.words import grouped
from fedga.spec.catalog import dataset_name

_PLAIN, _ALIGNED = LOSSES
_MOST_POINTS = 200  # of a line
_COLORS = {_PLAIN: algorithm_color("fedavg"), _ALIGNED: algorithm_color("fedga")}
_LINES = {"EA": "-", "sums": (0, (3.5, 1.5))}
_NAMES = {(_PLAIN, "EA"): "cross-entropy", (_PLAIN, "sums"): "its sums", (_ALIGNED, "EA"): "alignment"}


def binary_picture(runs: Sequence[BinaryRuns], *, title: str = "") -> Figure:
    """Error asymmetry over epochs per imbalance r; dashed: of cross-entropy's summed errors."""
    if not runs:
        raise FedGAError("there are no binary runs to draw: give those of one imbalance or more")
    panels = list(grouped(runs, lambda run: run.counts).values())
    middle = [values[:, 1:].mean(0) for run in runs for values in _drawn(run).values()]
    reached = np.concatenate([*middle, [1.0], [run.ratio for run in runs]])
    with drawing():
        room = max(text_width(end.text, SMALL) for panel in panels for end in _ends(panel)) + 0.35
        size = PanelSize(2.9, 2.9, right=room)
        heading, caption = title or binary_headline(runs), _caption(runs[0])
        figure, axes = compose(1, len(panels), size, title=heading, caption=caption, least_width=7.0)
        for at, panel in zip(axes, panels, strict=True):
            _draw(at, panel, (float(reached.min()) / 1.4, 1.4 * float(reached.max())))
        axes[0].set_ylabel("missed over false alarm")
    return figure


def binary_headline(runs: Sequence[BinaryRuns]) -> str:
    """Where the error asymmetry ends, by loss and imbalance."""
    parts = []
    for loss in LOSSES:
        ends = [f"{_reached(run.asymmetry)} (r = {run.ratio:.3g})" for run in runs if run.loss == loss]
        parts += [f"at {' and '.join(ends)} with {loss}"] if ends else []
    return f"Error asymmetry ends {', '.join(parts)}"


def _drawn(run: BinaryRuns) -> dict[str, np.ndarray]:
    """The lines of one loss, ``[seeds, epochs + 1]``; the sums of gradient alignment go to no place of interest."""
    return {"EA": run.asymmetry} | ({"sums": run.cumulative} if run.loss == _PLAIN else {})


def _reached(values: np.ndarray) -> str:
    return number_text(float(values[:, -1].mean()), significant=True)


def _ends(panel: Sequence[BinaryRuns]) -> list[LineEnd]:
    ends = []
    for run in panel:
        for name, values in _drawn(run).items():
            text, color = f"{_reached(values)} {_NAMES[run.loss, name]}", shade(_COLORS[run.loss], -0.25)
            ends.append(LineEnd(float(run.epochs[-1]), float(values[:, -1].mean()), text, color))
    return ends


def _draw(axes: Axes, panel: Sequence[BinaryRuns], limits: tuple[float, float]) -> None:
    first = panel[0]
    for level in (first.ratio, 1.0):
        axes.axhline(level, color=MUTED, linewidth=0.9, linestyle=(0, (1, 1.5)), label="_aim", zorder=1)
    for run in panel:
        color, shown = _COLORS[run.loss], _shown(run.epochs)
        epochs = run.epochs[shown]
        for name, values in _drawn(run).items():
            after = values[:, shown]
            axes.fill_between(epochs, after.min(0), after.max(0), color=color, alpha=BAND, linewidth=0)
            label = _NAMES[run.loss, name]
            axes.plot(epochs, after.mean(0), color=color, linestyle=_LINES[name], linewidth=1.8, label=label)
    axes.set(xscale="log", yscale="log", xlim=(1, max(first.epochs[-1], 2)), ylim=limits, xlabel="epoch")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()
    axes.set_title(f"r = {first.ratio:.3g}: {first.counts[0]:,} against {first.counts[1]:,} samples")
    label_ends(axes, _ends(panel))


def _shown(epochs: np.ndarray) -> np.ndarray:
    """Places of the epochs a line needs on a logarithmic axis, which has none for the start."""
    last = len(epochs) - 1
    few = np.arange(1, last + 1) if last <= _MOST_POINTS else np.geomspace(1, last, _MOST_POINTS).round()
    return np.unique(few.astype(int))


def _caption(run: BinaryRuns) -> str:
    seeds = f"Mean over {len(run.seeds)} seeds, band: lowest to highest." if len(run.seeds) > 1 else "One seed."
    return (
        f"Logistic regression on {dataset_name(run.dataset)}: {run.negative!r} is the negative class, {run.positive!r} "
        "the positive. Missed: mean of 1 − p over positive samples; false alarm: mean of p over negative ones; dashed: "
        f"cross-entropy's errors summed instead of averaged. Dotted: r and 1. {seeds}"
    )
