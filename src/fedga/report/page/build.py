"""From a results folder to one HTML file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.report.documents import Section
from fedga.report.general import general_pictures
from fedga.report.page.costs import cost_tables
from fedga.report.page.overview import HEIGHT, WIDTH, draw_overview
from fedga.report.page.payload import pack
from fedga.report.page.repeat import KnownCommands, repeat
from fedga.report.page.shared import LONG, page_of
from fedga.report.page.study import Study, read_study
from fedga.report.page.svg import svg_url
from fedga.report.page.tables import best_tables, headline, partitions_table, results_table, troubles_table
from fedga.report.words import listed, plural
from fedga.store.database import FILE_NAME

_PARTS = ("base", "tables", "scales", "series", "legend", "plot", "map", "clients", "page")
_SCRIPTS = [f"{name}.js" for name in _PARTS]


def write_page(
    folder: Path,
    target: Path,
    sections: Sequence[Section] = (),
    *,
    title: str = "",
    called: str = "",
    known: KnownCommands | None = None,
) -> Path:
    """Write the page of a results folder, whole or not at all; ``sections`` come after its summary.

    A folder that has no runs makes a page too if there are sections to show. ``called`` is the folder's name on the
    page, for one that is read where an archive was unpacked. ``known`` says which commands made runs of the folder,
    where that was not ``fedga run``.
    """
    if target.is_dir():
        raise FedGAError(f"the page cannot be written to {str(target)!r}, which is a folder: give a file with --out")
    if target.is_file() and not target.read_bytes()[:15].lower().startswith(b"<!doctype html"):
        raise FedGAError(f"{str(target)!r} is no page, so it is not overwritten: give another file with --out")
    render = page_of("page.html", ["fedga.report"], ["page.css"], _SCRIPTS)
    called = called or str(folder)
    study = read_study(folder, called) if not sections or (folder / FILE_NAME).is_file() else None
    if study:  # CIFAR-10 is one word
        title = title or f"Federated learning on {listed(study.dataset_labels)}".replace("-", "\u2011")
    title = title or f"Results in {Path(called).name}"
    contents = _contents(study, known) if study else {}
    text = render(contents, title=title, folder=called, study=study, sections=list(map(_section_view, sections)))
    try:
        return write_whole(target, text.encode("utf-8", errors="replace"))  # names of folders may be no text
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        raise FedGAError(f"the page {str(target)!r} {reason}: give another file with --out") from error


def results_section(folder: Path) -> Section:
    """The tables of a folder's page and the general pictures, to be written as files; none without runs."""
    if not (folder / FILE_NAME).is_file():
        return Section("results", "Results")
    study = read_study(folder)
    tables = (results_table(study)[0], *best_tables(study), *cost_tables(study))
    pictures = general_pictures(folder, study.curves, [run.spec for run in study.runs])
    return Section("results", "Results", (), tables, tuple(pictures))


def _contents(study: Study, known: KnownCommands | None) -> dict[str, Any]:
    results, filters = results_table(study)
    choices = {at: list(dict.fromkeys(row[at].text for row in results.rows)) for at in filters}
    return {
        "headline": headline(study),
        "overview": draw_overview(study),
        "size": (WIDTH, HEIGHT),
        "best": best_tables(study),
        "troubles": troubles_table(study),
        "results": results,
        "filters": [(at, results.headings[at], texts) for at, texts in choices.items()],
        "packed": pack(study),
        "partitions": partitions_table(study),
        "costs": cost_tables(study),
        "repeat": repeat(study, known),
        "runs": plural(len(study.runs), "run"),
    }


def _section_view(section: Section) -> dict[str, Any]:
    """A section with its tables and pictures made; ``short`` is its title in the table of contents."""
    pictures = []
    for picture in section.pictures:
        figure = picture.draw()
        width = round(96 * float(figure.get_size_inches()[0]))  # in CSS pixels
        pictures.append({"picture": picture, "source": svg_url(figure), "width": width})
    return {
        "id": "section-" + re.sub(r"[^a-z0-9]+", "-", section.name.lower()).strip("-"),
        "short": section.title if len(section.title) <= LONG else section.title.partition(":")[0],
        "section": section,
        "pictures": pictures,
    }
