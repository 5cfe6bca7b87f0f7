"""The arrays of an ``.npz`` file, each refused by what its header promises before anything of it is unpacked."""

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from fedga.common.files import open_regular
from fedga.common.memory import require_memory
from fedga.data.assemble import Parts, Samples, listed
from fedga.data.formats.files import FEWER_SAMPLES, reading
from fedga.errors import FedGAError, quoted, unknown_name

_WHAT = "an .npz file"
_SUFFIX = ".npy"
_BYTES_PER_NAME = 100  # of a text in Python's memory, and its place in a list


@dataclass(frozen=True)
class ArrayHeader:
    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class NpzFile:
    """An open ``.npz`` file; ``names`` are those of its arrays."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        self.names = [name.removesuffix(_SUFFIX) for name in archive.namelist()]

    @contextmanager
    def stream(self, name: str) -> Iterator[tuple[ArrayHeader, IO[bytes]]]:
        """An array's header, and its values as a stream of bytes."""
        with reading(self.path, _WHAT):
            member = self._archive.getinfo(name + _SUFFIX)
            file = self._archive.open(member)
        with file:
            with reading(self.path, _WHAT):
                old = npy.read_magic(file) == (1, 0)
                header = ArrayHeader(*(npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(file))
                if any(length < 0 for length in header.shape):
                    raise ValueError(f"an array of shape {header.shape}")
            where, promised = f"array {quoted(name)} of {self.path}", file.tell() + header.bytes
            if header.dtype.hasobject:
                danger = "holds pickled Python objects, which are not read since they may run code"
                raise FedGAError(f"{where} {danger}: store numbers or text, such as labels.astype(str)")
            if promised != member.file_size:
                damage = f"promises {promised:,} bytes where {member.file_size:,} are, so it is damaged"
                raise FedGAError(f"{where} {damage}: replace it by an intact copy")
            yield header, file

    def load(self, name: str) -> np.ndarray:
        with self.stream(name) as (header, _):
            require_memory(header.bytes, f"array {quoted(name)} of {self.path}", FEWER_SAMPLES)
        with reading(self.path, _WHAT), self._archive.open(name + _SUFFIX) as file:
            return npy.read_array(file, allow_pickle=False)

    def class_names(self, name: str) -> list[Any]:
        """The values of an array of names, each a value of Python's own."""
        with self.stream(name) as (header, _):
            needed = math.prod(header.shape) * _BYTES_PER_NAME
            require_memory(needed, f"array {quoted(name)} of {self.path}", "name every class once in it")
        return list(self.load(name).reshape(-1).tolist())


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open a file of arrays; nothing is read but the list of them."""
    with reading(path, _WHAT):
        file = open_regular(path)
    with file:
        with reading(path, _WHAT):
            archive = zipfile.ZipFile(file)
        with archive:
            yield NpzFile(path, archive)


def unpack_npz(packed: bytes) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file in memory, which may be anybody's; what is wrong with it raises anything."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        file = NpzFile(Path("the packed arrays"), archive)
        return {name: file.load(name) for name in file.names}


_INPUTS = ("x", "images", "image", "inputs", "data", "features")
_LABELS = ("y", "labels", "label", "targets", "target")
_CLIENTS = ("clients", "client", "client_ids", "client_id")
_CLASS_NAMES = ("class_names", "classes", "label_names")
CHANNELS = (1, 3)  # of a picture: grey, or colours
_NAMED_ARRAYS = 20  # an error lists this many


def read_npz(path: Path, client_column: str | None = None) -> Parts:
    """The data set in a user's own ``.npz`` file; pictures are uint8, channels first or last, features are a matrix.

    Arrays are recognised by the names in use, whatever their case. With a test split, inputs and labels carry ``train``
    or ``test`` before or behind their name (``x_train``, ``train_images``). Others are left alone.
    """
    with open_npz(path) as file:
        places = {name.lower(): name for name in file.names}
        inputs, labels = _named(places, _INPUTS, "train"), _named(places, _LABELS, "train")
        test_inputs, test_labels = _named(places, _INPUTS, "test"), _named(places, _LABELS, "test")
        if inputs is None and labels is None and test_inputs is None:
            inputs, labels = _named(places, _INPUTS), _named(places, _LABELS)
        if inputs is None or labels is None or (test_inputs is None) != (test_labels is None):
            there = listed(sorted(places), _NAMED_ARRAYS) or "(none)"
            cure = "call them x and y, or x_train, y_train, x_test and y_test"
            raise FedGAError(f"{path} holds the arrays {there}: {cure}")
        if client_column is not None and client_column.lower() not in places:
            raise unknown_name(f"client array of {path}", client_column, list(places)[:_NAMED_ARRAYS])
        clients = _named(places, _CLIENTS, "train") or _named(places, _CLIENTS)
        clients = clients if client_column is None else places[client_column.lower()]
        of_clients = None if clients is None else _flat(file.load(clients))
        train = Samples(_inputs(path, file.load(inputs)), _flat(file.load(labels)), str(path), of_clients)
        test = None
        if test_inputs is not None and test_labels is not None:
            test = Samples(_inputs(path, file.load(test_inputs)), _flat(file.load(test_labels)), str(path))
        names = next((places[name] for name in _CLASS_NAMES if name in places), None)
        return Parts(train, test, () if names is None else tuple(map(str, file.class_names(names))))


def names_clients(path: Path) -> bool:
    """Whether one of the file's arrays says whose sample each one is."""
    with open_npz(path) as file:
        places = {name.lower(): name for name in file.names}
    return (_named(places, _CLIENTS, "train") or _named(places, _CLIENTS)) is not None


def read_unlabelled(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Inputs of a file without labels, or with; where there are two splits, those of the test split.

    Labels and clients are found as ``label`` and ``client``, and are left out where they are not one for each sample.
    """
    with open_npz(path) as file:
        places = {name.lower(): name for name in file.names}
        split = None if (inputs := _named(places, _INPUTS)) else "test"
        inputs = inputs or _named(places, _INPUTS, "test")
        if inputs is None:
            there = listed(sorted(places), _NAMED_ARRAYS) or "(none)"
            raise FedGAError(f"{path} holds the arrays {there}: call the samples x, or x_test")
        values = _inputs(path, file.load(inputs))
        kinds = {"label": _LABELS, "client": _CLIENTS}
        named = {kind: _named(places, stems, split) for kind, stems in kinds.items()}
        beside = {kind: _flat(file.load(name)) for kind, name in named.items() if name is not None}
        if (of_classes := next((places[name] for name in _CLASS_NAMES if name in places), None)) and "label" in beside:
            names, labels = np.array(list(map(str, file.class_names(of_classes)))), beside["label"]
            if labels.dtype.kind in "iu" and labels.size and 0 <= labels.min() <= labels.max() < len(names):
                beside["label"] = names[labels]
        return values, {kind: each for kind, each in beside.items() if each.shape == (len(values),)}


def _named(places: Mapping[str, str], stems: tuple[str, ...], split: str | None = None) -> str | None:
    for stem in stems:
        for name in (f"{split}_{stem}", f"{stem}_{split}", f"{split}{stem}", f"{stem}{split}") if split else (stem,):
            if name in places:
                return places[name]
    return None


def _flat(values: np.ndarray) -> np.ndarray:
    """Labels are often stored as a column."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _inputs(path: Path, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "uifb":
        raise FedGAError(f"{path} has inputs of type {values.dtype}: store numbers")
    if values.ndim == 2 and values.dtype == np.uint8:  # flattened pictures: scaled like any other
        return values
    if values.dtype != np.uint8:
        require_memory(values.size * np.dtype(np.float32).itemsize, f"{path}, as 32-bit numbers,", FEWER_SAMPLES)
    if values.ndim == 2:
        with np.errstate(over="ignore"):
            features = values.astype(np.float32)
        if not np.isfinite(features).all():
            bad = int(np.flatnonzero(~np.isfinite(features).all(axis=0))[0])
            raise FedGAError(f"{path} has NaN or infinite values in feature {bad}: fill or remove them")
        return features
    if values.ndim not in (3, 4):
        cure = "give features as [samples, features], or pictures as [samples, channels, height, width]"
        raise FedGAError(f"{path} has inputs of shape {values.shape}: {cure}")
    if values.dtype != np.uint8:
        whole = values.dtype.kind != "f"
        top = 255 if whole else 1
        if values.size and not (values.min() >= 0 and values.max() <= top):
            cure = "store whole numbers from 0 to 255, or fractions from 0 to 1"
            raise FedGAError(f"{path} has pictures of type {values.dtype} with values outside 0 to {top}: {cure}")
        values = values.astype(np.uint8 if whole else np.float32)
    if values.ndim == 3:
        return values[:, None]
    first, last = values.shape[1] in CHANNELS, values.shape[3] in CHANNELS
    if first == last:
        problem = f"pictures of shape {values.shape}, where it is not clear which axis is the channels"
        raise FedGAError(f"{path} has {problem}: give 1 or 3 channels, right after the samples")
    return values if first else np.ascontiguousarray(values.transpose(0, 3, 1, 2))
