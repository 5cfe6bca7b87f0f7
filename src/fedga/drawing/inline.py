"""Small pictures and tables as HTML, for notebooks: nothing is loaded to draw them, and nothing in them can run."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from fedga.drawing.heatmap import RAMP, depth

_MOST_ROWS, _MOST_COLUMNS = 40, 60  # of a map of labels
_CELL, _WIDTH, _HEIGHT, _EDGE = 10, 240, 80, 4
_LINE = "#08519c"


def card(title: str, facts: Mapping[str, object], picture: str = "") -> str:
    """A title, a few facts and a picture."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table>{picture}</div>"


def label_map(class_counts: np.ndarray) -> str:
    """Samples of each class at each client ``[clients, classes]``, darker for more; a row per client."""
    counts = class_counts[:_MOST_ROWS, :_MOST_COLUMNS]
    shades = np.minimum((depth(counts, int(class_counts.max(initial=1))) * len(RAMP)).astype(int), len(RAMP) - 1)
    cells = [
        f"<rect x='{x * _CELL}' y='{y * _CELL}' width='{_CELL}' height='{_CELL}' fill='{RAMP[shades[y, x]]}'/>"
        for y, x in np.argwhere(counts > 0).tolist()
    ]
    rows, columns = counts.shape
    return _svg(columns * _CELL, rows * _CELL, "".join(cells), "a row per client, a column per class")


def curve(rounds: Sequence[float], values: Sequence[float]) -> str:
    """A metric from 0 to 1 over rounds; nothing for fewer than two rounds."""
    known = [(at, value) for at, value in zip(rounds, values, strict=True) if np.isfinite(value)]
    if len(known) < 2:
        return ""
    first, last = known[0][0], known[-1][0]
    across, up = _WIDTH - 2 * _EDGE, _HEIGHT - 2 * _EDGE
    places = (
        f"{_EDGE + across * (at - first) / (last - first):.1f},{_EDGE + up * (1 - value):.1f}" for at, value in known
    )
    line = f"<polyline points='{' '.join(places)}' fill='none' stroke='{_LINE}' stroke-width='2'/>"
    return _svg(_WIDTH, _HEIGHT, line, "accuracy over rounds, from 0 to 1")


def _svg(width: int, height: int, content: str, said: str) -> str:
    frame = f"<rect width='{width}' height='{height}' fill='white' stroke='#999'/>"
    size = f"width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    label = f"role='img' aria-label='{escape(said)}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {label}>{frame}{content}</svg>"
