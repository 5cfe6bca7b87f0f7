"""Tables of predictions: CSV and Parquet files, read in batches so that a file may be larger than memory."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fedga.data.files import Progress, optional, reading
from fedga.diagnosis.columns import Columns, Options, choose_columns
from fedga.diagnosis.csv_blocks import CsvFile
from fedga.diagnosis.tally import Batch, Predictions, Tallying, finished
from fedga.diagnosis.vocabulary import Labels, Sites, Vocabulary

_ROWS_AT_ONCE = 16_000  # of a Parquet file: fewer would cost it more than they save in cache


def read_table(path: Path, options: Options, show: Progress) -> Predictions:
    """A CSV or Parquet file with a column of labels, one of probabilities per class and perhaps one of sites."""
    where = str(path)
    table = _CsvTable(path) if path.suffix.lower() == ".csv" else _ParquetTable(path)
    columns = choose_columns(where, table.names, table.numeric, options)
    labels, sites = columns.labels(where), Sites()
    tallying = Tallying(labels, where, logits=options.logits)
    first = 1
    with closing(table.parts(columns, show)) as parts:
        for part in parts:
            if part.num_rows:
                tallying.add(_batch(part, columns, labels, sites, first))
                first += part.num_rows
    return finished(tallying, sites, columns.site is not None)


class _CsvTable:
    """Columns of a CSV file, a block of lines at a time."""

    def __init__(self, path: Path) -> None:
        self._file = CsvFile(path)
        self.names, self.numeric = self._file.names, self._file.numeric

    def parts(self, columns: Columns, show: Progress) -> Generator[Any]:
        return self._file.blocks(columns.probabilities, (columns.label, columns.site), show)


class _ParquetTable:
    """Columns of a Parquet file, some rows at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parquet = optional("pyarrow.parquet", "pyarrow", "reading Parquet files")
        types = optional("pyarrow", "pyarrow", "reading Parquet files").types
        with self._open() as file:
            schema = file.schema_arrow
        self.names = list(schema.names)
        self.numeric = [field.name for field in schema if types.is_floating(field.type) or types.is_integer(field.type)]

    def _open(self) -> Any:
        with reading(self._path, "a Parquet file"):
            # Buffered by page: a file of one row group would else be in memory as a whole.
            return self._parquet.ParquetFile(self._path, pre_buffer=False, buffer_size=1 << 16)

    def parts(self, columns: Columns, show: Progress) -> Generator[Any]:
        wanted = [name for name in (columns.label, columns.site, *columns.probabilities) if name is not None]
        with self._open() as file:
            total, done = file.metadata.num_rows, 0
            with reading(self._path, "a Parquet file"):
                batches = file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=wanted)
            while True:
                with reading(self._path, "a Parquet file"):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
                done += batch.num_rows
                show(f"reading {self._path.name}", done, total)


def _batch(part: Any, columns: Columns, labels: Labels, sites: Sites, first: int) -> Batch:
    """A batch from a pyarrow table or record batch."""
    scores = np.empty((len(columns.probabilities), part.num_rows))
    for at, name in enumerate(columns.probabilities):
        scores[at] = part.column(name).to_numpy(**_copying(part))
    label = part.column(columns.label)
    of_site = np.zeros(part.num_rows, dtype=np.int64)
    if columns.site is not None:
        of_site = _codes(part.column(columns.site), sites)
    return Batch(first, scores, _codes(label, labels), of_site, lambda at: label[at].as_py())


def _copying(part: Any) -> dict[str, bool]:
    """A chunked column copies where it must; an array has to be allowed to."""
    return {} if hasattr(part, "combine_chunks") else {"zero_copy_only": False}


def _codes(column: Any, words: Vocabulary) -> np.ndarray:
    """Numbers for the values of a column; every different value is looked up once."""
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if not hasattr(column, "indices"):
        column = column.dictionary_encode(null_encoding="encode")
    codes = np.array([words.code(value) for value in column.dictionary.to_pylist()] + [-1], dtype=np.int64)
    return codes[column.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
