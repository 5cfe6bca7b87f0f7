"""The page opens from disk alone, shows names as they are, and has every number beside it."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedga.diagnosis import Diagnosis, diagnose
from fedga.diagnosis.build import html_of
from fedga.diagnosis.numbers import page_tables
from fedga.diagnosis.picture import LogScale, asymmetry_map, class_picture, holdings_map
from fedga.errors import FedGAError
from tests.diagnosis.made_up import made_up
from tests.diagnosis.test_measure import diagnosed


class Reader(HTMLParser):
    """What a page loads, and what it says."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.text = ""
        self._silent = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._silent = tag in ("style", "script")
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag: str) -> None:
        self._silent = False

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text += data


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    found = diagnosed(made_up(3000, skew=1.5))
    page, *_ = found.write(tmp_path / "some.html")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    read = Reader(text)
    assert all(link.startswith(("#", "data:")) for link in read.loaded)
    assert not re.search(r"url\((?!#)|@import", text)
    assert found.headline in read.text


def test_everything_a_reader_was_promised_is_there() -> None:
    found = diagnosed(made_up(3000, skew=1.5))
    said = " ".join(Reader(html_of(found)).text.split())
    for part in ("Class by class", "Site by site", "Who starves which class", "What gradient alignment would change"):
        assert part in said
    assert "counted among the labels of" in said
    assert "Where errors nearly vanish, EA says little" in said
    for row in class_picture(found).rows:
        assert all(" ".join(number.split()) in said for number in row.numbers)


def test_names_are_never_markup() -> None:
    evil = ["<script>alert(1)</script>", "a & b", '"><img src=x onerror=alert(1)>']
    data = made_up(900)
    sites = np.where(data.sites == "site 1", "</svg><script>", data.sites)
    found = diagnose(data.probs, data.labels, sites, evil, name="<b>.csv")
    page = html_of(found)
    read, plain = Reader(page), Reader(html_of(diagnosed(data)))
    assert read.tags == plain.tags
    assert all(name in read.text for name in evil)


def test_without_sites_there_is_nothing_about_sites() -> None:
    data = made_up(600)
    found = diagnose(data.probs, data.labels)
    assert asymmetry_map(found) is None
    said = Reader(html_of(found)).text
    assert "Site by site" not in said
    assert "Who starves" not in said


@pytest.mark.parametrize("classes", [2, 100])
@pytest.mark.parametrize("sites", [1, 60])
def test_many_classes_and_sites_show_the_worst(classes: int, sites: int) -> None:
    found = diagnosed(made_up(20_000, classes=classes, sites=sites, skew=3 / classes))
    picture = class_picture(found)
    assert len(picture.rows) + picture.left_out == classes
    assert len(picture.rows) <= 14
    worst = int(np.nanargmax(found.everywhere.asymmetry))
    assert picture.rows[0].name == found.class_names[worst]
    mapped, held = asymmetry_map(found), holdings_map(found)
    assert mapped is not None
    assert held is not None
    assert len(mapped.classes) <= 24
    assert len(mapped.sites) <= 40
    assert (mapped.sites, mapped.classes) == (held.sites, held.classes)
    assert len(html_of(found)) < 1_000_000


def test_no_error_at_all() -> None:
    found = diagnose(np.eye(2)[[0, 1] * 30], [0, 1] * 30, ["a", "b", "b", "a"] * 15)
    assert class_picture(found).rows == ()
    assert "No: this model makes no errors at all here" in Reader(html_of(found)).text
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["ea_ratio"] is None


def test_a_class_never_mistaken_is_at_the_end_of_the_axis() -> None:
    found = diagnose([[1.0, 0.0]] * 50 + [[0.5, 0.5]] * 50, [0] * 50 + [1] * 50)
    assert found.everywhere.asymmetry[1] == math.inf
    assert class_picture(found).rows[0].dot == 100
    assert "∞" in Reader(html_of(found)).text


def test_the_axis_keeps_the_order_of_numbers() -> None:
    scale = LogScale.over(np.array([0.003, 1.0, 40.0, np.inf, np.nan, 0.0]))
    places = [scale.at(value) for value in (0.0, 0.003, 0.5, 1.0, 40.0, math.inf)]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] == 100
    assert any(tick.text == "1" and tick.at == scale.at(1) for tick in scale.ticks)


def places(found: Diagnosis) -> list[str]:
    """Where each class lies beside what is expected of it."""
    return [row[-1].text for row in page_tables(found)[0].rows]


