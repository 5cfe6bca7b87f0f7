"""`fedga data`: which data sets there are, fetching one, showing how it is partitioned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedga.cli.commands.run import setting_option
from fedga.cli.console import out, say
from fedga.cli.training import names_clients
from fedga.cli.usage import check_data_dir, check_data_variable
from fedga.errors import FedGAError, unknown_name
from fedga.spec.catalog import SOURCES, find_source
from fedga.spec.grid import build_sweep, parse_list
from fedga.spec.kinds import Number
from fedga.spec.settings import SETTINGS, RunSpec

app = typer.Typer(help="List, fetch and show data sets.", no_args_is_help=True)

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with data files, else FEDGA_DATA.")]


@app.command("list")
def list_sources(data_dir: DataDir = None) -> None:
    """The data sets known by name, and whether a copy is on this machine."""
    from fedga.data.sources import is_here, own_datasets
    from fedga.report.terminal import Column, make_table

    check_data_dir(data_dir)
    columns = [
        Column("name", [Text(source.name) for source in SOURCES.values()], "left"),
        Column("classes", [Text(str(source.classes)) for source in SOURCES.values()], "right"),
        Column("train", [Text(f"{source.train_samples:,}") for source in SOURCES.values()], "right"),
        Column("test", [Text(f"{source.test_samples:,}") for source in SOURCES.values()], "right"),
        Column("shape", [Text("×".join(map(str, source.shape))) for source in SOURCES.values()], "left"),
        Column("here", [Text("yes" if is_here(name, data_dir) else "no") for name in SOURCES], "left"),
        Column("licence", [Text(source.licence) for source in SOURCES.values()], "left"),
    ]
    caption = "Your own: the path of a .npz, .csv or .parquet file, or of a picture folder."
    if mine := own_datasets():
        caption += f" By name: {', '.join(f'{part.name} ({part.origin})' for part in mine.values())}."
    out.print(make_table(columns, title="Data sets", caption=caption, width=out.width))


@app.command("get")
def get(name: str, data_dir: DataDir = None) -> None:
    """Download a data set from the Hugging Face Hub (a pinned revision, checked), unless a copy is here already."""
    if find_source(name) is None:
        raise unknown_name("data set", name, SOURCES)
    from fedga.cli.progress import decoding
    from fedga.data import load_dataset

    with decoding() as progress:
        dataset = load_dataset(name, data_dir=data_dir, download=True, progress=progress)
    train, test = len(dataset.train_targets), len(dataset.test_targets)
    say(f"{dataset.name} is here: {train:,} training and {test:,} test samples")


def _setting(name: str, *flags: str) -> Any:
    return setting_option(name, *flags, metavar="NUMBER" if isinstance(SETTINGS[name].kind, Number) else "NAME")


@app.command("show")
def show(
    name: str,
    alpha: Annotated[str | None, _setting("alpha")] = None,
    partition: Annotated[str | None, _setting("partition")] = None,
    clients: Annotated[str | None, _setting("clients")] = None,
    seed: Annotated[str | None, _setting("seed", "--seed", "--seeds")] = None,
    classes_per_client: Annotated[str | None, _setting("classes_per_client")] = None,
    client_column: Annotated[str | None, _setting("client_column")] = None,
    label_column: Annotated[str | None, _setting("label_column")] = None,
    resize: Annotated[str | None, setting_option("resize", metavar="HxW")] = None,
    picture: Annotated[Path | None, typer.Option("--out", help="Where the picture goes, as PNG and SVG.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Who holds which classes: a client × class heat map, in the terminal and as a picture."""
    check_data_dir(data_dir)
    check_data_variable([name] if data_dir is None else [])
    from fedga.cli.progress import decoding
    from fedga.report.figures import LabelHeatmapText, label_heatmap, save
    from fedga.study.prepare import Preparation

    written = {"alpha": alpha, "partition": partition, "clients": clients, "classes_per_client": classes_per_client}
    written |= {"seed": seed, "client_column": client_column, "label_column": label_column, "resize": resize}
    spec = _one_run(name, {setting: text for setting, text in written.items() if text is not None})
    with decoding() as progress:
        preparation = Preparation([], data_dir, progress)
        dataset, federation = preparation.dataset(spec), preparation.federation(spec)
    drawn = "" if spec.alpha is None else f", α = {spec.alpha:g}"
    title = f"{dataset.name}: {federation.num_clients} clients, {spec.partition}{drawn}, seed {spec.seed}"
    names = dataset.client_names if spec.partition == "natural" else ()
    shown = (federation.class_counts, dataset.class_names, title)
    out.print(LabelHeatmapText(*shown, client_names=names))
    alpha_text = "" if spec.alpha is None else f"-alpha{spec.alpha:g}"
    target = picture or Path(f"{Path(dataset.name).stem}-{spec.partition}{alpha_text}")
    try:
        figure = label_heatmap(*shown, client_names=names)
        ended = target.suffix.lower() in (".png", ".svg", ".pdf")
        saved = "picture: " + ", ".join(map(str, save(figure, target.with_suffix("") if ended else target)))
    except FedGAError as error:
        if picture is not None:
            raise
        saved = f"no picture: {error}"
    missing, sizes = (federation.class_counts == 0).mean(), federation.sizes
    say(
        f"{sizes.min()} to {sizes.max()} samples per client, {sizes.sum():,} of {len(dataset.train_targets):,} used; "
        f"a client lacks {missing * dataset.num_classes:.1f} of {dataset.num_classes} classes on average"
    )
    say(saved)


def _one_run(dataset: str, written: Mapping[str, str]) -> RunSpec:
    """The partition as `fedga run` would read it, defaults and complaints included."""
    given = {name: parse_list(name, text) for name, text in written.items()}
    for name, values in given.items():
        if len(values) > 1:
            raise FedGAError(f"{SETTINGS[name].flag} {written[name]!r} lists several values: give one, for one picture")
    [spec] = build_sweep(
        {**given, "dataset": [dataset], "algorithm": ["fedavg"], "active": [1]}, names_clients=names_clients
    ).runs
    return spec
