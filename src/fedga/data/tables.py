"""Tables with a label in one column: numbers become features, a column of picture bytes becomes pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedga.data.assemble import Parts, Samples
from fedga.data.files import Progress, optional, reading
from fedga.data.parquet import ParquetFiles
from fedga.errors import FedGAError, unknown_name

LABEL_COLUMNS = ("label", "target", "class", "y", "fine_label")
CLIENT_COLUMNS = ("client", "client_id")
SPLIT_COLUMN = "split"
_PICTURE_COLUMNS = ("image", "img")
_COUNTERS = ("index", "row", "rowid", "rownames", "unnamed: 0")  # what people call a count of rows
_IDENTIFIER = re.compile(r"(.*[\W_])?id|.*[a-z]I[Dd]", re.DOTALL)  # id, patient_id, PatientID
_MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")  # as a label; columns of numbers go by pyarrow's own list
_FRACTIONS = tuple(re.compile(rb"[-+]?\d*" + point + rb"\d+([eE][-+]?\d+)?") for point in (rb"\.", rb","))
_PURPOSE = "reading tables"


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
    table: Any  # pyarrow.Table
    files: ParquetFiles | None = None

    @property
    def names(self) -> list[str]:
        return [*self.table.column_names, *(self.files.pictures if self.files else ())]


def read_csv(path: Path, options: Options) -> Parts:
    """A CSV file with a header; column types are found by pyarrow."""
    arrow_csv = optional("pyarrow.csv", "pyarrow", "reading CSV files")
    types = optional("pyarrow", "pyarrow", "reading CSV files").types
    with reading(path, "a CSV table"):
        dialect = csv_dialect(path)
        table = arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(delimiter=dialect.delimiter),
            convert_options=arrow_csv.ConvertOptions(decimal_point=dialect.decimal_point),
        )
        table = table.rename_columns([name.strip() for name in table.column_names])
    if not table.num_rows:
        raise FedGAError(f"{path} has a header and no rows: add a row per sample")
    if any(types.is_binary(column.type) for column in table.columns):
        raise not_utf8(path)
    return _parts(_Columns(str(path), table), None, options)


@dataclass(frozen=True)
class CsvDialect:
    """How the numbers of a CSV file are written and parted."""

    delimiter: str
    decimal_point: str


def csv_dialect(path: Path) -> CsvDialect:
    """Commas, or what the header has instead: spreadsheets of many countries write semicolons, and 0,5 for a half."""
    with path.open("rb") as file:
        start = file.read(2**16)
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
    return CsvDialect(delimiter, _decimal_point(rows) if delimiter == ";" else ".")


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
    return _Columns(files.where, files.columns(rest), files)


def _parts(train: _Columns, test: _Columns | None, options: Options) -> Parts:
    label = _find(train, options.label_column, LABEL_COLUMNS, "label")
    if label is None:
        raise _no_label(train)
    client = _find(train, options.client_column, CLIENT_COLUMNS, "client")
    split_column = _find(train, None, (SPLIT_COLUMN,), "split")
    apart = {label, client, split_column, *CLIENT_COLUMNS}
    features = [name for name in train.table.column_names if name not in apart]
    names = train.files.class_names(label) if train.files else ()
    whole = _samples(train, label, client, features, options)
    if test is not None:
        return Parts(whole, _samples(test, label, None, features, options), names)
    if split_column is None:
        return Parts(whole, None, names)
    split = _split(train, split_column)
    return Parts(whole.take(split == "train"), whole.take(split == "test"), names)


def _no_label(columns: _Columns) -> FedGAError:
    names = ", ".join(columns.names)
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
    if len(set(columns.names)) < len(columns.names):
        twice = sorted({name for name in columns.names if columns.names.count(name) > 1})
        raise FedGAError(f"{columns.where} has several columns named {twice[0]!r}: rename all but one")
    if asked is not None:
        if asked.strip() in columns.names:  # as `read_csv` has them
            return asked.strip()
        if asked not in columns.names:
            raise unknown_name(f"{kind} column of {columns.where}", asked, columns.names)
        return asked
    lower = {name.lower(): name for name in reversed(columns.names)}
    return next((lower[name] for name in usual if name in lower), None)


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
    if name not in columns.table.column_names:
        raise FedGAError(f"{columns.where} has no column {name!r}, which the training file has: add it")
    return columns.table.column(name)


def _values(columns: _Columns, name: str, kind: str) -> np.ndarray:
    """A column of labels or clients as whole numbers, floats or strings."""
    arrow = optional("pyarrow", "pyarrow", _PURPOSE)
    if columns.files is not None and name in columns.files.pictures:
        raise FedGAError(f"column {name!r} of {columns.where} holds pictures: name another {kind} column")
    column = _column(columns, name)
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        raise FedGAError(
            f"column {name!r} of {columns.where} is empty in {column.null_count} rows: fill or remove them"
        )
    if types.is_string(column.type) or types.is_large_string(column.type):
        texts = np.char.strip(np.array(column.to_pylist(), dtype=str))
        missing = int(np.isin(texts, _MISSING).sum()) if kind == "label" else 0
        if missing:
            raise FedGAError(
                f"column {name!r} of {columns.where} is empty or NA in {missing} rows: label or remove them"
            )
        return texts
    if types.is_boolean(column.type) or types.is_integer(column.type) or types.is_floating(column.type):
        return column.to_numpy()
    raise FedGAError(f"column {name!r} of {columns.where} has type {column.type}: a {kind} is a whole number or text")


def _features(columns: _Columns, names: Sequence[str]) -> np.ndarray:
    if not names:
        raise FedGAError(f"{columns.where} has no column beside label, client and split: add columns of features")
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
        place = columns.table.column_names.index(name) + 1
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
    kind = str(column.type)
    values = [str(value) for value in column.to_pylist()]
    odd = [value for value in values if not re.fullmatch(r"\s*[+-]?[\d.]+(e[+-]?\d+)?\s*", value, re.IGNORECASE)]
    if odd and len(odd) < len(values) / 2:
        return (
            f"has cells such as {odd[0]!r} among its numbers: write numbers there, or remove these rows or the column"
        )
    held = "text" if "string" in kind else "dates" if kind.startswith(("date", "timestamp")) else kind
    return (
        f"holds {held} such as {(odd or values)[0]!r}, not numbers: encode it as numbers (one column per category, "
        "say), remove it, or name it as the client column"
    )


def _split(columns: _Columns, name: str) -> np.ndarray:
    values = np.char.lower(_values(columns, name, "split").astype(str))
    odd = sorted(set(values) - {"train", "test"})
    if odd:
        raise FedGAError(f"column {name!r} of {columns.where} holds {str(odd[0])!r}: write train or test in every row")
    return values
