"""Predictions in arrays: ``.npz`` files, read piece by piece, and arrays in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fedga.common.memory import require_memory
from fedga.data.formats.files import Progress, reading
from fedga.data.formats.npz import ArrayHeader, NpzFile, open_npz
from fedga.diagnosis.reading.columns import NO_SITES, Options
from fedga.diagnosis.reading.tally import ROWS_AT_ONCE, Batch, Predictions, Scores, Tallying, check_classes, finished
from fedga.diagnosis.reading.vocabulary import BinaryLabels, Labels, Sites, check_names, encode, few_of
from fedga.errors import FedGAError, unknown_name

_PROBABILITIES = ("probs", "probabilities", "probability", "predictions", "scores", "logits")
_LABELS = ("labels", "label", "targets", "target", "y")
_SITES = ("sites", "site", "hospitals", "clients", "client")
_CLASS_NAMES = ("class_names", "classes", "label_names")
_NAMED_ARRAYS = 20  # an error lists this many


def read_arrays(path: Path, options: Options, show: Progress) -> Predictions:
    """An ``.npz`` file with the arrays probs, labels and, if there are any, sites and class_names."""
    with open_npz(path) as file:
        probs = _named(file, ",".join(options.probability_columns) or None, _PROBABILITIES)
        label = _named(file, options.label_column, _LABELS)
        if probs is None or label is None:
            raise FedGAError(
                f"{path} holds the arrays {few_of(file.names, _NAMED_ARRAYS) or '(none)'}: call them probs, of "
                "[rows, classes], and labels, of [rows]"
            )
        asked = options.site_column
        site = None if asked == NO_SITES else _named(file, asked, _SITES)
        called = _named(file, None, _CLASS_NAMES)
        with file.stream(probs) as (header, values):
            if header.dtype.kind not in "fiub":
                raise FedGAError(f"array {probs!r} of {path} has type {header.dtype}: store probabilities as numbers")
            return tally_arrays(
                header.shape,
                _pieces(path, probs, header, values),
                file.load(label),
                None if site is None else file.load(site),
                None if called is None else file.class_names(called),
                str(path),
                logits=options.logits or probs.lower() == "logits",
                show=show,
            )


def _classes(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) == 2 else 1


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
    rows, classes = shape[0], _classes(shape)
    if not rows or not classes:
        raise FedGAError(f"the probabilities of {where} are empty, of shape {shape}: give [rows, classes]")
    for kind, values in (("label", labels), ("site", sites)):
        if values is not None and values.reshape(-1).shape != (rows,):
            raise FedGAError(
                f"{where} has {rows:,} rows of probabilities and {values.size:,} {kind}s: give one {kind} per row"
            )
    check_classes(classes, where)
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


def _pieces(path: Path, name: str, header: ArrayHeader, values: IO[bytes]) -> Iterator[np.ndarray]:
    """The rows of an array, ``ROWS_AT_ONCE`` at a time, read as they are needed: it may be larger than memory."""
    if header.by_column:  # a row's numbers are not together in the file
        store = "store it row by row, with numpy.ascontiguousarray, to have it read piece by piece"
        require_memory(header.bytes, f"array {name!r} of {path}, which is stored column by column,", store)
        yield from pieces_of(_read(path, header, values, header.shape[::-1]).T)
        return
    for first in range(0, header.shape[0], ROWS_AT_ONCE):
        yield _read(path, header, values, (min(ROWS_AT_ONCE, header.shape[0] - first), *header.shape[1:]))


def _read(path: Path, header: ArrayHeader, values: IO[bytes], shape: tuple[int, ...]) -> np.ndarray:
    size = math.prod(shape) * header.dtype.itemsize
    with reading(path, "an .npz file"):
        found = values.read(size)
        if len(found) != size:
            raise EOFError("an array ends early")
    return np.frombuffer(found, header.dtype).reshape(shape)


def pieces_of(values: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of an array, ``ROWS_AT_ONCE`` at a time."""
    return (values[first : first + ROWS_AT_ONCE] for first in range(0, len(values), ROWS_AT_ONCE))


def _named(file: NpzFile, asked: str | None, usual: Sequence[str]) -> str | None:
    if asked is not None:
        if asked not in file.names:
            raise unknown_name(f"array of {file.path}", asked, file.names[:_NAMED_ARRAYS])
        return asked
    lower = {name.lower(): name for name in reversed(file.names)}
    return next((lower[name] for name in usual if name in lower), None)
