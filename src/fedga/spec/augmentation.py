"""How pictures are changed while clients train on them: ``--augment mirror,shift:4``."""

from dataclasses import dataclass
from typing import Any, Self

from fedga.common.ranges import wrong_value
from fedga.errors import FedGAError
from fedga.spec.catalog import find_source
from fedga.spec.kinds import Kind

LARGEST_SHIFT = 64


@dataclass(frozen=True)
class Augmentation:
    """Mirrored left to right with probability ½; moved by up to ``shift`` pixels each way, zeros coming in.

    >>> str(Augmentation.parse("--augment", "shift:4,mirror"))
    'mirror,shift:4'
    """

    mirror: bool = False
    shift: int = 0

    def __bool__(self) -> bool:
        return self.mirror or self.shift > 0

    def __str__(self) -> str:
        return ",".join(["mirror"] * self.mirror + [f"shift:{self.shift}"] * (self.shift > 0))

    @classmethod
    def parse(cls, where: str, text: str) -> Self:
        """From ``mirror``, ``shift:PIXELS``, both with a comma between, or ``none``."""
        mirror, shift = False, 0
        parts = [part.strip() for part in text.split(",") if part.strip()]
        names = [part.partition(":")[0] for part in parts]
        if ";" in text or len(set(names)) < len(names) or ("none" in names and len(names) > 1):
            grid = "for a grid on the command line write alternatives as 'none;mirror,shift:4'"
            raise FedGAError(f"{where} {text!r} is not one value: give one; {grid}")
        for part in parts if names != ["none"] else []:
            name, _, value = part.partition(":")
            if name == "mirror" and not value:
                mirror = True
            elif name == "shift" and value.isdecimal() and 0 < int(value) <= LARGEST_SHIFT:
                shift = int(value)
            elif name == "shift":
                raise FedGAError(f"{where} {part!r}: give the pixels to move by, from 1 to {LARGEST_SHIFT}: shift:4")
            else:
                raise FedGAError(f"{where} {part!r} is not an augmentation: give mirror, shift:4, or both")
        return cls(mirror, shift)

    def check_suits(self, dataset: str) -> None:
        """Refuse to mirror what a data set known by name says should not be."""
        source = find_source(dataset)
        if self.mirror and source is not None and not source.mirrored:
            raise FedGAError(f"--augment mirror would turn {source.name} into other symbols: leave mirror out")


@dataclass(frozen=True)
class Augment(Kind):
    """The setting: its canonical text; alternatives of a sweep stand between semicolons."""

    separator = ";"

    def __str__(self) -> str:
        return "mirror, shift:PIXELS or both"

    def check(self, where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise wrong_value(where, str(self), value)
        return str(Augmentation.parse(where, value))
