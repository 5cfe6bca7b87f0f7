"""Looking at what is there: results of a folder, a saved model, the algorithms."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedga.cli.console import out
from fedga.errors import FedGAError, unknown_name

FORMATS = ("table", "csv", "json")


def results(
    folder: Annotated[Path, typer.Argument(help="A folder that `fedga run` wrote.")],
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",  # noqa: A002
) -> None:
    """Print one row per run and evaluated round (csv, json), or a summary of all runs (table)."""
    from fedga.experiments.store import Store

    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if format == "table":
        from fedga.cli.summary import print_summary

        print_summary(folder, None, out)
        return
    with Store(folder) as store:
        store.write_results(sys.stdout, format)


def evaluate_model(
    model: Annotated[Path, typer.Argument(help="A .safetensors file from the folder `models` of a run.")],
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Data set; the one it was trained on if left out.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", envvar="FEDGA_DATA", help="Folder with data files.")
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
    from fedga.simulation.metrics import scores
    from fedga.simulation.stacked import StackedModel
    from fedga.simulation.workers import Workers

    where = choose_device(device)
    saved = load_model(model)
    spec = saved.spec
    data = load_dataset(
        dataset or spec.dataset,
        data_dir=data_dir,
        label_column=spec.label_column if dataset is None else None,
        client_column=spec.client_column if dataset is None else None,
    )
    if data.input_shape != saved.input_shape or data.num_classes != len(saved.class_names):
        raise FedGAError(
            f"{model.name} reads samples of shape {saved.input_shape} in {len(saved.class_names)} classes and "
            f"{data.name} has {data.input_shape} in {data.num_classes}: give the data set it was trained for"
        )
    stacked = StackedModel(saved.model).to(where)
    params, buffers = stacked.flatten(saved.model)
    evaluation = evaluate(
        Workers(stacked, where),
        params[None].to(where),
        buffers[None].to(where),
        DeviceData(data, where),
        saved.pixels.to(where),
        Appetite.for_model(stacked, where),
    )
    [row] = scores(evaluation)
    recalls = score.recall(evaluation.confusion)[0].tolist()
    if format == "json":
        by_class = dict(zip(data.class_names, recalls, strict=True))
        print(json.dumps({"model": str(model), "dataset": data.name, **row, "class_accuracy": by_class}, indent=2))
        return
    table = Table(title=f"{spec.algorithm}, trained on {spec.dataset} for {spec.rounds} rounds, on {data.name}")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in row.items():
        table.add_row(name, f"{value:.4f}")
    for name, value in zip(data.class_names, recalls, strict=True):
        table.add_row(f"accuracy on class {name}", f"{value:.4f}")
    out.print(table)


def algorithms(
    model: Annotated[str, typer.Option("--model", help="Network whose size the bytes are counted for.")] = "mlp",
    shape: Annotated[str, typer.Option("--shape", help="Shape of a sample, such as 3x32x32.")] = "1x28x28",
    classes: Annotated[int, typer.Option("--classes", min=2, help="Number of classes.")] = 10,
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",  # noqa: A002
) -> None:
    """What every algorithm costs and reveals beyond plain model averaging."""
    import csv

    from fedga.models import build_model
    from fedga.report.tables import algorithms_rows, algorithms_table

    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    try:
        input_shape = tuple(int(side) for side in shape.lower().replace("×", "x").split("x"))
    except ValueError:
        raise FedGAError(f"--shape {shape!r} is not a shape: write it as 3x32x32") from None
    parameters = sum(p.numel() for p in build_model(model, input_shape, classes).parameters())
    if format == "table":
        out.print(algorithms_table(model, parameters, classes, width=out.width))
        return
    rows = algorithms_rows(parameters, classes)
    if format == "json":
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    writer = csv.DictWriter(sys.stdout, rows[0])
    writer.writeheader()
    writer.writerows(rows)
