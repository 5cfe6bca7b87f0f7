"""CSV files in blocks of whole lines, parsed on all cores."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fedga.common.files import open_regular
from fedga.data.formats.files import Progress, optional, reading
from fedga.data.formats.tables import LONGEST_LINE, csv_dialect, long_line, not_utf8, rows_of
from fedga.errors import FedGAError, quoted

BLOCK = 4 << 20  # bytes: smaller ones cost more calls, larger ones leave the cache
_MOST_THREADS = 8
_MEGABYTE = 1_000_000
_LONGEST_QUOTE = 64 << 20  # bytes, beyond which a quotation is a mistake
# What pyarrow takes for a number, beside its words for a missing one; float() would take 1_000 and digits of others.
_NUMBER = re.compile(
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?|nan(\([0-9a-z_]*\))?)", re.IGNORECASE | re.ASCII
)
_QUOTATION = re.compile(rb'(?:\A|[,;\t\r\n])(?P<mark>")[^"]*(?:""[^"]*)*(?P<end>"|\Z)')


class CsvFile:
    """A file with a header, its columns' names, and which of them hold numbers in the first lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrow = optional("pyarrow", "pyarrow", "reading CSV files")
        self._csv = optional("pyarrow.csv", "pyarrow", "reading CSV files")
        self._missing = frozenset(self._csv.ConvertOptions().null_values)
        with reading(path, "a CSV file"), open_regular(path) as file:
            dialect = csv_dialect(path)
            self._delimiter, self._decimal_point = dialect.delimiter, dialect.decimal_point
            header = self._header(file)
            # Spaces after the commas of a header are no part of the names.
            reader = csv.reader([header], delimiter=self._delimiter, skipinitialspace=True)
            names = next(rows_of(path, reader), [])
            self._begin = file.tell()
            sample = self._whole_lines(file, 1 << 16)
        self.names = [name.strip() for name in names]
        if not sample.block.strip():
            raise FedGAError(f"{path} has a header and no rows: write the predictions below it")
        if sample.unclosed is not None:
            raise self._unclosed(sample, 1)
        self.numeric = self._numeric(sample.block)

    def _header(self, file: BinaryIO) -> str:
        """The first line that is not blank."""
        line = ""
        while not line.strip() and (lines := self._whole_lines(file, 1)).block:
            line = lines.block.decode("utf-8-sig").strip("\r\n")
        if re.search(r"\r(?!\n)", line):
            raise FedGAError(
                f"{self.path} ends its lines with carriage returns alone, as old programs did: save it with line feeds"
            )
        if lines.unclosed is not None:
            raise FedGAError(f"a quotation mark in the header of {self.path} is not closed: close or remove it")
        return line

    def _numeric(self, sample: bytes) -> list[str]:
        """The columns of numbers: a few words among them are mistakes, and refused where they are read."""
        with reading(self.path, "a CSV file"):
            rows = [row for row in self._rows(sample) if len(row) == len(self.names)]
        # Per cent are refused where they are read, with a word on what to write instead.
        found = [sum(self._is_number(row[at].rstrip("% ")) for row in rows) for at in range(len(self.names))]
        return [name for name, numbers in zip(self.names, found, strict=True) if 2 * numbers >= len(rows)]

    def blocks(self, numbers: Sequence[str], words: Sequence[str | None], show: Progress) -> Generator[Any]:
        """Tables of the named columns, in order; ``numbers`` become float64, ``words`` are dictionary-encoded."""
        word, number = self._arrow.dictionary(self._arrow.int32(), self._arrow.string()), self._arrow.float64()
        types = {name: word for name in words if name is not None} | dict.fromkeys(numbers, number)
        size, done, row = self.path.stat().st_size, self._begin, 1
        with closing(self._parsed(types)) as parsed:
            for lines, table in parsed:
                if lines.unclosed is not None:
                    raise self._unclosed(lines, row)
                if isinstance(table, Exception):
                    raise self._explained(lines.block, row, numbers, table)
                yield table
                row += table.num_rows
                done += len(lines.block)
                show(f"reading {self.path.name} (MB)", done // _MEGABYTE, size // _MEGABYTE)

    def _parsed(self, types: dict[str, Any]) -> Generator[tuple[_Lines, Any]]:
        """Blocks with what they hold, in order, a few of them parsed at the same time."""
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        waiting: deque[tuple[_Lines, Future[Any]]] = deque()
        with open_regular(self.path) as file, ThreadPoolExecutor(threads) as pool:
            file.seek(self._begin)
            while (lines := self._whole_lines(file, BLOCK)).block:
                waiting.append((lines, pool.submit(self._parse, lines, types)))
                if len(waiting) > threads:
                    lines, parsed = waiting.popleft()
                    yield lines, parsed.result()
            for lines, parsed in waiting:
                yield lines, parsed.result()

    def _parse(self, lines: _Lines, types: dict[str, Any]) -> Any:
        """The table of a block, or what the parser has against it; nothing of one that cannot be parsed."""
        block = lines.block
        if lines.unclosed is not None:
            return None
        try:
            return self._csv.read_csv(
                self._arrow.BufferReader(block),
                read_options=self._csv.ReadOptions(
                    column_names=self.names, block_size=len(block) + 1, use_threads=False
                ),
                parse_options=self._csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                convert_options=self._csv.ConvertOptions(
                    column_types=types, include_columns=list(types), decimal_point=self._decimal_point
                ),
            )
        except self._arrow.ArrowInvalid as error:
            return error

    def _explained(self, block: bytes, first: int, numbers: Sequence[str], error: Exception) -> FedGAError:
        """The parser's complaint with the row it is about."""
        if not _is_utf8(block):
            return not_utf8(self.path)
        places = [(self.names.index(name), name) for name in numbers]
        with reading(self.path, "a CSV file"):
            rows = list(self._rows(block))
        for at, row in enumerate(rows):
            where = f"row {first + at:,} of {self.path}"
            if len(row) != len(self.names):
                return FedGAError(f"{where} has {len(row)} cells, but the header has {len(self.names)}: correct it")
            for place, name in places:
                if not self._is_number(row[place]):
                    what = "write 0.5 for 50%" if row[place].rstrip().endswith("%") else "correct it"
                    return FedGAError(
                        f"{where} has {quoted(row[place])} in column {name!r}, which is no number: {what}, or name the "
                        "columns of probabilities with --probability-columns"
                    )
        return FedGAError(f"{self.path} is not a CSV file, or is damaged ({' '.join(str(error).split())[:160]})")

    def _is_number(self, cell: str) -> bool:
        """An empty cell may be one: it is refused later, as a missing number."""
        if cell in self._missing:
            return True
        if self._decimal_point == ",":
            cell = cell.replace(".", "x").replace(",", ".")
        return _NUMBER.fullmatch(cell.strip(" \t")) is not None

    def _unclosed(self, lines: _Lines, first: int) -> FedGAError:
        whole = lines.block[: lines.block.rfind(b"\n", 0, lines.unclosed) + 1]
        with reading(self.path, "a CSV file"):
            row = first + sum(1 for _ in self._rows(whole))
        return FedGAError(f"a quotation mark in row {row:,} of {self.path} is not closed: close or remove it")

    def _rows(self, block: bytes) -> Iterator[list[str]]:
        text = io.StringIO(block.decode("utf-8", errors="replace"), newline="")
        return (row for row in rows_of(self.path, csv.reader(text, delimiter=self._delimiter)) if row)

    def _whole_lines(self, file: BinaryIO, size: int) -> _Lines:
        """About ``size`` bytes up to the end of a line; a line end inside quotes is none."""
        block = file.read(size) + self._line(file)
        if block.count(b'"') % 2 == 0 or (begin := _open_quote(block)) is None:
            return _Lines(block)
        more, length = [], 0
        while (line := self._line(file)) and length < _LONGEST_QUOTE:
            more.append(line)
            length += len(line)
            if line.count(b'"') % 2 and _open_quote(b'"' + line) is None:
                return _Lines(block + b"".join(more))
        return _Lines(block, begin)

    def _line(self, file: BinaryIO) -> bytes:
        line = file.readline(LONGEST_LINE)
        if len(line) == LONGEST_LINE:
            raise long_line(self.path)
        return line


@dataclass(frozen=True)
class _Lines:
    """Whole lines of a file."""

    block: bytes
    unclosed: int | None = None  # where a quotation begins that does not end


def _open_quote(block: bytes) -> int | None:
    """Where a quotation begins that goes on behind the block; a mark within a cell, as in 5" wide, begins none."""
    last = deque(_QUOTATION.finditer(block), maxlen=1)
    return last[0].start("mark") if last and not last[0]["end"] else None


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
