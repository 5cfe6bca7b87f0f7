"""Tables with a label in one column: numbers become features, a column of picture bytes becomes pictures."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedga.common.files import open_regular, require_regular
from fedga.common.memory import require_memory
from fedga.data.assemble import Parts, Samples, listed
from fedga.data.formats.files import FEWER_SAMPLES, Progress, optional, reading
from fedga.data.formats.parquet import ParquetFiles
from fedga.errors import FedGAError, quoted, unknown_name

LABEL_COLUMNS = ("label", "target", "class", "y", "fine_label")
CLIENT_COLUMNS = ("client", "client_id")
SPLIT_COLUMN = "split"
_PICTURE_COLUMNS = ("image", "img")
_COUNTERS = ("index", "row", "rowid", "rownames", "unnamed: 0")  # what people call a count of rows
_IDENTIFIER = re.compile(r"(.*[\W_])?id|.*[a-z]I[Dd]", re.DOTALL)  # id, patient_id, PatientID
_MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")  # as a label; columns of numbers go by pyarrow's own list
_FRACTIONS = tuple(re.compile(rb"[-+]?\d*" + point + rb"\d+([eE][-+]?\d+)?") for point in (rb"\.", rb","))
_PURPOSE = "reading tables"
LONGEST_LINE = 64 << 20  # bytes of a CSV file
LONGEST_NAME = 1000  # characters of a column, a class or a client
_CSV_BLOCK = 1 << 20  # bytes that pyarrow takes at once, at the least
_LINES_PER_BLOCK = 32  # of a wide table, for whose every column and block memory is taken apart
_LARGEST_CSV_BLOCK = 1 << 30
_LINE_TOO_LONG = re.compile("straddl|Empty CSV file or block")  # than a block
_BYTES_PER_CELL = 16  # as pyarrow has a number, as a feature, and on its way
_BYTES_PER_COLUMN = 12_000  # that pyarrow takes to find out what a column holds
_NAMED_COLUMNS = 50  # an error lists this many


@dataclass(frozen=True)
class Options:
    """What the caller says about the columns."""

    label_column: str | None = None
    client_column: str | None = None
    channels: int | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class _Columns:
    """One file's columns, pictures apart."""

    where: str
    names: list[str]
    table: Any = None  # pyarrow.Table of the columns that are asked for; none: nothing is read yet
    files: ParquetFiles | None = None

    @cached_property
    def places(self) -> dict[str, int]:
        """Of the columns of the table: it would look through all names of a wide one for each."""
        return {name: place for place, name in enumerate(self.table.column_names)}

    def with_values(self, labels: Mapping[str, str], features: Sequence[str]) -> _Columns:
        """With the columns of ``labels``, which say what each of them is, and those of ``features``."""
        if self.files is None:
            return self
        kinds = dict(labels) | dict.fromkeys(features, "feature")
        there = [name for name in self.files.schema.names if name in kinds and name not in self.files.pictures]
        for name in there:
            self._check_flat(name, kinds[name])
        return replace(self, table=self.files.columns(there))

    def _check_flat(self, name: str, kind: str) -> None:
        """Refuse columns of lists and the like before they are read: a few bytes can promise any number of values."""
        assert self.files is not None
        held = self.files.schema.field(name).type
        if not optional("pyarrow", "pyarrow", _PURPOSE).types.is_nested(held):
            return
        if kind == "feature":
            raise FedGAError(
                f"column {name!r} of {self.where} holds {held}, not numbers: make it one column per number, or "
                "remove it"
            )
        raise _no_label_type(self.where, name, held, kind)


def read_csv(path: Path, options: Options) -> Parts:
    """A CSV file with a header; column types are found by pyarrow."""
    types = optional("pyarrow", "pyarrow", "reading CSV files").types
    with reading(path, "a CSV table"):
        table = _csv_table(path)
        table = table.rename_columns([name.strip() for name in table.column_names])
    if not table.num_rows:
        raise FedGAError(f"{path} has a header and no rows: add a row per sample")
    if any(types.is_binary(column.type) for column in table.columns):
        raise not_utf8(path)
    return _parts(_Columns(str(path), table.column_names, table), None, options)


