"""Two pictures of many methods: differences to FedAvg as a map, and mean ranks with the critical difference."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedga.drawing.canvas import Axes, Figure, PanelSize, compose, text_width
from fedga.drawing.style import GAINED, GRID, LOST, MUTED, SMALL, TEXT, drawing, line_style
from fedga.paper.report.related import PLAIN, SETTINGS, Comparison, Difference, Method, Ranking, panel_heads, rows_of
from fedga.report.words import signed

_CELL, _ROW = 0.5, 0.235  # inches
_NUMBERS = 0.85 * SMALL
_SHOWN = 0.9  # share of the differences that the colours tell apart; beyond, a cell has the full colour
_LEAST = 1.0  # points of full colour
_RANK_ROW, _BAR = 0.2, 0.09  # inches of a label and of a group's bar
_MOST_BARS = 24
_EMPTY = "#eceff2"
_COUNTS = "ahead / behind"


def differences_picture(found: Comparison) -> Figure:
    """A row per method, a column per data set and α of each setting; blue is ahead of FedAvg, red behind."""
    methods, places = rows_of(found), found.places
    rows, columns = len(methods) + 1, len(places)
    with drawing():
        names = ["FedAvg, accuracy in %", *(method.name for method in methods)]
        counts = ["{} / {}".format(*found.signs(method)) for method in methods]
        left, right = (max(text_width(text, SMALL) for text in of) + 0.2 for of in (names, [_COUNTS]))
        cell = PanelSize(_cell_width(found) * columns, _ROW * rows, left, right, top=0.72, bottom=0.12)
        caption = (
            f"Points, mean over {found.seeds()}, after the last round; rows in the order of their mean rank. Bold with "
            "a dot: the 95 % interval of the difference, paired by seed, excludes 0 (by chance alone one in twenty "
            "does); how often is on the right. ×: a run diverged. Grey: FedAvg itself, or no number."
        )
        title = "Which methods help where: the difference to FedAvg"
        figure, [axes] = compose(1, 1, cell, title=title, caption=caption, least_width=6.0)
        _draw_map(axes, found, methods)
        for at, place in enumerate(places):
            level = found.plain[place]
            text = f"{100 * np.mean(level):.1f}" if level else "–"
            axes.text(at + 0.5, 0.5, text, ha="center", va="center", size=_NUMBERS, color=TEXT)
            for row, method in enumerate(methods, 1):
                _write(axes, found.at(method, place), at, row)
        for row, text in enumerate(counts, 1):
            axes.text(columns + 0.12, row + 0.5, text, va="center", size=SMALL, color=MUTED)
        axes.set(xlim=(0, columns), ylim=(rows, 0))
        axes.set_yticks(np.arange(rows) + 0.5, names)
        axes.set_xticks(np.arange(columns) + 0.5, ["" if of.alpha is None else f"{of.alpha:g}" for of in places])
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelcolor=TEXT, pad=3)
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        _head(axes, found)
    return figure


def _cell_width(found: Comparison) -> float:
    """Inches: the names above several columns must find room there."""
    heads = [(name, 1 + last - first) for name, first, last in panel_heads(found.places)]
    presets = [place.preset for place in found.places]
    heads += [(SETTINGS.get(preset, preset), presets.count(preset)) for preset in set(presets)]
    return max(_CELL, *((text_width(name, SMALL, bold=True) + 0.12) / columns for name, columns in heads))


def _draw_map(axes: Axes, found: Comparison, methods: Sequence[Method]) -> None:
    """Colours on a scale that is even on both sides of 0; the row of FedAvg and empty cells stay grey."""
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    values = np.full((len(methods) + 1, len(found.places)), np.nan)
    for row, method in enumerate(methods, 1):
        for at, place in enumerate(found.places):
            one = found.at(method, place)
            values[row, at] = np.nan if one.itself else -np.inf if one.failed else one.mean
    finite = np.abs(values[np.isfinite(values)])
    most = max(float(np.quantile(finite, _SHOWN)), _LEAST) if len(finite) else _LEAST
    ramp = LinearSegmentedColormap.from_list("differences", [LOST, "#ffffff", GAINED]).with_extremes(bad=_EMPTY)
    shown = np.ma.masked_invalid(np.clip(np.where(np.isneginf(values), -most, values), -most, most))
    axes.pcolormesh(shown, cmap=ramp, norm=Normalize(-1.15 * most, 1.15 * most), edgecolors="white", linewidth=0.8)


def _write(axes: Axes, one: Difference, column: int, row: int) -> None:
    if one.itself or not (one.values or one.diverged):
        return
    text = ("×" if one.diverged else "") + (signed(one.mean, 1) if one.values else "")
    clear = one.sign != 0
    look: dict[str, Any] = {"weight": "bold" if clear else "normal", "color": TEXT}
    axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", size=_NUMBERS, **look)
    if clear:
        axes.plot(column + 0.92, row + 0.18, ".", color=TEXT, markersize=3, label="_clear")


def _head(axes: Axes, found: Comparison) -> None:
    """Above the columns α, above these the data sets, and above those the settings; rules between settings."""
    places = found.places
    where: dict[str, Any] = {"ha": "center", "va": "bottom", "textcoords": "offset points", "annotation_clip": False}
    for name, first, last in panel_heads(places):
        middle = ((first + last + 1) / 2, 0)
        axes.annotate(name, middle, (0, 17), size=SMALL, color=TEXT, **where)
        axes.plot((first + 0.1, last + 0.9), (-0.78, -0.78), color=GRID, linewidth=0.8, clip_on=False)
    for preset in dict.fromkeys(place.preset for place in places):
        own = [at for at, place in enumerate(places) if place.preset == preset]
        middle = ((own[0] + own[-1] + 1) / 2, 0)
        axes.annotate(SETTINGS.get(preset, preset), middle, (0, 32), size=SMALL, weight="bold", color=TEXT, **where)
        if own[0]:
            axes.axvline(own[0], color="white", linewidth=4)
    axes.annotate("α", (0, 0), (-6, 3), size=SMALL, color=MUTED, **(where | {"ha": "right"}))
    axes.annotate(_COUNTS, (len(places), 0), (6, 3), size=SMALL, color=MUTED, **(where | {"ha": "left"}))


def ranks_picture(ranking: Ranking) -> Figure:
    """Demšar's diagram: methods at their mean ranks, bars join those that the critical difference cannot tell apart."""
    names = [f"{rank:.1f}  {of.name}" for of, rank in zip(ranking.methods, ranking.means.tolist(), strict=True)]
    number, groups = len(names), ranking.groups[:_MOST_BARS]
    half = (number + 1) // 2
    with drawing():
        sides = (names[:half], names[half:])
        left, right = (max((text_width(name, SMALL, bold=True) for name in side), default=0.0) + 0.35 for side in sides)
        below = _BAR * (len(groups) + 1) + 0.1
        height = below + _RANK_ROW * (half + 0.5)
        size = PanelSize(5.2, height, left, right, top=0.75, bottom=0.05)
        caption = f"{ranking.words} A bar joins methods that it cannot tell apart."
        figure, [axes] = compose(1, 1, size, title="Mean ranks and the critical difference", caption=caption)
        low, high = np.floor(ranking.means[0] - 0.25), np.ceil(ranking.means[-1] + 0.25)
        axes.set(xlim=(low, high), ylim=(height, 0))
        axes.grid(visible=False)
        axes.xaxis.tick_top()
        axes.set_yticks([])
        for side in ("left", "right", "bottom"):
            axes.spines[side].set_visible(False)
        axes.spines["top"].set(visible=True, color=TEXT)
        for at, (first, last) in enumerate(groups, 1):
            ends = (ranking.means[first], ranking.means[last])
            axes.plot(ends, (_BAR * at,) * 2, color=TEXT, linewidth=3, solid_capstyle="butt", label="_group", zorder=3)
        for at, (method, name) in enumerate(zip(ranking.methods, names, strict=True)):
            row = below + _RANK_ROW * (at if at < half else number - 1 - at)
            _draw_method(axes, float(ranking.means[at]), row, (low, high), method, name, left=at < half)
        _draw_critical(axes, ranking.critical, float(low), float(high))
    return figure


