"""Ways in which a file comes to harm, as hypothesis draws them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

_PLACES = st.floats(0, 1, exclude_max=True)  # in a file of any length


@dataclass(frozen=True)
class Damage:
    """A kind of harm, and where in the file it strikes."""

    kind: str
    first: float = 0.0
    second: float = 0.0
    size: int = 1

    def strike(self, path: Path, others: list[Path]) -> None:
        """Damage the file; ``others`` are files of its kind that may get into its place."""
        if self.kind in _IN_PLACE:
            content = bytearray(path.read_bytes())
            if content:
                _IN_PLACE[self.kind](self, content)
            path.write_bytes(content)
        elif self.kind == "other":
            content = others[int(self.first * len(others))].read_bytes() if others else b""
            path.write_bytes(content)
        else:
            path.unlink()
            _INSTEAD[self.kind](path)

    def at(self, content: bytearray, place: float) -> int:
        return int(place * len(content))


def _flip(damage: Damage, content: bytearray) -> None:
    content[damage.at(content, damage.first)] ^= 1 << damage.size % 8


def _zero(damage: Damage, content: bytearray) -> None:
    first = damage.at(content, damage.first)
    last = min(len(content), first + damage.size)
    content[first:last] = bytes(last - first)


def _cut(damage: Damage, content: bytearray) -> None:
    del content[damage.at(content, damage.first) :]


def _swap(damage: Damage, content: bytearray) -> None:
    """Two blocks of equal length change places, as sectors do."""
    one, other = sorted((damage.at(content, damage.first), damage.at(content, damage.second)))
    size = min(damage.size, other - one, len(content) - other)
    content[one : one + size], content[other : other + size] = content[other : other + size], content[one : one + size]


def _grow(damage: Damage, content: bytearray) -> None:
    content += bytes(damage.size)


_IN_PLACE: dict[str, Callable[[Damage, bytearray], None]] = {
    "flip": _flip,
    "zero": _zero,
    "cut": _cut,
    "swap": _swap,
    "grow": _grow,
}
_INSTEAD: dict[str, Callable[[Path], None]] = {
    "gone": lambda path: None,
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "lost link": lambda path: path.symlink_to("nowhere"),
    "pipe": os.mkfifo,
}

damages = st.builds(
    Damage,
    kind=st.sampled_from(["flip", "flip", "flip", *_IN_PLACE, *_INSTEAD, "other"]),  # a flip is hardest to notice
    first=_PLACES,
    second=_PLACES,
    size=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 64, 512, 4096]),
)


def copied(template: Path, target: Path) -> Path:
    """A fresh copy of a folder to damage."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(template, target)
    return target
