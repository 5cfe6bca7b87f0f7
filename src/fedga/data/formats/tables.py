"""Tables with a label in one column: numbers become features, a column of picture bytes becomes pictures."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedga.common.memory import require_memory
from fedga.data.assemble import Parts, Samples, listed
from fedga.data.formats.csv_files import csv_table, not_utf8
from fedga.data.formats.files import FEWER_SAMPLES, Progress, optional, reading
from fedga.data.formats.parquet import ParquetFiles
from fedga.errors import FedGAError, quoted, unknown_name

LABEL_COLUMNS = ("label", "target", "class", "y", "fine_label")
CLIENT_COLUMNS = ("client", "client_id")
SPLIT_COLUMN = "split"
LONGEST_NAME = 1000  # characters of a column, a class or a client
_PICTURE_COLUMNS = ("image", "img")
_COUNTERS = ("index", "row", "rowid", "rownames", "unnamed: 0")  # what people call a count of rows
_IDENTIFIER = re.compile(r"(.*[\W_])?id|.*[a-z]I[Dd]", re.DOTALL)  # id, patient_id, PatientID
_MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")  # as a label; columns of numbers go by pyarrow's own list
_NAMED_COLUMNS = 50  # an error lists this many


@dataclass(frozen=True)
class TableOptions:
    label_column: str | None = None
    client_column: str | None = None
    channels: int | None = None
    progress: Progress | None = None
    resize: tuple[int, int] | None = None  # height and width of pictures
    of_one_size: str = "bring all pictures to one size"  # what to do about several

    @property
    def sizes(self) -> dict[str, Any]:
        return {"resize": self.resize, "of_one_size": self.of_one_size}


FeatureChoice = Callable[[str, list[str]], Sequence[str]]


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Samples to predict, and what stands beside them: "label", "client" or "file", one text or number each."""

    inputs: np.ndarray
    where: str
    beside: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _TableColumns:
    """One file's columns, pictures apart."""

    where: str
    names: list[str]
    table: Any = None  # pyarrow.Table of the columns that are asked for; none: nothing is read yet
    files: ParquetFiles | None = None

    @cached_property
    def places(self) -> dict[str, int]:
        """Of the columns of the table: it would look through all names of a wide one for each."""
        return {name: place for place, name in enumerate(self.table.column_names)}

    def with_values(self, labels: Mapping[str, str], features: Sequence[str]) -> Self:
        """With the columns of ``labels``, which say what each of them is, and those of ``features``."""
        if self.files is None:
            return self
        kinds = dict(labels) | dict.fromkeys(features, "feature")
        there = [name for name in self.files.schema.names if name in kinds and name not in self.files.pictures]
        for name in there:  # columns of lists are refused unread: a few bytes can promise any number of values
            held = self.files.schema.field(name).type
            if _types().is_nested(held):
                raise self.wrong_type(name, kinds[name], held)
        return replace(self, table=self.files.columns(there))

    def wrong_type(self, name: str, kind: str, held: Any) -> FedGAError:
        if kind == "feature":
            cure = "make it one column per number, or remove it"
            return FedGAError(f"column {name!r} of {self.where} holds {held}, not numbers: {cure}")
        return FedGAError(f"column {name!r} of {self.where} has type {held}: a {kind} is a whole number or text")

    def column(self, name: str) -> Any:
        place = self.places.get(name)
        if place is None:
            raise FedGAError(f"{self.where} has no column {name!r}, which the training file has: add it")
        return self.table.column(place)


def _types() -> Any:
    return optional("pyarrow", "pyarrow", "reading tables").types


def read_csv(path: Path, options: TableOptions) -> Parts:
    return _parts(_open_csv(path), None, options)


def _open_csv(path: Path) -> _TableColumns:
    types = _types()
    with reading(path, "a CSV table"):
        table = csv_table(path)
        table = table.rename_columns([name.strip() for name in table.column_names])
    if not table.num_rows:
        raise FedGAError(f"{path} has a header and no rows: add a row per sample")
    if any(types.is_binary(column.type) for column in table.columns):
        raise not_utf8(path)
    return _TableColumns(str(path), table.column_names, table)


def read_parquet(train: Sequence[Path], test: Sequence[Path] | None, options: TableOptions) -> Parts:
    """One Parquet table, or one for each split, each of one or more shards."""
    return _parts(_open(train), None if test is None else _open(test), options)


