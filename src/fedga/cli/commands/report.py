"""`fedga report`: a results folder as one page."""

from pathlib import Path
from typing import Annotated

import typer

from fedga.cli.console import say


def report(
    folder: Annotated[Path, typer.Argument(help="Results folder, or its archive.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The page, else report.html in the folder.", metavar="FILE")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="Also write every table and figure as a file.")] = False,
) -> None:
    """Write one HTML file with everything in a results folder: tables and interactive charts.

    With --files, every table also as Markdown, LaTeX and CSV, every figure as SVG, PDF and PNG.

    The file opens from disk, needs no network and can be sent to anybody:

        fedga report runs/mnist-0f3a --out mnist.html
    """
    from fedga.paper import paper_commands, sections_of
    from fedga.report.page.build import results_section, write_page
    from fedga.report.writers import write_section
    from fedga.store.archive import opened

    page = out_file or folder / "report.html"
    with opened(folder, say) as here:
        sections = sections_of(here)
        write_page(here, page, sections, called=str(folder), known=paper_commands)
        for section in (*sections, results_section(here)) if files else ():
            write_section(section, page.parent)
    if files:
        say(f"tables: {page.parent / 'tables'}; figures: {page.parent / 'figures'}")
    say(f"the page: {page}")
