"""`fedga data`: which data sets there are, fetching one, looking at how it is dealt out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedga.cli.console import out, say
from fedga.data import PARTITIONS, SOURCES, load_dataset, make_federation
from fedga.data.catalog import find_source
from fedga.data.sources import is_here
from fedga.errors import FedGAError, unknown_name

app = typer.Typer(help="List, fetch and look at data sets.", no_args_is_help=True)

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with data files.", envvar="FEDGA_DATA")]


@app.command("list")
def list_sources(data_dir: DataDir = None) -> None:
    """The data sets known by name, and whether a copy is on this machine."""
    table = Table(
        title="Data sets", caption="Your own: the path of a .npz, .csv or .parquet file, or of a picture folder"
    )
    for heading in ("name", "classes", "train", "test", "shape", "here", "licence"):
        table.add_column(heading, justify="right" if heading in ("classes", "train", "test") else "left")
    for source in SOURCES.values():
        shape = "×".join(map(str, source.shape))
        table.add_row(
            source.name,
            str(source.classes),
            f"{source.train_samples:,}",
            f"{source.test_samples:,}",
            shape,
            "yes" if is_here(source.name, data_dir) else "no",
            source.licence,
        )
    out.print(table)


@app.command("get")
def get(name: str, data_dir: DataDir = None) -> None:
    """Download a data set from the Hugging Face Hub (a pinned revision, checked), unless a copy is here already."""
    from fedga.cli.progress import decoding

    if find_source(name) is None:
        raise unknown_name("data set", name, SOURCES)
    with decoding() as progress:
        dataset = load_dataset(name, data_dir=data_dir, download=True, progress=progress)
    train, test = len(dataset.train_targets), len(dataset.test_targets)
    say(f"{dataset.name} is here: {train:,} training and {test:,} test samples")


@app.command("show")
def show(
    name: str,
    alpha: Annotated[float | None, typer.Option("--alpha", help="Dirichlet concentration α.")] = None,
    partition: Annotated[str, typer.Option("--partition", help=", ".join(PARTITIONS))] = "dirichlet",
    clients: Annotated[int | None, typer.Option("--clients", help="Number of clients.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the partition.")] = 0,
    classes_per_client: Annotated[int, typer.Option("--classes-per-client", help="For --partition shards.")] = 2,
    client_column: Annotated[str | None, typer.Option("--client-column", help="Whose sample it is.")] = None,
    label_column: Annotated[str | None, typer.Option("--label-column", help="Which class it is.")] = None,
    picture: Annotated[Path | None, typer.Option("--out", help="Where the picture goes (PNG and SVG).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Who holds which classes: a client × class heat map, in the terminal and as a picture."""
    from fedga.cli.progress import decoding
    from fedga.experiments.presets import preset_settings
    from fedga.experiments.spec import READ_ALPHA
    from fedga.report.figures import label_heatmap, label_heatmap_text, save

    if client_column is not None and partition == "dirichlet" and alpha is None:
        partition = "natural"
    if partition in READ_ALPHA and alpha is None:
        alpha = 0.1
    with decoding() as progress:
        dataset = load_dataset(
            name, data_dir=data_dir, client_column=client_column, label_column=label_column, progress=progress
        )
    if clients is None and partition != "natural":
        clients = preset_settings("", dataset.name, alpha).values["clients"]
    federation = make_federation(
        dataset, partition, clients=clients, seed=seed, alpha=alpha, classes_per_client=classes_per_client
    )
    names = dataset.client_names if partition == "natural" else ()
    drawn = "" if alpha is None else f", α = {alpha:g}"
    title = f"{dataset.name}: {federation.num_clients} clients, {partition}{drawn}, seed {seed}"
    out.print(label_heatmap_text(federation.class_counts, dataset.class_names, title, client_names=names))
    missing = (federation.class_counts == 0).mean()
    sizes = federation.sizes
    say(
        f"{sizes.min()} to {sizes.max()} samples per client, {sizes.sum():,} of {len(dataset.train_targets):,} used; "
        f"a client lacks {missing * dataset.num_classes:.1f} of {dataset.num_classes} classes on average"
    )
    default = f"{Path(dataset.name).stem}-{partition}{'' if alpha is None else f'-alpha{alpha:g}'}"
    path = picture or Path(default)
    try:
        figure = label_heatmap(federation.class_counts, dataset.class_names, title, client_names=names)
        written = save(figure, path.with_suffix(""))
    except OSError as error:
        raise FedGAError(f"the picture cannot be written to {path} ({error.strerror}): choose another --out") from error
    say("picture: " + ", ".join(map(str, written)))
