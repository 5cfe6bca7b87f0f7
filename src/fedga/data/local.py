"""Finding the local copy of a named data set: which files, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedga.data.assemble import Parts
from fedga.data.formats import folders, originals, tables
from fedga.data.formats.parquet import in_order
from fedga.errors import FedGAError
from fedga.spec.catalog import Source, plain

_SHARDED = r"(-\d{5}-of-\d{5}(-[0-9a-f]+)?)?\.parquet"
_CIFAR = {
    "cifar10": (
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
    ),
    "cifar100": ("cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test"),
}
_CIFAR_LABELS = {"cifar10": b"labels", "cifar100": b"fine_labels"}
_IDX_PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


@dataclass(frozen=True)
class Found:
    """The files of a data set and the way to read them, nothing read yet."""

    files: tuple[Path, ...]
    read: Callable[[], Parts]


class IncompleteCopyError(FedGAError):
    """Some files of a data set are there and others are not."""


def find(
    source: Source, roots: Iterable[Path], options: tables.TableOptions, *, incomplete_is_error: bool = True
) -> Found | None:
    """The first whole local copy of ``source`` under ``roots``: Parquet, or the files of its authors."""
    incomplete: IncompleteCopyError | None = None
    for root in roots:
        if not root.is_dir():
            continue
        for finder in (_find_parquet, _find_originals):
            try:
                found = finder(source, root, options)
            except IncompleteCopyError as error:
                incomplete = incomplete or error
            except PermissionError as error:
                raise FedGAError(f"{error.filename} may not be read: check its permissions") from error
            else:
                if found is not None:
                    return found
    if incomplete is not None and incomplete_is_error:
        raise incomplete
    return None


def parquet_splits(folder: Path, prefixes: Sequence[str], test_splits: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Training and test shards in ``folder``, named ``PREFIX-train…`` or, with the prefix "", ``train…``."""
    names = [path for path in folder.iterdir() if path.suffix == ".parquet"] if folder.is_dir() else []
    for prefix in prefixes:
        train = _split_files(folder, names, prefix, "train")
        test: list[Path] = next(
            (files for split in test_splits if (files := _split_files(folder, names, prefix, split))), []
        )
        if train or test:
            return train, test
    return [], []


def _split_files(folder: Path, names: Sequence[Path], prefix: str, split: str) -> list[Path]:
    stem = f"{prefix}-{split}" if prefix else split
    whole = folder / f"{stem}.parquet"
    if whole in names:
        return [whole]
    pattern = re.compile(re.escape(stem) + _SHARDED)
    shards = [path for path in names if pattern.fullmatch(path.name)]
    converted = sorted((folder / split).glob("*.parquet")) if not prefix and not shards else []  # refs/convert/parquet
    return list(in_order(shards)) if shards else converted


def _own_folders(source: Source, root: Path) -> list[Path]:
    """Folders under ``root`` that belong to this data set alone."""
    own = {plain(name) for name in (source.name, *source.aliases, *source.stems)}
    children = sorted(path for path in root.iterdir() if path.is_dir())
    found = [path for path in children if plain(path.name) in own]
    if plain(root.name) in own:
        found.append(root)
    if source.hub is not None:
        found.append(root / source.hub.repository)
        cached = f"datasets--{source.hub.repository.replace('/', '--')}"
        found.append(root / cached / "snapshots" / source.hub.revision)
    return [path for path in found if path.is_dir()]


def _find_parquet(source: Source, root: Path, options: tables.TableOptions) -> Found | None:
    places: list[tuple[Path, tuple[str, ...]]] = [(root, source.stems)]
    for folder in _own_folders(source, root):
        inside = [folder, folder / "data"] + ([folder / source.hub.config] if source.hub is not None else [])
        places += [(place, (*source.stems, "")) for place in inside]
    incomplete: IncompleteCopyError | None = None
    for folder, prefixes in places:
        train, test = parquet_splits(folder, prefixes, source.test_splits)
        if train and test:
            return Found((*train, *test), partial(tables.read_parquet, train, test, options))
        if train or test:
            there, missing = (train, source.test_splits[0]) if train else (test, "train")
            incomplete = incomplete or IncompleteCopyError(
                f"{there[0]} is there but the {missing} split of {source.name} is not: put its Parquet file into "
                f"{folder}, or get both with 'fedga data get {source.name}'"
            )
    if incomplete is not None:
        raise incomplete
    return None


def _find_originals(source: Source, root: Path, options: tables.TableOptions) -> Found | None:
    if source.name in ("mnist", "fashion-mnist"):
        return _find_idx(source, root)
    if source.name in _CIFAR:
        return _find_cifar(source, root)
    if source.name == "svhn":
        return _find_svhn(source, root)
    if source.name == "tiny-imagenet":
        for folder in (
            root,
            *_own_folders(source, root),
            *(own / "tiny-imagenet-200" for own in _own_folders(source, root)),
        ):
            if (folder / "wnids.txt").is_file():
                pictures = folders.tiny_imagenet(folder)
                return Found(pictures.files, partial(pictures.read, options.progress))
    return None


def _find_idx(source: Source, root: Path) -> Found | None:
    """Both data sets use the same file names, so a folder counts for Fashion-MNIST only if its path says fashion."""
    fashion = source.name == "fashion-mnist"
    for folder in (
        root,
        root / "raw",
        *_own_folders(source, root),
        *(own / "raw" for own in _own_folders(source, root)),
    ):
        if not folder.is_dir() or ("fashion" in "/".join(folder.parts[-2:]).lower()) != fashion:
            continue
        files = [_first_file(folder, _idx_names(part)) for part in _IDX_PARTS]
        present = tuple(path for path in files if path is not None)
        if len(present) == len(files):
            return Found(present, partial(originals.read_idx, source, present))
        if present:
            part = _IDX_PARTS[files.index(None)]
            raise IncompleteCopyError(
                f"{present[0]} is there but {_idx_names(part)[0]}[.gz] is not: put it into the same folder"
            )
    return None


def _idx_names(part: str) -> list[str]:
    dimensions = 3 if part.endswith("images") else 1
    plain_names = [f"{part}-idx{dimensions}-ubyte", f"{part}.idx{dimensions}-ubyte"]
    return [*plain_names, *(f"{name}.gz" for name in plain_names)]


def _first_file(folder: Path, names: Iterable[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _find_cifar(source: Source, root: Path) -> Found | None:
    folder_name, archive_name, train, test = _CIFAR[source.name]
    key = _CIFAR_LABELS[source.name]
    for folder in (root, *_own_folders(source, root)):
        batches = folder if folder.name == folder_name else folder / folder_name
        if batches.is_dir():
            missing = [name for name in (*train, test) if not (batches / name).is_file()]
            if missing:
                raise IncompleteCopyError(f"{batches} has no file {missing[0]}: unpack {archive_name} again")
            files = tuple(batches / name for name in (*train, test))
            return Found(files, partial(originals.read_cifar, source, batches, train, test, key))
        archive = folder / archive_name
        if archive.is_file():
            return Found((archive,), partial(originals.read_cifar, source, archive, train, test, key))
    return None


def _find_svhn(source: Source, root: Path) -> Found | None:
    for folder in (root, *_own_folders(source, root)):
        train, test = folder / "train_32x32.mat", folder / "test_32x32.mat"
        if train.is_file() and test.is_file():
            return Found((train, test), partial(originals.read_svhn, source, train, test))
        if train.is_file() or test.is_file():
            there, missing = (train, test) if train.is_file() else (test, train)
            raise IncompleteCopyError(f"{there} is there but {missing.name} is not: put it into the same folder")
    return None
