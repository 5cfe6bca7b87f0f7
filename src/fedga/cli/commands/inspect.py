"""Commands that show what is there: results of a folder, as rows or a page, a saved model, the algorithms."""

import json
import math
import re
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedga.cli.console import out, say
from fedga.cli.training import DataDir, Device, own_option
from fedga.cli.usage import check_data_dir
from fedga.common.spreadsheet import csv_text
from fedga.errors import FedGAError, check_known, quoted
from fedga.report.terminal import Column, make_table
from fedga.spec.kinds import Number
from fedga.store.archive import opened, write_archive
from fedga.store.archive import unpack as unpack_archive
from fedga.store.repair import repair_results
from fedga.store.results import ResultsReader

FORMATS = ("table", "csv", "json")
_MOST_CLASSES = 1_000_000


def results(
    folder: Annotated[Path, typer.Argument(help="A folder that `fedga run` wrote.")],
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",  # noqa: A002
    summary: Annotated[bool, typer.Option("--summary", help="One row per setting, means over seeds.")] = False,
) -> None:
    """Print one row per run and evaluated round; with --summary, the table that ends a run."""
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
    files = write_archive(folder, target, full=full)
    size = sum(path.stat().st_size for path in files)
    then = f"go on elsewhere with fedga unpack {target} FOLDER" if full else f"a page of it: fedga report {target}"
    say(f"{len(files)} files, {size / 1e6:.1f} MB: {target}; {then}")


def unpack(
    source: Annotated[Path, typer.Argument(help="An archive that `fedga archive --full` wrote.", metavar="ARCHIVE")],
    folder: Annotated[Path, typer.Argument(help="The new results folder.")],
) -> None:
    """Make a results folder of a full archive; the command that began its runs goes on in it with --out FOLDER."""
    unpack_archive(source, folder)
    left = [run for run in ResultsReader(folder).runs() if not run.finished]
    done = f"{len(left)} runs are not finished: the command that began them goes on with --out {folder}"
    say(done if left else f"all runs are finished; a page of them: fedga report {folder}")


def repair(folder: Annotated[Path, typer.Argument(help="A results folder whose results.sqlite is damaged.")]) -> None:
    """Keep every whole run of a damaged results folder; the command that trained the others trains them again."""
    kept, lost, aside = repair_results(folder)
    if aside is None:
        say(f"{folder} is whole: nothing to repair")
        return
    say(f"whole and kept: {kept} runs; lost: {lost}; the damaged file is {aside}")
    say(f"train the others again with the command that trained them, and --out {folder}")


