"""Finding the local copy of a named data set: which files, and how they are read."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedga.data.assemble import Parts
from fedga.data.formats import folders, originals, tables
from fedga.data.formats.parquet import in_order
from fedga.errors import FedGAError
from fedga.spec.catalog import SOURCES, Source, plain

_SHARDED = r"(-\d{5}-of-\d{5}(-[0-9a-f]+)?)?\.parquet"
_IDX_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_IDX_NAMES = [
    (*both, *(f"{name}.gz" for name in both))
    for part in _IDX_PARTS
    for both in [(f"{part}-ubyte", f"{part.replace('-idx', '.idx')}-ubyte")]
]
_FIRST_LABELS = 10
_BEGINS = {  # the training labels
    "mnist": bytes([5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
    "fashion-mnist": bytes([9, 0, 0, 3, 0, 2, 7, 2, 5, 5]),
}
_CIFAR10 = [f"data_batch_{number}" for number in range(1, 6)]
_CIFAR = {  # folder, archive, training batches, test batch, key of the labels
    "cifar10": ("cifar-10-batches-py", "cifar-10-python.tar.gz", _CIFAR10, "test_batch", b"labels"),
    "cifar100": ("cifar-100-python", "cifar-100-python.tar.gz", ["train"], "test", b"fine_labels"),
}


@dataclass(frozen=True)
class LocalCopy:
    """The files of a data set and the way to read them, nothing read yet."""

    files: tuple[Path, ...]
    read: Callable[[], Parts]


class IncompleteCopyError(FedGAError):
    """Some files of a data set are there and others are not."""


def find(
    source: Source, roots: Iterable[Path], options: tables.TableOptions, *, incomplete_is_error: bool = True
) -> LocalCopy | None:
    """The first whole local copy of ``source`` under ``roots``: Parquet, or the files of its authors."""
    incomplete: IncompleteCopyError | None = None
    for root in filter(Path.is_dir, roots):
        for finder in (_find_parquet, _find_originals):
            try:
                if (found := finder(source, root, options)) is not None:
                    return found
            except IncompleteCopyError as error:
                incomplete = incomplete or error
            except PermissionError as error:
                raise FedGAError(f"{error.filename} may not be read: check its permissions") from error
    if incomplete is not None and incomplete_is_error:
        raise incomplete
    return None


def parquet_splits(folder: Path, prefixes: Sequence[str], test_splits: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Training and test shards in ``folder``, named ``PREFIX-train…`` or, with the prefix "", ``train…``."""
    names = [path for path in folder.iterdir() if path.suffix == ".parquet"] if folder.is_dir() else []
    for prefix in prefixes:
        train = _split_files(folder, names, prefix, "train")
        tests = (_split_files(folder, names, prefix, split) for split in test_splits)
        test = next(filter(None, tests), [])
        if train or test:
            return train, test
    return [], []


def _split_files(folder: Path, names: Sequence[Path], prefix: str, split: str) -> list[Path]:
    stem = f"{prefix}-{split}" if prefix else split
    if (whole := folder / f"{stem}.parquet") in names:
        return [whole]
    shards = [path for path in names if re.fullmatch(re.escape(stem) + _SHARDED, path.name)]
    converted = sorted((folder / split).glob("*.parquet")) if not prefix and not shards else []  # refs/convert/parquet
    return list(in_order(shards)) if shards else converted


def _own_folders(source: Source, root: Path) -> list[Path]:
    """Folders under ``root`` that belong to this data set alone."""
    own = {plain(name) for name in (source.name, *source.aliases, *source.stems)}
    found = [path for path in (*sorted(root.iterdir()), root) if plain(path.name) in own]
    if source.hub is not None:
        found.append(root / source.hub.repository)
        cached = f"datasets--{source.hub.repository.replace('/', '--')}"
        found.append(root / cached / "snapshots" / source.hub.revision)
    return list(filter(Path.is_dir, found))


