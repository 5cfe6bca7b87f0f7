"""Lines and markers of the pictures, in the words of SVG: what matplotlib draws and what a browser draws look alike."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedga.drawing.style import LineStyle, drawing


@cache
def marker_path(marker: str) -> str:
    """The outline of one of matplotlib's markers as an SVG path, one unit large around the origin."""
    with drawing():
        from matplotlib.markers import MarkerStyle
        from matplotlib.path import Path

        style = MarkerStyle(marker)
        outline = style.get_path().transformed(style.get_transform())
        letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
        parts = []
        for points, code in outline.iter_segments(simplify=False):
            flipped = [f"{value * (-1) ** place:.3g}" for place, value in enumerate(points)]  # SVG's y goes down
            parts.append(letters[code] + ("" if letters[code] == "Z" else " ".join(flipped)))
    return "".join(parts)


def dashes(style: LineStyle) -> str:
    """SVG's stroke-dasharray; empty for a line without gaps."""
    return "" if style.line == "-" else " ".join(f"{part * style.width:.3g}" for part in style.line[1])


def svg_style(style: LineStyle) -> dict[str, Any]:
    """What the page needs to draw this line."""
    return {
        "color": style.color,
        "dash": dashes(style),
        "width": style.width,
        "marker": marker_path(style.marker),
        "size": style.keywords()["markersize"],
    }