def test_bounds_leave_room_for_chance() -> None:
    """Of two classes the expected band has no width, and nothing measured would ever lie inside."""
    labels = np.repeat([0, 1], [60, 40])
    found = diagnose(np.array([[0.8, 0.2], [0.36, 0.64]])[labels], labels)
    assert found.everywhere.low[1] < found.bounds[0][1] == found.bounds[1][1] < found.everywhere.asymmetry[1]
    assert places(found) == ["not sure", "not sure"]


def test_sites_of_few_samples_are_said_not_to_be_judged() -> None:
    data = made_up(900)
    sites = [f"site {at % 100}" for at in range(900)]
    text = " ".join(Reader(html_of(diagnose(data.probs, data.labels, sites))).text.split())
    assert "100 of 100 sites have fewer than 20 samples of every class, samples of one class only, " in text
    mixed = ["big"] * 880 + [f"small {at}" for at in range(20)]
    text = " ".join(Reader(html_of(diagnose(data.probs, data.labels, mixed))).text.split())
    assert "20 of 21 sites have fewer than 20 samples of every class, " in text


def test_bounds_show_where_the_measured_lies() -> None:
    probs, labels = [[0.9, 0.1]] * 80 + [[0.8, 0.2]] * 40, [0] * 80 + [1] * 40
    found = diagnose(probs, labels)  # EA of class 1 is 8, where the counts allow for 2
    assert places(found) == ["below", "above"]
    band, dot = class_picture(found).rows[0].band, class_picture(found).rows[0].dot
    assert band is not None
    assert band[1] < dot
    assert places(diagnose(probs, labels, class_counts=[80, 10])) == ["inside", "inside"]


def test_numbers_beside_the_page(tmp_path: Path) -> None:
    found = diagnosed(made_up(3000, skew=1.5))
    _, numbers, classes, sites, cells = found.write(tmp_path / "some.html")
    record = json.loads(numbers.read_text(encoding="utf-8"))
    assert record["ea_ratio"] == found.ea_ratio
    assert record["headline"] == found.headline
    assert [row["ea"] for row in record["classes"]] == found.everywhere.asymmetry.tolist()

    def table(path: Path) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))

    assert [float(row["ea"]) for row in table(classes)] == found.everywhere.asymmetry.tolist()
    assert [row["site"] for row in table(sites)] == list(found.site_names)
    assert found.sites is not None
    assert sum(int(row["samples"]) for row in table(cells)) == 3000
    by_pair = {(row["site"], row["class"]): float(row["ea"]) for row in table(cells)}
    assert by_pair["site 2", "melanoma"] == found.sites.asymmetry[2, 2]


def test_a_page_goes_nowhere_it_does_not_belong(tmp_path: Path) -> None:
    found = diagnosed(made_up(300))
    (tmp_path / "mine.html").write_text("my notes", encoding="utf-8")
    for target, said in (
        (tmp_path, "which is a folder"),
        (tmp_path / "mine.html", "was not written by fedga diagnose"),
        (tmp_path / "page.txt", "must end in .html"),
        (tmp_path / "mine.html" / "page.html", "is no folder"),
        (tmp_path / f"{'a' * 300}.html", "File name too long"),
        (tmp_path / f"{'a' * 248}.html", "File name too long"),  # of the files beside it
    ):
        with pytest.raises(FedGAError, match=said):
            found.write(target)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.html"]
    page, *_ = found.write(tmp_path / "new" / "page.html")
    assert found.write(page)[0] == page  # a page of ours is written again


@pytest.mark.parametrize("ending", ["numbers.json", "classes.csv", "sites.csv", "cells.csv"])
def test_files_of_others_beside_a_page_are_kept(tmp_path: Path, ending: str) -> None:
    (mine := tmp_path / f"page-{ending}").write_text("my notes", encoding="utf-8")
    with pytest.raises(FedGAError, match=f"page-{ending}' is there and was not written by fedga diagnose"):
        diagnosed(made_up(300)).write(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == [mine]
    assert mine.read_text(encoding="utf-8") == "my notes"


def test_tables_of_an_earlier_page_do_not_stay(tmp_path: Path) -> None:
    data = made_up(300)
    (tmp_path / "other-sites.csv").write_text("my notes", encoding="utf-8")
    assert len(diagnosed(data).write(tmp_path / "page.html")) == 5
    written = diagnose(data.probs, data.labels).write(tmp_path / "page.html")
    assert {*written, tmp_path / "other-sites.csv"} == set(tmp_path.iterdir())


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FedGAError, match="No space left on device"):
        diagnosed(made_up(300)).write(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
