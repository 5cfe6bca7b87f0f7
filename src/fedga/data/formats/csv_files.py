"""CSV files: how one is written, by its first lines, and its columns as a pyarrow table."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedga.common.files import open_regular, require_regular
from fedga.common.memory import require_memory
from fedga.data.formats.files import optional
from fedga.errors import FedGAError

LONGEST_LINE = 64 << 20  # bytes
_START = 1 << 16  # bytes that are read first
_BLOCK = 1 << 20  # bytes that pyarrow takes at once, at the least
_LARGEST_BLOCK = 1 << 30
_LINES_PER_BLOCK = 32  # of a wide table: pyarrow allocates for every column and block
_LINE_TOO_LONG = re.compile("straddl|Empty CSV file or block")  # for a block
_BYTES_PER_CELL = 16  # as pyarrow has a number, as a feature, and on its way
_BYTES_PER_COLUMN = 12_000  # that pyarrow takes to find out what a column holds
_FRACTIONS = tuple(re.compile(rb"[-+]?\d*" + point + rb"\d+([eE][-+]?\d+)?") for point in (rb"\.", rb","))


@dataclass(frozen=True)
class CsvStart:
    """What the first lines of a file say about the rest."""

    path: Path
    header: bytes
    rows: bytes  # some of them
    begin: int  # where they begin, in bytes
    delimiter: str
    decimal_point: str

    @property
    def names(self) -> list[str]:
        reader = csv.reader([self.header.decode().rstrip("\r")], delimiter=self.delimiter, skipinitialspace=True)
        return [name.strip() for name in next(cells_of(self.path, reader), [])]


def csv_start(path: Path) -> CsvStart:
    """The first lines of a file, which is refused if it has no header; many spreadsheets write 0,5;1 for 0.5,1."""
    with open_regular(path) as file:
        start = file.read(_START)
        if not re.search(rb"[\r\n]", start.strip()) and len(start) == _START:  # a wide table
            start += file.readline(LONGEST_LINE)
            start += file.read(_START)
    if len(start) > LONGEST_LINE:
        raise long_line(path)
    if not start.strip():
        raise FedGAError(f"{path} is empty: write a header line with the names of the columns, and a row per sample")
    if b"\0" in start:
        raise FedGAError(f"{path} is not a text file: save the table as CSV in the encoding UTF-8")
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n ")
    header, end, rows = text.partition(b"\n")
    try:
        header.decode()
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    bare = re.sub(rb'"[^"]*"', b"", header)  # a name may hold what separates the others
    delimiter = max(",;\t", key=lambda sign: bare.count(sign.encode()))
    begin = len(start) - len(text) + len(header) + len(end)
    return CsvStart(path, header, rows, begin, delimiter, _decimal_point(rows) if delimiter == ";" else ".")


def _decimal_point(rows: bytes) -> str:
    """What most cells have that are numbers from end to end: a weight of "1,5 kg" or a date says nothing.

    >>> _decimal_point(b"0,5;31.12.1999"), _decimal_point(b"2.5;1,5 kg"), _decimal_point(b"2.5;1,5;0.5")
    (',', '.', '.')
    """
    cells = [cell.strip(b' "') for cell in re.split(rb"[;\r\n]", rows)]
    points, commas = (sum(bool(re.fullmatch(number, cell)) for cell in cells) for number in _FRACTIONS)
    return "," if commas > points else "."


def csv_table(path: Path) -> Any:
    """The whole file as a pyarrow table; pyarrow infers the types of its columns."""
    arrow_csv = optional("pyarrow.csv", "pyarrow", "reading CSV files")
    size, start = require_regular(path).st_size, csv_start(path)
    # By the cells that the first lines have; texts take about what they take in the file.
    delimiter, sample = start.delimiter.encode(), start.rows or start.header
    cells = size * (sample.count(delimiter) + sample.count(b"\n") + 1) // len(sample)
    columns = start.header.count(delimiter) + 1
    needed = max(size, cells * _BYTES_PER_CELL) + columns * _BYTES_PER_COLUMN
    what = f"{path}, of {size / 1e6:,.0f} MB in {columns:,} columns,"
    require_memory(needed, what, "give fewer rows or columns, or use a machine with more memory")
    block = min(max(_BLOCK, _LINES_PER_BLOCK * len(start.header)), _LARGEST_BLOCK)
    parse = arrow_csv.ParseOptions(delimiter=start.delimiter)
    convert = arrow_csv.ConvertOptions(decimal_point=start.decimal_point)
    while True:
        try:
            return arrow_csv.read_csv(path, arrow_csv.ReadOptions(block_size=min(block, size + 1)), parse, convert)
        except ValueError as error:
            if not _LINE_TOO_LONG.search(str(error)):
                raise
        if block >= LONGEST_LINE:
            raise long_line(path)
        block = min(8 * block, LONGEST_LINE)


def cells_of(path: Path, reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """The rows of a ``csv.reader``, which refuses cells that are very long."""
    try:
        yield from reader
    except csv.Error as error:
        if "field larger" not in str(error):
            raise
        cure = "shorten it, remove its column, or close the quotation mark that it begins with"
        most = f"{csv.field_size_limit():,} characters"
        raise FedGAError(f"{path} has a cell of more than {most}: {cure}") from None


def long_line(path: Path) -> FedGAError:
    cure = "end every row with a line feed, and remove columns with very long cells"
    return FedGAError(f"{path} has a line of more than {LONGEST_LINE >> 20} MB, which is no row of a table: {cure}")


def not_utf8(path: Path) -> FedGAError:
    return FedGAError(f"{path} has letters that are not UTF-8: save it as CSV in the encoding UTF-8")
