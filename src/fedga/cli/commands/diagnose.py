"""`fedga diagnose`: is a model forgetting somebody's rare class?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedga.cli.checks import check_data_dir
from fedga.cli.console import out, say
from fedga.errors import FedGAError, unknown_name
from fedga.spec.kinds import Number

if TYPE_CHECKING:
    from fedga.diagnosis import Diagnosis
    from fedga.diagnosis.reading.columns import ColumnOptions

_FORMATS = ("table", "json")
_OF_PREDICTIONS = ("--site-column", "--probability-columns", "--class-counts", "--logits")
_OF_MODELS = ("--dataset", "--model", "--client-column", "--data-dir", "--device")
_ANY = "auto"


def diagnose(
    source: Annotated[
        Path, typer.Argument(help="Predictions (.csv, .parquet, .npz), or a saved model (.safetensors).")
    ],
    label_column: Annotated[
        str | None, typer.Option("--label-column", help="Column that holds the true class.", metavar="NAME")
    ] = None,
    site_column: Annotated[
        str | None,
        typer.Option(
            "--site-column",
            help="Column that says whose sample it is: site, hospital or client; or none.",
            metavar="NAME",
        ),
    ] = None,
    probability_columns: Annotated[
        str | None,
        typer.Option(
            "--probability-columns",
            help="Columns of probabilities, such as cat,dog or 'p_*'; all columns of numbers if left out.",
            metavar="NAMES",
        ),
    ] = None,
    class_counts: Annotated[
        str | None,
        typer.Option(
            "--class-counts",
            help="Samples of each class that were trained on: cat=900,dog=30, or a .csv or .json file; the labels are "
            "counted if left out.",
            metavar="COUNTS",
        ),
    ] = None,
    logits: Annotated[
        bool, typer.Option("--logits", help="Numbers are logits: a softmax makes them sum to 1.")
    ] = False,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Data for a saved model; those it was trained on if left out.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Network of a saved model that is not ours: package.module:Class. Its code is run."
        ),
    ] = None,
    client_column: Annotated[
        str | None, typer.Option("--client-column", help="Column of these data that names the client.", metavar="NAME")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with data files, else FEDGA_DATA.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="For a saved model: auto, cpu, cuda or cuda:1.")] = _ANY,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="The page; NAME-diagnosis.html in this folder if left out.", metavar="FILE"),
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Write no files, only what is printed.")] = False,
    format: Annotated[str, typer.Option("--format", help="What is printed: table or json.")] = "table",  # noqa: A002
    fail_above: Annotated[
        str | None,
        typer.Option("--fail-above", help="Exit with code 1 if the EA ratio is above this.", metavar="RATIO"),
    ] = None,
) -> None:
    """Is this model forgetting somebody's rare class? One page says which one, where and by how much.

    The page opens from disk and needs no network; the numbers lie beside it as CSV and JSON:

        fedga diagnose predictions.csv --site-column hospital

        fedga diagnose runs/digits-0f3a/models/digits-fedavg.safetensors
    """
    if format not in _FORMATS:
        raise unknown_name("format", format, _FORMATS)
    from fedga.diagnosis.reading.columns import ColumnOptions
    from fedga.diagnosis.reading.target import check_target

    check_data_dir(data_dir)
    if no_page and out_file is not None:
        raise FedGAError(f"--no-page writes no page, and --out {out_file} names one: leave one of them out")
    limit = None if fail_above is None else Number(least=1).parse("--fail-above", fail_above)
    page = out_file or Path(f"{source.stem}-diagnosis.html")
    if not no_page:
        check_target(page)
    if source.suffix.lower() == ".safetensors":
        _refuse(
            source,
            "a saved model",
            zip(_OF_PREDICTIONS, (site_column, probability_columns, class_counts, logits), strict=True),
        )
        found = _of_model(source, (dataset, label_column, client_column, data_dir), device, model)
    else:
        given = (dataset, model, client_column, data_dir, device != _ANY)
        _refuse(source, "a file of predictions", zip(_OF_MODELS, given, strict=True))
        columns = tuple(name.strip() for name in (probability_columns or "").split(",") if name.strip())
        found = _of_predictions(source, ColumnOptions(label_column, site_column, columns, logits), class_counts)
    files = [] if no_page else found.write(page)
    _print(found, format)
    if files:
        say(f"the page: {files[0]}; the numbers: {', '.join(path.name for path in files[1:])} beside it")
    if limit is not None and found.ea_ratio > float(limit):
        say(f"the EA ratio {found.ea_ratio:.4g} is above --fail-above {fail_above}")
        raise typer.Exit(1)


def _refuse(source: Path, kind: str, options: Iterable[tuple[str, object]]) -> None:
    """Say which option means nothing here."""
    for option, value in options:
        if value:
            raise FedGAError(f"{source} is {kind}, to which {option} means nothing: leave it out")


def _of_predictions(source: Path, options: ColumnOptions, class_counts: str | None) -> Diagnosis:
    from fedga.cli.progress import decoding
    from fedga.diagnosis.counts import read_counts
    from fedga.diagnosis.diagnosis import diagnosis_of
    from fedga.diagnosis.reading.predictions import read_predictions

    counts = None if class_counts is None else read_counts(class_counts)
    with decoding() as show:
        predictions = read_predictions(source, options, show)
    return diagnosis_of(predictions, source.name, counts, "as given with --class-counts")


def _of_model(
    source: Path, given: tuple[str | None, str | None, str | None, Path | None], device: str, model: str | None
) -> Diagnosis:
    from fedga.cli.progress import decoding
    from fedga.diagnosis.reading.model import DataOptions, diagnose_model
    from fedga.study.prepare import choose_device

    with decoding() as show:
        return diagnose_model(source, DataOptions(*given), choose_device(device), show, model, say)


def _print(found: Diagnosis, format: str) -> None:  # noqa: A002 - the flag is --format
    from rich.text import Text

    from fedga.diagnosis.numbers import as_json
    from fedga.diagnosis.shown import terminal_table
    from fedga.report.summary import number_text
    from fedga.report.writers import terminal

    if format == "json":
        print(as_json(found))
        return
    out.print(Text(found.headline, style="bold"))
    for note in found.notes:
        out.print(Text(f"- {note}"))
    table = terminal_table(found)
    if table.rows:  # there are errors
        out.print()
        out.print(terminal(table, width=out.width))
        out.print(Text(f"EA ratio {number_text(found.ea_ratio, True)}, where 1 is fair", style="bold"))
