"""What `fedga run` leaves behind: a table on the terminal, pictures in the folder."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rich.console import Console

from fedga.cli.console import say
from fedga.report.curves import Curve, read_curves
from fedga.report.summary import summary_table


def print_summary(folder: Path, run_ids: Collection[str] | None, console: Console) -> list[Curve]:
    """The table of a folder's runs (all of them, or those named); returns what it was made of."""
    curves = read_curves(folder, run_ids)
    console.print(summary_table(curves, width=console.width))
    return curves


def draw_pictures(folder: Path, curves: list[Curve]) -> None:
    """Overview, curves and forgetting, as PNG and SVG; without matplotlib, a word on how to get it."""
    from fedga.errors import FedGAError
    from fedga.report import figures

    drawings = {
        "overview": lambda: figures.demo_picture(curves),
        "accuracy": lambda: figures.accuracy_curves(curves),
        "ea-ratio": lambda: figures.ea_ratio_curves(curves),
        "forgetting": lambda: figures.forgetting_bars(curves),
    }
    if not any(len(curve.rounds) for curve in curves):
        return
    examined = any("forgetting_missing" in curve.values for curve in curves)
    try:
        for name, draw in drawings.items():
            if name != "forgetting" or examined:
                figures.save(draw(), folder / "figures" / name)
    except FedGAError as error:
        say(f"no pictures: {error}")
        return
    say(f"pictures: {folder / 'figures'}")
