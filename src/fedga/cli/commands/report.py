"""`fedga report`: a results folder as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedga.cli.console import say


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `fedga run` or `fedga paper` wrote, or its archive.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The page; report.html in the folder if left out.", metavar="FILE")
    ] = None,
    files: Annotated[
        bool,
        typer.Option("--files", help="Also every table as Markdown, LaTeX and CSV, every figure as SVG, PDF and PNG."),
    ] = False,
) -> None:
    """Write one HTML file with everything in a results folder: words, tables and interactive charts.

    The file opens from disk, needs no network and can be sent to anybody:

        fedga report runs/mnist-0f3a --out mnist.html
    """
    from fedga.paper.report.sections import sections_of
    from fedga.report.page.build import results_section, write_page
    from fedga.report.writers import write_section
    from fedga.store.archive import opened

    page = out_file or folder / "report.html"
    with opened(folder, say) as here:
        sections = sections_of(here)
        write_page(here, page, sections, called=str(folder))
        for section in (*sections, results_section(here)) if files else ():
            write_section(section, page.parent)
    if files:
        say(f"tables: {page.parent / 'tables'}; figures: {page.parent / 'figures'}")
    say(f"the page: {page}")
