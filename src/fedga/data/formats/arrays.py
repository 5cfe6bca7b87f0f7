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

from fedga.common.memory import require_memory
from fedga.data.assemble import Parts, Samples, listed
from fedga.data.formats.files import FEWER_SAMPLES
from fedga.data.formats.npz import open_npz
from fedga.errors import FedGAError, unknown_name

_INPUTS = ("x", "images", "image", "inputs", "data", "features")
_LABELS = ("y", "labels", "label", "targets", "target")
_CLIENTS = ("clients", "client", "client_ids", "client_id")
_CLASS_NAMES = ("class_names", "classes", "label_names")
CHANNELS = (1, 3)  # of a picture: grey, or colours
_NAMED_ARRAYS = 20  # an error lists this many


def read_npz(path: Path, client_column: str | None = None) -> Parts:
    """The data set in an ``.npz`` file; pictures are uint8, channels first or last, features are a matrix.

    Arrays of other names are left alone.
    """
    with open_npz(path) as file:
        places = {name.lower(): name for name in file.names}
        inputs, labels = _named(places, _INPUTS, "train"), _named(places, _LABELS, "train")
        test_inputs, test_labels = _named(places, _INPUTS, "test"), _named(places, _LABELS, "test")
        if inputs is None and labels is None and test_inputs is None:
            inputs, labels = _named(places, _INPUTS), _named(places, _LABELS)
        if inputs is None or labels is None or (test_inputs is None) != (test_labels is None):
            raise FedGAError(
                f"{path} holds the arrays {listed(sorted(places), _NAMED_ARRAYS) or '(none)'}: call them x and y, or "
                "x_train, y_train, x_test and y_test"
            )
        if client_column is not None and client_column.lower() not in places:
            raise unknown_name(f"client array of {path}", client_column, list(places)[:_NAMED_ARRAYS])
        clients = _named(places, _CLIENTS, "train") or _named(places, _CLIENTS)
        clients = clients if client_column is None else places[client_column.lower()]
        of_clients = None if clients is None else _flat(file.load(clients))
        train = Samples(_inputs(path, file.load(inputs)), _flat(file.load(labels)), str(path), of_clients)
        test = None
        if test_inputs is not None and test_labels is not None:
            test = Samples(_inputs(path, file.load(test_inputs)), _flat(file.load(test_labels)), str(path))
        names = next((places[name] for name in _CLASS_NAMES if name in places), None)
        return Parts(train, test, () if names is None else tuple(map(str, file.class_names(names))))


def _named(places: Mapping[str, str], stems: tuple[str, ...], split: str | None = None) -> str | None:
    for stem in stems:
        for name in (f"{split}_{stem}", f"{stem}_{split}", f"{split}{stem}", f"{stem}{split}") if split else (stem,):
            if name in places:
                return places[name]
    return None


def _flat(values: np.ndarray) -> np.ndarray:
    """Labels are often stored as a column."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _inputs(path: Path, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "uifb":
        raise FedGAError(f"{path} has inputs of type {values.dtype}: store numbers")
    if values.ndim == 2 and values.dtype == np.uint8:
        return values  # flattened pictures: scaled like any other
    if values.dtype != np.uint8:
        require_memory(values.size * np.dtype(np.float32).itemsize, f"{path}, as 32-bit numbers,", FEWER_SAMPLES)
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
    first, last = values.shape[1] in CHANNELS, values.shape[3] in CHANNELS
    if first == last:
        raise FedGAError(
            f"{path} has pictures of shape {values.shape}, where it is not clear which axis is the channels: give 1 or "
            "3 channels, right after the samples"
        )
    return values if first else np.ascontiguousarray(values.transpose(0, 3, 1, 2))
