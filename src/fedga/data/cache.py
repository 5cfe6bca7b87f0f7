"""Pictures are decoded once, then memory-mapped.

An entry is a folder of ``.npy`` files named after what it was made from: the paths, sizes and modification times of the
files, the columns asked for, and the version of the readers. It is written beside its final place and renamed into
it, so a reader sees a whole entry or none, and of two processes that decode at once the first to finish wins. Its
description has digests of the arrays and of itself: an entry of which a single bit has changed is decoded again.
"""

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedga.common.files import open_regular, require_regular
from fedga.common.sealed import digest_of_json
from fedga.data.federation import Dataset
from fedga.data.formats.files import reading, within_memory

READER_VERSION = 4  # raise when a reader's output changes, so that old entries are not used
_ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets", "train_clients")
_STALE_SECONDS = 24 * 3600
_BLOCK = 8 << 20  # bytes of an array that have a digest of their own, so that several threads can work on it
_THREADS = 2


def cache_dir() -> Path:
    """``FEDGA_CACHE``, else ``XDG_CACHE_HOME/fedga``, else ``~/.cache/fedga``."""
    if chosen := os.environ.get("FEDGA_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "fedga"


def remember(name: str, files: Iterable[Path], options: Sequence[str | None], build: Callable[[], Dataset]) -> Dataset:
    """The data set that ``build`` makes from ``files``, from the cache where it is there and intact.

    Only pictures are kept: a table costs about as much to map as to read. A folder that cannot be written to costs the
    cache, never the data set.
    """
    family, entry = _entry_names(name, files, options)
    folder = cache_dir() / "decoded"
    if cached := _open(folder / entry, name):
        return cached
    with within_memory(f"the data set {name}"):
        dataset = build()
    if dataset.train_inputs.dtype != np.uint8:
        return dataset
    try:
        _write(folder, entry, dataset)
        _prune(folder, family, entry)
    except OSError:
        return dataset
    return _open(folder / entry, name) or dataset


def _entry_names(name: str, files: Iterable[Path], options: Sequence[str | None]) -> tuple[str, str]:
    """(prefix of all entries made from these paths, the one entry made from their present content)."""
    paths, stamps = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    paths.update(repr((name, tuple(options))).encode())
    stamps.update(repr(READER_VERSION).encode())
    for path in files:
        with reading(path, "a file"):
            status = require_regular(path)
        paths.update(os.fsencode(path.absolute()) + b"\0")
        stamps.update(f"{status.st_size} {status.st_mtime_ns}\0".encode())
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:40]
    family = f"{safe}-{paths.hexdigest()}-"
    return family, family + stamps.hexdigest()


def _open(entry: Path, name: str) -> Dataset | None:
    """The entry, mapped copy-on-write so that torch can wrap it; None if it is absent or damaged in any way."""
    try:
        with open_regular(entry / "meta.json") as file:
            meta = json.load(file)
        if meta.pop("digest") != digest_of_json(meta):
            return None
        fields: dict[str, Any] = {}
        for key, (dtype, shape, digest) in meta["arrays"].items():
            require_regular(entry / f"{key}.npy")
            array = np.load(entry / f"{key}.npy", mmap_mode="c", allow_pickle=False)
            if array.dtype.str != dtype or list(array.shape) != shape or _digest_of_array(array) != digest:
                return None
            fields[key] = array if key.endswith("inputs") else np.array(array)
        fields |= {key: tuple(meta[key]) for key in ("class_names", "client_names")}
        fields |= {"input_scale": float(meta["input_scale"]), "fingerprint": str(meta["fingerprint"])}
        dataset = Dataset(name, **fields)
    except Exception:  # whatever a damaged file provokes, the remedy is the same: decode again
        return None
    labels = (dataset.train_targets, dataset.test_targets)
    intact = all(((each >= 0) & (each < dataset.num_classes)).all() for each in labels) and len(labels[0])
    return dataset if intact else None


def _digest_of_array(array: np.ndarray) -> str:
    """SHA-256 over the SHA-256 of each block of the array's bytes."""
    from concurrent.futures import ThreadPoolExecutor  # 20 ms, of which most commands have no use

    values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    blocks = [values[start : start + _BLOCK].data for start in range(0, len(values), _BLOCK)]
    with ThreadPoolExecutor(_THREADS) as pool:  # which only starts the threads that have something to do
        digests = pool.map(lambda block: hashlib.sha256(block).digest(), blocks)
        return hashlib.sha256(b"".join(digests)).hexdigest()


def _write(folder: Path, entry: str, dataset: Dataset) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    building = folder / f".building-{uuid.uuid4().hex}"
    building.mkdir(mode=0o700)  # it may be a copy of what nobody else may read
    try:
        arrays = {key: getattr(dataset, key) for key in _ARRAYS if getattr(dataset, key) is not None}
        for key, array in arrays.items():
            np.save(building / f"{key}.npy", array, allow_pickle=False)
        kept = {key: (array.dtype.str, array.shape, _digest_of_array(array)) for key, array in arrays.items()}
        names = ("class_names", "client_names", "input_scale", "fingerprint")
        meta = {"arrays": kept} | {name: getattr(dataset, name) for name in names}
        (building / "meta.json").write_text(json.dumps(meta | {"digest": digest_of_json(meta)}), encoding="utf-8")
        try:
            building.rename(folder / entry)
        except OSError:  # something is there: another process was faster, or a damaged entry is in the way
            if _open(folder / entry, dataset.name) is None:
                damaged = (folder / entry).rename(folder / f".building-{uuid.uuid4().hex}")
                building.rename(folder / entry)
                shutil.rmtree(damaged, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _prune(folder: Path, family: str, entry: str) -> None:
    """Remove entries made from earlier contents of the same files, and what killed processes left behind."""
    for path in folder.iterdir():
        stale = path.name.startswith(".building-") and time.time() - path.stat().st_mtime > _STALE_SECONDS
        if stale or (path.name.startswith(family) and path.name != entry):
            shutil.rmtree(path, ignore_errors=True)
