"""Tables of predictions: CSV and Parquet files, read in batches so that a file may be larger than memory."""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedga.common.files import require_regular
from fedga.data.assemble import listed
from fedga.data.formats.files import Progress, guarded, optional, reading, within_memory
from fedga.data.formats.parquet import is_text
from fedga.diagnosis.reading.arrays import read_arrays
from fedga.diagnosis.reading.columns import ColumnOptions, Columns, choose_columns
from fedga.diagnosis.reading.csv_blocks import CsvFile
from fedga.diagnosis.reading.tally import Predictions, Tallying
from fedga.diagnosis.reading.vocabulary import SiteNames, Vocabulary
from fedga.errors import FedGAError

KINDS = (".csv", ".parquet", ".npz")


def read_predictions(path: Path, options: ColumnOptions, progress: Progress | None = None) -> Predictions:
    """Read and check a file of predictions; the first wrong row is refused in one sentence."""
    kind = path.suffix.lower()
    try:
        if path.is_dir():
            raise FedGAError(f"{path} is a folder: give a file of predictions ({', '.join(KINDS)})")
        if not path.exists():
            raise FedGAError(f"{path} does not exist: check the path")
        if kind not in KINDS:
            cure = f"give one that ends in {', '.join(KINDS)}, or a saved model (.safetensors)"
            raise FedGAError(f"{path} is no file of predictions: {cure}")
        if not require_regular(path).st_size:
            raise FedGAError(f"{path} is empty: write the predictions into it")
    except OSError as error:  # a name too long, a folder that may not be looked into
        raise FedGAError(f"{path} cannot be read ({error.strerror or error}): check the path") from error
    show = progress or (lambda what, done, total: None)
    with within_memory(path):
        return read_arrays(path, options, show) if kind == ".npz" else read_table(path, options, show)


_ROWS_AT_ONCE = 16_000  # of a Parquet file: fewer would cost it more than they save in cache
_MOST_NUMBERS_AT_ONCE = 8_000_000


def read_table(path: Path, options: ColumnOptions, show: Progress) -> Predictions:
    """A CSV or Parquet file with a column of labels, one of probabilities per class and perhaps one of sites."""
    where = str(path)
    table = CsvFile(path) if path.suffix.lower() == ".csv" else _ParquetTable(path)
    columns = choose_columns(where, table.names, table.numeric, options)
    labels, sites = columns.labels(where), SiteNames()
    tallying = Tallying(labels, where, logits=options.logits, adjust=options.adjust)
    with closing(table.blocks(columns.probabilities, (columns.label, columns.site), show)) as parts:
        for part in parts:
            if part.num_rows:
                _add(tallying, part, columns, sites)
    found = tallying.result(sites if columns.site is not None else None)
    return replace(found, notes=(*columns.notes, *_without_samples(found)))


def _without_samples(found: Predictions) -> list[str]:
    """A note on classes that no sample has, which may be columns of something else."""
    empty = [f"“{found.class_names[at]}”" for at in np.flatnonzero(found.tally.samples.sum(0) == 0)]
    if not empty:
        return []
    names = listed(empty, 4)
    what = f"the class {names}: is it a column" if len(empty) == 1 else f"the classes {names}: are they columns"
    return [f"No sample has {what} of probabilities? If not, choose columns with --probability-columns."]


class _ParquetTable:
    """Columns of a Parquet file, some rows at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parquet = optional("pyarrow.parquet", "pyarrow", "reading Parquet files")
        self._arrow = optional("pyarrow", "pyarrow", "reading Parquet files")
        types = self._arrow.types
        numbers = (types.is_floating, types.is_integer, types.is_decimal)
        with self._open() as file:
            self._schema = schema = file.schema_arrow
        self.names = list(schema.names)
        self.numeric = [field.name for field in schema if any(is_such(field.type) for is_such in numbers)]

    def _open(self, words: Sequence[str] = ()) -> Any:
        """The file; a word of ``words`` that many rows share stays written once, since it may be long."""
        with reading(self._path, "a Parquet file"):
            require_regular(self._path)
            # Buffered by page: a file of one row group would else be in memory as a whole.
            buffered: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 16}
            return self._parquet.ParquetFile(self._path, read_dictionary=list(words), **buffered)

    def _is_text(self, name: str) -> bool:
        """Whether a column holds texts; one of lists and the like is refused before anything is read."""
        kind = self._schema.field(name).type
        try:
            self._arrow.nulls(0, kind).dictionary_encode()
        except self._arrow.ArrowNotImplementedError:
            problem = f"column {name!r} of {self._path} has values of type {kind}"
            raise FedGAError(f"{problem}: store one text or number in every row") from None
        return is_text(self._arrow, kind)

    def blocks(self, numbers: Sequence[str], words: Sequence[str | None], show: Progress) -> Generator[Any]:
        """Tables of the named columns, in order."""
        named = [name for name in words if name is not None]
        rows = min(_ROWS_AT_ONCE, _MOST_NUMBERS_AT_ONCE // len(numbers))
        with self._open([name for name in named if self._is_text(name)]) as file:
            total, done = file.metadata.num_rows, 0
            batches = file.iter_batches(batch_size=rows, columns=[*named, *numbers])
            for batch in guarded(self._path, "a Parquet file", batches):
                yield batch
                done += batch.num_rows
                show(f"reading {self._path.name}", done, total)


def _add(tallying: Tallying, part: Any, columns: Columns, sites: SiteNames) -> None:
    """Count in a pyarrow table or record batch."""
    scores = tallying.scores(len(columns.probabilities), part.num_rows)
    for row, name in zip(scores, columns.probabilities, strict=True):
        row[:] = _values(part.column(name), "double", np.float64, np.nan)
    label = part.column(columns.label)
    of_site = np.zeros(part.num_rows, dtype=np.int64)
    if columns.site is not None:
        of_site = _codes(part.column(columns.site), sites)
    tallying.add(scores, _codes(label, tallying.labels), of_site, lambda at: label[at].as_py())


def _codes(column: Any, words: Vocabulary) -> np.ndarray:
    """Numbers for the values of a column; every different value is looked up once."""
    column = _in_one(column)
    if not hasattr(column, "indices"):
        column = column.dictionary_encode(null_encoding="encode")
    indices = _values(column.indices, "int64", np.int64, -1)  # which may be unsigned, with no room for -1
    codes = np.full(len(column.dictionary) + 1, -1, dtype=np.int64)
    used = np.flatnonzero(np.bincount(indices + 1, minlength=len(codes))[1:])  # a file lists words of other rows too
    for at in used.tolist():  # one by one: like ``to_numpy``, ``take`` of a numpy array imports pandas
        codes[at] = words.code(column.dictionary[at].as_py())
    return codes[indices]


def _values(column: Any, kind: str, dtype: type[np.generic], missing: float) -> np.ndarray:
    """A column as it lies in memory; pyarrow's own ``to_numpy`` takes a fifth of a second to import pandas first."""
    column = _in_one(column)
    if column.type != kind:
        column = column.cast(kind, safe=False)
    if column.null_count:
        column = column.fill_null(missing)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * size)


def _in_one(column: Any) -> Any:
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column
