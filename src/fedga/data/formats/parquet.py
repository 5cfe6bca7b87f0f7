"""Parquet files, whole or in shards, of pictures (the Hugging Face layout) or of plain columns."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from fedga.common import memory
from fedga.common.files import require_regular
from fedga.common.memory import require_memory
from fedga.data.assemble import BYTES_PER_LABEL
from fedga.data.formats.files import Progress, guarded, optional, reading
from fedga.data.formats.images import decode
from fedga.errors import FedGAError

_PURPOSE = "reading Parquet files"
_WHAT = "a Parquet file"
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?$")
_ROWS_AT_ONCE = 128  # pictures: fewer would cost time, more would cost memory alone
_PART_OF_MEMORY = 8  # that pictures which are not decoded yet may take
_TEXT_INDEX = 4  # bytes
_EACH_VALUE_BY_ITSELF = {"PLAIN", "RLE", "BIT_PACKED"}  # encodings in which no value stands for many


class ParquetFiles:
    """The shards of one split, read as one table."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._parquet = optional("pyarrow.parquet", "pyarrow", _PURPOSE)
        self._arrow = optional("pyarrow", "pyarrow", _PURPOSE)
        self.schema: Any = None
        self.rows = 0
        for path in self.paths:
            with reading(path, _WHAT), self._file(path) as file:
                self.rows += file.metadata.num_rows
                schema = file.schema_arrow
            self.schema = schema if self.schema is None else self.schema
            if schema.names != self.schema.names:
                raise FedGAError(f"{path} has other columns than {self.paths[0]}: shards must have the same columns")
        self.pictures = tuple(field.name for field in self.schema if _holds_pictures(self._arrow, field.type))
        self.where = str(self.paths[0]) + (f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else "")

    def _file(self, path: Path, texts: Iterable[str] = ()) -> Any:
        """An open file; columns of ``texts`` come as the different texts and which of them each row has."""
        require_regular(path)
        return self._parquet.ParquetFile(path, read_dictionary=list(texts))

    def columns(self, names: Sequence[str]) -> Any:
        """A pyarrow Table of the named columns, none of which is nested; a text of many rows stays written once."""
        texts = {name for name in names if is_text(self._arrow, self.schema.field(name).type)}
        self._check_memory(names, texts)
        tables = []
        for path in self.paths:
            with reading(path, _WHAT), self._file(path, texts) as file:
                tables.append(file.read(columns=list(names)))
        with reading(self.where, _WHAT):
            return self._arrow.concat_tables(tables, promote_options="permissive")

    def _check_memory(self, names: Sequence[str], texts: Set[str]) -> None:
        needed = self.rows * (sum(_width(self.schema.field(name).type) for name in names) + BYTES_PER_LABEL)
        for path in self.paths:
            with reading(path, _WHAT), self._file(path) as file:
                needed += sum(chunk.total_uncompressed_size for chunk in _chunks(file, texts))
        what = f"{self.where}, with {self.rows:,} rows of {len(names):,} columns,"
        require_memory(needed, what, "give fewer rows or columns, or use a machine with more memory")

    def class_names(self, label_column: str) -> tuple[str, ...]:
        """The names that the Hub's metadata gives the classes of a column, or none."""
        try:
            info = json.loads((self.schema.metadata or {})[b"huggingface"])
            return tuple(str(name) for name in info["info"]["features"][label_column]["names"])
        except (KeyError, TypeError, ValueError):
            return ()

    def decode(self, column: str, *, channels: int | None, progress: Progress | None, **sizes: Any) -> np.ndarray:
        """The pictures of a column, ``uint8 [rows, channels, height, width]``; ``sizes`` are as for `images.decode`."""
        what = f"decoding {self.paths[0].name}"
        return decode(self._encoded(column), self.rows, channels=channels, progress=progress, what=what, **sizes)

    def _encoded(self, column: str) -> Iterator[tuple[str, bytes]]:
        for path in self.paths:
            rows = itertools.count()
            with reading(path, _WHAT):
                file = self._file(path)
                rows_at_once = _rows_at_once(file, column)
            with file:
                batches = file.iter_batches(batch_size=rows_at_once, columns=[column])
                for batch in guarded(path, _WHAT, batches):
                    for blob, called, row in zip(*_bytes_and_names(self._arrow, batch.column(0)), rows, strict=False):
                        name = f"row {row} of {path}" + (f" ({called})" if called else "")
                        if blob is None:
                            raise FedGAError(f"{name} has no picture bytes: store the pictures inside the Parquet file")
                        yield name, blob


def in_order(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Shards sorted by number; refuses a set from which one is missing."""
    ordered = tuple(sorted(paths))
    shards = [tuple(map(int, match.groups())) for path in ordered if (match := _SHARD.search(path.stem))]
    if len(shards) == len(ordered):
        _, total = shards[0]
        if set(shards) != {(number, total) for number in range(total)}:
            there = f"{total} shards and {len(ordered)} are there"
            raise FedGAError(f"{ordered[0]} is one of {there}: put all shards into one folder")
    return ordered


def _rows_at_once(file: Any, column: str) -> int:
    """How many pictures fit at a time; a value that is written once for many rows may be as large as all together."""
    shared = [chunk for chunk in _chunks(file, {column}) if not set(chunk.encodings) <= _EACH_VALUE_BY_ITSELF]
    largest = max((chunk.total_uncompressed_size for chunk in shared), default=0)
    there = memory.available_memory()
    if not largest or there is None:
        return _ROWS_AT_ONCE
    require_memory(largest, f"column {column!r} of a Parquet file", "shrink the pictures, or give fewer")
    return max(1, min(_ROWS_AT_ONCE, there // _PART_OF_MEMORY // largest))


def _chunks(file: Any, columns: Set[str]) -> Iterator[Any]:
    """What the file says of each piece of some columns, or of all columns inside them."""
    schema = file.metadata.schema
    places = [at for at in range(len(schema.names)) if schema.column(at).path.partition(".")[0] in columns]
    for group in range(file.metadata.num_row_groups):
        row_group = file.metadata.row_group(group)
        yield from (row_group.column(at) for at in places)


def is_text(arrow: Any, kind: Any) -> bool:
    """Whether a column has texts of any length, of which Parquet files write equal ones once."""
    types = arrow.types
    return any(f(kind) for f in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def _width(kind: Any) -> int:
    """Bytes of a value in memory, of a text those of its place among the different ones."""
    try:
        return math.ceil(kind.bit_width / 8)
    except ValueError:  # of no fixed width
        return _TEXT_INDEX


def _holds_pictures(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _bytes_and_names(arrow: Any, cells: Any) -> tuple[list[bytes | None], list[str | None]]:
    if not arrow.types.is_struct(cells.type):
        return cells.to_pylist(), [None] * len(cells)
    fields = {cells.type.field(i).name: child for i, child in enumerate(cells.flatten())}
    blobs = fields["bytes"].to_pylist()
    return blobs, fields["path"].to_pylist() if "path" in fields else [None] * len(blobs)
