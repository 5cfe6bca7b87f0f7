"""Encoded pictures to one uint8 array.

One thread: Pillow holds the interpreter lock for most of the few dozen microseconds that a small picture takes, and a
pool of threads was measured to be slower (60,000 MNIST pictures: 1.6 s with one thread, 4.0 s with two).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedga.data.files import Progress, optional, reading
from fedga.errors import FedGAError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_GREY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"})
_REPORT_EVERY = 1000


class _ColourFoundError(Exception):
    """A coloured picture after grey ones: the whole array has to have three channels."""


def decode(
    pictures: Callable[[], Iterable[tuple[str, bytes]]],
    count: int,
    *,
    channels: int | None = None,
    progress: Progress | None = None,
    what: str = "decoding pictures",
) -> np.ndarray:
    """Decode ``count`` pictures, given as (name, bytes), to ``uint8 [count, channels, height, width]``.

    ``channels=None`` takes 1 if all are grey and 3 otherwise; grey pictures among coloured ones are repeated. The
    argument is a function since a coloured picture behind grey ones means starting again.
    """
    pillow = optional("PIL.Image", "pillow", "reading pictures")
    try:
        return _decode(pillow, pictures(), count, channels, progress, what)
    except _ColourFoundError:
        return _decode(pillow, pictures(), count, 3, progress, what)


def _decode(
    pillow: Any,
    pictures: Iterable[tuple[str, bytes]],
    count: int,
    channels: int | None,
    progress: Progress | None,
    what: str,
) -> np.ndarray:
    out = np.empty((0, channels or 1, 0, 0), dtype=np.uint8)
    expected = channels
    first, done = "", 0
    for name, data in pictures:
        with reading(name, "a picture"):
            picture = pillow.open(io.BytesIO(data), formats=_FORMATS)
            picture.load()
        found = _channels(name, picture.mode)
        if expected is None:
            expected = found
        if channels is None and found > expected:
            raise _ColourFoundError
        mode = "L" if expected == 1 else "RGB"
        if picture.mode != mode:
            picture = picture.convert(mode)
        width, height = picture.size
        if done == 0:
            out, first = np.empty((count, expected, height, width), dtype=np.uint8), name
        elif (height, width) != out.shape[2:]:
            raise FedGAError(
                f"{name} is {width}x{height} pixels while {first} is {out.shape[3]}x{out.shape[2]}: bring all pictures "
                "to one size"
            )
        pixels = np.frombuffer(picture.tobytes(), dtype=np.uint8).reshape(height, width, expected)
        out[done] = pixels.transpose(2, 0, 1)
        done += 1
        if progress is not None and (done % _REPORT_EVERY == 0 or done == count):
            progress(what, done, count)
    if done != count:
        raise FedGAError(
            f"{what} found {done} pictures where {count} were promised: replace the file by an intact copy"
        )
    return out


def _channels(name: str, mode: str) -> int:
    if mode in _GREY:
        return 1
    if mode in _COLOUR:
        return 3
    raise FedGAError(f"{name} has pixels of mode {mode!r}, more than 8 bits deep: convert it to 8 bits per channel")