def _draw_method(
    axes: Axes, rank: float, row: float, limits: tuple[float, float], method: Method, name: str, *, left: bool
) -> None:
    plain = method == Method(PLAIN)
    end = limits[0] if left else limits[1]
    color = line_style(method.algorithm).color if plain else MUTED
    axes.plot((rank, rank, end), (0, row, row), color=color, linewidth=1.6 if plain else 0.7, label=f"_{method.name}")
    how: dict[str, Any] = {"textcoords": "offset points", "va": "center", "annotation_clip": False, "size": SMALL}
    look: dict[str, Any] = {"color": color if plain else TEXT, "weight": "bold" if plain else "normal"}
    axes.annotate(name, (end, row), (-6 if left else 6, 0), ha="right" if left else "left", **how, **look)


def _draw_critical(axes: Axes, critical: float, low: float, high: float) -> None:
    """The length of the critical difference, above the ranks; wider than them all, its text says so alone."""
    fits = critical <= high - low
    text = f"critical difference {critical:.1f}" + ("" if fits else ": more than all ranks span")
    where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, (low, 1), (0, 36), va="bottom", size=SMALL, color=MUTED, annotation_clip=False, **where)
    if fits:
        transform = axes.get_xaxis_transform()
        height = 1 + 0.46 / (axes.bbox.height / axes.figure.dpi)
        axes.plot(
            (low, low + critical), (height, height), "|-", transform=transform, color=TEXT, clip_on=False, label="_cd"
        )
