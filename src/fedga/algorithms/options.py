"""Options of an algorithm or a rule: dataclass fields, given by keyword or as text."""

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from fedga.common.ranges import Number, wrong_value
from fedga.errors import FedGAError, unknown_name

_ANY_FLOAT32 = Number(largest=3e38)  # of an option that declares no range
_SWITCHES = {"true": True, "false": False}


def with_options(flag: str, name: str, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``kind``, called ``name`` after ``flag``, in the types of their defaults and within range."""
    declared = {each.name: each for each in fields(kind)}
    return {option: _option(flag, name, declared, option, value) for option, value in given.items()}


def _option(flag: str, name: str, declared: Mapping[str, Field[Any]], option: str, value: Any) -> Any:
    if option not in declared:
        if not declared:
            raise FedGAError(f"{flag.lstrip('-')} {name} has no options, and {option!r} was given: leave it out")
        raise unknown_name(f"option of {name}", option, declared)
    where, wanted = f"{flag} {name}: {option}", type(declared[option].default)
    if wanted is bool:
        if str(value).lower() not in _SWITCHES:
            raise wrong_value(where, "true or false", value)
        return _SWITCHES[str(value).lower()]
    if wanted is str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise wrong_value(where, "a text", value)
        return str(value)
    kind = declared[option].metadata.get("range", Number(whole=True) if wanted is int else _ANY_FLOAT32)
    if isinstance(value, str):
        return kind.parse(where, value)
    if wanted is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # on the command line every number is a float
    return kind.check(where, value)
