"""Predictions in arrays: ``.npz`` files, read piece by piece, and arrays in memory."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fedga.common.memory import require_memory
from fedga.data.assemble import listed
from fedga.data.formats.files import Progress, reading
from fedga.data.formats.npz import ArrayHeader, open_npz
from fedga.data.formats.tables import find_column
from fedga.diagnosis.counts import Adjustment
from fedga.diagnosis.reading.columns import NO_SITES, ColumnOptions
from fedga.diagnosis.reading.tally import ROWS_AT_ONCE, Predictions, Tallying, check_classes
from fedga.diagnosis.reading.vocabulary import BinaryLabels, Labels, SiteNames, check_names, encode
from fedga.errors import FedGAError

_PROBABILITIES = ("probs", "probabilities", "probability", "predictions", "scores", "logits")
_LABELS = ("labels", "label", "targets", "target", "y")
_SITES = ("sites", "site", "hospitals", "clients", "client")
_CLASS_NAMES = ("class_names", "classes", "label_names")


def read_arrays(path: Path, options: ColumnOptions, show: Progress) -> Predictions:
    """An ``.npz`` file with the arrays probs, labels and, if there are any, sites and class_names."""
    with open_npz(path) as file:

        def named(asked: str | None, usual: Sequence[str]) -> str | None:
            return find_column(f"array of {path}", file.names, asked, usual)

        probs = named(",".join(options.probability_columns) or None, _PROBABILITIES)
        label = named(options.label_column, _LABELS)
        if probs is None or label is None:
            there = listed(file.names, 20) or "(none)"
            cure = "call them probs, of [rows, classes], and labels, of [rows]"
            raise FedGAError(f"{path} holds the arrays {there}: {cure}")
        site = None if options.site_column == NO_SITES else named(options.site_column, _SITES)
        class_names = named(None, _CLASS_NAMES)
        with file.stream(probs) as (header, values):
            if header.dtype.kind not in "fiub":
                raise FedGAError(f"array {probs!r} of {path} has type {header.dtype}: store probabilities as numbers")
            return tally_arrays(
                header.shape,
                _pieces(path, probs, header, values),
                file.load(label),
                None if site is None else file.load(site),
                None if class_names is None else file.class_names(class_names),
                str(path),
                logits=options.logits or probs.lower() == "logits",
                adjust=options.adjust,
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
    adjust: Adjustment | None = None,
    show: Progress | None = None,
) -> Predictions:
    """Add up predictions of ``shape``, (rows, classes) or (rows,), that come in ``pieces`` of ``ROWS_AT_ONCE`` rows."""
    if len(shape) not in (1, 2) or 0 in shape:
        problem = "have" if len(shape) not in (1, 2) else "are empty, of"
        raise FedGAError(f"the probabilities of {where} {problem} shape {shape}: give [rows, classes]")
    rows, classes = (*shape, 1)[:2]
    for kind, values in (("label", labels), ("site", sites)):
        if values is not None and values.size != rows:
            there = f"{rows:,} rows of probabilities and {values.size:,} {kind}s"
            raise FedGAError(f"{where} has {there}: give one {kind} per row")
    check_classes(classes, where)
    words = _labels(class_names, classes, where)
    labels, sites = labels.reshape(-1), None if sites is None else sites.reshape(-1)
    met, tallying = SiteNames(), Tallying(words, where, logits=logits, adjust=adjust)
    for piece in pieces:
        taken = slice(tallying.rows, tallying.rows + len(piece))
        scores = tallying.scores(classes, len(piece))
        scores[:] = piece.reshape(len(piece), classes).T
        of_site = np.zeros(len(piece), dtype=np.int64) if sites is None else encode(met, sites[taken])
        tallying.add(scores, encode(words, labels[taken]), of_site, labels[taken].__getitem__)
        if show is not None:
            show(f"reading {Path(where).name}", tallying.rows, rows)
    return tallying.result(None if sites is None else met)


def _labels(class_names: Sequence[object] | None, classes: int, where: str) -> Labels:
    names = None if class_names is None else check_names(class_names, where)
    if names is not None and len(names) != max(classes, 2):
        raise FedGAError(f"{where} has {classes} classes and {len(names)} class names: give one name per class")
    if classes == 1 and names is None:
        return BinaryLabels("1")
    return Labels(names or tuple(map(str, range(classes))))


def _pieces(path: Path, name: str, header: ArrayHeader, values: IO[bytes]) -> Iterator[np.ndarray]:
    """The rows of an array, ``ROWS_AT_ONCE`` at a time, read as they are needed: it may be larger than memory."""

    def read(shape: tuple[int, ...]) -> np.ndarray:
        size = math.prod(shape) * header.dtype.itemsize
        with reading(path, "an .npz file"):
            found = values.read(size)
            if len(found) != size:
                raise EOFError("an array ends early")
        return np.frombuffer(found, header.dtype).reshape(shape)

    if header.by_column:  # a row's numbers are not together in the file
        store = "store it row by row, with numpy.ascontiguousarray, to have it read piece by piece"
        require_memory(header.bytes, f"array {name!r} of {path}, which is stored column by column,", store)
        yield from pieces_of(read(header.shape[::-1]).T)
        return
    for first in range(0, header.shape[0], ROWS_AT_ONCE):
        yield read((min(ROWS_AT_ONCE, header.shape[0] - first), *header.shape[1:]))


def pieces_of(values: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of an array, ``ROWS_AT_ONCE`` at a time."""
    return (values[first : first + ROWS_AT_ONCE] for first in range(0, len(values), ROWS_AT_ONCE))