def _print_rows(folder: Path) -> None:
    """Every row as aligned text, never cut off to the width of a terminal."""
    with ResultsReader(folder).results() as table:
        rows = [list(table.columns), *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_named = partial(own_option, metavar="NAME", panel=None)


def evaluate_model(
    model: Annotated[Path, typer.Argument(help="A .safetensors file from the folder `models` of a run.")],
    dataset: Annotated[str | None, _named("--dataset", "Data set, else the one it was trained on.")] = None,
    network: Annotated[str | None, _named("--model", "Your own network, package.module:Class; its code runs.")] = None,
    label_column: Annotated[str | None, _named("--label-column", "Column that holds the class.")] = None,
    client_column: Annotated[str | None, _named("--client-column", "Column of clients, not a feature.")] = None,
    data_dir: DataDir = None,
    device: Device = None,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",  # noqa: A002
) -> None:
    """Read a saved model back and evaluate it on a test split."""
    check_data_dir(data_dir)
    check_known("format", format, ("table", "json"))
    from fedga.data import load_dataset
    from fedga.engine.device_data import DeviceData
    from fedga.engine.evaluation.evaluate import evaluate
    from fedga.engine.evaluation.metrics import own_metrics, scores
    from fedga.engine.stack.budget import MemoryBudget
    from fedga.engine.stack.stacked import StackedModel
    from fedga.engine.stack.workers import Workers
    from fedga.measures import scores as score
    from fedga.study.model_files import load_model
    from fedga.study.prepare import choose_device

    where = choose_device(device or "auto")
    saved = load_model(model, network, say)
    spec = saved.spec
    asked = label_column, client_column
    if dataset is None or saved.is_own_data(dataset):
        asked = saved.columns(*asked)
    data = load_dataset(dataset or saved.own_data(), data_dir=data_dir, label_column=asked[0], client_column=asked[1])
    saved.check_fits(data, model.name)
    if dataset is None and asked == saved.columns():
        saved.check_trained_on(data, model.name)
    if data.class_names != saved.class_names:
        say(f"the classes of {data.name} have other names than those it was trained on: taken in the order they stand")
    stacked = StackedModel(saved.model).to(where)
    params, buffers = stacked.flatten(saved.model)
    evaluation = evaluate(
        Workers(stacked, where),
        params[None].to(where),
        buffers[None].to(where),
        DeviceData(data, where),
        saved.pixels.to(where),
        MemoryBudget.for_model(stacked, where, data.input_shape, spec.batch_size),
    )
    [row] = scores(evaluation, further=own_metrics())
    recalls = score.recall(evaluation.confusion)[0].tolist()
    if format == "json":
        by_class = dict(zip(data.class_names, map(_finite, recalls), strict=True))
        found = {"model": str(model), "dataset": data.name} | {name: _finite(value) for name, value in row.items()}
        print(json.dumps(found | {"class_accuracy": by_class}, indent=2, allow_nan=False))
        return
    values = row | {f"accuracy on class {name}": value for name, value in zip(data.class_names, recalls, strict=True)}
    columns = [
        Column("metric", [Text(name) for name in values]),
        Column("value", [Text(f"{value:.4f}") for value in values.values()], "right"),
    ]
    algorithm, trained_on = quoted(spec.algorithm)[1:-1], quoted(spec.dataset)[1:-1]
    title = f"{algorithm}, trained on {trained_on} for {spec.rounds} rounds, on the test split of {data.name}"
    out.print(make_table(columns, title=title, width=out.width))


def _finite(value: float) -> float | None:
    """JSON has no NaN, which a class without test samples has, and no infinity."""
    return value if math.isfinite(value) else None


def algorithms(
    names: Annotated[str | None, typer.Argument(help="Such as fedga,mine; else all built-in.", metavar="LIST")] = None,
    model: Annotated[str, typer.Option("--model", help="Network whose size the bytes are counted for.")] = "mlp",
    shape: Annotated[str, typer.Option("--shape", help="Shape of a sample, such as 3x32x32.")] = "1x28x28",
    classes: Annotated[str, typer.Option("--classes", help="Number of classes.", metavar="NUMBER")] = "10",
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",  # noqa: A002
    check: Annotated[str | None, _named("--check", "Look for mistakes of this algorithm or selection rule.")] = None,
) -> None:
    """What every algorithm costs and reveals beyond plain model averaging; your own by name.

    The code of an algorithm of your own is run only where it is named: `fedga algorithms fedavg,mine`.
    """
    if check is not None:
        _check(check, names)
        return

    from fedga.algorithms import ALGORITHMS, algorithm_class, own_algorithms
    from fedga.report.combinable import combinable_rows, combinable_table
    from fedga.report.costs import algorithms_rows, algorithms_table

    check_known("format", format, FORMATS)
    number = int(Number(whole=True, least=2, most=_MOST_CLASSES).parse("--classes", classes) or 0)
    parameters = _parameters(model, shape, number)
    mine, asked = own_algorithms(), None if names is None else [name.strip() for name in names.split(",")]
    others = combinable_rows(asked)
    left = asked and [name for name in asked if name in {*ALGORITHMS, *mine} or not combinable_rows([name])]
    named = None if left is None else {name: algorithm_class(name) for name in left}
    if named is None and mine:
        say(f"your own are not run unless you name them: fedga algorithms {','.join(mine)}")
    rows = algorithms_rows(parameters, number, named) or others
    if format == "table":
        if named != {}:
            out.print(algorithms_table(model, parameters, number, named, width=out.width))
        if others:
            out.print(combinable_table(others, width=out.width))
    elif format == "json":
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        options = (":".join(f"{name}={value}" for name, value in row["options"].items()) for row in rows)
        filled = ((row | {"options": text}).values() for row, text in zip(rows, options, strict=True))
        print(csv_text([rows[0], *filled]), end="")


def _check(algorithm: str, names: str | None) -> None:
    from fedga.algorithms import ALGORITHMS, make_algorithm, own_algorithms
    from fedga.selection import SELECTIONS, make_selection, own_selections
    from fedga.selection.check import check_selection
    from fedga.servers import SERVERS, make_server, own_servers
    from fedga.spec.settings import parse_algorithm, parse_selection
    from fedga.testing import check_algorithm

    if names is not None:
        raise FedGAError(f"--check {algorithm} checks that one alone: leave out {quoted(names)}")
    algorithms, server = {*ALGORITHMS, *own_algorithms()}, algorithm.removeprefix("server:")
    rules = {*SELECTIONS, *own_selections()} - algorithms
    if server != algorithm or server in {*SERVERS, *own_servers()} - algorithms - rules:
        make_server(server)  # which checks the user's own
        print(f"{server}: returns the next model and all that it keeps, the same when mapped over runs")
        return
    named = algorithm.removeprefix("select:")
    rule, given = parse_selection(named)
    if named != algorithm or rule in rules:
        check_selection(make_selection(rule, **dict(given)), rule)
        print(f"{rule}: selects available clients alone, none twice, the same ones when mapped over runs")
        return
    name, options = parse_algorithm(algorithm)
    for line in check_algorithm(make_algorithm(name, **dict(options)) if options else name):
        print(line)


def _parameters(model: str, shape: str, classes: int) -> Any:
    """`Parameters` of a network; one of ours is not made for that, however large."""
    import torch

    from fedga.algorithms.parameters import Parameters
    from fedga.models import MODELS
    from fedga.study.prepare import fitting_model

    if not re.fullmatch(r"[1-9]\d{0,5}([x×][1-9]\d{0,5}){0,2}", shape.lower()):
        raise FedGAError(f"--shape {shape!r} is not the shape of a sample: write channels, height, width as 3x32x32")
    input_shape = tuple(int(side) for side in re.findall(r"\d+", shape))
    with torch.device("meta") if model in MODELS else nullcontext():
        return Parameters(fitting_model(model, input_shape, classes))
