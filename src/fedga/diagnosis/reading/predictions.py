"""Predictions in files: the ending of a file says which kind it is."""

from __future__ import annotations

from pathlib import Path

from fedga.common.files import require_regular
from fedga.data.formats.files import Progress, within_memory
from fedga.diagnosis.reading.arrays import read_arrays
from fedga.diagnosis.reading.columns import ColumnOptions
from fedga.diagnosis.reading.tables import read_table
from fedga.diagnosis.reading.tally import Predictions
from fedga.errors import FedGAError

KINDS = (".csv", ".parquet", ".npz")


def read_predictions(path: Path, options: ColumnOptions, progress: Progress | None = None) -> Predictions:
    """Read and check a file of predictions; the first wrong row is refused in one sentence."""
    kind = path.suffix.lower()
    try:
        if path.is_dir():
            raise FedGAError(f"{path} is a folder: give a file of predictions ({', '.join(KINDS)})")
        if not path.exists():
            raise FedGAError(f"{path} does not exist: check the path")
        if kind not in KINDS:
            cure = f"give one that ends in {', '.join(KINDS)}, or a saved model (.safetensors)"
            raise FedGAError(f"{path} is no file of predictions: {cure}")
        if not require_regular(path).st_size:
            raise FedGAError(f"{path} is empty: write the predictions into it")
    except OSError as error:  # a name too long, a folder that may not be looked into
        raise FedGAError(f"{path} cannot be read ({error.strerror or error}): check the path") from error
    show = progress or (lambda what, done, total: None)
    with within_memory(path):
        return read_arrays(path, options, show) if kind == ".npz" else read_table(path, options, show)
