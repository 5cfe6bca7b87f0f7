"""Numbers that a setting or an option may take: one declaration of the range, one sentence for what lies outside."""

import math
import numbers
import operator
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fedga.errors import FedGAError

OFF = ("none", "off")
_LARGEST_WHOLE = 2**63 - 1  # what SQLite, TOML and a counter of the random streams can hold


def wrong_value(where: str, expected: str, value: object) -> FedGAError:
    """The error for a value that stands at ``where``.

    >>> print(wrong_value("--rounds", "a whole number", [10**5000]))
    --rounds must be a whole number, not [an int of 16610 bits]
    """
    return FedGAError(f"{where} must be {expected}, not {shown_value(value)}")


def shown_value(value: object) -> str:
    """What somebody wrote, as a sentence may repeat it.

    >>> shown_value("a" * 100), shown_value([[[[[[[[]]]]]]]])
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaa'", '[[[[[[[...]]]]]]]')
    """
    return _Shown().repr(value)


class _Shown(reprlib.Repr):
    """A value as Python writes it, cut: it may be a file's worth, nested without end."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write a number of more than 4300 digits.
        return f"an int of {x.bit_length()} bits" if x.bit_length() > 10_000 else super().repr_int(x, level)


@dataclass(frozen=True)
class Number:
    """A finite number in a range; ``none`` allows leaving it out, ``zero_is_none`` reads 0 as left out.

    ``smallest`` (of what is not 0) and ``largest`` are the ends of what can be computed with: a sentence names them
    only to someone who went beyond.

    >>> rate = Number(above=0, smallest=1e-30, largest=1e6)
    >>> rate.check("--lr", 1)
    1.0
    >>> rate.check("--lr", 1e308)
    Traceback (most recent call last):
        ...
    fedga.errors.FedGAError: --lr must be a number above 0 and at most 1e+06, not 1e+308
    """

    whole: bool = False
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    none: bool = False
    zero_is_none: bool = False
    smallest: float | None = None
    largest: float | None = None

    @property
    def _bounds(self) -> list[tuple[str, float, Callable[[float, float], bool]]]:
        """Words, number and comparison of the ends that there are."""
        ends = (
            ("above", self.above, operator.gt),
            ("of at least", self.least, operator.ge),
            ("below", self.below, operator.lt),
            ("at most", self.most, operator.le),
        )
        return [(words, bound, inside) for words, bound, inside in ends if bound is not None]

    def __str__(self) -> str:
        bounds = [f"{words} {bound:{',d' if isinstance(bound, int) else 'g'}}" for words, bound, _ in self._bounds]
        text = " ".join(["a whole number" if self.whole else "a number", " and ".join(bounds)]).strip()
        return f"{text} (or none)" if self.none else text

    def check(self, where: str, value: Any) -> int | float | None:
        if self.none and (value is None or (isinstance(value, str) and value.strip().lower() in OFF)):
            return None
        kind = numbers.Integral if self.whole else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            raise wrong_value(where, str(self), value)
        try:
            number = int(value) if isinstance(value, numbers.Integral) and self.whole else float(value)
        except OverflowError:
            raise wrong_value(where, str(self), value) from None
        if self.zero_is_none and number == 0:
            return None
        countable = abs(number) <= _LARGEST_WHOLE if self.whole else math.isfinite(number)
        if not countable or not all(inside(number, bound) for _, bound, inside in self._bounds):
            raise wrong_value(where, str(self), value)
        if self.largest is not None and number > self.largest:
            raise wrong_value(where, str(replace(self, most=self.largest)), number)
        if self.smallest is not None and 0 < number < self.smallest:
            zero = "0, or " if self.least == 0 else ""
            raise wrong_value(where, zero + str(replace(self, above=None, least=self.smallest)), number)
        return number + 0.0 if not self.whole else number  # -0.0 + 0.0 is 0.0: one zero, one run

    def parse(self, where: str, text: str) -> int | float | None:
        text = text.strip()
        if self.none and text.lower() in OFF:
            return None
        try:
            if "_" in text or not text.isascii():  # which Python reads, and a user did not mean
                raise ValueError
            number = int(text) if self.whole else float(text)
        except ValueError:
            raise wrong_value(where, str(self), text) from None
        return self.check(where, number)
