"""What `fedga run` leaves behind: a table on the terminal, pictures in the folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedga.cli.console import say
from fedga.errors import FedGAError
from fedga.experiments.spec import RunSpec
from fedga.experiments.store import Store
from fedga.report import figures
from fedga.report.curves import Curve, read_curves
from fedga.report.summary import summary_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def print_summary(folder: Path, run_ids: Collection[str] | None, console: Console) -> list[Curve]:
    """The table of a folder's runs (all of them, or those named); returns what it was made of."""
    curves = read_curves(folder, run_ids)
    console.print(summary_table(curves, width=console.width))
    return curves


def draw_pictures(
    folder: Path, curves: list[Curve], specs: Sequence[RunSpec], class_names: Mapping[str, Sequence[str]]
) -> None:
    """Overview, curves, forgetting and clients, as PNG and SVG; without matplotlib, a word on how to get it."""
    if not any(len(curve.rounds) for curve in curves):
        return
    drawings: dict[str, Callable[[], Figure]] = {
        "overview": lambda: figures.demo_picture(curves),
        "accuracy": lambda: figures.accuracy_curves(curves),
        "ea-ratio": lambda: figures.ea_ratio_curves(curves),
    }
    if any("forgetting_missing" in curve.values for curve in curves):
        drawings["forgetting"] = lambda: figures.forgetting_bars(curves)
        drawings |= _clients(folder, specs, class_names)
    try:
        for name, draw in drawings.items():
            figures.save(draw(), folder / "figures" / name)
    except FedGAError as error:
        say(f"no pictures: {error}")
        return
    say(f"pictures: {folder / 'figures'}")


def _clients(
    folder: Path, specs: Sequence[RunSpec], class_names: Mapping[str, Sequence[str]]
) -> dict[str, Callable[[], Figure]]:
    """The clients of a round before and after local training: one run per algorithm, of the first data set and α."""
    first = specs[0]
    alike = [spec for spec in specs if (spec.dataset, spec.alpha) == (first.dataset, first.alpha)]
    chosen = {spec.algorithm: spec for spec in reversed(alike)}
    drawings: dict[str, Callable[[], Figure]] = {}
    with Store(folder) as store:
        for algorithm, spec in chosen.items():
            if seen := store.client_rounds(spec.run_id):
                name = "clients-" + "".join(
                    letter if letter.isalnum() or letter in "-=." else "_" for letter in algorithm
                )
                draw = partial(figures.before_after, seen[-1].arrays, class_names[spec.dataset])
                drawings[name] = partial(draw, title=f"{algorithm}, round {seen[-1].round}, seed {spec.seed}")
    return drawings
