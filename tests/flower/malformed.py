"""What a site with a valid key can send instead of what was asked: several hundred replies, each wrong in one way."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedga.flower import wire

Spoil = Callable[[RecordDict], Any]
NUMPY = "numpy.ndarray"


@dataclass(frozen=True)
class Malformed:
    """A name for the test, and what is done to an honest reply."""

    name: str
    spoil: Spoil

    def __str__(self) -> str:
        return self.name


# --- arrays ----------------------------------------------------------------------------------------------------------


def npy(array: np.ndarray, *, pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def npz(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, array)
    return buffer.getvalue()


def header(text: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    """The beginning of an array with any text for its description, of any length it says."""
    written = text.encode("latin1") + b"\n"
    form = "<H" if version == (1, 0) else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(form, len(written) if length is None else length) + written


def described(shape: str, kind: str = "'<f4'", order: str = "False") -> str:
    return f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"


def _as(kind: str) -> Callable[[Array], Array]:
    return lambda array: Array(array.numpy().astype(kind))


def _data(change: Callable[[Array], bytes]) -> Callable[[Array], Array]:
    """The same labels, other bytes."""
    return lambda array: Array(array.dtype, array.shape, array.stype, change(array))


def _labels(
    dtype: str | None = None,
    stype: str | None = None,
    shape: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None,
) -> Callable[[Array], Array]:
    """Other labels, the same bytes."""
    return lambda array: Array(
        array.dtype if dtype is None else dtype,
        array.shape if shape is None else shape(array.shape),
        array.stype if stype is None else stype,
        array.data,
    )


def _filled(value: float) -> Callable[[Array], Array]:
    return lambda array: Array(np.full(array.shape, value, dtype=np.float32))


TERABYTES = (400_000_000_000,)  # 1.6 TB as float32

ARRAYS: dict[str, Callable[[Array], Array]] = {
    "garbage": _data(lambda array: bytes(range(256)) * (len(array.data) // 256)),
    "empty": _data(lambda array: b""),
    "one byte": _data(lambda array: b"\x93"),
    "magic alone": _data(lambda array: array.data[:6]),
    "header alone": _data(lambda array: array.data[:128]),
    "half": _data(lambda array: array.data[: len(array.data) // 2]),
    "a byte less": _data(lambda array: array.data[:-1]),
    "a byte more": _data(lambda array: array.data + b"\0"),
    "twice": _data(lambda array: array.data * 2),
    "a megabyte more": _data(lambda array: array.data + bytes(1_000_000)),
    "zip": _data(lambda array: npz(array.numpy())),
    "pickled objects": _data(lambda array: npy(array.numpy().astype(object), pickled=True)),
    "pickled objects, labelled so": lambda array: Array(
        "object", array.shape, NUMPY, npy(array.numpy().astype(object), pickled=True)
    ),
    "float64": _as("float64"),
    "float16": _as("float16"),
    "int32": _as("int32"),
    "int64": _as("int64"),
    "uint8": _as("uint8"),
    "bool": _as("bool"),
    "complex64": _as("complex64"),
    "complex128": _as("complex128"),
    "text": _as("U4"),
    "bytes": _as("S4"),
    "dates": lambda array: Array(np.zeros(array.shape, "datetime64[s]")),
    "records": lambda array: Array(np.zeros(array.shape, [("a", "<f4")])),
    "big-endian": lambda array: Array(array.numpy().astype(">f4")),
    "big-endian bytes": _data(lambda array: npy(array.numpy().astype(">f4"))),
    "float64 bytes": _data(lambda array: npy(array.numpy().astype("float64"))),
    "int32 bytes": _data(lambda array: npy(array.numpy().astype("int32"))),
    "float64 label": _labels(dtype="float64"),
    "no type": _labels(dtype=""),
    "unknown type": _labels(dtype="subprocess.call"),
    "flat": lambda array: Array(np.append(array.numpy().reshape(-1), 1).astype(np.float32)),
    "one axis more": lambda array: Array(array.numpy()[None]),
    "no axes": lambda array: Array(np.array(1, dtype=np.float32)),
    "no numbers": lambda array: Array(np.zeros((0, *array.shape[1:]), dtype=np.float32)),
    "one axis more in the label": _labels(shape=lambda shape: (1, *shape)),
    "negative lengths": _labels(shape=lambda shape: (-1,)),
    "terabytes in the label": _labels(shape=lambda shape: TERABYTES),
    "terabytes in label and bytes": lambda array: Array("float32", TERABYTES, NUMPY, header(described(str(TERABYTES)))),
    "terabytes in the bytes": _data(lambda array: header(described(str(TERABYTES))) + array.data[128:]),
    "negative lengths in the bytes": _data(lambda array: header(described("(-1,)")) + array.data[128:]),
    "words for lengths in the bytes": _data(lambda array: header(described("('a',)")) + array.data[128:]),
    "a description that is none": _data(lambda array: header("hello") + array.data[128:]),
    "a description that calls": _data(lambda array: header("__import__('os').abort()") + array.data[128:]),
    "a description without end": _data(lambda array: header("(" * 500) + array.data[128:]),
    "a long description": _data(lambda array: header(described("()") + " " * 5000) + array.data[128:]),
    "a header of 64 kB": _data(lambda array: header(described("()"), length=65_535)),
    "a header of 4 GB": _data(lambda array: header(described("()"), (2, 0), length=2**32 - 1)),
    "a header of a later version": _data(lambda array: header(described("()"), (9, 9)) + array.data[128:]),
    "objects in the description": _data(lambda array: header(described("()", "'|O'")) + array.data[128:]),
    "another format": _labels(stype="pickle"),
    "no format": _labels(stype=""),
    "control characters": _labels(stype="\x1b[31m\nround 9 of 9: done" + "x" * 1000),
}
VALUES = {"nan": np.nan, "infinite": np.inf, "minus infinite": -np.inf}


def _in_array(record: str, key: str, change: Callable[[Array], Array]) -> Spoil:
    def spoil(content: RecordDict) -> None:
        content.array_records[record][key] = change(content.array_records[record][key])

    return spoil


def arrays(record: str, key: str) -> Iterator[Malformed]:
    for name, change in ARRAYS.items():
        if name == "no axes" and key == "survey":
            continue  # it has none
        yield Malformed(f"{record}/{key}: {name}", _in_array(record, key, change))
    for name, value in VALUES.items():
        yield Malformed(f"{record}/{key}: {name}", _in_array(record, key, _filled(value)))


def _without(record: str, key: str) -> Spoil:
    return lambda content: content.array_records[record].pop(key)


def _renamed(record: str, key: str) -> Spoil:
    def spoil(content: RecordDict) -> None:
        arrays = content.array_records[record]
        arrays["\x1b]0;" + key] = arrays.pop(key)

    return spoil


def _added(record: str, name: str, array: np.ndarray) -> Spoil:
    return lambda content: content.array_records[record].__setitem__(name, Array(array))


def names(record: str, key: str) -> list[Malformed]:
    """Arrays and records that are missing, or called otherwise, or too many."""
    return [
        Malformed(f"{record}: without {key}", _without(record, key)),
        Malformed(f"{record}: {key} called otherwise", _renamed(record, key)),
        Malformed(f"{record}: one more", _added(record, "more", np.zeros(3, np.float32))),
        Malformed(f"{record}: 20 MB more", _added(record, "more", np.zeros(5_000_000, np.float32))),
        Malformed(f"{record}: a name without end", _added(record, "n" * 100_000, np.zeros(3, np.float32))),
        Malformed(f"{record}: no arrays", lambda content: content.array_records[record].clear()),
        Malformed(f"{record}: missing", lambda content: content.pop(record)),
        Malformed(f"{record}: called otherwise", lambda content: content.__setitem__("other", content.pop(record))),
        Malformed(f"{record}: metrics in its place", lambda content: _replace(content, record, MetricRecord({"a": 1}))),
        Malformed(f"{record}: texts in its place", lambda content: _replace(content, record, ConfigRecord({"a": "b"}))),
        Malformed(f"{record}: another beside it", lambda content: content.__setitem__("more", ArrayRecord())),
        Malformed(f"{record}: metrics beside it", lambda content: content.__setitem__("m", MetricRecord({"a": 1}))),
        Malformed(f"{record}: texts beside it", lambda content: content.__setitem__("c", ConfigRecord({"a": "b"}))),
        Malformed(f"{record}: nothing at all", lambda content: content.clear()),
    ]


def _replace(content: RecordDict, name: str, record: Any) -> None:
    content.pop(name)
    content[name] = record


# --- numbers ---------------------------------------------------------------------------------------------------------

NOT_COUNTS: dict[str, Any] = {
    "inf": np.inf,
    "-inf": -np.inf,
    "nan": np.nan,
    "-1": -1,
    "-0.5": -0.5,
    "0.5": 0.5,
    "1e18": 10**18,
    "1e12 + 1": 10**12 + 1,
    "1e308": 1e308,
    "least whole number": -(2**63),
    "a list": [1, 2],
    "no numbers": [],
    "a list of floats": [1.0],
}


def _metric(name: str, value: Any) -> Spoil:
    return lambda content: content.metric_records[wire.METRICS].__setitem__(name, value)


def _without_metric(name: str) -> Spoil:
    return lambda content: content.metric_records[wire.METRICS].pop(name)


def numbers() -> list[Malformed]:
    """Of a record of metrics."""
    return [
        *(Malformed(f"num-examples: {name}", _metric(wire.EXAMPLES, value)) for name, value in NOT_COUNTS.items()),
        Malformed("num-examples: missing", lambda content: content.metric_records[wire.METRICS].pop(wire.EXAMPLES)),
        Malformed(
            "num-examples: text", lambda content: _replace(content, "metrics", ConfigRecord({"num-examples": "9"}))
        ),
        Malformed("metrics: missing", lambda content: content.pop(wire.METRICS)),
        Malformed("metrics: empty", lambda content: content.metric_records[wire.METRICS].clear()),
        Malformed("metrics: one more", _metric("more", 1)),
        Malformed("metrics: arrays in their place", lambda content: _replace(content, "metrics", ArrayRecord())),
    ]


def scores() -> list[Malformed]:
    """Of an evaluation."""
    wrong: dict[str, dict[str, Any]] = {
        "accuracy": {"7": 7, "-1": -1, "nan": np.nan, "inf": np.inf, "1.001": 1.001, "a list": [0.5], "-0.1": -0.1},
        "loss": {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "-1": -1.0, "a list": [1.0], "no numbers": []},
    }
    found = [
        Malformed(f"{score}: {name}", _metric(score, value))
        for score, values in wrong.items()
        for name, value in values.items()
    ]
    found += [Malformed(f"{score}: missing", _without_metric(score)) for score in wrong]
    return [*found, *numbers(), Malformed("scores: nothing at all", lambda content: content.clear())]


# --- introductions ---------------------------------------------------------------------------------------------------

NOT_WHOLE: dict[str, Any] = {
    "words": ["six", "four"],
    "a word": "sixty-four",
    "a number": 64,
    "a float": 64.0,
    "floats": [64.0],
    "nans": [float("nan")],
    "truths": [True],
    "bytes": b"64",
    "lists of bytes": [b"64"],
    "negative": [-64],
    "control characters": ["\x1b[2J"],
    "huge": [2**62],
    "huge in all": [2**31, 2**31],
}


def _identity(name: str, value: Any) -> Spoil:
    return lambda content: content.config_records[wire.IDENTITY].__setitem__(name, value)


def introductions() -> list[Malformed]:
    found = [
        Malformed(f"{key}: {name}", _identity(key, value))
        for key in ("input-shape", "class-counts")
        for name, value in NOT_WHOLE.items()
    ]
    more: dict[str, dict[str, Any]] = {
        "input-shape": {"none": [], "zero": [0], "nine axes": [1] * 9, "a million axes": [1] * 1_000_000},
        "class-counts": {"none": [], "too few": [1] * 9, "too many": [1] * 11},
        "site": {"a number": 1, "a list": ["north"], "bytes": b"north", "a stranger": "east", "another": "south"},
        "pictures": {"a word": "yes", "a number": 1, "a list": [True]},
        "columns": {"a number": 1, "a list": ["a"], "a long text": "x" * 1000, "bytes": b"x"},
        "partition-id": {"a word": "one", "a float": 1.5, "a list": [1], "a truth": True},
    }
    found += [
        Malformed(f"{key}: {name}", _identity(key, value)) for key, each in more.items() for name, value in each.items()
    ]
    found += [
        Malformed("site: a name without end", _identity("site", "n" * 100_000)),
        Malformed("site: control characters", _identity("site", "north\x1b[31m\r\n")),
        Malformed("identity: missing", lambda content: content.pop(wire.IDENTITY)),
        Malformed("identity: empty", lambda content: content.config_records[wire.IDENTITY].clear()),
        Malformed(
            "identity: metrics in its place", lambda content: _replace(content, "identity", MetricRecord({"a": 1}))
        ),
        Malformed("identity: arrays in its place", lambda content: _replace(content, "identity", ArrayRecord())),
        Malformed("identity: arrays beside it", lambda content: content.__setitem__("more", ArrayRecord())),
    ]
    return found
