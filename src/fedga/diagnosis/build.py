"""From a diagnosis to its page and the files beside it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedga.common.files import write_whole
from fedga.diagnosis import maps, picture
from fedga.diagnosis.measure import FEW_SAMPLES
from fedga.diagnosis.numbers import as_csv, cell_rows, class_rows, site_rows
from fedga.diagnosis.reading.target import beside, check_target
from fedga.diagnosis.shown import page_tables
from fedga.diagnosis.verdict import FORGOTTEN, LEAST_MISSED, percent
from fedga.errors import FedGAError
from fedga.report.page.shared import TableView
from fedga.report.page.template import environment
from fedga.report.summary import number_text
from fedga.version import __version__

if TYPE_CHECKING:
    from fedga.diagnosis.diagnosis import Diagnosis

_PACKAGES = ("fedga.diagnosis", "fedga.report")  # templates, styles and scripts lie in a folder page of either
_SCRIPTS = ("base.js", "tables.js", "page.js")


def write_diagnosis(found: Diagnosis, page: Path) -> list[Path]:
    """Write the page, and beside it JSON and CSV, each whole or not at all; the files written, the page first.

    A table that an earlier page had, and this one has not, is removed.
    """
    check_target(page)
    tables = {"classes.csv": class_rows(found), "sites.csv": site_rows(found), "cells.csv": cell_rows(found)}
    texts = {"numbers.json": _json(found)} | {ending: as_csv(rows) for ending, rows in tables.items() if rows}
    paths = beside(page)
    written = [_write(page, html_of(found)), *(_write(paths[ending], text) for ending, text in texts.items())]
    for path in paths.values():
        if path not in written:
            _remove(path)
    return written


def _json(found: Diagnosis) -> str:
    return json.dumps(found.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> Path:
    try:
        return write_whole(path, text.encode("utf-8", errors="replace"))  # names of files may be no text
    except OSError as error:
        reason = error.strerror or error
        raise FedGAError(f"{str(path)!r} cannot be written ({reason}): give another place with --out") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise FedGAError(f"{str(path)!r} is of an earlier page and cannot be removed ({reason}): remove it") from error


def html_of(found: Diagnosis) -> str:
    """The page as text."""
    from markupsafe import Markup

    templates = environment(_read)
    example = found.example
    return templates.get_template("diagnosis.html").render(
        found=found,
        version=__version__,
        css=Markup(_read("page.css") + _read("diagnosis.css")),
        script=Markup("\n".join(map(_read, _SCRIPTS))),
        facts=_facts(found),
        classes=picture.class_picture(found),
        sites=picture.site_picture(found),
        asymmetry_map=maps.asymmetry_map(found),
        holdings_map=maps.holdings_map(found),
        example=example,
        rare=None if example is None else maps.label_bars(found, example.rare, example.counts),
        frequent=None if example is None else maps.label_bars(found, example.frequent, example.counts),
        bounds=picture.bounds_picture(found),
        tables=[TableView(table) for table in page_tables(found)],
        rules={"few": FEW_SAMPLES, "forgotten": FORGOTTEN, "missed": percent(LEAST_MISSED)},
    )


def _facts(found: Diagnosis) -> list[dict[str, str]]:
    """The few numbers that stand under the headline."""
    errors = found.everywhere
    forgotten = [at for at in range(len(found.class_names)) if picture.kind_of(errors, at) == "high"]
    known = np.where(errors.samples > 0, errors.accuracy, np.inf)
    worst = int(np.argmin(known))
    return [
        {
            "value": number_text(found.ea_ratio, True),
            "text": "EA ratio: error asymmetry of the most missed class over that of the most favoured; 1 is fair",
            "kind": "forgotten" if forgotten else "",
        },
        {"value": percent(float(errors.overall_accuracy)), "text": "of all samples are recognised", "kind": ""},
        {
            "value": percent(float(np.nanmean(errors.accuracy))),
            "text": "are recognised on average over the classes (balanced accuracy)",
            "kind": "",
        },
        {
            "value": percent(float(known[worst])),
            "text": f"of “{found.class_names[worst]}” are recognised, the least of any class",
            "kind": "",
        },
    ]


def _read(name: str) -> str:
    files = (resources.files(package).joinpath("page", name) for package in _PACKAGES)
    return next(file for file in files if file.is_file()).read_text(encoding="utf-8")
