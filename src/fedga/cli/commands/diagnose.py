"""`fedga diagnose`: is a model forgetting somebody's rare class?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedga.cli.commands.evaluate import TAU, adjust_option
from fedga.cli.console import out, say
from fedga.cli.training import own_option
from fedga.cli.usage import check_data_dir
from fedga.errors import FedGAError, check_known
from fedga.spec.kinds import Number

if TYPE_CHECKING:
    from fedga.diagnosis import Diagnosis
    from fedga.diagnosis.counts import Adjustment

_FORMATS = ("table", "json")
_ANY = "auto"


_Text = str | None
_option = partial(own_option, panel=None)


def diagnose(
    source: Annotated[Path, typer.Argument(help="Predictions (.csv, .parquet, .npz) or a saved model (.safetensors).")],
    label_column: Annotated[_Text, _option("--label-column", "Column of the true class.", "NAME")] = None,
    site_column: Annotated[_Text, _option("--site-column", "Column of the site or client; or none.", "NAME")] = None,
    probability_columns: Annotated[
        _Text, _option("--probability-columns", "Columns such as cat,dog or 'p_*'; all numbers if omitted.", "NAMES")
    ] = None,
    class_counts: Annotated[
        _Text, _option("--class-counts", "Training samples per class: cat=900,dog=30, .csv or .json.", "COUNTS")
    ] = None,
    adjust: Annotated[_Text, adjust_option()] = None,
    logits: Annotated[bool, _option("--logits", "Numbers are logits: apply a softmax.")] = False,
    dataset: Annotated[_Text, _option("--dataset", "Data for a saved model; else its training data.")] = None,
    model: Annotated[_Text, _option("--model", "Your network of a saved model, package.module:Class; is run.")] = None,
    client_column: Annotated[_Text, _option("--client-column", "Column of these data with the client.", "NAME")] = None,
    data_dir: Annotated[Path | None, _option("--data-dir", "Folder with data files, else FEDGA_DATA.")] = None,
    device: Annotated[str, _option("--device", "For a saved model: auto, cpu, cuda or cuda:1.")] = _ANY,
    out_file: Annotated[Path | None, _option("--out", "The page; else NAME-diagnosis.html here.", "FILE")] = None,
    no_page: Annotated[bool, _option("--no-page", "Print only, write no files.")] = False,
    format: Annotated[str, _option("--format", "What is printed: table or json.")] = "table",  # noqa: A002
    fail_above: Annotated[_Text, _option("--fail-above", "Exit with code 1 above this EA ratio.", "RATIO")] = None,
) -> None:
    """Is this model forgetting somebody's rare class? One page says which one, where and by how much.

    The page opens from disk and needs no network; the numbers lie beside it as CSV and JSON:

        fedga diagnose predictions.csv --site-column hospital

        fedga diagnose runs/digits-0f3a/models/digits-fedavg.safetensors

    With --adjust the predictions are first corrected for the class counts in training, and both are compared:

        fedga diagnose predictions.csv --class-counts cat=900,dog=30 --adjust
    """
    check_known("format", format, _FORMATS)
    from fedga.diagnosis.numbers import check_target

    check_data_dir(data_dir)
    if no_page and out_file is not None:
        raise FedGAError(f"--no-page writes no page, and --out {out_file} names one: leave one of them out")
    tau = None if adjust is None else float(TAU.parse("--adjust", adjust) or 0)
    limit = None if fail_above is None else Number(least=1).parse("--fail-above", fail_above)
    page = out_file or Path(f"{source.stem}-diagnosis.html")
    if not no_page:
        check_target(page)
    of_predictions: dict[str, object] = {"--site-column": site_column, "--probability-columns": probability_columns}
    of_predictions |= {"--logits": logits} | ({} if adjust else {"--class-counts": class_counts})
    of_models: dict[str, object] = {"--dataset": dataset, "--model": model, "--client-column": client_column}
    of_models |= {"--data-dir": data_dir, "--device": device if device != _ANY else None}
    saved = source.suffix.lower() == ".safetensors"
    for option, value in (of_predictions if saved else of_models).items():
        if value:
            kind = "a saved model" if saved else "a file of predictions"
            raise FedGAError(f"{source} is {kind}, to which {option} means nothing: leave it out")
    if saved:
        from fedga.cli.progress import decoding
        from fedga.diagnosis.reading.model import DataOptions, diagnose_model
        from fedga.study.prepare import choose_device

        options = DataOptions(dataset, label_column, client_column, data_dir)
        with decoding() as show:
            where = choose_device(device)
            found = diagnose_model(source, options, where, show, model, say, _adjustment(tau, class_counts))
    else:
        columns = tuple(name.strip() for name in (probability_columns or "").split(",") if name.strip())
        found = _of_predictions(source, (label_column, site_column, columns, logits), class_counts, tau)
    files = [] if no_page else found.write(page)
    _print(found, format)
    if files:
        say(f"the page: {files[0]}; the numbers: {', '.join(path.name for path in files[1:])} beside it")
    if limit is not None and found.ea_ratio > float(limit):
        say(f"the EA ratio {found.ea_ratio:.4g} is above --fail-above {fail_above}")
        raise typer.Exit(1)


def _adjustment(tau: float | None, class_counts: str | None) -> Adjustment | None:
    from fedga.diagnosis.counts import Adjustment, read_counts

    return None if tau is None else Adjustment(tau, None if class_counts is None else read_counts(class_counts))


def _of_predictions(source: Path, given: tuple[Any, ...], class_counts: str | None, tau: float | None) -> Diagnosis:
    from fedga.cli.progress import decoding
    from fedga.diagnosis.counts import read_counts
    from fedga.diagnosis.diagnosis import diagnosis_of, with_adjustment
    from fedga.diagnosis.reading.columns import ColumnOptions
    from fedga.diagnosis.reading.tables import read_predictions

    counts = None if class_counts is None else read_counts(class_counts)
    options = ColumnOptions(*given)

    def diagnosed(adjustment: Adjustment | None) -> Diagnosis:
        with decoding() as show:
            predictions = read_predictions(source, replace(options, adjust=adjustment), show)
        return diagnosis_of(predictions, source.name, counts, "as given with --class-counts")

    return with_adjustment(diagnosed, _adjustment(tau, class_counts))


def _print(found: Diagnosis, format: str) -> None:  # noqa: A002 - the flag is --format
    from fedga.diagnosis.numbers import as_json, comparison_table, terminal_table
    from fedga.report.summary import number_text
    from fedga.report.writers import terminal

    if format == "json":
        print(as_json(found))
        return
    out.print(Text(found.headline, style="bold"))
    for note in found.notes:
        out.print(Text(f"- {note}"))
    if found.before is not None:
        out.print()
        out.print(terminal(comparison_table(found, found.before), width=out.width))
    table = terminal_table(found)
    if table.rows:  # there are errors
        out.print()
        out.print(terminal(table, width=out.width))
        out.print(Text(f"EA ratio {number_text(found.ea_ratio, True)}, where 1 is fair", style="bold"))
