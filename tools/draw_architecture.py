"""Draws docs/pictures/architecture.svg from the imports of the code: `make architecture`.

The rooms of the package stand on a staircase, in the order of the layers in pyproject.toml. An import goes right from
the room that imports, then down to the room it needs; the number counts the imports between modules. A forbidden import
goes up, and is red.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import grimp

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
PACKAGE = "fedga"

# Colours tell apart which rooms do similar work; a room that is not named here is grey.
GROUPS = {
    "for people": ("#7a4fa3", ("cli", "testing", "estimator")),
    "across machines": ("#2b6cb0", ("federation", "flower")),
    "what is shown": ("#c2571a", ("paper", "diagnosis", "tracking", "report")),
    "what is kept": ("#8a6d1b", ("study", "store")),
    "training": ("#1d7a6b", ("engine", "selection", "servers", "algorithms", "models")),
    "inputs": ("#3d7a2a", ("data", "spec")),
    "parts and tools": ("#5b6573", ("plugins", "measures", "losses", "drawing", "common", "errors")),
}
READING = (
    "How to read it",
    "A room imports only from rooms below it:",
    "right from its box, then down to the other.",
    "Numbers count imports between modules.",
    "Rooms in one band do not import each other.",
)
CELL_X, CELL_Y, LEFT, TOP = 42, 44, 348, 14
BOX, BOX_HEIGHT, REACH = 132, 34, 14  # a box reaches this far to the right of its own column
INK, QUIET, LINE, FORBIDDEN = "#1f2933", "#6b7683", "#c9d1d9", "#c81e1e"


@dataclass(frozen=True)
class Architecture:
    """Rooms by layer, top first, and how many imports lead from one room to another."""

    layers: tuple[tuple[str, ...], ...]
    imports: dict[tuple[str, str], int]

    @property
    def rooms(self) -> list[str]:
        return [room for layer in self.layers for room in layer]


def read_architecture() -> Architecture:
    """The layers that pyproject.toml allows, and the imports that the code has."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (rule for rule in settings["tool"]["importlinter"]["contracts"] if rule["type"] == "layers")
    layers = tuple(
        tuple(name.strip().removeprefix(f"{PACKAGE}.") for name in layer.split("|")) for layer in contract["layers"]
    )
    known = {room for layer in layers for room in layer}
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    imports: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for needed in graph.find_modules_directly_imported_by(module):
            pair = _room(module), _room(needed)
            if pair[0] != pair[1] and known.issuperset(pair):
                imports[pair] += 1
    return Architecture(layers, dict(imports))


def drawn_architecture(picture: Path = PICTURE) -> Architecture:
    """What a picture shows, read back from it."""
    root = ElementTree.parse(picture).getroot()
    rooms = [element.attrib for element in root.iter() if element.get("class") == "room"]
    layers: dict[str, list[str]] = {}
    for room in rooms:
        layers.setdefault(room["data-layer"], []).append(room["data-room"])
    arrows = [element.attrib for element in root.iter() if element.get("class") == "arrow"]
    imports = {(arrow["data-from"], arrow["data-to"]): int(arrow["data-count"]) for arrow in arrows}
    return Architecture(tuple(tuple(names) for names in layers.values()), imports)


def draw(shown: Architecture) -> str:
    """The picture as SVG."""
    rooms = shown.rooms
    width, height = LEFT + CELL_X * len(rooms) + 4, TOP + CELL_Y * len(rooms) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">',
        "<title>The rooms of fedga and the imports between them</title>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
        *_legend(height),
        *_bands(shown, width),
        *_rails(shown),
    ]
    for place, room in enumerate(rooms):
        lines += _box(room, place, _layer_of(shown, room))
    for (source, target), count in sorted(shown.imports.items(), key=lambda item: (rooms.index(item[0][0]), item[0])):
        lines += _bubble(source, target, rooms.index(source), rooms.index(target), count)
    return "\n".join([*lines, "</svg>", ""])