def _find_parquet(source: Source, root: Path, options: tables.TableOptions) -> LocalCopy | None:
    inside = ("", "data", source.hub.config if source.hub is not None else "")
    places = [(folder / name, (*source.stems, "")) for folder in _own_folders(source, root) for name in inside]
    incomplete: IncompleteCopyError | None = None
    for folder, prefixes in [(root, source.stems), *places]:
        train, test = parquet_splits(folder, prefixes, source.test_splits)
        if train and test:
            return LocalCopy((*train, *test), partial(tables.read_parquet, train, test, options))
        if train or test:
            there, missing = (train, source.test_splits[0]) if train else (test, "train")
            cure = f"put its Parquet file into {folder}, or get both with 'fedga data get {source.name}'"
            absent = f"{there[0]} is there but the {missing} split of {source.name} is not"
            incomplete = incomplete or IncompleteCopyError(f"{absent}: {cure}")
    if incomplete is not None:
        raise incomplete
    return None


def _find_originals(source: Source, root: Path, options: tables.TableOptions) -> LocalCopy | None:
    finders = {
        "mnist": _find_idx,
        "fashion-mnist": _find_idx,
        "cifar10": _find_cifar,
        "cifar100": _find_cifar,
        "svhn": _find_svhn,
        "tiny-imagenet": _find_tiny_imagenet,
    }
    found = (finders[source.name](source, folder, options) for folder in (root, *_own_folders(source, root)))
    return next(filter(None, found), None)


def _find_tiny_imagenet(source: Source, folder: Path, options: tables.TableOptions) -> LocalCopy | None:
    own = folder if (folder / "wnids.txt").is_file() else folder / "tiny-imagenet-200"
    if not (own / "wnids.txt").is_file():
        return None
    pictures = folders.tiny_imagenet(own)
    return LocalCopy(pictures.files, partial(pictures.read, options.progress))


def _find_svhn(source: Source, folder: Path, options: tables.TableOptions) -> LocalCopy | None:
    files = _all_or_none(folder, [["train_32x32.mat"], ["test_32x32.mat"]])
    return LocalCopy(files, partial(originals.read_svhn, *files)) if files else None


def idx_copy(folder: Path) -> LocalCopy | None:
    """Four IDX files in a folder that is given by its path: MNIST, Fashion-MNIST, or others of that form."""
    files = _idx_files(folder)
    if files is None:
        return None
    source = SOURCES.get(_idx_name(files[1]) or "")
    return LocalCopy(
        files, lambda: replace(originals.read_idx(files), class_names=source.class_names if source else ())
    )


def _find_idx(source: Source, root: Path, options: tables.TableOptions) -> LocalCopy | None:
    """Both data sets use the same file names: the first labels tell them apart, else whether the path says fashion."""
    for own in (root, root / "raw"):
        if files := _all_or_none(own, _IDX_NAMES):
            says = "fashion-mnist" if "fashion" in "/".join(own.parts[-2:]).lower() else "mnist"
            if (_idx_name(files[1]) or says) == source.name:
                return LocalCopy(files, partial(originals.read_idx, files))
    return None


def _idx_files(folder: Path) -> tuple[Path, ...] | None:
    found = (_all_or_none(own, _IDX_NAMES) for own in (folder, folder / "raw"))
    return next(filter(None, found), None)


def _idx_name(labels: Path) -> str | None:
    """The data set whose training labels these are, by the first of them; None for any other."""
    begins = originals.idx_begins(labels, _FIRST_LABELS)
    return next((name for name, first in _BEGINS.items() if begins == first), None)


def _all_or_none(folder: Path, names: Iterable[Sequence[str]]) -> tuple[Path, ...]:
    """A file for each list of names that it may have, or none; some of them alone are an incomplete copy."""
    files = {each[0]: next((folder / name for name in each if (folder / name).is_file()), None) for each in names}
    there = tuple(path for path in files.values() if path is not None)
    if there and len(there) < len(files):
        missing = next(name for name, path in files.items() if path is None)
        raise IncompleteCopyError(f"{there[0]} is there but {missing} is not: put it into the same folder")
    return there


def _find_cifar(source: Source, folder: Path, options: tables.TableOptions) -> LocalCopy | None:
    folder_name, archive_name, train, test, key = _CIFAR[source.name]
    batches = folder if folder.name == folder_name else folder / folder_name
    where, files = folder / archive_name, [folder / archive_name]
    if batches.is_dir():
        where, files = batches, [batches / name for name in (*train, test)]
        if missing := next((path.name for path in files if not path.is_file()), None):
            raise IncompleteCopyError(f"{batches} has no file {missing}: unpack {archive_name} again")
    read = partial(originals.read_cifar, where, train, test, key)
    return LocalCopy(tuple(files), read) if files[0].is_file() else None