def read_unlabelled(
    path: Path, label: str | None, client: str | None, choose: FeatureChoice, options: TableOptions
) -> Unlabelled:
    """A table of which nothing is learnt: a column of labels or clients is left out if it is not filled in every row.

    ``label`` and ``client`` are the columns of the data that a model was trained on; ``choose`` is given the other
    columns' names and returns those of features.
    """
    columns = _open_csv(path) if path.suffix.lower() == ".csv" else _open([path])
    check_column_names(columns.where, columns.names)

    def found(kind: str, asked: str | None, usual: Sequence[str]) -> str | None:
        what, known = f"{kind} column of {columns.where}", getattr(options, f"{kind}_column")
        if known is not None:
            return find_column(what, columns.names, known.strip() if known not in columns.names else known, ())
        return asked if asked in columns.names else find_column(what, columns.names, None, usual)

    labels, clients = found("label", label, LABEL_COLUMNS), found("client", client, CLIENT_COLUMNS)
    pictures = columns.files.pictures if columns.files else ()
    apart = {labels, clients, *(() if labels is None else (SPLIT_COLUMN,))}
    rest = [name for name in columns.names if name not in apart and name not in pictures]
    features = [] if pictures else list(choose(columns.where, rest))
    kinds = {name: kind for name, kind in ((labels, "label"), (clients, "client")) if name is not None}
    named = columns.files.class_names(labels) if columns.files and labels else ()
    columns = columns.with_values(kinds, features)
    beside = {}
    for name, kind in kinds.items():
        if columns.column(name).null_count or not len(columns.column(name)):
            continue
        values = _values(columns, name, "client")  # of which any may be missing
        if np.isin(values.astype(str), _MISSING).any():
            continue
        if kind == "label" and named and values.dtype.kind in "iu" and 0 <= values.min() <= values.max() < len(named):
            values = np.array(named)[values]
        beside[kind] = values
    if pictures:
        return Unlabelled(_decoded(columns, options), columns.where, beside)
    return Unlabelled(_features(columns, features, new=True), columns.where, beside)


def _open(paths: Sequence[Path]) -> _TableColumns:
    files = ParquetFiles(paths)
    rest = [name for name in files.schema.names if name not in files.pictures and not name.startswith("__index_level_")]
    return _TableColumns(files.where, [*rest, *files.pictures], files=files)


def _parts(train: _TableColumns, test: _TableColumns | None, options: TableOptions) -> Parts:
    check_column_names(train.where, train.names)

    def found(kind: str, asked: str | None, usual: Sequence[str]) -> str | None:
        asked = asked if asked is None or asked in train.names else asked.strip()  # as `read_csv` has them
        return find_column(f"{kind} column of {train.where}", train.names, asked, usual)

    label = found("label", options.label_column, LABEL_COLUMNS)
    if label is None:
        raise _no_label(train)
    client = found("client", options.client_column, CLIENT_COLUMNS)
    split_column = found("split", None, (SPLIT_COLUMN,))
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
    split = np.char.lower(_values(train, split_column, "split").astype(str))
    if odd := sorted(set(split) - {"train", "test"}):
        held = f"column {split_column!r} of {train.where} holds {quoted(odd[0])}"
        raise FedGAError(f"{held}: write train or test in every row")
    return Parts(whole.take(split == "train"), whole.take(split == "test"), names)


def check_column_names(where: str, names: Sequence[str]) -> None:
    """Refuse two columns of one name, and a name that is none."""
    if (longest := max(map(len, names), default=0)) > LONGEST_NAME:
        raise FedGAError(f"{where} has a column whose name has {longest:,} characters: use at most {LONGEST_NAME:,}")
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise FedGAError(f"{where} has several columns named {twice[0]!r}: rename all but one")


def find_column(what: str, names: Sequence[str], asked: str | None, usual: Sequence[str]) -> str | None:
    """The column, or array, that is asked for, else the first of the usual names in any case.

    >>> find_column("label", ["x", "Target", "y"], None, ("target", "y"))
    'Target'
    """
    if asked is None:
        lower = {name.lower(): name for name in reversed(names)}
        return next((lower[name] for name in usual if name in lower), None)
    if asked not in names:  # of a wide table, some names are compared and listed
        same = [name for name in names if name.casefold() == asked.casefold()] if len(names) > _NAMED_COLUMNS else []
        raise unknown_name(what, asked, [*same, *names][:_NAMED_COLUMNS])
    return asked


def _no_label(columns: _TableColumns) -> FedGAError:
    names = listed(columns.names, _NAMED_COLUMNS)
    if any(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in columns.names):
        problem = f"holds values ({names}) where the names of the columns belong"
        return FedGAError(f"the first line of {columns.where} {problem}: write such a line above it")
    cure = f"name its label column with --label-column (columns: {names})"
    return FedGAError(f"{columns.where} has no column named {', '.join(LABEL_COLUMNS[:-1])}: {cure}")


def _samples(
    columns: _TableColumns, label: str, client: str | None, features: list[str], options: TableOptions
) -> Samples:
    labels = _values(columns, label, "label")
    clients = None if client is None else _values(columns, client, "client")
    if columns.files is None or not columns.files.pictures:
        if options.resize is not None:
            raise FedGAError(f"{columns.where} holds no pictures: leave out --resize")
        return Samples(_features(columns, features), labels, columns.where, clients, tuple(features))
    return Samples(_decoded(columns, options), labels, columns.where, clients)


