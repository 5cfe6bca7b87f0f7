"""A user's own ``.npz`` file.

Arrays are recognised by the names in use, whatever their case: inputs as ``x``, ``images``, ``inputs``, ``data`` or
``features``; labels as ``y``, ``labels``, ``label``, ``targets`` or ``target``. With a test split, each carries
``train`` or ``test`` before or behind it (``x_train``, ``train_images``). Optional are ``clients`` or
``train_clients``, one value per training sample, and ``class_names``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedga.data.assemble import Parts, Samples
from fedga.data.files import reading
from fedga.errors import FedGAError, unknown_name

_INPUTS = ("x", "images", "image", "inputs", "data", "features")
_LABELS = ("y", "labels", "label", "targets", "target")
_CLIENTS = ("clients", "client", "client_ids", "client_id")
_CLASS_NAMES = ("class_names", "classes", "label_names")
_CHANNELS = (1, 3)


def read_npz(path: Path, client_column: str | None = None) -> Parts:
    """The data set in an ``.npz`` file; pictures are uint8, channels first or last, features are a matrix."""
    with reading(path, "an .npz file"), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name.lower(): archive[name] for name in archive.files}
    inputs, labels = _named(arrays, _INPUTS, "train"), _named(arrays, _LABELS, "train")
    test_inputs, test_labels = _named(arrays, _INPUTS, "test"), _named(arrays, _LABELS, "test")
    if inputs is None and labels is None and test_inputs is None:
        inputs, labels = _named(arrays, _INPUTS), _named(arrays, _LABELS)
    if inputs is None or labels is None or (test_inputs is None) != (test_labels is None):
        raise FedGAError(
            f"{path} holds the arrays {', '.join(sorted(arrays)) or '(none)'}: call them x and y, or x_train, y_train, "
            "x_test and y_test"
        )
    clients = _clients(path, arrays, client_column)
    train = Samples(_inputs(path, inputs), _flat(labels), str(path), clients)
    test = None
    if test_inputs is not None and test_labels is not None:
        test = Samples(_inputs(path, test_inputs), _flat(test_labels), str(path))
    names = next((arrays[name] for name in _CLASS_NAMES if name in arrays), np.array([], dtype=str))
    return Parts(train, test, tuple(str(name) for name in names))


def _named(arrays: Mapping[str, np.ndarray], stems: tuple[str, ...], split: str | None = None) -> np.ndarray | None:
    for stem in stems:
        for name in (f"{split}_{stem}", f"{stem}_{split}", f"{split}{stem}", f"{stem}{split}") if split else (stem,):
            if name in arrays:
                return arrays[name]
    return None


def _clients(path: Path, arrays: Mapping[str, np.ndarray], asked: str | None) -> np.ndarray | None:
    if asked is not None:
        if asked.lower() not in arrays:
            raise unknown_name(f"client array of {path}", asked, arrays)
        return _flat(arrays[asked.lower()])
    found = _named(arrays, _CLIENTS, "train")
    found = _named(arrays, _CLIENTS) if found is None else found
    return None if found is None else _flat(found)


def _flat(values: np.ndarray) -> np.ndarray:
    """Labels are often stored as a column."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _inputs(path: Path, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "uifb":
        raise FedGAError(f"{path} has inputs of type {values.dtype}: store numbers")
    if values.ndim == 2 and values.dtype == np.uint8:
        return values  # flattened pictures: scaled like any other
    if values.ndim == 2:
        with np.errstate(over="ignore"):
            features = values.astype(np.float32)
        if not np.isfinite(features).all():
            bad = int(np.flatnonzero(~np.isfinite(features).all(axis=0))[0])
            raise FedGAError(f"{path} has NaN or infinite values in feature {bad}: fill or remove them")
        return features
    if values.ndim not in (3, 4):
        raise FedGAError(
            f"{path} has inputs of shape {values.shape}: give features as [samples, features], or pictures as "
            "[samples, height, width] or [samples, channels, height, width]"
        )
    if values.dtype != np.uint8:
        whole = values.dtype.kind != "f"
        top = 255 if whole else 1
        if values.size and not (values.min() >= 0 and values.max() <= top):
            raise FedGAError(
                f"{path} has pictures of type {values.dtype} with values outside 0 to {top}: store whole numbers from "
                "0 to 255, or fractions from 0 to 1"
            )
        values = values.astype(np.uint8 if whole else np.float32)
    if values.ndim == 3:
        return values[:, None]
    first, last = values.shape[1] in _CHANNELS, values.shape[3] in _CHANNELS
    if first == last:
        raise FedGAError(
            f"{path} has pictures of shape {values.shape}, where it is not plain which axis is the channels: give 1 or "
            "3 channels, right after the samples"
        )
    return values if first else np.ascontiguousarray(values.transpose(0, 3, 1, 2))
