"""Looking at what is there: results of a folder, a saved model, the algorithms."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedga.cli.console import out, say
from fedga.errors import FedGAError, unknown_name
from fedga.experiments.archive import opened
from fedga.experiments.kinds import Number
from fedga.experiments.store import Store
from fedga.report.terminal import Column, make_table

FORMATS = ("table", "csv", "json")


def results(
    folder: Annotated[Path, typer.Argument(help="A folder that `fedga run` wrote.")],
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",  # noqa: A002
    summary: Annotated[bool, typer.Option("--summary", help="One row per setting, means over seeds.")] = False,
) -> None:
    """Print one row per run and evaluated round; with --summary, the table that ends a run."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if summary:
        if format != "table":
            raise FedGAError(f"--summary is a table: leave out --format {format}, or leave out --summary")
        from fedga.cli.summary import print_summary

        with opened(folder) as here:
            print_summary(here, None, out)
        return
    with opened(folder) as here, Store(here) as store:
        if format != "table":
            store.write_results(sys.stdout, format)
            return
        _print_rows(store)


def archive(
    folder: Annotated[Path, typer.Argument(help="A folder that `fedga run` or `fedga paper` wrote.")],
    target: Annotated[Path, typer.Argument(help="Where the small copy goes.")],
) -> None:
    """Make a small copy of a results folder, to commit or to send: Parquet files, without models and checkpoints.

    `fedga report` and `fedga results` read it like the folder itself; numbers are rounded to four significant digits.
    """
    from fedga.experiments.archive import write_archive

    files = write_archive(folder, target)
    size = sum(path.stat().st_size for path in files)
    say(f"{len(files)} files, {size / 1e6:.1f} MB: {target}; look at it with fedga report {target}")


def _print_rows(store: Store) -> None:
    """Every row as aligned text, never cut off to the width of a terminal."""
    with store.results() as table:
        rows = [list(table.columns), *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def evaluate_model(
    model: Annotated[Path, typer.Argument(help="A .safetensors file from the folder `models` of a run.")],
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Data set; the one it was trained on if left out.")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option("--label-column", help="Column that holds the class.", metavar="NAME")
    ] = None,
    client_column: Annotated[
        str | None, typer.Option("--client-column", help="Column that is no feature but a client.", metavar="NAME")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with data files, else FEDGA_DATA.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")] = "auto",
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",  # noqa: A002
) -> None:
    """Read a saved model back and evaluate it on a test split."""
    if format not in ("table", "json"):
        raise unknown_name("format", format, ("table", "json"))
    from fedga import scores as score
    from fedga.data import load_dataset
    from fedga.experiments.prepare import choose_device
    from fedga.experiments.saved import load_model
    from fedga.simulation.device_data import DeviceData
    from fedga.simulation.evaluation import evaluate
    from fedga.simulation.memory import Appetite
    from fedga.simulation.metrics import own_metrics, scores
    from fedga.simulation.stacked import StackedModel
    from fedga.simulation.workers import Workers

    where = choose_device(device)
    saved = load_model(model)
    spec = saved.spec
    asked = label_column, client_column
    if saved.was_trained_on(dataset):
        asked = saved.columns(*asked)
    data = load_dataset(dataset or spec.dataset, data_dir=data_dir, label_column=asked[0], client_column=asked[1])
    saved.check_fits(data, model.name)
    if dataset is None and asked == saved.columns():
        saved.check_trained_on(data, model.name)
    if data.class_names != saved.class_names:
        say(f"the classes of {data.name} have other names than those of {spec.dataset}: taken in the order they stand")
    stacked = StackedModel(saved.model).to(where)
    params, buffers = stacked.flatten(saved.model)
    evaluation = evaluate(
        Workers(stacked, where),
        params[None].to(where),
        buffers[None].to(where),
        DeviceData(data, where),
        saved.pixels.to(where),
        Appetite.for_model(stacked, where, data.input_shape, spec.batch_size),
    )
    [row] = scores(evaluation, further=own_metrics())
    recalls = score.recall(evaluation.confusion)[0].tolist()
    if format == "json":
        known = {name: _finite(value) for name, value in row.items()}
        by_class = dict(zip(data.class_names, map(_finite, recalls), strict=True))
        told = {"model": str(model), "dataset": data.name, **known, "class_accuracy": by_class}
        print(json.dumps(told, indent=2, allow_nan=False))
        return
    values = row | {f"accuracy on class {name}": value for name, value in zip(data.class_names, recalls, strict=True)}
    columns = [
        Column("metric", [Text(name) for name in values]),
        Column("value", [Text(f"{value:.4f}") for value in values.values()], "right"),
    ]
    title = f"{spec.algorithm}, trained on {spec.dataset} for {spec.rounds} rounds, on the test split of {data.name}"
    out.print(make_table(columns, title=title, width=out.width))


def _finite(value: float) -> float | None:
    """JSON has no NaN, which a class without test samples has, and no infinity."""
    return value if math.isfinite(value) else None


def algorithms(
    model: Annotated[str, typer.Option("--model", help="Network whose size the bytes are counted for.")] = "mlp",
    shape: Annotated[str, typer.Option("--shape", help="Shape of a sample, such as 3x32x32.")] = "1x28x28",
    classes: Annotated[str, typer.Option("--classes", help="Number of classes.", metavar="NUMBER")] = "10",
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",  # noqa: A002
    check: Annotated[
        str | None, typer.Option("--check", help="Look for the usual mistakes of this one instead.", metavar="NAME")
    ] = None,
) -> None:
    """What every algorithm, ours or your own, costs and reveals beyond plain model averaging."""
    import csv

    if check is not None:
        from fedga.algorithms import make_algorithm
        from fedga.checks import check_algorithm
        from fedga.experiments.spec import parse_algorithm

        name, options = parse_algorithm(check)
        for line in check_algorithm(make_algorithm(name, **dict(options)) if options else name):
            print(line)
        return

    from fedga.experiments.prepare import fitting_model
    from fedga.report.tables import algorithms_rows, algorithms_table

    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if not re.fullmatch(r"[1-9]\d*([x×][1-9]\d*)*", shape.lower()):
        raise FedGAError(f"--shape {shape!r} is not a shape: write it as 3x32x32")
    input_shape = tuple(int(side) for side in re.findall(r"\d+", shape))
    number = int(Number(whole=True, least=2).parse("--classes", classes) or 0)
    parameters = sum(p.numel() for p in fitting_model(model, input_shape, number).parameters())
    rows = algorithms_rows(parameters, number)
    for row in rows:
        if row["error"]:
            say(row["error"])
    if format == "table":
        out.print(algorithms_table(model, parameters, number, width=out.width))
        return
    if format == "json":
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row | {"options": ":".join(f"{name}={value}" for name, value in row["options"].items())})