def _room(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def _layer_of(shown: Architecture, room: str) -> int:
    return next(place for place, layer in enumerate(shown.layers) if room in layer)


def _color(room: str) -> str:
    return next((color for color, rooms in GROUPS.values() if room in rooms), QUIET)


def _x(place: int) -> int:
    return LEFT + CELL_X * place


def _y(place: int) -> int:
    return TOP + CELL_Y * place + CELL_Y // 2


def _legend(height: int) -> list[str]:
    """In the empty corner: where an import from a lower room to a higher one would be."""
    top = height - 44 - 26 * (len(READING) + len(GROUPS))
    lines = []
    for place, words in enumerate(READING):
        weight = "600" if place == 0 else "400"
        lines.append(
            f'<text x="36" y="{top + 26 * place}" font-size="20" font-weight="{weight}" fill="{INK}">{words}</text>'
        )
    top += 26 * len(READING) + 8
    for place, (name, (color, _)) in enumerate(GROUPS.items()):
        lines.append(f'<rect x="36" y="{top + 26 * place - 12}" width="22" height="14" rx="4" fill="{color}"/>')
        lines.append(f'<text x="68" y="{top + 26 * place}" font-size="18" fill="{QUIET}">{name}</text>')
    return lines


def _bands(shown: Architecture, width: int) -> list[str]:
    """Every second layer is shaded, so that rooms of one layer are seen together."""
    lines, first = [], 0
    for place, layer in enumerate(shown.layers):
        if place % 2 == 0:
            left, top, height = _x(first) - LEFT + 10, TOP + CELL_Y * first, CELL_Y * len(layer)
            lines.append(
                f'<rect x="{left}" y="{top}" width="{width - 12 - left}" height="{height}" rx="8" fill="#f1f4f6"/>'
            )
        first += len(layer)
    return lines


def _rails(shown: Architecture) -> list[str]:
    """The lines that arrows share: one to the right of each room, one down to each room that is needed."""
    rooms, lines = shown.rooms, []
    for place, room in enumerate(rooms):
        needs = [rooms.index(target) for source, target in shown.imports if source == room]
        needed = [rooms.index(source) for source, target in shown.imports if target == room]
        right, top = max([place, *needs]), min([place, *needed])
        if right > place:
            path = f"M{_x(place) + REACH} {_y(place)}H{_x(right)}"
            lines.append(f'<path d="{path}" stroke="{_color(room)}" stroke-opacity=".45" stroke-width="1.6"/>')
        if top < place:
            end = _y(place) - BOX_HEIGHT // 2
            lines.append(f'<path d="M{_x(place)} {_y(top)}V{end - 6}" stroke="{LINE}" stroke-width="1.6"/>')
            tip = f"M{_x(place) - 5} {end - 8}h10l-5 8z"
            lines.append(f'<path d="{tip}" fill="{QUIET}"/>')
    return lines


def _box(room: str, place: int, layer: int) -> list[str]:
    modules, size = _size(room)
    left, top = _x(place) + REACH - BOX, _y(place) - BOX_HEIGHT // 2
    about = f"{modules} modules, {size:,} lines" if modules > 1 else f"{size:,} lines"
    return [
        f'<g class="room" data-room="{room}" data-layer="{layer}">',
        f'<rect x="{left}" y="{top}" width="{BOX}" height="{BOX_HEIGHT}" rx="7" fill="{_color(room)}"/>',
        f'<text x="{left + BOX // 2}" y="{_y(place) + 6}" text-anchor="middle" font-size="19" font-weight="600" '
        f'fill="#ffffff">{room}</text>',
        f'<text x="{left - 10}" y="{_y(place) + 6}" text-anchor="end" font-size="17" fill="{QUIET}">{about}</text>',
        "</g>",
    ]


def _bubble(source: str, target: str, row: int, column: int, count: int) -> list[str]:
    """Where the line of one room meets that of another; bigger for more imports."""
    allowed = row < column
    radius = round(min(10.5 + 1.5 * count**0.5, 20), 1)
    color = _color(source) if allowed else FORBIDDEN
    plural = "s" * (count != 1)
    return [
        f'<g class="arrow" data-from="{source}" data-to="{target}" data-count="{count}">',
        f"<title>{source} imports from {target}: {count} time{plural}</title>",
        f'<circle cx="{_x(column)}" cy="{_y(row)}" r="{radius}" fill="#ffffff" stroke="{color}" stroke-width="1.6"/>',
        f'<text x="{_x(column)}" y="{_y(row) + 6}" text-anchor="middle" font-size="17" fill="{color}">{count}</text>',
        "</g>",
    ]


def _size(room: str) -> tuple[int, int]:
    """Modules and lines; lines are rounded, for they change every day."""
    folder = ROOT / "src" / PACKAGE / room
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    lines = sum(len(re.findall(r"\n", file.read_text(encoding="utf-8"))) for file in files)
    return len(files), max(round(lines, -2), 10 * round(lines / 10) if lines < 100 else 100)


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    where.write_text(draw(read_architecture()), encoding="utf-8")
    print(f"drawn in {where}")
