"""Where samples come from: ``load_dataset`` takes the name of a known data set or the path of one's own."""

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedga import plugins
from fedga.data import cache, local
from fedga.data.assemble import TEST_EVERY, Parts, Samples, assemble, fingerprint
from fedga.data.federation import Dataset
from fedga.data.formats import tables
from fedga.data.formats.csv_files import csv_start
from fedga.data.formats.files import Progress, optional
from fedga.data.formats.folders import CLASSES, CLIENTS, image_folder
from fedga.data.formats.npz import CHANNELS, read_npz
from fedga.data.formats.npz import names_clients as names_clients_npz
from fedga.data.formats.parquet import ParquetFiles
from fedga.data.hub import download as download_source
from fedga.errors import FedGAError, a_or_an, unknown_name
from fedga.spec.catalog import SOURCES, Source, find_source, plain
from fedga.spec.kinds import PictureSize

_OF_ONE_SIZE = "give --resize 32x32 (height x width) to bring all pictures to one size"
OUTER = "outer"  # in place of a column: the outer ones of a picture folder's folders in folders


def load_dataset(
    name_or_path: str | Path,
    *,
    data_dir: Path | str | None = None,
    client_column: str | None = None,
    label_column: str | None = None,
    resize: str | int | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """A data set by name (``SOURCES``, or the user's own, see ``fedga.plugins``), or by the path of its files.

    Named sets are looked for in ``data_dir``, else in the folder ``FEDGA_DATA``, and then among earlier downloads; a
    connection is opened only with ``download=True`` and only if no copy is found. A path is an ``.npz``, ``.csv`` or
    ``.parquet`` file, or a folder of pictures or Parquet files; ``label_column`` and ``client_column`` name columns of
    tables; in a folder of pictures, ``"outer"`` for one of them says what the outer of folders in folders are.
    ``resize`` brings the pictures of a folder or a Parquet file to one height and width, as ``"32x48"`` or 32.
    ``progress(what, done, total)`` is called while pictures are decoded. A folder that is called like a data
    set is given as ``./mnist``.

    >>> dataset = load_dataset("digits")
    >>> dataset.train_inputs.shape, dataset.num_classes
    ((1438, 1, 8, 8), 10)
    """
    name = os.fspath(name_or_path)
    size = "" if resize is None else PictureSize().check("--resize", resize)
    options = tables.TableOptions(label_column, client_column, progress=progress, of_one_size=_OF_ONE_SIZE)
    if size:
        height, width = map(int, size.split("x"))
        options = replace(options, resize=(height, width))
    source = find_source(name)
    mine = own_datasets(installed=source is None)
    if size and (source is not None or plain(name) in mine):
        raise _no_resize(name)
    if source is not None:
        if source.name != "digits":
            return _load_named(source, _folders(data_dir), options, download)
        _refuse_columns(options, "digits")
        return _digits(source)
    if part := mine.get(plain(name)):
        _refuse_columns(options, part.name)
        return _load_own(part, data_dir)
    path = Path(name).expanduser()
    if path.exists():
        name, found = find_path(path, options)
        key = ("path", options.label_column, options.client_column, *filter(None, [size]))
        return cache.remember(name, found.files, key, lambda: assemble(name, found.read()))
    if path.suffix.lower() in (".csv", ".parquet", ".npz") or {os.sep, "/"} & set(name):
        raise FedGAError(f"{name} does not exist: check the path, or name one of {', '.join(sorted(SOURCES))}")
    raise plugins.unknown("datasets", name, [*SOURCES, *(part.name for part in mine.values())])


def is_here(name: str, data_dir: Path | str | None = None) -> bool:
    """Whether a named data set can be loaded without a download; reads file names only."""
    source = find_source(name)
    if source is None:
        raise unknown_name("data set", name, SOURCES)
    if source.name == "digits":
        return find_spec("sklearn") is not None
    return local.find(source, _folders(data_dir), tables.TableOptions(), incomplete_is_error=False) is not None


def _data_dir(given: Path | str | None) -> Path | None:
    chosen = given if given is not None else os.environ.get("FEDGA_DATA") or None
    return None if chosen is None else Path(chosen).expanduser()


def _folders(data_dir: Path | str | None) -> tuple[Path, ...]:
    return tuple(folder for folder in (_data_dir(data_dir), cache.cache_dir() / "data") if folder is not None)


def _load_named(source: Source, folders: tuple[Path, ...], options: tables.TableOptions, download: bool) -> Dataset:
    options = replace(options, channels=source.shape[0])
    found = local.find(source, folders, options, incomplete_is_error=not download)
    if found is None and download:
        download_source(source, _first_writable(folders))
        found = local.find(source, folders, options)
    if found is None:
        there = (f"{folder}{'' if folder.is_dir() else ' (which does not exist)'}" for folder in folders)
        looked = f"looked for {', '.join(source.files)} in {' and '.join(there)}"
        cure = f"get it with 'fedga data get {source.name}', or set FEDGA_DATA to the folder that has it"
        raise FedGAError(f"no local copy of {source.name}: {looked}; {cure}")
    if found.files[0].suffix != ".parquet":
        _refuse_columns(options, f"the copy of {source.name} at {found.files[0]}")
    key = ("named", options.label_column, options.client_column)
    return cache.remember(source.name, found.files, key, partial(_build_named, source, found, options))


def _build_named(source: Source, found: local.LocalCopy, options: tables.TableOptions) -> Dataset:
    parts = found.read()
    shape = parts.train.inputs.shape[1:]
    if shape != source.shape:
        cure = "use the original pictures, or give the file by its path as a data set of your own"
        shapes = f"of shape {shape} where {source.name} has {source.shape}"
        raise FedGAError(f"{parts.train.where} has pictures {shapes}: {cure}")
    if source.class_names and options.label_column is None:
        parts = replace(parts, class_names=source.class_names)
    return assemble(source.name, parts)


def _first_writable(folders: tuple[Path, ...]) -> Path:
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    raise FedGAError(f"none of {', '.join(map(str, folders))} can be written to: give a data_dir that can")


def find_path(path: Path, options: tables.TableOptions) -> tuple[str, local.LocalCopy]:
    """What a data set of one's own is called, and its files with the way to read them."""
    if path.is_dir():
        train, test = local.parquet_splits(path, ("",), ("test", "valid", "validation", "val"))
        if train:
            read = partial(tables.read_parquet, train, test or None, options)
            return path.resolve().name, local.LocalCopy((*train, *test), read)
        if (idx := local.idx_copy(path)) is not None:
            _refuse_columns(options, f"the folder of IDX files {path}")
            if options.resize is not None:
                raise _no_resize(str(path))
            return path.resolve().name, idx
        pictures = image_folder(path, _outer_folders(path, options))
        return path.resolve().name, local.LocalCopy(
            pictures.files, partial(pictures.read, options.progress, **options.sizes)
        )
    readers = {
        ".npz": partial(read_npz, path, options.client_column),
        ".csv": partial(tables.read_csv, path, options),
        ".parquet": partial(tables.read_parquet, [path], None, options),
    }
    if (suffix := path.suffix.lower()) not in readers:
        raise FedGAError(f"{path} is not a data set: give an .npz, .csv or .parquet file, or a folder of pictures")
    if options.resize is not None and suffix != ".parquet":
        raise _no_resize(str(path))
    if suffix == ".npz":
        _refuse_columns(replace(options, client_column=None), f"the .npz file {path}")
    return path.stem, local.LocalCopy((path,), readers[suffix])


def can_resize(name: str) -> bool:
    """Whether the pictures at a path may have any size: those of a folder, or of a Parquet file."""
    path = Path(name).expanduser()
    return find_source(name) is None and (path.is_dir() or path.suffix.lower() == ".parquet")


def _no_resize(name: str) -> FedGAError:
    return FedGAError(f"{name} is neither a folder nor a Parquet file of your pictures: leave out --resize")


def _outer_folders(path: Path, options: tables.TableOptions) -> str | None:
    """What the user says the outer ones of folders in folders are."""
    flags = {CLIENTS: "--client-column", CLASSES: "--label-column"}
    said = {CLIENTS: options.client_column, CLASSES: options.label_column}
    asked = [kind for kind, column in said.items() if column is not None]
    if any(said[kind] != OUTER for kind in asked) or len(asked) > 1:
        given = " and ".join(flags[kind] for kind in asked)
        cure = f"or give one as {OUTER!r} to say what the outer of folders in folders are"
        raise FedGAError(f"the picture folder {path} has no columns: leave out {given}, {cure}")
    return asked[0] if asked else None


def names_clients(name: str) -> bool:
    """Whether the files at a path say whose sample each one is; reads what stands before the samples."""
    path = Path(name).expanduser()
    if find_source(name) is not None or not path.exists():
        return False
    with suppress(FedGAError, OSError):  # whoever loads the data says what is wrong with them
        train = local.parquet_splits(path, ("",), ())[0] if path.is_dir() else []
        if path.is_dir() and not train:
            return local.idx_copy(path) is None and bool(image_folder(path).train.clients)
        if path.suffix.lower() == ".npz":
            return names_clients_npz(path)
        if train or path.suffix.lower() == ".parquet":
            names = ParquetFiles([*train, path][:1]).schema.names
        else:
            names = csv_start(path).names if path.suffix.lower() == ".csv" else []
        return bool({each.strip().lower() for each in names} & set(tables.CLIENT_COLUMNS))
    return False


def _refuse_columns(options: tables.TableOptions, what: str) -> None:
    columns = {"--label-column": options.label_column, "--client-column": options.client_column}
    if given := " and ".join(flag for flag, column in columns.items() if column is not None):
        raise FedGAError(f"{what} has no columns: leave out {given}, which only tables have")


def _digits(source: Source) -> Dataset:
    """The data set inside scikit-learn: 8x8 pictures of 17 grey levels, every fifth one for testing."""
    bunch = optional("sklearn.datasets", "scikit-learn", "the digits data set").load_digits()
    test = np.arange(len(bunch.target)) % TEST_EVERY == TEST_EVERY - 1
    whole = Samples(bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64), "digits")
    return assemble(source.name, Parts(whole.take(~test), whole.take(test), source.class_names), input_scale=16.0)