def _csv_table(path: Path) -> Any:
    arrow_csv = optional("pyarrow.csv", "pyarrow", "reading CSV files")
    size = require_regular(path).st_size
    start = csv_start(path)
    _check_csv_memory(path, size, start)
    dialect = start.dialect

    def read(longest_line: int) -> Any:
        block = min(max(_CSV_BLOCK, _LINES_PER_BLOCK * longest_line), size + 1, _LARGEST_CSV_BLOCK)
        return arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(block_size=block),
            parse_options=arrow_csv.ParseOptions(delimiter=dialect.delimiter),
            convert_options=arrow_csv.ConvertOptions(decimal_point=dialect.decimal_point),
        )

    try:
        return read(len(start.header))
    except ValueError as error:
        if not _LINE_TOO_LONG.search(str(error)):
            raise
    return read(_longest_line(path))


def _check_csv_memory(path: Path, size: int, start: CsvStart) -> None:
    """By the cells that the first lines have; texts take about what they take in the file."""
    delimiter = start.dialect.delimiter.encode()
    sample = start.rows or start.header
    cells = size * (sample.count(delimiter) + sample.count(b"\n") + 1) // len(sample)
    columns = start.header.count(delimiter) + 1
    needed = max(size, cells * _BYTES_PER_CELL) + columns * _BYTES_PER_COLUMN
    what = f"{path}, of {size / 1e6:,.0f} MB in {columns:,} columns,"
    require_memory(needed, what, "give fewer rows or columns, or use a machine with more memory")


def _longest_line(path: Path) -> int:
    """In bytes; one that is longer than any table's is refused."""
    longest = since = 0  # the line that is not ended yet
    with open_regular(path) as file:
        while block := file.read(_CSV_BLOCK):
            bytes_ = np.frombuffer(block, dtype=np.uint8)
            ends = np.flatnonzero((bytes_ == ord("\n")) | (bytes_ == ord("\r")))
            if len(ends):
                longest = max(longest, since + int(ends[0]), int(np.diff(ends).max(initial=0)))
                since = len(block) - int(ends[-1])
            else:
                since += len(block)
            if max(longest, since) > LONGEST_LINE:
                raise long_line(path)
    return max(longest, since)


@dataclass(frozen=True)
class CsvDialect:
    """How the numbers of a CSV file are written and parted."""

    delimiter: str
    decimal_point: str


@dataclass(frozen=True)
class CsvStart:
    """The first lines of a CSV file."""

    header: bytes
    rows: bytes  # some of them
    dialect: CsvDialect


def csv_start(path: Path) -> CsvStart:
    """The header of a file, which is refused if it is none, and what it says about the rest.

    Numbers are parted by commas, or by what the header has instead: spreadsheets of many countries write semicolons,
    and 0,5 for a half.
    """
    with open_regular(path) as file:
        start = file.read(2**16)
        if not re.search(rb"[\r\n]", start.strip()) and len(start) == 2**16:  # a wide table
            start += file.readline(LONGEST_LINE)
            start += file.read(2**16)
    if len(start) > LONGEST_LINE:
        raise long_line(path)
    if not start.strip():
        raise FedGAError(f"{path} is empty: write a header line with the names of the columns, and a row per sample")
    if b"\0" in start:
        raise FedGAError(f"{path} is not a text file: save the table as CSV in the encoding UTF-8")
    header, _, rows = start.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n ").partition(b"\n")
    try:
        header.decode()
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    bare = re.sub(rb'"[^"]*"', b"", header)  # a name may hold what parts the others
    delimiter = max(",;\t", key=lambda sign: bare.count(sign.encode()))
    return CsvStart(header, rows, CsvDialect(delimiter, _decimal_point(rows) if delimiter == ";" else "."))


def csv_dialect(path: Path) -> CsvDialect:
    return csv_start(path).dialect


