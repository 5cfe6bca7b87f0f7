"""The files in which MNIST, Fashion-MNIST, CIFAR and SVHN were published by their authors."""

import gzip
import io
import math
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from fedga.common.files import open_regular, require_regular
from fedga.common.memory import require_memory
from fedga.data.assemble import Parts, Samples
from fedga.data.formats.files import optional, read_whole, reading
from fedga.errors import FedGAError

_IDX_TYPE_UINT8 = 8
_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 20
_MOST_UNPACKED = 1 << 29  # bytes, about three times what either CIFAR has
_TOO_LARGE = "replace it by an intact copy if it should be smaller, or use a machine with more memory"


def read_idx(files: Sequence[Path]) -> Parts:
    """MNIST's format: training images, training labels, test images, test labels."""
    return Parts(_idx_split(*files[:2]), _idx_split(*files[2:]))


def _idx_split(pictures: Path, labels: Path) -> Samples:
    inputs, targets = read_idx_array(pictures, 3), read_idx_array(labels, 1)
    if len(inputs) != len(targets):
        there = f"{pictures} has {len(inputs)} pictures but {labels} has {len(targets)} labels"
        raise FedGAError(f"{there}: replace both by intact copies")
    return Samples(inputs[:, None], targets, str(pictures))


def read_idx_array(path: Path, dimensions: int) -> np.ndarray:
    """One IDX file of bytes: magic number ``00 00 08 d``, d big-endian sizes, then the values."""
    with reading(path, "an IDX file"), open_regular(path) as file, _unzipped(file) as stream:
        header = stream.read(4 + 4 * dimensions)
        if len(header) < 4 + 4 * dimensions or tuple(header[:4]) != (0, 0, _IDX_TYPE_UINT8, dimensions):
            raise ValueError(f"no header of an IDX file of bytes in {dimensions} dimensions")
        shape = np.frombuffer(header, dtype=">u4", offset=4).tolist()
        promised = math.prod(shape)
        require_memory(promised, str(path), _TOO_LARGE)
        values = np.empty(promised, dtype=np.uint8)
        follow = _fill(values, stream)
        if follow != promised or stream.read(1):
            found = "more" if follow == promised else follow
            raise ValueError(f"its header promises {promised} values and {found} follow")
        return values.reshape(shape)


def idx_begins(path: Path, count: int) -> bytes:
    """The first values of an IDX file of labels; what is wrong with a file, whoever reads all of it says."""
    try:
        with open_regular(path) as file, _unzipped(file) as stream:
            return stream.read(8 + count)[8:]
    except (OSError, EOFError, zlib.error, FedGAError):
        return b""


def _unzipped(file: BinaryIO) -> BinaryIO:
    """The content of a file, which may be zipped; nothing of it is read yet."""
    zipped = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if zipped else file


def _fill(values: np.ndarray, stream: BinaryIO) -> int:
    """Read as many bytes as there is room for, or fewer if the stream ends; how many."""
    room, done = values.data, 0
    while done < len(room) and (read := stream.readinto(room[done : done + _BLOCK])):  # type: ignore[attr-defined]
        done += read
    return done


def read_cifar(where: Path, train: Sequence[str], test: str, label_key: bytes) -> Parts:
    """CIFAR's pickled batches, in their folder or still in the ``.tar.gz``."""
    batches = _members(where, [*train, test])
    loaded = [_cifar_batch(where, name, data, label_key) for name, data in batches]
    pictures = np.concatenate([pictures for pictures, _ in loaded[:-1]])
    labels = np.concatenate([labels for _, labels in loaded[:-1]])
    return Parts(Samples(pictures, labels, str(where)), Samples(*loaded[-1], str(where)))


def _members(where: Path, names: Sequence[str]) -> list[tuple[str, bytes]]:
    if where.is_dir():
        return [(name, read_whole(where / name, "a CIFAR batch")) for name in names]
    with reading(where, "a .tar.gz archive"), open_regular(where) as file, _unzipped(file) as stream:
        # Unpacked as a whole: on its own, the archive's reader believes every size that a header promises.
        content = stream.read(_MOST_UNPACKED + 1)
        if len(content) > _MOST_UNPACKED:
            raise FedGAError(f"{where} unpacks to more than {_MOST_UNPACKED:,} bytes: replace it by an intact copy")
    with reading(where, "a .tar.gz archive"), tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        files = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}
        if missing := [name for name in names if name not in files]:
            raise FedGAError(f"{where} does not contain {missing[0]}: replace it by an intact copy")
        return [(name, archive.extractfile(files[name]).read()) for name in names]  # type: ignore[union-attr]


def _cifar_batch(where: Path, name: str, data: bytes, label_key: bytes) -> tuple[np.ndarray, np.ndarray]:
    path = where / name
    with reading(path, "a CIFAR batch"):
        batch = _CifarUnpickler(io.BytesIO(data), encoding="bytes").load()
        batch = {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
        pictures, labels = batch[b"data"], batch[label_key]
        if not isinstance(pictures, np.ndarray) or not isinstance(labels, np.ndarray | list):
            raise ValueError(f"pictures of type {type(pictures).__name__}, labels of type {type(labels).__name__}")
        if isinstance(labels, list) and not all(isinstance(label, int) for label in labels):
            raise ValueError("labels that are no whole numbers")  # of nested lists, few bytes make any number of values
        labels = np.asarray(labels)
        if pictures.dtype != np.uint8 or pictures.shape != (len(labels), 3 * 32 * 32):
            raise ValueError(f"pictures of type {pictures.dtype} and shape {pictures.shape} for {len(labels)} labels")
        return pictures.reshape(-1, 3, 32, 32), labels


class _CifarUnpickler(pickle._Unpickler):
    """Builds numpy arrays and plain values, and nothing else: a pickle can otherwise run any code it likes.

    The one written in Python, since the one written in C makes room for as many values as a few bytes promise.
    """

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
            ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): _dtype,
            ("_codecs", "encode"): _encode,  # how Python 3 writes bytes into an old-protocol pickle
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a CIFAR batch does not need")
        return allowed[module, name]


def _dtype(kind: str | bytes, align: int = 0, copy: int = 0) -> np.dtype[Any]:
    """Python 2 wrote the flags as 0 and 1, at which numpy now warns."""
    return np.dtype(kind.decode() if isinstance(kind, bytes) else kind, align=bool(align), copy=bool(copy))


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding if encoding in ("latin1", "latin-1", "utf-8") else "latin1")


def read_svhn(train: Path, test: Path) -> Parts:
    """SVHN's MATLAB files, where the digit 0 is labelled 10."""
    return Parts(_svhn_split(train), _svhn_split(test))


def _svhn_split(path: Path) -> Samples:
    matlab = optional("scipy.io", "scipy", "reading SVHN's .mat files")
    with reading(path, "an SVHN .mat file"):
        require_regular(path)
        shapes = {name: shape for name, shape, _ in matlab.whosmat(path)}
        # The pictures are there twice while their axes are put in order.
        require_memory(2 * math.prod(shapes["X"]) + 8 * math.prod(shapes["y"]), str(path), _TOO_LARGE)
        content = matlab.loadmat(path, variable_names=["X", "y"])
        pictures, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
        if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[2:] != (3, len(labels)):
            raise ValueError(f"pictures of type {pictures.dtype} and shape {pictures.shape} for {len(labels)} labels")
    inputs = np.ascontiguousarray(pictures.transpose(3, 2, 0, 1))
    return Samples(inputs, np.where(labels == 10, 0, labels), str(path))