def _decoded(columns: _TableColumns, options: TableOptions) -> np.ndarray:
    files = columns.files
    pictures = files.pictures if files else ()
    usual = [name for name in _PICTURE_COLUMNS if name in pictures]
    if files is None or (len(pictures) > 1 and not usual):
        raise FedGAError(f"{columns.where} has several columns of pictures ({', '.join(pictures)}): call one image")
    name = (usual or pictures)[0]
    return files.decode(name, channels=options.channels, progress=options.progress, **options.sizes)


def _values(columns: _TableColumns, name: str, kind: str) -> np.ndarray:
    """A column of labels, clients or splits."""
    types = _types()
    if columns.files is not None and name in columns.files.pictures:
        raise FedGAError(f"column {name!r} of {columns.where} holds pictures: name another {kind} column")
    column = columns.column(name)
    if column.null_count:
        raise FedGAError(f"column {name!r} of {columns.where} is empty in {column.null_count} rows: fill them")
    held = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_string(held) or types.is_large_string(held):
        return _texts(columns, name, kind, column)
    if _is_number(held):
        return column.cast(held).to_numpy() if held != column.type else column.to_numpy()
    raise columns.wrong_type(name, kind, held)


def _is_number(held: Any) -> bool:
    types = _types()
    return bool(types.is_boolean(held) or types.is_integer(held) or types.is_floating(held))


def _texts(columns: _TableColumns, name: str, kind: str, column: Any) -> np.ndarray:
    """A column of texts: every different one is checked once."""
    compute = optional("pyarrow.compute", "pyarrow", "reading tables")
    if not _types().is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.combine_chunks()
    longest = compute.max(compute.utf8_length(column.dictionary)).as_py() or 0
    if longest > LONGEST_NAME:
        problem = f"has a text of {longest:,} characters, where a {kind} has at most {LONGEST_NAME:,}"
        raise FedGAError(f"column {name!r} of {columns.where} {problem}: correct it, or name another column")
    needed = (len(column) + len(column.dictionary)) * 4 * longest
    require_memory(needed, f"column {name!r} of {columns.where}", f"write shorter names, as each {kind}'s number")
    texts = np.char.strip(np.array(column.dictionary.to_pylist(), dtype=str))[column.indices.to_numpy()]
    if missing := int(np.isin(texts, _MISSING).sum()) if kind == "label" else 0:
        raise FedGAError(f"column {name!r} of {columns.where} is empty or NA in {missing} rows: label or remove them")
    return texts


def _features(columns: _TableColumns, names: Sequence[str], *, new: bool = False) -> np.ndarray:
    """Columns of numbers; of ``new`` samples, those of training are features whatever they look like in a few rows."""
    if not names:
        raise FedGAError(f"{columns.where} has no column beside label, client and split: add columns of features")
    rows = columns.table.num_rows
    require_memory(rows * len(names) * 4, f"{columns.where}, as 32-bit numbers,", FEWER_SAMPLES)
    features = np.empty((rows, len(names)), dtype=np.float32)
    for i, name in enumerate(names):
        column = columns.column(name)
        if problem := _no_feature(name, column, new=new):
            where = f"column {name!r} of" if name.strip() else f"column {columns.names.index(name) + 1} of"
            raise FedGAError(f"{where} {columns.where} {problem}")
        with np.errstate(over="ignore"):
            features[:, i] = column.to_numpy()
        if not np.isfinite(features[:, i]).all():
            raise FedGAError(f"column {name!r} of {columns.where} has NaN or infinite values: fill or remove them")
    return features


def _no_feature(name: str, column: Any, *, new: bool) -> str:
    """Why a column is no feature, and what to do with it; empty for one that is."""
    if not name.strip():
        return "has no name: name it, or remove it if it only counts rows"
    if empty := column.null_count:
        return f"has empty cells in {empty} of {len(column)} rows: fill them, or remove these rows or the column"
    if not _is_number(column.type):
        return _not_numbers(column)
    if not new and _types().is_integer(column.type) and _numbers_rows(name, column.to_numpy()):
        return "only numbers the rows, which says nothing about a new one: remove it"
    return ""


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
    held = column.type.value_type if _types().is_dictionary(column.type) else column.type
    values, numbers = (part.to_pylist() for part in column.value_counts().flatten())
    rows = dict(zip(map(str, values), numbers, strict=True))
    odd = [value for value in rows if not re.fullmatch(r"\s*[+-]?[\d.]+(e[+-]?\d+)?\s*", value, re.IGNORECASE)]
    if odd and sum(rows[value] for value in odd) < len(column) / 2:
        cure = "write numbers there, or remove these rows or the column"
        return f"has cells such as {quoted(odd[0])} among its numbers: {cure}"
    kind = str(held)
    named = "text" if "string" in kind else "dates" if kind.startswith(("date", "timestamp")) else kind
    cure = "encode it as numbers (one column per category, say), remove it, or name it as the client column"
    return f"holds {named} such as {quoted((odd or list(rows))[0])}, not numbers: {cure}"
