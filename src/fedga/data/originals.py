"""The files in which MNIST, Fashion-MNIST, CIFAR and SVHN were published by their authors."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedga.data.assemble import Parts, Samples
from fedga.data.catalog import Source
from fedga.data.files import optional, reading
from fedga.errors import FedGAError

_IDX_TYPE_UINT8 = 8


def read_idx(source: Source, files: Sequence[Path]) -> Parts:
    """MNIST's format: training images, training labels, test images, test labels."""
    arrays = [read_idx_array(path, dimensions) for path, dimensions in zip(files, (3, 1, 3, 1), strict=True)]
    splits = []
    for i in (0, 2):
        if len(arrays[i]) != len(arrays[i + 1]):
            raise FedGAError(
                f"{files[i]} has {len(arrays[i])} pictures but {files[i + 1]} has {len(arrays[i + 1])} labels: replace "
                "both by intact copies"
            )
        splits.append(Samples(arrays[i][:, None], arrays[i + 1], str(files[i])))
    return Parts(splits[0], splits[1], source.class_names)


def read_idx_array(path: Path, dimensions: int) -> np.ndarray:
    """One IDX file of bytes: magic number ``00 00 08 d``, d big-endian sizes, then the values."""
    with reading(path, "an IDX file"):
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        if len(data) < 4 + 4 * dimensions or tuple(data[:4]) != (0, 0, _IDX_TYPE_UINT8, dimensions):
            raise ValueError(f"no header of an IDX file of bytes in {dimensions} dimensions")
        shape = np.frombuffer(data, dtype=">u4", count=dimensions, offset=4).astype(np.int64)
        values = np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions)
        if len(values) != shape.prod():
            raise ValueError(f"its header promises {shape.prod()} values and {len(values)} follow")
        return values.reshape(shape).copy()


def read_cifar(source: Source, where: Path, train: Sequence[str], test: str, label_key: bytes) -> Parts:
    """CIFAR's pickled batches, in their folder or still in the ``.tar.gz``."""
    batches = _members(where, [*train, test])
    loaded = [_cifar_batch(where, name, data, label_key) for name, data in batches]
    pictures = np.concatenate([pictures for pictures, _ in loaded[:-1]])
    labels = np.concatenate([labels for _, labels in loaded[:-1]])
    return Parts(Samples(pictures, labels, str(where)), Samples(*loaded[-1], str(where)), source.class_names)


def _members(where: Path, names: Sequence[str]) -> list[tuple[str, bytes]]:
    if where.is_dir():
        found = []
        for name in names:
            with reading(where / name, "a CIFAR batch"):
                found.append((name, (where / name).read_bytes()))
        return found
    with reading(where, "a .tar.gz archive"), tarfile.open(where, "r:*") as archive:
        files = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}
        missing = [name for name in names if name not in files]
        if missing:
            raise FedGAError(f"{where} does not contain {missing[0]}: replace it by an intact copy")
        return [(name, archive.extractfile(files[name]).read()) for name in names]  # type: ignore[union-attr]


def _cifar_batch(where: Path, name: str, data: bytes, label_key: bytes) -> tuple[np.ndarray, np.ndarray]:
    path = where / name
    with reading(path, "a CIFAR batch"):
        batch = _CifarUnpickler(io.BytesIO(data), encoding="bytes").load()
        batch = {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
        pictures = np.asarray(batch[b"data"])
        labels = np.asarray(batch[label_key])
        if pictures.dtype != np.uint8 or pictures.shape != (len(labels), 3 * 32 * 32):
            raise ValueError(f"pictures of type {pictures.dtype} and shape {pictures.shape} for {len(labels)} labels")
        return pictures.reshape(-1, 3, 32, 32), labels


class _CifarUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain values, and nothing else: a pickle can otherwise run any code it likes."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name == "ndarray":
            return np.ndarray
        if module == "numpy" and name == "dtype":
            return _dtype
        if module == "_codecs" and name == "encode":  # how Python 3 writes bytes into an old-protocol pickle
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a CIFAR batch does not need")


def _dtype(kind: str | bytes, align: int = 0, copy: int = 0) -> np.dtype[Any]:
    """Python 2 wrote the flags as 0 and 1, at which numpy now warns."""
    return np.dtype(kind.decode() if isinstance(kind, bytes) else kind, align=bool(align), copy=bool(copy))


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding if encoding in ("latin1", "latin-1", "utf-8") else "latin1")


def read_svhn(source: Source, train: Path, test: Path) -> Parts:
    """SVHN's MATLAB files, where the digit 0 is labelled 10."""
    return Parts(_svhn_split(train), _svhn_split(test), source.class_names)


def _svhn_split(path: Path) -> Samples:
    matlab = optional("scipy.io", "scipy", "reading SVHN's .mat files")
    with reading(path, "an SVHN .mat file"):
        content = matlab.loadmat(path)
        pictures, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
        if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[2:] != (3, len(labels)):
            raise ValueError(f"pictures of type {pictures.dtype} and shape {pictures.shape} for {len(labels)} labels")
    inputs = np.ascontiguousarray(pictures.transpose(3, 2, 0, 1))
    return Samples(inputs, np.where(labels == 10, 0, labels), str(path))
