"""Commands that show and keep what is there: results of a folder, as rows or a page; archives, and repair."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedga.cli.console import out, say
from fedga.errors import FedGAError, check_known

FORMATS = ("table", "csv", "json")


def results(
    folder: Annotated[Path, typer.Argument(help="A folder that `fedga run` wrote.")],
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",  # noqa: A002
    summary: Annotated[bool, typer.Option("--summary", help="One row per setting, means over seeds.")] = False,
) -> None:
    """Print one row per run and evaluated round; with --summary, the table that ends a run."""
    from fedga.store.archive import opened
    from fedga.store.results import ResultsReader

    check_known("format", format, FORMATS)
    if summary and format != "table":
        raise FedGAError(f"--summary is a table: leave out --format {format}, or leave out --summary")
    with opened(folder, say) as here:
        if summary:
            from fedga.cli.summary import print_summary

            print_summary(here, None, out)
        elif format == "table":
            _print_rows(here)
        else:
            ResultsReader(here).write_results(sys.stdout, format)


def report(
    folder: Annotated[Path, typer.Argument(help="Results folder, or its archive.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Default: report.html in FOLDER.", metavar="FILE")
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


def archive(
    folder: Annotated[Path, typer.Argument(help="A folder that `fedga run` or `fedga paper` wrote.")],
    target: Annotated[Path, typer.Argument(help="Where the copy goes.")],
    full: Annotated[bool, typer.Option("--full", help="Copy everything; `fedga unpack` continues from it.")] = False,
) -> None:
    """Make a small copy of a results folder, to commit or to send: Parquet files, without models and checkpoints.

    `fedga report` and `fedga results` read it like the folder itself; numbers are rounded to four significant digits.
    With --full, `fedga unpack` makes a folder of it on another machine, in which training goes on.
    """
    from fedga.store.archive import write_archive

    files = write_archive(folder, target, full=full)
    size = sum(path.stat().st_size for path in files)
    then = f"go on elsewhere with fedga unpack {target} FOLDER" if full else f"a page of it: fedga report {target}"
    say(f"{len(files)} files, {size / 1e6:.1f} MB: {target}; {then}")


def unpack(
    source: Annotated[Path, typer.Argument(help="An archive that `fedga archive --full` wrote.", metavar="ARCHIVE")],
    folder: Annotated[Path, typer.Argument(help="The new results folder.")],
) -> None:
    """Make a results folder of a full archive; the command that began its runs goes on in it with --out FOLDER."""
    from fedga.store.archive import unpack as unpack_archive
    from fedga.store.results import ResultsReader

    unpack_archive(source, folder)
    left = [run for run in ResultsReader(folder).runs() if not run.finished]
    done = f"{len(left)} runs are not finished: the command that began them goes on with --out {folder}"
    say(done if left else f"all runs are finished; a page of them: fedga report {folder}")


def repair(folder: Annotated[Path, typer.Argument(help="A results folder whose results.sqlite is damaged.")]) -> None:
    """Keep every whole run of a damaged results folder; the command that trained the others trains them again."""
    from fedga.store.repair import repair_results

    kept, lost, aside = repair_results(folder)
    if aside is None:
        say(f"{folder} is whole: nothing to repair")
        return
    say(f"whole and kept: {kept} runs; lost: {lost}; the damaged file is {aside}")
    say(f"train the others again with the command that trained them, and --out {folder}")


def _print_rows(folder: Path) -> None:
    """Every row as aligned text, never cut off to the width of a terminal."""
    from fedga.store.results import ResultsReader

    with ResultsReader(folder).results() as table:
        rows = [list(table.columns), *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
