"""Predictions in arrays: ``.npz`` files, read piece by piece, and arrays in memory."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from fedga.data.files import Progress, reading
from fedga.diagnosis.columns import NO_SITES, Options
from fedga.diagnosis.tally import ROWS_AT_ONCE, Batch, Predictions, Scores, Tallying, finished
from fedga.diagnosis.vocabulary import BinaryLabels, Labels, Sites, check_names, encode
from fedga.errors import FedGAError, unknown_name

_PROBABILITIES = ("probs", "probabilities", "probability", "predictions", "scores", "logits")
_LABELS = ("labels", "label", "targets", "target", "y")
_SITES = ("sites", "site", "hospitals", "clients", "client")
_CLASS_NAMES = ("class_names", "classes", "label_names")


def read_arrays(path: Path, options: Options, show: Progress) -> Predictions:
    """An ``.npz`` file with the arrays probs, labels and, if there are any, sites and class_names."""
    with reading(path, "an .npz file"):
        archive = zipfile.ZipFile(path)
    with archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        probs = _named(path, names, ",".join(options.probability_columns) or None, _PROBABILITIES)
        label = _named(path, names, options.label_column, _LABELS)
        if probs is None or label is None:
            raise FedGAError(
                f"{path} holds the arrays {', '.join(names) or '(none)'}: call them probs, of [rows, classes], and "
                "labels, of [rows]"
            )
        asked = options.site_column
        site = None if asked == NO_SITES else _named(path, names, asked, _SITES)
        called = _named(path, names, None, _CLASS_NAMES)
        with _opened(path, archive, probs) as file:
            stream = _Stream(path, probs, file)
            return tally_arrays(
                stream.shape,
                stream.pieces(),
                _load(path, archive, label),
                None if site is None else _load(path, archive, site),
                None if called is None else _load(path, archive, called).reshape(-1).tolist(),
                str(path),
                logits=options.logits or probs.lower() == "logits",
                show=show,
            )


def tally_arrays(
    shape: tuple[int, ...],
    pieces: Iterator[np.ndarray],
    labels: np.ndarray,
    sites: np.ndarray | None,
    class_names: Sequence[object] | None,
    where: str,
    *,
    logits: bool = False,
    show: Progress | None = None,
) -> Predictions:
    """Add up predictions of ``shape``, (rows, classes) or (rows,), that come in ``pieces`` of ``ROWS_AT_ONCE`` rows."""
    if len(shape) not in (1, 2):
        raise FedGAError(f"the probabilities of {where} have shape {shape}: give [rows, classes]")
    rows, classes = shape[0], shape[1] if len(shape) == 2 else 1
    if not rows or not classes:
        raise FedGAError(f"the probabilities of {where} are empty, of shape {shape}: give [rows, classes]")
    for kind, values in (("label", labels), ("site", sites)):
        if values is not None and values.reshape(-1).shape != (rows,):
            raise FedGAError(
                f"{where} has {rows:,} rows of probabilities and {values.size:,} {kind}s: give one {kind} per row"
            )
    words = _labels(class_names, classes, where)
    labels, sites = labels.reshape(-1), None if sites is None else sites.reshape(-1)
    met, tallying, room = Sites(), Tallying(words, where, logits=logits), Scores(classes)
    done = 0
    for piece in pieces:
        taken = slice(done, done + len(piece))
        scores = room.of(len(piece))
        scores[:] = piece.reshape(len(piece), classes).T
        of_site = np.zeros(len(piece), dtype=np.int64) if sites is None else encode(met, sites[taken])
        raw = labels[taken]
        tallying.add(Batch(done + 1, scores, encode(words, raw), of_site, raw.__getitem__))
        done += len(piece)
        if show is not None:
            show(f"reading {Path(where).name}", done, rows)
    return finished(tallying, met, sites is not None)


def _labels(class_names: Sequence[object] | None, classes: int, where: str) -> Labels:
    names = None if class_names is None else check_names(class_names, where)
    if names is not None and len(names) != max(classes, 2):
        raise FedGAError(f"{where} has {classes} classes and {len(names)} class names: give one name per class")
    if classes == 1 and names is None:
        return BinaryLabels("1")
    return Labels(names or tuple(map(str, range(classes))))


class _Stream:
    """An array inside an ``.npz`` file, read as it is needed: it may be larger than memory."""

    def __init__(self, path: Path, name: str, file: IO[bytes]) -> None:
        self._path, self._name, self._file = path, name, file
        with reading(path, "an .npz file"):
            version = npy.read_magic(file)
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            self.shape, self._by_column, self._dtype = read_header(file)
        if self._dtype.hasobject:
            raise _pickled(path, name)
        if self._dtype.kind not in "fiub":
            raise FedGAError(f"array {name!r} of {path} has type {self._dtype}: store probabilities as numbers")

    def pieces(self) -> Iterator[np.ndarray]:
        """Its rows, ``ROWS_AT_ONCE`` at a time."""
        if self._by_column:  # a row's numbers are not together in the file
            yield from pieces_of(self._read(self.shape[::-1]).T)
            return
        for first in range(0, self.shape[0], ROWS_AT_ONCE):
            yield self._read((min(ROWS_AT_ONCE, self.shape[0] - first), *self.shape[1:]))

    def _read(self, shape: tuple[int, ...]) -> np.ndarray:
        size = int(np.prod(shape)) * self._dtype.itemsize
        with reading(self._path, "an .npz file"):
            found = self._file.read(size)
            if len(found) != size:
                raise EOFError(f"array {self._name!r} ends early")
        return np.frombuffer(found, self._dtype).reshape(shape)


def pieces_of(values: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of an array, ``ROWS_AT_ONCE`` at a time."""
    return (values[first : first + ROWS_AT_ONCE] for first in range(0, len(values), ROWS_AT_ONCE))


def _opened(path: Path, archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    with reading(path, "an .npz file"):
        return archive.open(f"{name}.npy")


def _load(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with reading(path, "an .npz file"), _opened(path, archive, name) as file:
        try:
            return npy.read_array(file, allow_pickle=False)
        except ValueError as error:
            if "allow_pickle" in str(error):
                raise _pickled(path, name) from None
            raise


def _pickled(path: Path, name: str) -> FedGAError:
    return FedGAError(
        f"array {name!r} of {path} holds pickled Python objects, which are not read since they may run code: store "
        "numbers or text, such as labels.astype(str)"
    )


def _named(path: Path, names: Sequence[str], asked: str | None, usual: Sequence[str]) -> str | None:
    if asked is not None:
        if asked not in names:
            raise unknown_name(f"array of {path}", asked, names)
        return asked
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in usual if name in lower), None)
