"""The arrays of an ``.npz`` file, each refused by what its header promises before anything of it is unpacked."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from fedga.common.files import open_regular
from fedga.common.memory import require_memory
from fedga.data.formats.files import FEWER_SAMPLES, reading
from fedga.errors import FedGAError, quoted

_WHAT = "an .npz file"
_SUFFIX = ".npy"
_BYTES_PER_NAME = 100  # of a text in Python's memory, and its place in a list


@dataclass(frozen=True)
class ArrayHeader:
    """What an array is said to be."""

    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize


class NpzFile:
    """An open ``.npz`` file; ``names`` are those of its arrays."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        self.names = [name.removesuffix(_SUFFIX) for name in archive.namelist()]

    def header(self, name: str) -> ArrayHeader:
        """The header of an array, compared with the room that it has in the file."""
        with self.stream(name) as (header, _):
            return header

    @contextmanager
    def stream(self, name: str) -> Iterator[tuple[ArrayHeader, IO[bytes]]]:
        """An array's header, and its values as a stream of bytes."""
        with reading(self.path, _WHAT):
            member = self._archive.getinfo(name + _SUFFIX)
            file = self._archive.open(member)
        with file:
            with reading(self.path, _WHAT):
                header = _read_header(file)
            where, promised, there = (
                f"array {quoted(name)} of {self.path}",
                file.tell() + header.bytes,
                member.file_size,
            )
            if header.dtype.hasobject:
                raise FedGAError(
                    f"{where} holds pickled Python objects, which are not read since they may run code: store numbers "
                    "or text, such as labels.astype(str)"
                )
            if promised != there:
                damage = f"promises {promised:,} bytes where {there:,} are, so it is damaged"
                raise FedGAError(f"{where} {damage}: replace it by an intact copy")
            yield header, file

    def load(self, name: str) -> np.ndarray:
        """A whole array."""
        require_memory(self.header(name).bytes, f"array {quoted(name)} of {self.path}", FEWER_SAMPLES)
        with reading(self.path, _WHAT), self._archive.open(name + _SUFFIX) as file:
            return npy.read_array(file, allow_pickle=False)

    def class_names(self, name: str) -> list[Any]:
        """The values of an array of names, each a value of Python's own."""
        needed = self.header(name).size * _BYTES_PER_NAME
        require_memory(needed, f"array {quoted(name)} of {self.path}", "name every class once in it")
        values: list[Any] = self.load(name).reshape(-1).tolist()
        return values


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open a file of arrays; nothing is read but the list of them."""
    with reading(path, _WHAT):
        file = open_regular(path)
    with file:
        with reading(path, _WHAT):
            archive = zipfile.ZipFile(file)
        with archive:
            yield NpzFile(path, archive)


def unpack_npz(packed: bytes) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file in memory, which may be anybody's; what is wrong with it raises anything."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        file = NpzFile(Path("the packed arrays"), archive)
        return {name: file.load(name) for name in file.names}


def _read_header(file: IO[bytes]) -> ArrayHeader:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    header = ArrayHeader(*read(file))
    if any(length < 0 for length in header.shape):
        raise ValueError(f"an array of shape {header.shape}")
    return header
