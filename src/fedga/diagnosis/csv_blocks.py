"""CSV files in blocks of whole lines, parsed on all cores."""

from __future__ import annotations

import csv
import io
import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from fedga.data.files import Progress, optional, reading
from fedga.errors import FedGAError

BLOCK = 4 << 20  # bytes: smaller ones cost more calls, larger ones leave the cache
_MOST_THREADS = 8
_DELIMITERS = (",", ";", "\t")
_MEGABYTE = 1_000_000


class CsvFile:
    """A file with a header, its columns' names, and which of them hold numbers in the first lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrow = optional("pyarrow", "pyarrow", "reading CSV files")
        self._csv = optional("pyarrow.csv", "pyarrow", "reading CSV files")
        with reading(path, "a CSV file"), path.open("rb") as file:
            header = _whole_lines(file, 1).decode("utf-8-sig").strip("\r\n")
            self._begin = file.tell()
            sample = _whole_lines(file, 1 << 16)
        self._delimiter = max(_DELIMITERS, key=header.count)
        self.names = next(csv.reader([header], delimiter=self._delimiter), [])
        if not sample.strip():
            raise FedGAError(f"{path} has a header and no rows: write the predictions below it")
        self.numeric = self._numeric(sample)

    def _numeric(self, sample: bytes) -> list[str]:
        """The columns of numbers: a few words among them are mistakes, and refused where they are read."""
        rows = [row for row in _rows(sample, self._delimiter) if len(row) == len(self.names)]
        found = [sum(_is_number(row[at]) for row in rows) for at in range(len(self.names))]
        return [name for name, numbers in zip(self.names, found, strict=True) if 2 * numbers >= len(rows)]

    def blocks(self, numbers: Sequence[str], words: Sequence[str | None], show: Progress) -> Generator[Any]:
        """Tables of the named columns, in order; ``numbers`` become float64, ``words`` are dictionary-encoded."""
        word, number = self._arrow.dictionary(self._arrow.int32(), self._arrow.string()), self._arrow.float64()
        types = {name: word for name in words if name is not None} | dict.fromkeys(numbers, number)
        size, done, row = self.path.stat().st_size, self._begin, 1
        with closing(self._parsed(types)) as parsed:
            for block, table in parsed:
                if isinstance(table, Exception):
                    raise self._explained(block, row, numbers, table)
                yield table
                row += table.num_rows
                done += len(block)
                show(f"reading {self.path.name} (MB)", done // _MEGABYTE, size // _MEGABYTE)

    def _parsed(self, types: dict[str, Any]) -> Generator[tuple[bytes, Any]]:
        """Blocks with what they hold, in order, a few of them parsed at the same time."""
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        waiting: deque[tuple[bytes, Future[Any]]] = deque()
        with self.path.open("rb") as file, ThreadPoolExecutor(threads) as pool:
            file.seek(self._begin)
            while block := _whole_lines(file, BLOCK):
                waiting.append((block, pool.submit(self._parse, block, types)))
                if len(waiting) > threads:
                    block, parsed = waiting.popleft()
                    yield block, parsed.result()
            for block, parsed in waiting:
                yield block, parsed.result()

    def _parse(self, block: bytes, types: dict[str, Any]) -> Any:
        """The table of a block, or what the parser has against it."""
        try:
            return self._csv.read_csv(
                self._arrow.BufferReader(block),
                read_options=self._csv.ReadOptions(
                    column_names=self.names, block_size=len(block) + 1, use_threads=False
                ),
                parse_options=self._csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                convert_options=self._csv.ConvertOptions(column_types=types, include_columns=list(types)),
            )
        except self._arrow.ArrowInvalid as error:
            return error

    def _explained(self, block: bytes, first: int, numbers: Sequence[str], error: Exception) -> FedGAError:
        """The parser's complaint with the row it is about."""
        places = [(self.names.index(name), name) for name in numbers]
        for at, row in enumerate(_rows(block, self._delimiter)):
            where = f"row {first + at:,} of {self.path}"
            if len(row) != len(self.names):
                return FedGAError(f"{where} has {len(row)} cells, but the header has {len(self.names)}: correct it")
            for place, name in places:
                if not _is_number(row[place]):
                    return FedGAError(
                        f"{where} has {row[place]!r} in column {name!r}, which is no number: correct it, or name the "
                        "columns of probabilities with --probability-columns"
                    )
        return FedGAError(f"{self.path} is not a CSV file, or is damaged ({' '.join(str(error).split())[:160]})")


def _whole_lines(file: BinaryIO, size: int) -> bytes:
    """About ``size`` bytes up to the end of a line; a line end inside quotes is none."""
    block = file.read(size) + file.readline()
    while block.count(b'"') % 2 and (more := file.readline()):
        block += more
    return block


def _rows(block: bytes, delimiter: str) -> Iterator[list[str]]:
    text = io.StringIO(block.decode("utf-8", errors="replace"), newline="")
    return (row for row in csv.reader(text, delimiter=delimiter) if row)


def _is_number(cell: str) -> bool:
    """An empty cell may be one: it is refused later, as a missing number."""
    try:
        float(cell or "nan")
    except ValueError:
        return cell.strip().lower() in ("", "na", "n/a", "null")
    return True
