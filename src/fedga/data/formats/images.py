"""Encoded pictures to one uint8 array.

One thread: Pillow holds the interpreter lock for most of the few dozen microseconds that a small picture takes, and a
pool of threads was measured to be slower (60,000 MNIST pictures: 1.6 s with one thread, 4.0 s with two).
"""

import io
import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedga.common.memory import require_memory
from fedga.data.formats.files import Progress, optional, reading
from fedga.errors import FedGAError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_GREY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"})
_REPORT_EVERY = 1000
_BYTES_PER_PIXEL = 8  # of the one picture at work: as Pillow has it, and as bytes
_SMALLER = "shrink the pictures to the size that the model is to see, or give fewer"


def decode(
    pictures: Iterable[tuple[str, bytes]],
    count: int,
    *,
    channels: int | None = None,
    progress: Progress | None = None,
    what: str = "decoding pictures",
    resize: tuple[int, int] | None = None,
    of_one_size: str = "bring all pictures to one size",
) -> np.ndarray:
    """Decode ``count`` pictures, given as (name, bytes), to ``uint8 [count, channels, height, width]``.

    ``channels=None`` takes 1 if all are grey and 3 otherwise; grey pictures among coloured ones are repeated. With
    ``resize`` every picture is brought to that height and width, whatever its own; else ``of_one_size`` says what to do
    about pictures of several sizes.
    """
    pillow = optional("PIL.Image", "pillow", "reading pictures")
    out = np.empty((0, channels or 1, 0, 0), dtype=np.uint8)
    first, done = "", 0

    def other_size(name: str, size: tuple[int, int]) -> FedGAError:
        sizes = f"{size[0]}x{size[1]} pixels while {first} is {out.shape[3]}x{out.shape[2]}"
        return FedGAError(f"{name} is {sizes}: {of_one_size}")

    def other_number(found: str) -> FedGAError:
        number = f"{found} pictures where {count} were promised"
        return FedGAError(f"{what} found {number}: replace the file by an intact copy")

    with warnings.catch_warnings():
        # What a picture needs is compared with the memory there is, which a fixed number of pixels says nothing about.
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
        for name, data in pictures:
            if done == count:
                raise other_number(f"more than {count}")
            picture = _opened(pillow, name, data)
            depth = max(out.shape[1], _channels(name, picture.mode))
            depth, pixels = channels or depth, math.prod(resize or picture.size)
            if done and pixels != math.prod(out.shape[2:]):  # loading may turn it by a quarter, no more
                raise other_size(name, picture.size)
            if done == 0 or depth > out.shape[1]:
                across, down = picture.size if resize is None else resize[::-1]
                size = f"{count:,} pictures of {across:,}x{down:,} pixels,"
                needed = count * depth * pixels + _BYTES_PER_PIXEL * math.prod(picture.size)
                require_memory(needed, f"{first or name} and the others, {size}", _SMALLER)
            with reading(name, "a picture"):
                picture.load()
            mode = "L" if depth == 1 else "RGB"
            if picture.mode != mode:
                picture = picture.convert(mode)
            if resize is not None and picture.size != resize[::-1]:
                picture = picture.resize(resize[::-1], pillow.Resampling.BILINEAR)
            width, height = picture.size
            if done == 0:
                out, first = np.empty((count, depth, height, width), dtype=np.uint8), name
            elif (height, width) != out.shape[2:]:
                raise other_size(name, picture.size)
            elif depth > out.shape[1]:  # a coloured picture behind grey ones
                out = out.repeat(depth, axis=1)
            values = np.frombuffer(picture.tobytes(), dtype=np.uint8).reshape(height, width, depth)
            out[done] = values.transpose(2, 0, 1)
            done += 1
            if progress is not None and (done % _REPORT_EVERY == 0 or done == count):
                progress(what, done, count)
    if done != count:
        raise other_number(str(done))
    return out


def _opened(pillow: Any, name: str, data: bytes) -> Any:
    """A picture whose size is known and of which nothing is decoded yet."""
    with reading(name, "a picture"):
        try:
            return pillow.open(io.BytesIO(data), formats=_FORMATS)
        except pillow.DecompressionBombError:
            raise FedGAError(f"{name} has more than {2 * pillow.MAX_IMAGE_PIXELS:,} pixels: {_SMALLER}") from None


def _channels(name: str, mode: str) -> int:
    if mode not in _GREY | _COLOUR:
        raise FedGAError(f"{name} has pixels of mode {mode!r}, more than 8 bits deep: convert it to 8 bits per channel")
    return 1 if mode in _GREY else 3
