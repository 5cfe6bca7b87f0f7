"""What a setting may hold: one small object per kind of value, used for flags, TOML files and specs alike.

``check`` takes a value and gives it back in its one canonical form (so that 1 and 1.0 make the same run); ``parse``
takes the text of a flag. ``where`` names the place of the value for the error.
"""

import re
from dataclasses import dataclass
from typing import Any, Protocol

from fedga.common.ranges import Number, shown_value, wrong_value
from fedga.errors import FedGAError, check_known

__all__ = ["Kind", "Number", "OneOf", "PictureSize", "Switch", "Text"]


class Kind(Protocol):
    """The values that one setting may take."""

    def check(self, where: str, value: Any) -> Any:
        """The value in canonical form, or a FedGAError that names ``where``."""

    def parse(self, where: str, text: str) -> Any:
        """The value written as ``text`` on the command line."""
        return self.check(where, text)


@dataclass(frozen=True)
class OneOf(Kind):
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"

    def check(self, where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise wrong_value(where, str(self), value)
        check_known(where, value, self.names)
        return value

    def parse(self, where: str, text: str) -> str:
        return self.check(where, text.strip())


# A terminal would obey control characters; half a character comes of a file name in another encoding.
_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Text(Kind):
    """A name that others check (a data set, a model, a column), or a path."""

    none: bool = False
    empty: bool = False

    def __str__(self) -> str:
        return "a text" + (" (or none)" if self.none else "")

    def check(self, where: str, value: Any) -> str | None:
        if value is None and self.none:
            return None
        if not isinstance(value, str):
            raise wrong_value(where, str(self), value)
        if not value.strip() and not self.empty:
            raise FedGAError(f"{where} is empty: give a name")
        if _NOT_TEXT.search(value):
            raise FedGAError(f"{where} {shown_value(value)} is not text that can be stored: give it another name")
        return value.strip()


@dataclass(frozen=True)
class Switch(Kind):
    def __str__(self) -> str:
        return "true or false"

    def check(self, where: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise wrong_value(where, str(self), value)
        return value

    def parse(self, where: str, text: str) -> bool:
        words = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
        if (value := words.get(text.strip().lower())) is None:
            raise wrong_value(where, str(self), text)
        return value


LONGEST_SIDE = 4096


@dataclass(frozen=True)
class PictureSize(Kind):
    """Height and width in pixels as ``HxW``, or one number for both; empty where pictures are taken as they are.

    >>> [PictureSize().check("--resize", value) for value in ("32", 32, "32X48", "none", "")]
    ['32x32', '32x32', '32x48', '', '']
    """

    def __str__(self) -> str:
        return f"height and width from 1 to {LONGEST_SIDE} pixels, as 32 or 32x48 (or none)"

    def check(self, where: str, value: Any) -> str:
        text = str(value).strip().lower() if isinstance(value, str) or type(value) is int else "?"
        if text in ("", "none"):
            return ""
        sides = re.fullmatch(r"([0-9]{1,4})(?:x([0-9]{1,4}))?", text)
        height, width = (int(side or sides[1]) for side in sides.groups()) if sides else (0, 0)
        if not (1 <= height <= LONGEST_SIDE and 1 <= width <= LONGEST_SIDE):
            raise wrong_value(where, str(self), value)
        return f"{height}x{width}"
