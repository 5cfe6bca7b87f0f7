"""Figures as short SVG inside a page: matplotlib's own file is four times as long and looks no better."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.etree import ElementTree

from fedga.drawing.style import drawing
from fedga.report.writers import letters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_UNRESERVED = " !$'()*,/:;<=>?@[]{}|^~`"  # what a data URL inside double quotes may hold as it is
_REFERENCE = re.compile(r"url\(#([\w-]+)\)")
_GROUP = f"{{{_SVG}}}g"
_KEPT = {"viewBox", "version", "patternUnits", "preserveAspectRatio"}


def svg_url(figure: Figure) -> str:
    """The figure as an SVG inside a data URL: a picture of its own, in which nothing can run or collide."""
    stream = io.BytesIO()
    with drawing():
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml,{quote(shortened(stream.getvalue()), safe=_UNRESERVED)}"


def shortened(written: bytes) -> str:
    """The same picture in fewer letters.

    Styles that elements share become classes, names that nothing refers to and groups that say nothing go, and places
    are given to a tenth of a point.
    """
    root = ElementTree.fromstring(written)
    for parent in root.iter():
        for child in [child for child in parent if child.tag.endswith("}metadata")]:
            parent.remove(child)
    for element in root.iter():
        _plain_attributes(element)
    _shorten_names(root)
    _share_styles(root)
    _drop_groups(root)
    ElementTree.register_namespace("", _SVG)
    text = re.sub(r">\s+<", "><", ElementTree.tostring(root, encoding="unicode"))
    return text if "'" in text else text.replace('"', "'")  # which a data URL takes as they are


def _plain_attributes(element: ElementTree.Element) -> None:
    reference = element.attrib.pop(f"{{{_XLINK}}}href", None)
    if reference is not None:
        element.set("href", reference)
    for name, value in element.items():
        if name == "d":
            element.set(name, short_path(value))
        elif name == "transform":
            element.set(name, re.sub(r"translate\([^)]*\)", lambda found: _rounded(found[0], 2), value))
        elif name not in _KEPT and not value.startswith("data:"):
            element.set(name, _rounded(value, 2))


def _rounded(text: str, digits: int) -> str:
    return re.sub(r"-?\d+\.\d+", lambda found: _number(float(found[0]), digits), text)


def _number(value: float, digits: int) -> str:
    """
    >>> _number(0.5, 1), _number(-12.04, 1), _number(-0.01, 1)
    ('.5', '-12', '0')
    """
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    text = re.sub(r"^(-?)0\.", r"\1.", text)
    return "0" if text in ("-0", "-", "") else text


def short_path(path: str) -> str:
    """A path to a tenth of a point; lines go on from where they are.

    >>> short_path("M 10.123456 20 L 13.5 19.76 L 14 20 z")
    'M10.1 20l3.4-.2l.5 .2z'
    """
    at, start, parts = (0, 0), (0, 0), []
    for letter, numbers in _commands(path):
        tenths = [round(10 * number) for number in numbers]
        points = list(zip(tenths[::2], tenths[1::2], strict=True))
        if letter in "zZ":
            at = start
        elif letter == "L":
            points, at, letter = [(points[0][0] - at[0], points[0][1] - at[1])], points[0], "l"
        else:
            at = points[-1]
            start = at if letter == "M" else start
        parts.append(letter + _joined([value for point in points for value in point]))
    return "".join(parts)


def _commands(path: str) -> Iterator[tuple[str, list[float]]]:
    """Matplotlib's paths: every letter stands before the points it needs, and all are absolute."""
    for found in re.finditer(r"([MLQCzZ])([^MLQCzZ]*)", path):
        yield found[1], [float(number) for number in found[2].split()]


def _joined(tenths: list[int]) -> str:
    """Numbers with a blank only where a minus does not part them already."""
    return re.sub(r" (?=-)", "", " ".join(_number(value / 10, 1) for value in tenths))


def _shorten_names(root: ElementTree.Element) -> None:
    """Only what is referred to keeps a name, and a short one."""
    found = dict.fromkeys(name for element in root.iter() for name in _references(element))
    names = {name: letters(number) for number, name in enumerate(found)}
    for element in root.iter():
        for key, value in element.items():
            element.set(key, _REFERENCE.sub(lambda one: f"url(#{names[one[1]]})", value))
        target = element.get("href", "").removeprefix("#")
        if target in names:
            element.set("href", f"#{names[target]}")
        name = element.attrib.pop("id", None)
        if name in names:
            element.set("id", names[name])


def _references(element: ElementTree.Element) -> Iterator[str]:
    """The names of other elements that this one draws with."""
    for value in element.attrib.values():
        yield from _REFERENCE.findall(value)
    if element.get("href", "").startswith("#"):
        yield element.attrib["href"].removeprefix("#")


def _share_styles(root: ElementTree.Element) -> None:
    classes: dict[str, str] = {}
    for element in root.iter():
        if (style := element.attrib.pop("style", None)) is not None:
            plain = style.replace(": ", ":").replace("; ", ";")
            element.set("class", classes.setdefault(plain, letters(len(classes))))
    sheet = root.find(f".//{{{_SVG}}}style")
    if sheet is None:
        sheet = ElementTree.SubElement(root, f"{{{_SVG}}}style")
    sheet.text = (sheet.text or "") + "".join(f".{name}{{{style}}}" for style, name in classes.items())


def _drop_groups(parent: ElementTree.Element) -> None:
    """Groups that style and place nothing hand their children on."""
    children = []
    for child in parent:
        _drop_groups(child)
        children += list(child) if child.tag == _GROUP and not child.attrib else [child]
    parent[:] = children
