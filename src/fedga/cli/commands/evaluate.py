"""`fedga evaluate`: a saved model on a test split, as it is and with its decision thresholds moved."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedga.cli.console import out, say
from fedga.cli.training import DataDir, Device, own_option
from fedga.cli.usage import check_data_dir
from fedga.errors import FedGAError, check_known, quoted
from fedga.spec.kinds import Number, PictureSize

if TYPE_CHECKING:
    from fedga.data import Dataset
    from fedga.diagnosis.counts import TrainingCounts
    from fedga.study.model_files import SavedModel

TAU = Number(least=0, largest=1e6)

_named = partial(own_option, metavar="NAME", panel=None)


def adjust_option() -> Any:
    return own_option("--adjust", "Subtract TAU times log of each class's training share; alone 1.", "[TAU]", None)


def evaluate_model(
    model: Annotated[Path, typer.Argument(help="A .safetensors file from the folder `models` of a run.")],
    dataset: Annotated[str | None, _named("--dataset", "Data set, else the one it was trained on.")] = None,
    network: Annotated[str | None, _named("--model", "Your own network, package.module:Class; its code runs.")] = None,
    label_column: Annotated[str | None, _named("--label-column", "Column that holds the class.")] = None,
    client_column: Annotated[str | None, _named("--client-column", "Column of clients, not a feature.")] = None,
    resize: Annotated[
        str | None, own_option("--resize", "Height x width of pictures, else that of its run.", "HxW", None)
    ] = None,
    adjust: Annotated[str | None, adjust_option()] = None,
    class_counts: Annotated[
        str | None, own_option("--class-counts", "For --adjust, else those of its run: 90,10, .csv.", "COUNTS", None)
    ] = None,
    data_dir: DataDir = None,
    device: Device = None,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",  # noqa: A002
) -> None:
    """Read a saved model back and evaluate it on a test split.

    With --adjust, also as if the classes had been equally frequent in training: nothing is trained, the decision
    threshold of each class moves by its share of the training samples:

        fedga evaluate runs/digits-0f3a/models/digits-fedavg.safetensors --adjust
    """
    check_data_dir(data_dir)
    check_known("format", format, ("table", "json"))
    tau = None if adjust is None else float(TAU.parse("--adjust", adjust) or 0)
    if tau is None and class_counts is not None:
        raise FedGAError("--class-counts are those that --adjust corrects for: give --adjust too, or leave them out")
    from fedga.data import load_dataset
    from fedga.engine.device_data import DeviceData
    from fedga.engine.evaluation.evaluate import evaluate
    from fedga.engine.evaluation.metrics import own_metrics, scores
    from fedga.engine.stack.budget import MemoryBudget
    from fedga.engine.stack.stacked import StackedModel
    from fedga.engine.stack.workers import Workers
    from fedga.measures import scores as score
    from fedga.measures.prior import prior_shift
    from fedga.study.model_files import load_model
    from fedga.study.prepare import choose_device

    where = choose_device(device or "auto")
    saved = load_model(model, network, say)
    asked = label_column, client_column
    if dataset is None or saved.is_own_data(dataset):
        asked = saved.columns(*asked)
    size = PictureSize().check("--resize", resize) if resize is not None else saved.resize(dataset)
    columns: dict[str, Any] = {"label_column": asked[0], "client_column": asked[1], "resize": size}
    data = load_dataset(dataset or saved.own_data(), data_dir=data_dir, **columns)
    saved.check_fits(data, model.name)
    if dataset is None and asked == saved.columns():
        saved.check_trained_on(data, model.name)
    if data.class_names != saved.class_names:
        say(f"the classes of {data.name} have other names than those it was trained on: taken in the order they stand")
    counts = None if tau is None else training_counts(saved, data, class_counts, model, data_dir)
    stacked = StackedModel(saved.model).to(where)
    params, buffers = stacked.flatten(saved.model)
    on_device = DeviceData(data, where)
    budget = MemoryBudget.for_model(stacked, where, data.input_shape, saved.spec.batch_size)
    metrics = own_metrics()

    def measure(shift: Any) -> tuple[dict[str, float], list[float]]:
        """Its scores, and the part of each class that is recognised."""
        workers, pixels = Workers(stacked, where), saved.pixels.to(where)
        models = (params[None].to(where), buffers[None].to(where))
        evaluation = evaluate(workers, *models, on_device, pixels, budget, shift=shift)
        return scores(evaluation, further=metrics)[0], score.recall(evaluation.confusion)[0].tolist()

    measured = [measure(None)]
    if tau is not None and counts is not None:
        measured.append(measure(params.new_tensor(prior_shift(counts.totals, tau)).to(where)))
    if format == "json":
        found = {"model": str(model), "dataset": data.name} | _as_json(data, *measured[0])
        if tau is not None and counts is not None:
            numbers = dict(zip(data.class_names, counts.totals.tolist(), strict=True))
            found["adjusted"] = {"tau": tau, "class_counts": numbers} | _as_json(data, *measured[1])
        print(json.dumps(found, indent=2, allow_nan=False))
        return
    _print(saved, data, measured, counts, tau)


def training_counts(
    saved: SavedModel, data: Dataset | None, given: str | None, path: Path, data_dir: Path | None
) -> TrainingCounts:
    """Samples of each class that it was trained on: those given, else those of the clients of its run.

    ``data`` may be what it was trained on, and is used then.
    """
    from fedga.diagnosis.counts import TrainingCounts, holdings_of, read_counts

    if given is not None:
        return holdings_of(
            read_counts(given),
            saved.class_names if data is None else data.class_names,
            (),
            "as given with --class-counts",
        )
    try:
        is_own = data is not None and data.fingerprint == saved.fingerprint
        trained_on = data if data is not None and is_own else saved.load_trained_on(data_dir)
        held = saved.federation(trained_on).class_counts
    except FedGAError as error:
        reason = f"how many samples of each class {path.name} was trained on is not known"
        because = str(error).partition(": ")[0]
        raise FedGAError(f"{reason} ({because}): give them with --class-counts 900,30,70") from error
    where = f"held by the clients of its run on {trained_on.name}"
    return TrainingCounts((), held.sum(0, keepdims=True).astype(float), where)


def _as_json(data: Dataset, row: dict[str, float], recalls: list[float]) -> dict[str, Any]:
    values: dict[str, Any] = {name: _finite(value) for name, value in row.items()}
    return values | {"class_accuracy": dict(zip(data.class_names, map(_finite, recalls), strict=True))}


def _finite(value: float) -> float | None:
    """JSON has no NaN, which a class without test samples has, and no infinity."""
    return value if math.isfinite(value) else None


def _print(
    saved: SavedModel,
    data: Dataset,
    measured: list[tuple[dict[str, float], list[float]]],
    counts: TrainingCounts | None,
    tau: float | None,
) -> None:
    from fedga.report.terminal import Column, make_table

    names = [*measured[0][0], *(f"accuracy on class {name}" for name in data.class_names)]
    columns = [Column("metric", [Text(name) for name in names])]
    headings = ["value"] if counts is None else ["as it is", f"adjusted, τ = {tau:g}"]
    caption = ""
    if counts is not None:
        numbers = [""] * len(measured[0][0]) + [f"{number:,.6g}" for number in counts.totals.tolist()]
        columns.append(Column("trained on", [Text(number) for number in numbers], "right"))
        caption = f"Trained on: samples of the class, {counts.source}."
    for heading, (row, recalls) in zip(headings, measured, strict=True):
        columns.append(Column(heading, [Text(f"{value:.4f}") for value in (*row.values(), *recalls)], "right"))
    algorithm, trained_on = quoted(saved.spec.algorithm)[1:-1], quoted(saved.spec.dataset)[1:-1]
    title = f"{algorithm}, trained on {trained_on} for {saved.spec.rounds} rounds, on the test split of {data.name}"
    out.print(make_table(columns, title=title, caption=caption, width=out.width))
