"""The samples that one party of a real federation holds: a site, or the server.

The classes are agreed by the whole federation beforehand, and a party may hold samples of only some of them. Whatever
file it brings, its labels become places in that agreed list, so that class 3 is the same class everywhere. A label that
cannot be placed for certain is refused: a class taken for another would spoil the model of everybody, unseen.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedga.common.files import require_regular
from fedga.data import cache
from fedga.data.assemble import Parts, Samples, check_lengths, held_out, index_of_names, join, listed, whole_numbers
from fedga.data.federation import Dataset
from fedga.data.formats.csv_files import csv_start
from fedga.data.formats.files import Progress, optional, reading
from fedga.data.formats.tables import CLIENT_COLUMNS, LABEL_COLUMNS, SPLIT_COLUMN, TableOptions, find_column
from fedga.data.sources import find_path
from fedga.errors import FedGAError

_Splits = Callable[[Parts], tuple[Samples, Samples]]  # what trains, and what tests
_TRUTHS = (("false", "true"), ("no", "yes"))  # what a class may be called that a truth value means for certain
_NAMED_CLASSES = 20  # an error lists this many of the agreed classes


def load_site(
    path: str | Path, class_names: Sequence[str], *, label_column: str | None = None, progress: Progress | None = None
) -> Dataset:
    """What a site trains on, and what it holds out to see how its classes fare.

    ``path`` is anything that :func:`fedga.data.load_dataset` takes as a path. A text label, or the name of a folder of
    pictures, is the name of an agreed class. A whole number is what the file's own list of classes calls it, where it
    has one; else the class of that name, where agreed names are numbers; else the class in that place, from 0. Such
    places are refused in a file without any 0, since they may count from 1.

    The file's own test split is held out, else every fifth sample of each class; it may be empty. A client column is
    ignored, since all rows here belong to one site. Columns of features are taken in the order of the file, so all
    sites have to write them in the same one.
    """

    def splits(parts: Parts) -> tuple[Samples, Samples]:
        train, test = parts.train, parts.test
        if test is None:
            mask = held_out(train.labels)
            train, test = train.take(~mask), train.take(mask)
        if not len(train.inputs):
            raise FedGAError(f"{train.where} has no samples to train on: add some, or move some from its test split")
        return train, test if len(test.inputs) else train.take(np.arange(0))

    return _load("site", path, class_names, TableOptions(label_column, progress=progress), splits)


def load_central(path: str | Path, class_names: Sequence[str]) -> Dataset:
    """What the server holds: test samples to evaluate on, training samples for algorithms that need some there.

    Files and labels are read as by :func:`load_site`. Without a split in the file, or with nothing in its training
    split, the same samples serve for both.
    """

    def splits(parts: Parts) -> tuple[Samples, Samples]:
        test = parts.train if parts.test is None else parts.test
        if not len(test.inputs):
            raise FedGAError(f"{test.where} has no samples to evaluate on: add some, or move some from its train split")
        return parts.train if len(parts.train.inputs) else test, test

    return _load("central", path, class_names, TableOptions(), splits)


def _load(kind: str, path: str | Path, class_names: Sequence[str], options: TableOptions, splits: _Splits) -> Dataset:
    if isinstance(class_names, str) or not class_names or not all(isinstance(name, str) for name in class_names):
        raise FedGAError(f"the agreed classes are {class_names!r}: give a list of names")
    for place, name in enumerate(class_names):
        if not name.strip():
            raise FedGAError("one of the agreed classes has an empty name: name it")
        if name in class_names[:place]:
            raise FedGAError(f"the agreed classes name {name!r} twice: leave one out")
    agreed = tuple(class_names)
    path = Path(path).expanduser()
    with reading(path, "a data set"):
        path.stat()
        name, found = find_path(path, options)

    def build() -> Dataset:
        return join(name, *splits(_encoded(found.read(), agreed)), agreed)

    return cache.remember(name, found.files, (kind, options.label_column, *agreed), build)


def _encoded(parts: Parts, agreed: tuple[str, ...]) -> Parts:
    _check_places(parts, agreed)
    advice = f"which is not among the agreed ones ({listed(agreed, _NAMED_CLASSES)}): "
    advice += "correct the label, or have the federation agree on that class"

    def encode(samples: Samples) -> np.ndarray:
        if samples.labels.dtype.kind not in "US":
            samples = replace(samples, labels=_called(samples, parts.class_names, agreed))
        return index_of_names(samples, agreed, advice)

    parts = replace(parts, train=replace(parts.train, clients=None))
    for samples in parts.splits:
        check_lengths(samples)
    return parts.with_labels(list(map(encode, parts.splits)), agreed)


def _check_places(parts: Parts, agreed: tuple[str, ...]) -> None:
    """Where no 0 occurs, places may count from 1, or the first class has no sample here: nobody can tell."""
    if parts.class_names or any(_number(name) is not None for name in agreed):
        return
    numbered = [samples for samples in parts.splits if samples.labels.dtype.kind not in "USb"]
    met = {number for samples in numbered for number in np.unique(whole_numbers(samples)).tolist()}
    if met and min(met) >= 1 and max(met) <= len(agreed):
        doubt = f"they may count from 1, or class {agreed[0]} has no sample here"
        cure = f"write the names of the classes ({listed(agreed, _NAMED_CLASSES)}) instead of numbers"
        raise FedGAError(f"{parts.train.where} has labels that are numbers, and no 0 among them: {doubt}, so {cure}")


def _called(samples: Samples, own: tuple[str, ...], agreed: tuple[str, ...]) -> np.ndarray:
    """Labels that are numbers as the names that they stand for, or as their own digits where they stand for none."""
    numbers, inverse = np.unique(whole_numbers(samples), return_inverse=True)
    meant = _meanings(own, agreed, truth=samples.labels.dtype.kind == "b")
    return np.array([meant.get(number, str(number)) for number in numbers.tolist()], dtype=str)[inverse.reshape(-1)]


def _meanings(own: tuple[str, ...], agreed: tuple[str, ...], *, truth: bool) -> Mapping[int, str]:
    """The name that each number stands for, by value: a column of ``01`` or ``1.0`` is read as numbers."""
    if own and own != tuple(map(str, range(len(own)))):
        return dict(enumerate(own))
    words = {name.lower(): name for name in agreed}
    for no, yes in _TRUTHS if truth else ():
        if {no, yes} <= set(words):
            return {0: words[no], 1: words[yes]}
    numbered = {number: name for name in agreed if (number := _number(name)) is not None}
    if truth and not numbered:
        doubt = f"which of the agreed classes ({listed(agreed, _NAMED_CLASSES)}) they mean"
        raise FedGAError(f"labels that are true or false do not say {doubt}: write the names of the classes instead")
    return numbered or dict(enumerate(agreed))


def _number(name: str) -> int | None:
    """
    >>> _number("07"), _number("7.0"), _number("7b"), _number("inf")
    (7, 7, None, None)
    """
    try:
        value = float(name)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None


def columns_digest(path: str | Path, label_column: str | None = None) -> str:
    """Of the names of a table's features, in their order: equal tables have equal ones; empty for all but tables."""
    path = Path(path).expanduser()
    if path.suffix.lower() == ".csv":
        with reading(path, "a CSV table"):
            names = csv_start(path).names
    elif path.suffix.lower() == ".parquet":
        parquet = optional("pyarrow.parquet", "pyarrow", "reading tables")
        with reading(path, "a Parquet file"):
            require_regular(path)
            names = parquet.read_schema(path).names
    else:
        return ""
    names = [name.strip() for name in names]
    label = label_column.strip() if label_column else find_column("label", names, None, LABEL_COLUMNS)
    apart = {*CLIENT_COLUMNS, SPLIT_COLUMN}
    features = [name for name in names if name != label and name.lower() not in apart]
    return hashlib.blake2b("\n".join(features).encode(), digest_size=8).hexdigest()