def own_datasets(*, installed: bool = True) -> dict[str, plugins.Plugin]:
    """The user's own sources by their plain name, of her project file and of installed packages."""
    found = plugins.parts("datasets", installed=installed).values()
    for part in found:
        if part.folder and (source := find_source(part.name)):
            raise plugins.shadows(part, source.name)
    return {plain(part.name): part for part in found}


def _load_own(part: plugins.Plugin, data_dir: Path | str | None) -> Dataset:
    """A source of the user's own: a callable that takes ``data_dir`` (a path or None) and returns a ``Dataset``."""
    load = part.load()
    if not callable(load):
        raise FedGAError(f"{part} is {a_or_an(load)}: name a function that returns a fedga.data.Dataset")
    dataset = part.call(load, _data_dir(data_dir))
    if not isinstance(dataset, Dataset):
        raise FedGAError(f"{part} returned {type(dataset).__name__}: its function must return a fedga.data.Dataset")
    for split in ("train", "test"):
        arrays = getattr(dataset, f"{split}_inputs"), getattr(dataset, f"{split}_targets")
        if problem := _problem(*arrays, dataset.num_classes):
            raise FedGAError(f"the {split} split of {part} has {problem}")
    return dataset if dataset.fingerprint else replace(dataset, fingerprint=fingerprint(dataset))


def _problem(inputs: np.ndarray, targets: np.ndarray, classes: int) -> str:
    """What is wrong with a split that was put together by hand, and what to do; `assemble` sees to it for others."""
    if inputs.dtype not in (np.uint8, np.float32) or targets.dtype != np.int64:
        cure = "use uint8 for pictures, float32 for tables and int64 for labels, or make it with fedga.data.assemble"
        return f"samples of type {inputs.dtype} and labels of type {targets.dtype}: {cure}"
    if len(inputs) != len(targets) or not len(inputs):
        return f"{len(inputs)} samples and {len(targets)} labels: give each sample one label"
    if targets.min() < 0 or targets.max() >= classes:
        return f"labels outside 0 to {classes - 1}, its classes: number them from 0"
    if inputs.ndim == 4 and inputs.shape[3] in CHANNELS and inputs.shape[1] not in CHANNELS:
        return f"pictures of shape {inputs.shape[1:]}, channels last: use pictures.transpose(0, 3, 1, 2)"
    return "" if np.isfinite(inputs).all() else "samples that are not finite numbers: leave them out, or fill them in"
