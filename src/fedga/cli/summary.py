"""What `fedga run` leaves behind: a table on the terminal, pictures in the folder."""

from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from fedga.cli.console import say
from fedga.errors import FedGAError
from fedga.report import figures
from fedga.report.curves import Curve, read_curves
from fedga.report.general import general_pictures
from fedga.report.summary import summary_metrics, summary_table
from fedga.spec.settings import RunSpec


def print_summary(folder: Path, run_ids: Collection[str] | None, console: Console) -> list[Curve]:
    """The table of a folder's runs (all of them, or those named); returns what it was made of."""
    curves = read_curves(folder, run_ids)
    console.print(summary_table(curves, summary_metrics(curves), width=console.width))
    return curves


def draw_pictures(folder: Path, curves: Sequence[Curve], specs: Sequence[RunSpec]) -> None:
    """All general pictures as PNG and SVG; without matplotlib, a word on how to get it."""
    drawings = general_pictures(folder, curves, specs)
    try:
        for picture in drawings:
            figures.save(picture.draw(), folder / "figures" / picture.name)
    except FedGAError as error:
        say(f"no pictures: {error}")
        return
    if drawings:
        say(f"pictures: {folder / 'figures'}")
