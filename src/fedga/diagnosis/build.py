"""From a diagnosis to its page and the files beside it."""

from pathlib import Path

import numpy as np

from fedga.common.files import write_whole
from fedga.diagnosis import picture
from fedga.diagnosis.diagnosis import Diagnosis
from fedga.diagnosis.measure import FEW_SAMPLES
from fedga.diagnosis.numbers import as_csv, as_json, beside, cell_rows, check_target, class_rows, page_tables, site_rows
from fedga.diagnosis.verdict import FORGOTTEN, LEAST_MISSED, is_forgotten, percent
from fedga.errors import FedGAError
from fedga.report.page.shared import page_of
from fedga.report.summary import number_text

_PACKAGES = ("fedga.diagnosis", "fedga.report")  # templates, styles and scripts lie in a folder page of either
_SCRIPTS = ("base.js", "tables.js", "page.js")


def write_diagnosis(found: Diagnosis, page: Path) -> list[Path]:
    """Write the page, and beside it JSON and CSV, each whole or not at all; tables of an earlier page are removed."""
    check_target(page)
    tables = {"classes.csv": class_rows(found), "sites.csv": site_rows(found), "cells.csv": cell_rows(found)}
    paths = beside(page)
    texts = {page: html_of(found), paths["numbers.json"]: as_json(found) + "\n"}
    texts |= {paths[ending]: as_csv(rows) for ending, rows in tables.items() if rows}
    at = page
    try:
        for at, text in texts.items():
            write_whole(at, text.encode("utf-8", errors="replace"))  # names of files may be no text
        for at in paths.values():
            if at not in texts:
                at.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise FedGAError(f"{str(at)!r} cannot be written ({reason}): give another file with --out") from error
    return list(texts)


def html_of(found: Diagnosis) -> str:
    example = found.example
    return page_of("diagnosis.html", _PACKAGES, ["page.css", "diagnosis.css"], _SCRIPTS)(
        found=found,
        facts=_facts(found),
        classes=picture.class_picture(found),
        not_judged=sum(row["worst_class"] is None for row in site_rows(found)),
        asymmetry_map=picture.asymmetry_map(found),
        holdings_map=picture.holdings_map(found),
        example=example,
        rare=None if example is None else picture.label_bars(found, example.rare, example.counts),
        frequent=None if example is None else picture.label_bars(found, example.frequent, example.counts),
        tables=page_tables(found),
        rules={"few": FEW_SAMPLES, "forgotten": FORGOTTEN, "missed": percent(LEAST_MISSED)},
    )


def _facts(found: Diagnosis) -> list[tuple[str, str, str]]:
    """The few numbers that stand under the headline: value, what it is, and how it is coloured."""
    errors = found.everywhere
    worst = int(np.argmin(np.where(errors.samples > 0, errors.accuracy, np.inf)))
    fair = "EA ratio: error asymmetry of the most missed class over that of the most favoured; 1 is fair"
    name = found.class_names[worst]
    return [
        (number_text(found.ea_ratio, True), fair, "forgotten" if is_forgotten(errors).any() else ""),
        (percent(float(errors.overall_accuracy)), "of all samples are recognised", ""),
        (percent(float(np.nanmean(errors.accuracy))), "are recognised on average over the classes", ""),
        (percent(float(errors.accuracy[worst])), f"of “{name}” are recognised, the least of any class", ""),
    ]
