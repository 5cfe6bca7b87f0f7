"""Figures, lines and markers as short SVG: matplotlib's own file is twice as long and looks no better."""

import io
import re
from functools import cache
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from fedga.drawing.style import Figure, LineStyle, drawing
from fedga.report.writers import letters

_SVG, _HREF = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
_UNRESERVED = " !$'()*,/:;<=>?@[]{}|^~`"  # what a data URL inside double quotes may hold as it is
_KEPT = {"viewBox", "version"}


def svg_url(figure: Figure) -> str:
    """The figure as an SVG inside a data URL: a picture of its own, in which nothing can run or collide."""
    stream = io.BytesIO()
    with drawing():
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml,{quote(shortened(stream.getvalue()), safe=_UNRESERVED)}"


def shortened(written: bytes) -> str:
    """The same picture in fewer letters: shared styles as classes, no idle names or groups, places to 0.1 point."""
    root = ElementTree.fromstring(written)
    referred = set(re.findall(rb'(?:url\(|href=")#([^")]+)', written))
    classes: dict[str, str] = {}
    for element in root.iter():
        if element.get("id", "").encode() not in referred:
            element.attrib.pop("id", None)
        if (target := element.attrib.pop(_HREF, None)) is not None:
            element.set("href", target)
        if (style := element.attrib.pop("style", None)) is not None:
            plain = style.replace(": ", ":").replace("; ", ";")
            element.set("class", classes.setdefault(plain, letters(len(classes))))
        for name, value in element.items():
            if name not in _KEPT and not value.startswith("data:") and "scale" not in value:
                element.set(name, _rounded(value, 1 if name == "d" else 2))
    sheet = root.find(f".//{{{_SVG}}}style")
    if sheet is None:
        sheet = ElementTree.SubElement(root, f"{{{_SVG}}}style")
    sheet.text = (sheet.text or "") + "".join(f".{name}{{{style}}}" for style, name in classes.items())
    _drop_groups(root)
    ElementTree.register_namespace("", _SVG)
    text = re.sub(r">\s+<", "><", ElementTree.tostring(root, encoding="unicode"))
    return text if "'" in text else text.replace('"', "'")  # which a data URL takes as they are


def _rounded(text: str, digits: int) -> str:
    """
    >>> _rounded("M 10.123456 -0.01 L 0.5 12.04", 1)
    'M10.1 0L.5 12'
    """
    short = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.{digits}f}".rstrip("0").rstrip("."), text)
    short = re.sub(r"(?<![\d.])-0(?![\d.])", "0", short)
    return re.sub(r"(?<!\d)0\.", ".", re.sub(r"\s*([MLQCz])\s*", r"\1", short) if digits == 1 else short)


def _drop_groups(parent: ElementTree.Element) -> None:
    """Metadata goes, and groups that style and place nothing hand their children on."""
    children = []
    for child in parent:
        _drop_groups(child)
        if not child.tag.endswith("}metadata"):
            children += list(child) if child.tag.endswith("}g") and not child.attrib else [child]
    parent[:] = children


@cache
def marker_path(marker: str) -> str:
    """The outline of one of matplotlib's markers as an SVG path, one unit large around the origin."""
    with drawing():
        from matplotlib.markers import MarkerStyle
        from matplotlib.path import Path

        style = MarkerStyle(marker)
        outline = style.get_path().transformed(style.get_transform())
        letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
        parts = []
        for points, code in outline.iter_segments(simplify=False):
            flipped = [f"{value * (-1) ** place:.3g}" for place, value in enumerate(points)]  # SVG's y goes down
            parts.append(letters[code] + ("" if letters[code] == "Z" else " ".join(flipped)))
    return "".join(parts)


def svg_style(style: LineStyle) -> dict[str, Any]:
    dash = "" if style.line == "-" else " ".join(f"{part * style.width:.3g}" for part in style.line[1])
    marker, size = marker_path(style.marker), style.keywords()["markersize"]
    return {"color": style.color, "dash": dash, "width": style.width, "marker": marker, "size": size}
