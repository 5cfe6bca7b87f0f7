"""Predictions as a file, or as lines: one row per sample, written as they come, read by `fedga diagnose`."""

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedga.common.files import partial_name
from fedga.common.spreadsheet import text_cell
from fedga.data.formats.files import optional
from fedga.errors import FedGAError

KINDS = (".csv", ".parquet", ".npz")
PREFIX = "p_"  # of the columns of probabilities: a class may be called 7, or like another column
PREDICTED = "predicted"


def check_kind(path: Path) -> str:
    """The ending of a file that predictions can be written to."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise FedGAError(f"--out {path} ends in none of {', '.join(KINDS)}: give one of these")
    if path.is_dir():
        raise FedGAError(f"--out {path} is a folder: give a file")
    return kind


def write_predictions(
    path: Path, class_names: Sequence[str], batches: Iterator[np.ndarray], beside: Mapping[str, np.ndarray]
) -> list[int]:
    """Write a file in one step; how many samples are taken for each class."""
    kind = check_kind(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = partial_name(path)
    try:
        if kind == ".csv":
            with part.open("w", encoding="utf-8", newline="") as stream:
                taken = write_lines(stream, class_names, batches, beside)
        elif kind == ".parquet":
            taken = _write_parquet(part, class_names, batches, beside)
        else:
            taken = _write_arrays(part, class_names, batches, beside)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return taken


def write_lines(
    stream: TextIO, class_names: Sequence[str], batches: Iterator[np.ndarray], beside: Mapping[str, np.ndarray]
) -> list[int]:
    """Lines of CSV: what stands beside the samples, the likeliest class, and each class's probability."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(text_cell, (*beside, PREDICTED, *(PREFIX + name for name in class_names))))
    taken = np.zeros(len(class_names), dtype=np.int64)
    for first, probabilities in _numbered(batches):
        likeliest, rows = probabilities.argmax(1), slice(first, first + len(probabilities))
        columns = [[text_cell(str(value)) for value in values[rows].tolist()] for values in beside.values()]
        names = [text_cell(class_names[at]) for at in likeliest.tolist()]
        numbers = ([f"{value:.9g}" for value in row] for row in probabilities.tolist())
        writer.writerows(
            (*row, *of_row) for row, of_row in zip(zip(*columns, names, strict=True), numbers, strict=True)
        )
        taken += np.bincount(likeliest, minlength=len(taken))
    return taken.tolist()


def _numbered(batches: Iterator[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    first = 0
    for batch in batches:
        yield first, batch
        first += len(batch)


def _write_parquet(
    path: Path, class_names: Sequence[str], batches: Iterator[np.ndarray], beside: Mapping[str, np.ndarray]
) -> list[int]:
    arrow = optional("pyarrow", "pyarrow", "writing Parquet files")
    parquet = optional("pyarrow.parquet", "pyarrow", "writing Parquet files")
    taken, writer = np.zeros(len(class_names), dtype=np.int64), None
    try:
        for first, probabilities in _numbered(batches):
            rows = slice(first, first + len(probabilities))
            likeliest = probabilities.argmax(1)
            columns: dict[str, Any] = {name: [str(value) for value in of[rows].tolist()] for name, of in beside.items()}
            columns[PREDICTED] = [class_names[at] for at in likeliest.tolist()]
            columns |= {PREFIX + name: probabilities[:, at] for at, name in enumerate(class_names)}
            table = arrow.table(columns)
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
            taken += np.bincount(likeliest, minlength=len(taken))
    finally:
        if writer is not None:
            writer.close()
    return taken.tolist()


def _write_arrays(
    path: Path, class_names: Sequence[str], batches: Iterator[np.ndarray], beside: Mapping[str, np.ndarray]
) -> list[int]:
    probabilities = np.concatenate(list(batches))
    likeliest = probabilities.argmax(1)
    arrays: dict[str, Any] = {
        f"{name}s": np.array([str(value) for value in values.tolist()]) for name, values in beside.items()
    }
    names, content = np.array(class_names, dtype=str), io.BytesIO()
    np.savez_compressed(content, probs=probabilities, class_names=names, predicted=names[likeliest], **arrays)
    path.write_bytes(content.getvalue())
    return np.bincount(likeliest, minlength=len(names)).tolist()
