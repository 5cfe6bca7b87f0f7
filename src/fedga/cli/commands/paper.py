"""`fedga paper`: the paper's tables and figures, from one command each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedga.cli.commands.run import refuse_unknown
from fedga.cli.console import err, out, say
from fedga.cli.training import Cluster, DataDir, Device, Devices, Program, Threads, Track, own_option, prepare, train
from fedga.errors import FedGAError, check_known
from fedga.paper import EXPERIMENTS, SCALES, Experiment, Scope, all_runs, experiments_in, remember
from fedga.report.words import listed
from fedga.spec.catalog import find_source
from fedga.spec.grid import parse_list
from fedga.spec.settings import SETTINGS, RunSpec

if TYPE_CHECKING:
    from fedga.report.documents import Section


def _listed(flag: str, text: str) -> Any:
    return typer.Option(flag, help=text, metavar="LIST", show_default=False, rich_help_panel="How much of it")


def paper(
    name: Annotated[str | None, typer.Argument(help="An experiment, or all; else a list.", show_default=False)] = None,
    scale: Annotated[str, typer.Option("--scale", help="full: as published; quick: minutes, embedded data.")] = "full",
    datasets: Annotated[str | None, _listed("--datasets", "data sets, else the experiment's own")] = None,
    alphas: Annotated[str | None, _listed("--alphas", "Dirichlet concentrations, else the experiment's own")] = None,
    seeds: Annotated[str | None, _listed("--seeds", "seeds, else 0-4")] = None,
    algorithms: Annotated[str | None, _listed("--algorithms", "algorithms, else the experiment's own")] = None,
    at: Annotated[str, typer.Option("--at", help="Moment of the printed table: last, 80 (%) or mean.")] = "last",
    data_dir: DataDir = None,
    device: Device = None,
    out_dir: Annotated[Path | None, own_option("--out", "Folder, else paper-SCALE; the same continues.")] = None,
    threads: Threads = None,
    track: Track = None,
    devices: Devices = None,
    cluster: Cluster = None,
    report: Annotated[bool, own_option("--report/--no-report", "Write tables, figures and page at the end.")] = True,
) -> None:
    """Every table and figure of the FedGA paper, beside what it printed.

    Without a name, the list. With one, its runs are trained (those that are in the folder already are not), its table
    or figure is written as Markdown, LaTeX, CSV, SVG, PDF and PNG, and a page with everything so far:

        fedga paper all --scale quick

        fedga paper table-main --datasets mnist,cifar10 --seeds 0-2
    """
    if name is None:
        _print_list()
        return
    from fedga.paper import MOMENTS

    check_known("moment of --at", at, MOMENTS)
    written = {"dataset": datasets, "alpha": alphas, "seed": seeds, "algorithm": algorithms}
    scope = Scope(scale, *(_values(setting, f"--{setting}s", text) for setting, text in written.items()))
    experiments = experiments_in(name, scope)
    if not experiments:
        cure = "name an experiment (`fedga paper` lists them), which then takes any data set, or give --scale quick"
        raise FedGAError(f"no experiment has {listed(scope.datasets)} among its data sets: {cure}")
    program = Program(data_dir, device, out_dir, threads, track=track, devices=devices, cluster=cluster)
    folder = program.out or Path(f"paper-{scale}")
    runs = all_runs(experiments, scope)
    refuse_unknown(runs)
    _refuse_missing(runs, data_dir, quick=scale == "quick")
    prepared = prepare(runs, program) if runs else None
    remember(folder, experiments, scope)  # before training, so that a report of what there is has its sections
    if prepared is not None:
        # Several settings of one algorithm share the folder by design: each run is told apart by all of them.
        train(prepared, folder, program, axes=tuple(SETTINGS))
    if EXPERIMENTS["figure-binary"] in experiments:  # the one experiment without clients
        from fedga.paper import train_binary

        with err.status("training binary classifiers"):
            left_out = train_binary(folder, scope, data_dir)
        if left_out:
            say(left_out)
    if report:
        _write(folder, experiments, at)


def _values(setting: str, flag: str, text: str | None) -> tuple[Any, ...]:
    if text is None:
        return ()
    values = parse_list(setting, text, flag)
    if None in values:
        raise FedGAError(f"{flag} {text!r} has an empty entry: separate values by single commas")
    return tuple(dict.fromkeys(values))


def _refuse_missing(runs: Sequence[RunSpec], data_dir: Path | None, *, quick: bool) -> None:
    """All data sets that are not here in one sentence, not one after the other."""
    from fedga.data.sources import is_here

    names = list(dict.fromkeys(spec.dataset for spec in runs))
    missing = [name for name in names if find_source(name) is not None and not is_here(name, data_dir)]
    if not missing:
        return
    rest = ",".join(name for name in names if name not in missing)
    instead = f", leave them out with --datasets {rest}" if rest else ""
    instead += "" if quick else ", or try --scale quick"
    cure = f"fetch with `fedga data get {missing[0]}`, say where the files are with --data-dir{instead}"
    raise FedGAError(f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} not on this machine: {cure}")


def _print_list() -> None:
    from fedga.report.terminal import Column, make_table

    fields = {"name": "name", "in the paper": "where", "shows": "shows"}.items()
    every = EXPERIMENTS.values()
    columns = [Column(heading, [Text(getattr(each, field)) for each in every]) for heading, field in fields]
    caption = f"fedga paper NAME [--scale {'|'.join(SCALES)}]; fedga paper all runs all but related, each run once."
    out.print(make_table(columns, title="Experiments", caption=caption, width=out.width))


def _write(folder: Path, experiments: Sequence[Experiment], at: str) -> None:
    """The files of these experiments, their headlines on the terminal, and the page of the whole folder."""
    from fedga.paper import paper_commands, sections_of
    from fedga.report.page.build import write_page
    from fedga.report.writers import write_section

    sections = sections_of(folder)
    chosen = [section for section in sections if section.name in {each.name for each in experiments}]
    written: list[Path] = []
    for section in chosen:
        with err.status(f"writing {section.name}"):
            written += write_section(section, folder)
        _print(section, at, tables=len(chosen) == 1)
    page = write_page(folder, folder / "report.html", sections, known=paper_commands)
    places = "; ".join(f"{place.name}: {place}" for place in sorted({path.parent for path in written}))
    say(f"{places}; everything on one page: {page}" if places else f"everything on one page: {page}")


def _print(section: Section, at: str, *, tables: bool) -> None:
    """The headline of a section, and of one asked for alone its tables: of several moments the one asked for."""
    from fedga.paper import MOMENTS
    from fedga.report.writers import terminal

    out.print(Text(section.title, style="bold"))
    for sentence in section.words:
        out.print(Text(sentence))
    moments = {f"{section.name}-{moment}" for moment in MOMENTS if moment != at}
    for table in section.tables if tables else ():
        if table.name not in moments:
            out.print()
            out.print(terminal(table, width=out.width))
    out.print()
