"""What a setting may hold: one small object per kind of value, used for flags, TOML files and specs alike.

``check`` takes a value and gives it back in its one canonical form (so that 1 and 1.0 make the same run); ``parse``
takes the text of a flag. ``where`` names the place of the value for the error.
"""

import re
from dataclasses import dataclass
from typing import Any, Protocol

from fedga.common.ranges import Number, shown_value, wrong_value
from fedga.errors import FedGAError, check_known

__all__ = ["Kind", "Number", "OneOf", "Switch", "Text"]


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
