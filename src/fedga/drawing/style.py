"""How every picture looks, and how it is written: colours, line styles, fonts and ``save``.

An algorithm has one colour and one marker in all pictures. The colours are Okabe and Ito's and Paul Tol's, which
colour-blind readers tell apart. pyplot is never touched: a figure belongs to whoever asked for it, on any thread.
"""

import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedga.common.files import write_whole
from fedga.errors import FedGAError, needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.collections import QuadMesh as QuadMesh
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = QuadMesh = Any  # matplotlib loads when something is drawn

DPI = 150
TEXT, MUTED, GRID, BAND = "#1f2328", "#59636e", "#d9dee3", 0.16
FONT, SMALL, LARGE = 10.5, 9.0, 13.0
LOST, GAINED = "#d55e00", "#0072b2"  # accuracy that local training took or gave

# Name on the command line -> name in the literature, colour, marker; in the order of every legend.
_LINES = Path(__file__).with_name("algorithms.csv").read_text("utf-8").splitlines()
_ALGORITHMS = {name: look for name, *look in (line.split(",") for line in _LINES)}
ALGORITHM_NAMES = tuple(_ALGORITHMS)
_OTHERS = ("#882255", "#44aa99", "#332288", "#aa4499", "#661100", "#7f7f7f")  # algorithms of other packages
_OTHER_MARKERS = ("<", ">", "p", "h", "d", "8")
_PRESET_LINES = {"strong": (0, (4.5, 1.6))}
_AVERAGED_LINE = (0, (1.1, 1.1))
_ANONYMOUS = {  # what matplotlib would write of itself and of the time, which changes without the picture
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class LineStyle:
    """How the line of one algorithm under one preset is drawn."""

    color: str
    marker: str
    line: Any  # what matplotlib takes as linestyle
    width: float
    filled: bool = True  # the marker

    def keywords(self) -> dict[str, Any]:
        return {
            "color": self.color,
            "linestyle": self.line,
            "linewidth": self.width,
            "marker": self.marker,
            "markersize": 9 if self.marker == "*" else 6,
            "markeredgecolor": self.color if not self.filled else "white",
            "markeredgewidth": 1.2 if not self.filled else 0.6,
            "markerfacecolor": "white" if not self.filled else self.color,
        }


def base_name(algorithm: str) -> str:
    """The algorithm without its options."""
    return algorithm.partition(":")[0].strip()


def display_name(algorithm: str) -> str:
    """The algorithm as the literature writes it, with the options the user gave.

    >>> display_name("fedprox:mu=0.01")
    'FedProx (mu=0.01)'
    """
    name, _, options = algorithm.partition(":")
    shown = _ALGORITHMS[name][0] if name in _ALGORITHMS else name
    return f"{shown} ({options.replace(':', ' ')})" if options else shown


def algorithm_rank(algorithm: str) -> tuple[int, str]:
    """Sorts algorithms into the order of every legend, those of other packages last and by name."""
    name = base_name(algorithm)
    return (list(_ALGORITHMS).index(name) if name in _ALGORITHMS else len(_ALGORITHMS), algorithm)


def algorithm_color(algorithm: str) -> str:
    name = base_name(algorithm)
    return _ALGORITHMS[name][1] if name in _ALGORITHMS else _OTHERS[_place(name)]


def line_style(algorithm: str, preset: str = "", *, variant: int = 0, averaged: bool = False) -> LineStyle:
    """``variant`` counts runs that differ in neither algorithm nor preset: they share the colour in other shades."""
    name = base_name(algorithm)
    marker = _ALGORITHMS[name][2] if name in _ALGORITHMS else _OTHER_MARKERS[_place(name[::-1])]  # not by colour alone
    color = shade(algorithm_color(algorithm), (0.0, 0.45, -0.4, 0.65, -0.65)[variant % 5])
    if averaged:
        return LineStyle(shade(color, 0.35), marker, _AVERAGED_LINE, 2.0, filled=False)
    return LineStyle(color, marker, _PRESET_LINES.get(preset, "-"), 1.8)


def shade(color: str, amount: float) -> str:
    """Towards white for a positive amount, towards black for a negative one.

    >>> shade("#808080", 0.5), shade("#808080", -1)
    ('#c0c0c0', '#000000')
    """
    towards = 255 if amount > 0 else 0
    channels = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(value + (towards - value) * abs(amount)):02x}" for value in channels)


def _place(name: str) -> int:
    return zlib.crc32(name.encode()) % len(_OTHERS)


@contextmanager
def drawing() -> Iterator[None]:
    """matplotlib with our settings; without matplotlib, one sentence that says what to install."""
    try:
        import matplotlib
    except ImportError:
        raise needs_extra("matplotlib", "report", "drawing pictures") from None
    with matplotlib.rc_context(_settings()):
        yield


@cache
def _settings() -> Any:
    import matplotlib

    return matplotlib.rc_params_from_file(Path(__file__).with_name("fedga.mplstyle"), use_default_template=False)


def save(figure: Figure, path: str | os.PathLike[str], kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write ``path`` + ``.png``, ``.svg`` or ``.pdf``, each whole or not at all; the same figure is the same bytes."""
    written = [Path(f"{os.fspath(path)}.{kind}") for kind in kinds]
    for file, kind in zip(written, kinds, strict=True):
        drawn = io.BytesIO()
        with drawing():
            figure.savefig(drawn, format=kind, dpi=DPI, metadata=_ANONYMOUS[kind])
        write_named("picture", file, drawn.getvalue())
    return written


def write_named(kind: str, path: Path, content: bytes | str) -> Path:
    """Write the file whole or not at all; where that fails, a sentence says which picture or table it is."""
    try:
        return write_whole(path, content)
    except OSError as error:
        raise FedGAError(f"the {kind} {str(path)!r} cannot be written: {error.strerror or error}") from error