def rows_of(path: Path, reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """What a ``csv.reader`` gives, which refuses cells that are very long."""
    try:
        yield from reader
    except csv.Error as error:
        if "field larger" not in str(error):
            raise
        raise FedGAError(
            f"{path} has a cell of more than {csv.field_size_limit():,} characters: shorten it, remove its column, or "
            "close the quotation mark that it begins with"
        ) from None


def long_line(path: Path) -> FedGAError:
    return FedGAError(
        f"{path} has a line of more than {LONGEST_LINE >> 20} MB, which is no row of a table: end every row with a "
        "line feed, and remove columns with very long cells"
    )


def _decimal_point(rows: bytes) -> str:
    """What most cells have that are numbers from end to end: a weight of "1,5 kg" or a date says nothing.

    >>> _decimal_point(b"0,5;31.12.1999"), _decimal_point(b"2.5;1,5 kg"), _decimal_point(b"2.5;1,5;0.5")
    (',', '.', '.')
    """
    cells = [cell.strip(b' "') for cell in re.split(rb"[;\r\n]", rows)]
    points, commas = (sum(bool(re.fullmatch(number, cell)) for cell in cells) for number in _FRACTIONS)
    return "," if commas > points else "."


def not_utf8(path: Path) -> FedGAError:
    return FedGAError(f"{path} has letters that are not UTF-8: save it as CSV in the encoding UTF-8")


def read_parquet(train: Sequence[Path], test: Sequence[Path] | None, options: Options) -> Parts:
    """One Parquet table, or one for each split, each of one or more shards."""
    return _parts(_open(train), None if test is None else _open(test), options)


def _open(paths: Sequence[Path]) -> _Columns:
    files = ParquetFiles(paths)
    rest = [name for name in files.schema.names if name not in files.pictures and not name.startswith("__index_level_")]
    return _Columns(files.where, [*rest, *files.pictures], files=files)


def _parts(train: _Columns, test: _Columns | None, options: Options) -> Parts:
    check_column_names(train.where, train.names)
    label = _find(train, options.label_column, LABEL_COLUMNS, "label")
    if label is None:
        raise _no_label(train)
    client = _find(train, options.client_column, CLIENT_COLUMNS, "client")
    split_column = _find(train, None, (SPLIT_COLUMN,), "split")
    apart = {label, client, split_column, *CLIENT_COLUMNS}
    pictures = train.files.pictures if train.files else ()
    features = [] if pictures else [name for name in train.names if name not in apart]
    names = train.files.class_names(label) if train.files else ()
    kinds = {split_column: "split", client: "client", label: "label"}
    train = train.with_values({name: kind for name, kind in kinds.items() if name is not None}, features)
    whole = _samples(train, label, client, features, options)
    if test is not None:
        test = test.with_values({label: "label"}, features)
        return Parts(whole, _samples(test, label, None, features, options), names)
    if split_column is None:
        return Parts(whole, None, names)
    split = _split(train, split_column)
    return Parts(whole.take(split == "train"), whole.take(split == "test"), names)


def check_column_names(where: str, names: Sequence[str]) -> None:
    """Refuse two columns of one name, and a name that is none."""
    longest = max(map(len, names), default=0)
    if longest > LONGEST_NAME:
        raise FedGAError(
            f"{where} has a column whose name has {longest:,} characters: give it one of at most {LONGEST_NAME:,}"
        )
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise FedGAError(f"{where} has several columns named {twice[0]!r}: rename all but one")


def _no_label(columns: _Columns) -> FedGAError:
    names = listed(columns.names, _NAMED_COLUMNS)
    if any(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in columns.names):
        return FedGAError(
            f"the first line of {columns.where} holds values ({names}) where the names of the columns belong: write "
            "such a line above it"
        )
    return FedGAError(
        f"{columns.where} has no column named {', '.join(LABEL_COLUMNS[:-1])}: name its label column with "
        f"--label-column (columns: {names})"
    )


def _find(columns: _Columns, asked: str | None, usual: Sequence[str], kind: str) -> str | None:
    if asked is not None:
        if asked.strip() in columns.names:  # as `read_csv` has them
            return asked.strip()
        if asked not in columns.names:
            raise unknown_name(f"{kind} column of {columns.where}", asked, likely_names(asked, columns.names))
        return asked
    lower = {name.lower(): name for name in reversed(columns.names)}
    return next((lower[name] for name in usual if name in lower), None)


def likely_names(asked: str, names: Sequence[str]) -> Sequence[str]:
    """Those to look through for a misspelt name and to list: of a wide table, some."""
    if len(names) <= _NAMED_COLUMNS:
        return names
    same = [name for name in names if name.casefold() == asked.strip().casefold()]
    return [*same, *names][:_NAMED_COLUMNS]


def _samples(columns: _Columns, label: str, client: str | None, features: Sequence[str], options: Options) -> Samples:
    labels = _values(columns, label, "label")
    clients = None if client is None else _values(columns, client, "client")
    picture = _picture_column(columns)
    if picture is not None and columns.files is not None:
        inputs = columns.files.decode(picture, channels=options.channels, progress=options.progress)
        return Samples(inputs, labels, columns.where, clients)
    return Samples(_features(columns, features), labels, columns.where, clients, tuple(features))


def _picture_column(columns: _Columns) -> str | None:
    found = columns.files.pictures if columns.files else ()
    usual = [name for name in _PICTURE_COLUMNS if name in found]
    if len(found) > 1 and not usual:
        raise FedGAError(
            f"{columns.where} has several columns of pictures ({', '.join(found)}): call one of them image"
        )
    return next(iter(usual or found), None)


def _column(columns: _Columns, name: str) -> Any:
    place = columns.places.get(name)
    if place is None:
        raise FedGAError(f"{columns.where} has no column {name!r}, which the training file has: add it")
    return columns.table.column(place)


def _values(columns: _Columns, name: str, kind: str) -> np.ndarray:
    """A column of labels or clients as whole numbers, floats or strings."""
    types = optional("pyarrow", "pyarrow", _PURPOSE).types
    if columns.files is not None and name in columns.files.pictures:
        raise FedGAError(f"column {name!r} of {columns.where} holds pictures: name another {kind} column")
    column = _column(columns, name)
    if column.null_count:
        raise FedGAError(
            f"column {name!r} of {columns.where} is empty in {column.null_count} rows: fill or remove them"
        )
    held = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_string(held) or types.is_large_string(held):
        return _texts(columns, name, kind, column)
    if types.is_boolean(held) or types.is_integer(held) or types.is_floating(held):
        return column.cast(held).to_numpy() if held != column.type else column.to_numpy()
    raise _no_label_type(columns.where, name, held, kind)


def _no_label_type(where: str, name: str, held: Any, kind: str) -> FedGAError:
    return FedGAError(f"column {name!r} of {where} has type {held}: a {kind} is a whole number or text")


def _texts(columns: _Columns, name: str, kind: str, column: Any) -> np.ndarray:
    """A column of texts: every different one is looked at once."""
    arrow, compute = (optional(module, "pyarrow", _PURPOSE) for module in ("pyarrow", "pyarrow.compute"))
    if not arrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    [*chunks] = column.unify_dictionaries().chunks
    if not chunks:
        return np.array([], dtype=str)
    longest = compute.max(compute.utf8_length(chunks[0].dictionary)).as_py() or 0
    if longest > LONGEST_NAME:
        raise FedGAError(
            f"column {name!r} of {columns.where} has a text of {longest:,} characters, where a {kind} has at most "
            f"{LONGEST_NAME:,}: correct it, or name another column"
        )
    needed = (len(column) + len(chunks[0].dictionary)) * 4 * longest
    require_memory(needed, f"column {name!r} of {columns.where}", f"write shorter names, as each {kind}'s number")
    different = np.char.strip(np.array(chunks[0].dictionary.to_pylist(), dtype=str))
    texts = different[np.concatenate([chunk.indices.to_numpy() for chunk in chunks])]
    missing = int(np.isin(texts, _MISSING).sum()) if kind == "label" else 0
    if missing:
        raise FedGAError(f"column {name!r} of {columns.where} is empty or NA in {missing} rows: label or remove them")
    return texts


def _features(columns: _Columns, names: Sequence[str]) -> np.ndarray:
    if not names:
        raise FedGAError(f"{columns.where} has no column beside label, client and split: add columns of features")
    needed = columns.table.num_rows * len(names) * np.dtype(np.float32).itemsize
    require_memory(needed, f"{columns.where}, as 32-bit numbers,", FEWER_SAMPLES)
    features = np.empty((columns.table.num_rows, len(names)), dtype=np.float32)
    for i, name in enumerate(names):
        column = _column(columns, name)
        _check_feature(columns, name, column)
        with np.errstate(over="ignore"):
            features[:, i] = column.to_numpy()
        if not np.isfinite(features[:, i]).all():
            raise FedGAError(
                f"feature column {name!r} of {columns.where} has NaN or infinite values: fill or remove them"
            )
    return features


def _check_feature(columns: _Columns, name: str, column: Any) -> None:
    """Refuse what is no feature, in words that tell what to do with such a column."""
    types = optional("pyarrow", "pyarrow", _PURPOSE).types
    if not name.strip():
        place = columns.names.index(name) + 1
        raise FedGAError(f"column {place} of {columns.where} has no name: name it, or remove it if it only counts rows")
    if column.null_count:
        raise FedGAError(
            f"feature column {name!r} of {columns.where} has empty cells in {column.null_count} of {len(column)} rows: "
            "fill them, or remove these rows or the column"
        )
    if not (types.is_boolean(column.type) or types.is_integer(column.type) or types.is_floating(column.type)):
        raise FedGAError(f"column {name!r} of {columns.where} {_not_numbers(column)}")
    if types.is_integer(column.type) and _numbers_rows(name, column.to_numpy()):
        raise FedGAError(
            f"column {name!r} of {columns.where} only numbers the rows, which tells nothing of a new one: remove it"
        )


def _numbers_rows(name: str, values: np.ndarray) -> bool:
    """
    >>> counted, shuffled = np.array([7, 8, 9]), np.array([9, 7, 8])
    >>> [_numbers_rows("index", counted), _numbers_rows("index", shuffled), _numbers_rows("patientID", shuffled)]
    [True, False, True]
    """
    if _IDENTIFIER.fullmatch(name) or _IDENTIFIER.fullmatch(name.lower()):
        return len(np.unique(values)) == len(values)
    return name.lower() in _COUNTERS and bool((np.diff(values) == 1).all())


def _not_numbers(column: Any) -> str:
    """What a column that cannot be a feature holds, by an example, and what to do with it."""
    types = optional("pyarrow", "pyarrow", _PURPOSE).types
    held = column.type.value_type if types.is_dictionary(column.type) else column.type
    counted = column.value_counts()  # of values that many rows share, one
    values, numbers = (part.to_pylist() for part in counted.flatten())
    rows = dict(zip(map(str, values), numbers, strict=True))
    odd = [value for value in rows if not re.fullmatch(r"\s*[+-]?[\d.]+(e[+-]?\d+)?\s*", value, re.IGNORECASE)]
    if odd and sum(rows[value] for value in odd) < len(column) / 2:
        return (
            f"has cells such as {quoted(odd[0])} among its numbers: write numbers there, or remove these rows or the "
            "column"
        )
    kind = str(held)
    named = "text" if "string" in kind else "dates" if kind.startswith(("date", "timestamp")) else kind
    return (
        f"holds {named} such as {quoted((odd or list(rows))[0])}, not numbers: encode it as numbers (one column per "
        "category, say), remove it, or name it as the client column"
    )


def _split(columns: _Columns, name: str) -> np.ndarray:
    values = np.char.lower(_values(columns, name, "split").astype(str))
    odd = sorted(set(values) - {"train", "test"})
    if odd:
        raise FedGAError(f"column {name!r} of {columns.where} holds {quoted(odd[0])}: write train or test in every row")
    return values
