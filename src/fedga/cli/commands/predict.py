"""`fedga predict` and `fedga export`: what a saved model is for."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedga.cli.commands.evaluate import TAU, adjust_option, training_counts
from fedga.cli.console import say
from fedga.cli.training import DataDir, Device, own_option
from fedga.cli.usage import check_data_dir
from fedga.errors import FedGAError, check_known

EXPORTS = {"torch-export": ".pt2", "onnx": ".onnx"}
_NAMED = 6  # columns, or classes, in one sentence

_named = partial(own_option, metavar="NAME", panel=None)
Model = Annotated[Path, typer.Argument(help="A .safetensors file from the folder `models` of a run.")]
Network = Annotated[str | None, _named("--model", "Your own network, package.module:Class; its code runs.")]


def predict(
    model: Model,
    file: Annotated[Path, typer.Argument(help="CSV, Parquet or npz file, picture, or folder of pictures.")],
    out_file: Annotated[
        Path | None, own_option("--out", "File: .csv, .parquet or .npz; else printed as CSV.", "FILE", None)
    ] = None,
    network: Network = None,
    label_column: Annotated[str | None, _named("--label-column", "Column of true classes, copied.")] = None,
    client_column: Annotated[str | None, _named("--client-column", "Column of clients, copied.")] = None,
    adjust: Annotated[str | None, adjust_option()] = None,
    class_counts: Annotated[
        str | None, own_option("--class-counts", "For --adjust, else those of its run: 90,10, .csv.", "COUNTS", None)
    ] = None,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Predict the classes of new samples with a saved model: one row per sample, with a probability per class.

    Columns of a table are found by their names. Labels and clients are copied where the file has them, for
    `fedga diagnose`:

        fedga predict runs/digits-0f3a/models/digits-fedga.safetensors new.csv --out predictions.csv
    """
    check_data_dir(data_dir)
    tau = None if adjust is None else float(TAU.parse("--adjust", adjust) or 0)
    if tau is None and class_counts is not None:
        raise FedGAError("--class-counts are those that --adjust corrects for: give --adjust too, or leave them out")
    from fedga.data.predictions import check_kind, write_lines, write_predictions

    if out_file is not None:
        check_kind(out_file)
    from fedga.cli.progress import decoding
    from fedga.data.unlabelled import load_unlabelled
    from fedga.measures.prior import prior_shift
    from fedga.study.trained import check_features, load_model

    trained = load_model(model, network, device=device or "auto", notice=say)

    def features(where: str, names: list[str]) -> list[str]:
        if not trained.feature_names:
            return names
        if further := check_features(names, trained.feature_names, where, model.name):
            rest = ", …" if len(further) > _NAMED else ""
            say(f"not used, since {model.name} was not trained on them: {', '.join(further[:_NAMED])}{rest}")
        return list(trained.feature_names)

    with decoding() as progress:
        samples = load_unlabelled(
            file,
            trained.input_shape,
            trained.class_names,
            features,
            label=trained.spec.label_column,
            client=trained.spec.client_column,
            label_column=label_column,
            client_column=client_column,
            progress=progress,
        )
    if not len(samples.inputs):
        raise FedGAError(f"{file} has no samples: add some")
    shift = None
    if tau is not None:
        shift = prior_shift(training_counts(trained.saved, None, class_counts, model, data_dir).totals, tau)
    batches = trained.batches(trained.checked(samples.inputs, str(file)), shift)
    if out_file is None:
        write_lines(sys.stdout, trained.class_names, batches, samples.beside)
        return
    taken = write_predictions(out_file, trained.class_names, batches, samples.beside)
    found = [f"{name} {number:,}" for name, number in zip(trained.class_names, taken, strict=True) if number]
    rest = ", …" if len(found) > _NAMED else ""
    say(f"{sum(taken):,} samples, taken for: {', '.join(found[:_NAMED])}{rest}; {out_file}")
    if "label" in samples.beside:
        say(f"which classes are missed: fedga diagnose {out_file}")


def export(
    model: Model,
    format: Annotated[str, typer.Option("--format", help="torch-export or onnx.")] = "torch-export",  # noqa: A002
    out_file: Annotated[Path | None, own_option("--out", "Default: the model's name, here.", "FILE", None)] = None,
    network: Network = None,
) -> None:
    """Write a saved model as a program that needs no fedga: stored samples in, probabilities out, scaling inside.

    Class names, columns and shapes are in the file, and in a .json beside it:

        fedga export runs/digits-0f3a/models/digits-fedga.safetensors --out digits.pt2
    """
    check_known("format", format, EXPORTS)
    target = out_file or Path(model.name).with_suffix(EXPORTS[format])
    if target.suffix.lower() != EXPORTS[format]:
        raise FedGAError(
            f"--out {target} does not end in {EXPORTS[format]}: give a file that does, or another --format"
        )
    from fedga.study.export import export_model
    from fedga.study.trained import load_model

    export_model(load_model(model, network, notice=say), target, format)
    say(f"{target}, and what goes in and comes out: {target.with_suffix('.json')}")
