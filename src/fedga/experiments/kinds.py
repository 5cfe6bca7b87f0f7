"""What a setting may hold: one small object per kind of value, used for flags, TOML files and specs alike.

``check`` takes a value and gives it back in its one canonical form (so that 1 and 1.0 make the same run); ``parse``
takes the text of a flag. Both are told ``where`` the value stands, so that the error speaks the user's words.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, Protocol

from fedga.errors import FedGAError, unknown_name

_OFF = ("none", "off")
_LARGEST = 2**63 - 1  # what SQLite, TOML and a counter of the random streams can hold


class Kind(Protocol):
    """The values that one setting may take."""

    def check(self, where: str, value: Any) -> Any:
        """The value in canonical form, or a FedGAError that names ``where``."""

    def parse(self, where: str, text: str) -> Any:
        """The value written as ``text`` on the command line."""


def _bad(where: str, expected: str, value: object) -> FedGAError:
    return FedGAError(f"{where} must be {expected}, not {value!r}")


@dataclass(frozen=True)
class Number:
    """A finite number in a range; ``none`` allows leaving it out, ``zero_is_none`` reads 0 as left out."""

    whole: bool = False
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    none: bool = False
    zero_is_none: bool = False

    def __str__(self) -> str:
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (
                ("above", self.above),
                ("of at least", self.least),
                ("below", self.below),
                ("at most", self.most),
            )
            if bound is not None
        ]
        text = " ".join(["a whole number" if self.whole else "a number", " and ".join(bounds)]).strip()
        return f"{text} (or none)" if self.none else text

    def check(self, where: str, value: Any) -> int | float | None:
        if self.none and (value is None or (isinstance(value, str) and value.strip().lower() in _OFF)):
            return None
        kind = numbers.Integral if self.whole else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            raise _bad(where, str(self), value)
        try:
            number = int(value) if isinstance(value, numbers.Integral) and self.whole else float(value)
        except OverflowError:
            raise _bad(where, str(self), value) from None
        if self.zero_is_none and number == 0:
            return None
        if not math.isfinite(number) or (self.whole and abs(number) > _LARGEST) or not self._inside(number):
            raise _bad(where, str(self), value)
        return number + 0.0 if not self.whole else number  # -0.0 + 0.0 is 0.0: one zero, one run

    def _inside(self, number: float) -> bool:
        return not (
            (self.above is not None and number <= self.above)
            or (self.least is not None and number < self.least)
            or (self.below is not None and number >= self.below)
            or (self.most is not None and number > self.most)
        )

    def parse(self, where: str, text: str) -> int | float | None:
        text = text.strip()
        if self.none and text.lower() in _OFF:
            return None
        try:
            return self.check(where, int(text) if self.whole else float(text))
        except FedGAError:
            raise
        except ValueError:
            raise _bad(where, str(self), text) from None


@dataclass(frozen=True)
class Choice:
    """One of a few names."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"

    def check(self, where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _bad(where, str(self), value)
        if value not in self.names:
            raise unknown_name(where, value, self.names)
        return value

    def parse(self, where: str, text: str) -> str:
        return self.check(where, text.strip())


@dataclass(frozen=True)
class Text:
    """A name that others check (a data set, a model, a column), or a path."""

    none: bool = False
    empty: bool = False

    def __str__(self) -> str:
        return "a text" + (" (or none)" if self.none else "")

    def check(self, where: str, value: Any) -> str | None:
        if value is None and self.none:
            return None
        if not isinstance(value, str):
            raise _bad(where, str(self), value)
        if not value.strip() and not self.empty:
            raise FedGAError(f"{where} is empty: give a name")
        return value.strip()

    def parse(self, where: str, text: str) -> str | None:
        return self.check(where, text)


@dataclass(frozen=True)
class Switch:
    """On or off."""

    def __str__(self) -> str:
        return "true or false"

    def check(self, where: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise _bad(where, str(self), value)
        return value

    def parse(self, where: str, text: str) -> bool:
        word = text.strip().lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0"):
            return False
        raise _bad(where, str(self), text)
