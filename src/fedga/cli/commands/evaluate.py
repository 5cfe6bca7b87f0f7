"""`fedga evaluate`: a saved model on a test split."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedga.cli.console import out, say
from fedga.cli.training import DataDir, Device, own_option
from fedga.cli.usage import check_data_dir
from fedga.errors import check_known, quoted

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
    from fedga.report.terminal import Column, make_table

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
