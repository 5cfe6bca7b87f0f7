"""Samples that a trained model is to classify: files as in training, of which labels may be missing."""

from pathlib import Path

import numpy as np

from fedga.data.formats import folders, npz, tables
from fedga.data.formats.files import Progress, reading
from fedga.data.formats.images import SUFFIXES
from fedga.data.formats.tables import FeatureChoice, TableOptions, Unlabelled
from fedga.errors import FedGAError

KINDS = ("CSV", "Parquet", ".npz")
_PICTURE_AXES = 3


def load_unlabelled(
    path: Path,
    input_shape: tuple[int, ...],
    class_names: tuple[str, ...],
    choose: FeatureChoice,
    *,
    label: str | None = None,
    client: str | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
    progress: Progress | None = None,
) -> Unlabelled:
    """A CSV, Parquet or npz file, a folder of pictures, or one picture.

    ``choose`` names the columns of features among those of a table. ``label`` and ``client`` are the columns that were
    trained with, and may be missing; ``label_column`` and ``client_column`` are asked for, and may not.
    """
    with reading(path, "a file of samples"):
        path.stat()
    channels = input_shape[0] if len(input_shape) == _PICTURE_AXES else None
    options = TableOptions(label_column, client_column, channels, progress)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".parquet") and not path.is_dir():
        return tables.read_unlabelled(path, label, client, choose, options)
    asked = {"--label-column": label_column, "--client-column": client_column}
    if given := " and ".join(flag for flag, column in asked.items() if column is not None):
        raise FedGAError(f"{path} has no columns: leave out {given}, which only tables have")
    if suffix == ".npz":
        inputs, beside = npz.read_unlabelled(path)
        return Unlabelled(inputs, str(path), beside)
    if path.is_dir() or suffix in SUFFIXES:
        return _pictures(path, channels, set(class_names), progress)
    what = f"{', '.join(KINDS)}, a folder of pictures or one picture ({', '.join(sorted(SUFFIXES))})"
    raise FedGAError(f"{path} is no file of samples: give {what}")


def _pictures(path: Path, channels: int | None, classes: set[str], progress: Progress | None) -> Unlabelled:
    """Pictures with their files; where all lie in folders that are called like classes, these are their labels."""
    files = folders.any_pictures(path)
    listing = folders.Listing(str(path), files, ("",) * len(files))
    inputs = listing.read(channels, progress).inputs
    root = path if path.is_dir() else path.parent
    beside = {"file": np.array([file.relative_to(root).as_posix() for file in files])}
    if all(file.parent.name in classes and file.parent != root for file in files):
        beside["label"] = np.array([file.parent.name for file in files])
    return Unlabelled(inputs, str(path), beside)
