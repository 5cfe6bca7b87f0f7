"""Small data sets written in every format that is read."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedga.data import Dataset
from fedga.spec.catalog import Source


def pictures(count: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(count, *shape), dtype=np.uint8)


def splits(source: Source, per_class: int = 2, classes: int | None = None) -> tuple[np.ndarray, ...]:
    """(training pictures, training labels, test pictures, test labels), every class present."""
    classes = classes or source.classes
    labels = np.tile(np.arange(classes), per_class)
    tests = np.arange(classes)[::-1].copy()
    return pictures(len(labels), source.shape, 1), labels, pictures(classes, source.shape, 2), tests


def encode(picture: np.ndarray, kind: str = "PNG") -> bytes:
    """``uint8 [channels, height, width]`` as the bytes of a picture file."""
    image = Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0))
    out = io.BytesIO()
    image.save(out, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return out.getvalue()


def write_parquet(
    path: Path,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    image: str = "image",
    label: str = "label",
    raw: bool = False,
    names: list[str] | None = None,
    extra: dict[str, list[object]] | None = None,
    kind: str = "PNG",
) -> None:
    blobs = [encode(each, kind) for each in images]
    column = pa.array(blobs) if raw else pa.array([{"bytes": blob, "path": f"{i}.png"} for i, blob in enumerate(blobs)])
    table = pa.table({image: column, label: labels, **(extra or {})})
    if names is not None:
        features = {"info": {"features": {label: {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_idx(path: Path, array: np.ndarray, *, zipped: bool = False) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    data = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if zipped else data)


def write_mnist_originals(folder: Path, arrays: tuple[np.ndarray, ...], *, zipped: bool = False) -> None:
    end = ".gz" if zipped else ""
    for part, array in zip(("train-images", "train-labels", "t10k-images", "t10k-labels"), arrays, strict=True):
        dimensions = 3 if part.endswith("images") else 1
        values = array[:, 0] if dimensions == 3 else array
        write_idx(folder / f"{part}-idx{dimensions}-ubyte{end}", values, zipped=zipped)


def cifar_batch(images: np.ndarray, labels: np.ndarray, key: str) -> bytes:
    batch = {
        b"data": images.reshape(len(images), -1),
        key.encode(): labels.tolist(),
        b"batch_label": b"made for a test",
    }
    return pickle.dumps(batch, protocol=2)


def cifar10_batches(arrays: tuple[np.ndarray, ...]) -> dict[str, bytes]:
    """Five training batches of unequal size, and the test batch."""
    train, labels, test, test_labels = arrays
    cuts = [0, 3, 8, 12, 15, len(train)]
    batches = {
        f"data_batch_{i + 1}": cifar_batch(train[lo:hi], labels[lo:hi], "labels")
        for i, (lo, hi) in enumerate(itertools.pairwise(cuts))
    }
    return {**batches, "test_batch": cifar_batch(test, test_labels, "labels")}


def cifar100_batches(arrays: tuple[np.ndarray, ...]) -> dict[str, bytes]:
    train, labels, test, test_labels = arrays
    return {"train": cifar_batch(train, labels, "fine_labels"), "test": cifar_batch(test, test_labels, "fine_labels")}


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def write_tar(path: Path, folder: str, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_picture_classes(root: Path, images: np.ndarray, labels: list[str], kind: str = "png") -> None:
    for i, (picture, label) in enumerate(zip(images, labels, strict=True)):
        path = root / label / f"{i:03d}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture, kind.upper()))


def check_equal(dataset: Dataset, arrays: tuple[np.ndarray, ...]) -> None:
    train, labels, test, test_labels = arrays
    np.testing.assert_array_equal(dataset.train_inputs, train)
    np.testing.assert_array_equal(dataset.train_targets, labels)
    np.testing.assert_array_equal(dataset.test_inputs, test)
    np.testing.assert_array_equal(dataset.test_targets, test_labels)
    assert dataset.train_targets.dtype == dataset.test_targets.dtype == np.int64
