"""CSV files in blocks of whole lines, parsed by pyarrow on all cores: its own streaming reader uses one."""

import csv
import io
import os
import re
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from fedga.common.files import open_regular
from fedga.data.formats import csv_files
from fedga.data.formats.files import Progress, optional, reading
from fedga.errors import FedGAError, quoted

BLOCK = 4 << 20  # bytes: smaller ones cost more calls, larger ones leave the cache
_SAMPLE = 1 << 16  # bytes that tell which columns hold numbers
_MOST_THREADS = 8
_MEGABYTE = 1_000_000
_LONGEST_QUOTE = 64 << 20  # bytes, beyond which a quotation is a mistake
_QUOTATION = re.compile(rb'(?:\A|[,;\t\r\n])(?P<mark>")[^"]*(?:""[^"]*)*(?P<end>"|\Z)')
_NO_NUMBER = re.compile(r"column #(\d+): Row #(\d+): CSV conversion error to double: invalid value '(.*)'", re.DOTALL)
_NO_ROW = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


class CsvFile:
    """A file with a header, its columns' names, and which of them hold numbers in the first lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrow = optional("pyarrow", "pyarrow", "reading CSV files")
        self._csv = optional("pyarrow.csv", "pyarrow", "reading CSV files")
        with reading(path, "a CSV file"), open_regular(path) as file:
            self._start = csv_files.csv_start(path)
            header = self._start.header.rstrip(b"\r")
            if b"\r" in header:
                raise FedGAError(f"{path} ends its lines with carriage returns alone: save it with line feeds")
            if _open_quote(header) is not None:
                raise self._unclosed(file, self._start.begin - 1)
            self.names = self._start.names
            file.seek(self._start.begin)
            sample = self._whole_lines(file, _SAMPLE)
            if not sample.strip():
                raise FedGAError(f"{path} has a header and no rows: write the predictions below it")
            self.numeric = self._numeric(sample)

    def _numeric(self, sample: bytes) -> list[str]:
        """The columns of numbers: a few words among them are mistakes, and refused where they are read."""
        text = io.StringIO(sample.decode("utf-8", errors="replace"), newline="")
        rows = list(csv_files.cells_of(self.path, csv.reader(text, delimiter=self._start.delimiter)))
        cells = zip(*(row for row in rows if len(row) == len(self.names)), strict=True)
        columns = zip(self.names, cells, strict=False)
        return [name for name, column in columns if 2 * sum(map(self._is_number, column)) >= len(column)]

    def _is_number(self, cell: str) -> bool:
        """Per cent are numbers here, and refused where they are read, with a word on what to write instead."""
        cell = cell.rstrip("% ").replace(self._start.decimal_point, ".")
        try:
            float(cell or "nan")
        except ValueError:
            return cell in self._csv.ConvertOptions().null_values
        return True

    def blocks(self, numbers: Sequence[str], words: Sequence[str | None], show: Progress) -> Generator[Any]:
        """Tables of the named columns, in order; ``numbers`` become float64, ``words`` are dictionary-encoded."""
        word, number = self._arrow.dictionary(self._arrow.int32(), self._arrow.string()), self._arrow.float64()
        types = {name: word for name in words if name is not None} | dict.fromkeys(numbers, number)
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        size, done, row = self.path.stat().st_size, self._start.begin, 1
        waiting: deque[tuple[int, Future[Any]]] = deque()
        with open_regular(self.path) as file, ThreadPoolExecutor(threads) as pool:
            file.seek(done)
            while (block := self._whole_lines(file, BLOCK)) or waiting:
                if block:
                    waiting.append((len(block), pool.submit(self._parse, block, types)))
                if len(waiting) > threads or not block:
                    length, parsed = waiting.popleft()
                    try:
                        table = parsed.result()
                    except self._arrow.ArrowInvalid as error:
                        raise self._explained(str(error), row) from None
                    yield table
                    row, done = row + table.num_rows, done + length
                    show(f"reading {self.path.name} (MB)", done // _MEGABYTE, size // _MEGABYTE)

    def _parse(self, block: bytes, types: dict[str, Any]) -> Any:
        options = {"delimiter": self._start.delimiter, "newlines_in_values": True}
        return self._csv.read_csv(
            self._arrow.BufferReader(block),
            read_options=self._csv.ReadOptions(column_names=self.names, block_size=len(block) + 1, use_threads=False),
            parse_options=self._csv.ParseOptions(**options),
            convert_options=self._csv.ConvertOptions(
                column_types=types, include_columns=list(types), decimal_point=self._start.decimal_point
            ),
        )

    def _explained(self, error: str, first: int) -> FedGAError:
        """pyarrow's complaint about a block that begins with row ``first``, which it counts from 1."""
        if "invalid UTF8" in error:
            return csv_files.not_utf8(self.path)
        if found := _NO_ROW.search(error):
            row, expected, cells = map(int, found.groups())
            where = f"row {first + row - 1:,} of {self.path}"
            return FedGAError(f"{where} has {cells} cells, but the header has {expected}: correct it")
        if found := _NO_NUMBER.search(error):
            where, name = f"row {first + int(found[2]) - 1:,} of {self.path}", self.names[int(found[1])]
            what = "write 0.5 for 50%" if found[3].rstrip().endswith("%") else "correct it"
            return FedGAError(f"{where} has {quoted(found[3])} in column {name!r}, which is no number: {what}")
        return FedGAError(f"{self.path} is not a CSV file, or is damaged ({' '.join(error.split())[:160]})")

    def _whole_lines(self, file: BinaryIO, size: int) -> bytes:
        """About ``size`` bytes up to the end of a line; a line end inside quotes is none."""
        begin = file.tell()
        block = file.read(size) + self._line(file)
        if block.count(b'"') % 2 == 0 or (mark := _open_quote(block)) is None:
            return block
        more, length = [], 0
        while (line := self._line(file)) and length < _LONGEST_QUOTE:
            more.append(line)
            length += len(line)
            if line.count(b'"') % 2 and _open_quote(b'"' + line) is None:
                return block + b"".join(more)
        raise self._unclosed(file, begin + mark)

    def _line(self, file: BinaryIO) -> bytes:
        line = file.readline(csv_files.LONGEST_LINE)
        if len(line) == csv_files.LONGEST_LINE:
            raise csv_files.long_line(self.path)
        return line

    def _unclosed(self, file: BinaryIO, at: int) -> FedGAError:
        file.seek(0)
        blocks = (file.read(min(BLOCK, at - start)) for start in range(0, at, BLOCK))
        line = 1 + sum(block.count(b"\n") for block in blocks)
        return FedGAError(f"a quotation mark in line {line:,} of {self.path} is not closed: close or remove it")


def _open_quote(block: bytes) -> int | None:
    """Where a quotation begins that goes on behind the block; a mark within a cell, as in 5" wide, begins none."""
    last = deque(_QUOTATION.finditer(block), maxlen=1)
    return last[0].start("mark") if last and not last[0]["end"] else None
