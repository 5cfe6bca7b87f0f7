"""The page in a real browser: what it draws and says, what its controls do, and that it asks nobody for anything."""

from __future__ import annotations

import base64
import csv
import html
import io
import itertools
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright

from fedga.drawing.style import drawing
from fedga.report import figures
from fedga.report.documents import Cell, Section, Table
from fedga.report.page import payload
from fedga.report.page.build import write_page
from fedga.report.page.svg import svg_url
from fedga.report.writers import comma_separated
from fedga.store.store import Store
from tests.browser import CHROMIUM, needs_chromium
from tests.report.made_up import make_curves
from tests.report.page_stores import HOSTILE, asked, hostile_store, last_values, mean_text, small_store

pytestmark = needs_chromium
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("browser") / "out")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return write_page(folder, folder.parent / "page.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def desk(browser: Browser) -> Iterator[BrowserContext]:
    """A window on a desk, for pages that ask for nothing else."""
    with browser.new_context(viewport={"width": 1200, "height": 900}) as context:
        yield context


@pytest.fixture
def open_page(browser: Browser, desk: BrowserContext, file: Path) -> Iterator[Open]:
    """Opens a page from disk; at the end nothing may have failed, been logged or been asked for."""
    opened: list[Page | BrowserContext] = []
    troubles: list[str] = []

    def open_one(path: Path = file, **options: Any) -> Page:
        context = browser.new_context(**options) if options else desk
        page = context.new_page()
        opened.append(context if options else page)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: None if request.url == path.as_uri() else troubles.append(request.url))
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]")
        return page

    yield open_one
    for one in opened:
        one.close()
    assert [trouble for trouble in troubles if not trouble.startswith(("data:", "blob:"))] == []


@pytest.fixture
def page(open_page: Open) -> Page:
    return open_page()


def lines(page: Page) -> list[str]:
    """The labels of the lines that are drawn."""
    return [str(line.get_attribute("data-label")) for line in page.locator("#plot .series").all()]


def ticks(page: Page, axis: str) -> list[str]:
    return page.locator(f"#plot .tick.{axis}").all_text_contents()


def legend_row(page: Page, cohort: str, name: str) -> Locator:
    group = page.locator("#plot .legend tbody").filter(has=page.get_by_text(cohort, exact=True))
    return group.locator("tr").filter(has=page.locator("th[scope=row]", has_text=re.compile(rf"\s{name}$")))


def mean_at(folder: Path, number: int, **settings: object) -> str:
    where = " AND ".join(f"{name} = ?" for name in settings)
    query = (
        f"SELECT accuracy FROM metrics JOIN runs ON runs.key = run WHERE round = ? AND status != 'diverged' AND {where}"
    )
    return f"{statistics.mean(value for (value,) in asked(folder, query, number, *settings.values())):.3f}"


def shown_rows(page: Page) -> list[list[str]]:
    rows = page.locator("#results tbody tr:visible").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


# Tables


def test_the_table_shows_the_numbers_of_the_file(page: Page, folder: Path) -> None:
    rows = shown_rows(page)
    assert len(rows) == 12
    for alpha, preset, algorithm, accuracy, *_ in rows:
        found = last_values(folder, "accuracy", alpha=float(alpha), preset=preset, algorithm=algorithm.lower())
        assert accuracy == mean_text(found)


def test_headings_sort_in_both_directions_and_say_so(page: Page) -> None:
    heading = page.locator("#results th", has_text="accuracy").first
    heading.get_by_role("button").click()
    falling = [row[3] for row in shown_rows(page)]
    assert heading.get_attribute("aria-sort") == "descending"
    assert falling == sorted(falling, reverse=True)
    heading.get_by_role("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [row[3] for row in shown_rows(page)] == falling[::-1]
    other = page.locator("#results th", has_text="averaged model")
    other.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") is None
    assert [row[4] for row in shown_rows(page)][-6:] == ["–"] * 6  # what is not measured comes last


def test_rows_are_chosen_by_lists_and_words(page: Page) -> None:
    results = page.locator("#results")
    results.get_by_label("α").select_option("1")
    results.get_by_label("algorithm").select_option("FedGA")
    assert [row[:3] for row in shown_rows(page)] == [["1", "paper", "FedGA"], ["1", "strong", "FedGA"]]
    assert results.locator(".count").inner_text() == "2 of 12 rows"
    results.get_by_label("search").fill("unfinished")
    assert [row[1] for row in shown_rows(page)] == ["strong"]


# Curves


def test_the_picture_has_a_line_per_algorithm_and_says_what_it_shows(page: Page, folder: Path) -> None:
    names = [f"{name}, {preset}" for preset in ("paper", "strong") for name in ("FedAvg", "FedNTD", "FedGA")]
    assert lines(page) == names
    said = str(page.locator("#plot svg[role=img]").get_attribute("aria-label"))
    assert "test accuracy over rounds, digits, α = 0.1" in said
    assert f"FedGA, paper {mean_at(folder, 20, algorithm='fedga', preset='paper', alpha=0.1)}" in said
    assert page.locator("#plot .cross").count() == 1  # the run that diverged


def test_an_algorithm_and_a_whole_setting_can_be_hidden(page: Page) -> None:
    legend_row(page, "strong", "FedGA").get_by_role("checkbox").uncheck()
    assert "FedGA, strong" not in lines(page)
    assert "FedGA, paper" in lines(page)
    page.locator("#plot .legend").get_by_label("paper").uncheck()
    assert lines(page) == ["FedAvg, strong", "FedNTD, strong"]
    page.locator("#plot .legend").get_by_label("paper").check()
    assert len(lines(page)) == 5


def test_both_axes_can_be_logarithmic(page: Page) -> None:
    before = ticks(page, "x"), ticks(page, "y")
    page.get_by_label("log rounds").check()
    assert ticks(page, "x") == ["1", "2", "5", "10", "20"]
    assert "Round 0 has no place on a logarithm" in page.locator("#plot > .quiet").inner_text()
    drawn = page.locator("#plot .series .line").first.get_attribute("d")
    page.get_by_label("log y").check()
    assert page.locator("#plot .series .line").first.get_attribute("d") != drawn
    page.get_by_label("log rounds").uncheck()
    page.get_by_label("log y").uncheck()
    assert (ticks(page, "x"), ticks(page, "y")) == before


def test_zoom_by_frame_buttons_and_keys_and_back(page: Page) -> None:
    before = ticks(page, "x"), ticks(page, "y")
    page.locator("#plot .chart").scroll_into_view_if_needed()
    box = page.locator("#plot .chart").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.1 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.4 * box["height"], steps=3)
    assert page.locator("#plot .selection").get_attribute("visibility") == "visible"
    page.mouse.up()
    framed = ticks(page, "x"), ticks(page, "y")
    assert framed[0] != before[0]
    assert framed[1] != before[1]
    assert min(map(int, framed[0])) >= 8
    page.get_by_role("button", name="Reset the zoom").click()
    assert (ticks(page, "x"), ticks(page, "y")) == before
    page.get_by_role("button", name="Zoom in").click()
    assert ticks(page, "x") != before[0]
    page.get_by_role("button", name="Zoom out").click()
    assert (ticks(page, "x"), ticks(page, "y")) == before
    page.locator("#plot .chart").press("+")
    assert ticks(page, "x") != before[0]
    page.locator("#plot .chart").press("0")
    assert (ticks(page, "x"), ticks(page, "y")) == before


def test_keys_read_the_means_of_the_file(page: Page, folder: Path) -> None:
    caption = page.locator("#plot .legend caption")
    assert caption.inner_text() == "test accuracy, round 20 (last)"
    chart = page.locator("#plot .chart")
    chart.press("ArrowLeft")
    for _ in range(5):
        chart.press("ArrowLeft")
    assert caption.inner_text() == "test accuracy, round 15"
    for name in ("FedAvg", "FedNTD", "FedGA"):
        wanted = mean_at(folder, 15, algorithm=name.lower(), preset="paper", alpha=0.1)
        assert legend_row(page, "paper", name).locator("td").first.inner_text() == wanted
        assert f"{name}, paper {wanted}" in page.locator("#plot [role=status]").inner_text()
    assert page.locator("#plot .spot").count() == 6
    chart.press("Home")
    assert caption.inner_text() == "test accuracy, round 0"
    chart.press("Shift+ArrowRight")
    assert caption.inner_text() == "test accuracy, round 10"


def test_the_pointer_reads_the_round_it_is_over(page: Page, folder: Path) -> None:
    page.locator("#plot .chart").scroll_into_view_if_needed()
    middle = page.locator("#plot .tick.x", has_text=re.compile("^10$")).bounding_box()
    box = page.locator("#plot .chart").bounding_box()
    assert middle is not None
    assert box is not None
    page.mouse.move(middle["x"] + middle["width"] / 2, box["y"] + 0.5 * box["height"])
    assert page.locator("#plot .legend caption").inner_text() == "test accuracy, round 10"
    wanted = mean_at(folder, 10, algorithm="fedga", preset="strong", alpha=0.1)
    assert legend_row(page, "strong", "FedGA").locator("td").first.inner_text() == wanted
    page.mouse.move(0, 0)
    assert page.locator("#plot .legend caption").inner_text() == "test accuracy, round 20 (last)"


def test_another_place_and_metric(page: Page, folder: Path) -> None:
    plot = page.locator("#plot .controls")
    plot.get_by_label("α").select_option("1")
    plot.get_by_label("metric").select_option("EA ratio")
    assert plot.get_by_label("log y").is_checked()
    assert "median of" in page.locator("#plot > .quiet").inner_text()
    found = last_values(folder, "ea_ratio", algorithm="fedavg", preset="strong", alpha=1.0)
    shown = legend_row(page, "strong", "FedAvg").locator("td").first.inner_text()
    assert float(shown) == pytest.approx(statistics.median(found), abs=0.06)
    plot.get_by_label("metric").select_option("test accuracy, averaged model")
    assert lines(page) == [
        f"{name}, {preset}" for preset in ("paper", "strong") for name in ("FedAvg", "FedNTD", "FedGA")
    ]
    assert [page.locator("#plot .series .line").nth(at).get_attribute("d") for at in range(3)] == [
        ""
    ] * 3  # paper averages nothing


def test_seeds_and_the_table_behind_the_curves(page: Page, folder: Path) -> None:
    diverged = page.locator("#plot .seed").count()
    page.get_by_label("seeds", exact=True).check()
    assert page.locator("#plot .seed").count() == diverged + 17  # 18 runs at this α, one of them diverged
    page.locator("#plot summary").click()
    table = page.locator("#plot details.data table")
    table.wait_for()
    assert table.locator("thead th").all_inner_texts()[:2] == ["round", "FedAvg, paper"]
    cells = table.locator("tbody tr").last.locator("th, td").all_inner_texts()
    assert cells[:2] == ["20", mean_at(folder, 20, algorithm="fedavg", preset="paper", alpha=0.1)]


# Clients


def test_the_map_is_read_by_pointer_and_keys(page: Page, folder: Path) -> None:
    with Store(folder) as store:
        counts = store.partitions()[0].class_counts
    chart = page.locator("#map .chart")
    chart.press("ArrowRight")
    chart.press("ArrowRight")
    chart.press("ArrowDown")
    wanted = f"Client 1, class 1: {counts[1, 1]} of its {counts[1].sum()} samples"
    assert page.locator("#map .readout").inner_text() == wanted
    page.locator("#map .controls").get_by_label("α").select_option("1")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.4 * box["height"])
    assert re.fullmatch(r"Client \d+, class \d: \d+ of its \d+ samples?", page.locator("#map .readout").inner_text())


def test_clients_before_and_after_are_drawn_with_their_counts(page: Page) -> None:
    clients = page.locator("#client-charts")
    clients.get_by_label("algorithm").select_option("FedGA, strong")
    assert clients.locator("figure.client-chart").count() == 3
    assert "FedGA, strong, round 20, seed 0." in clients.locator("> .quiet").inner_text()
    assert clients.locator("figcaption").first.inner_text().startswith("client 4, ")
    assert clients.locator("rect.absent").count() == 15
    assert clients.locator(".after").count() == 29  # one class has no test sample


# The page as a whole


def test_colours_follow_the_system_and_the_button(open_page: Open) -> None:
    page = open_page(color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    assert light == "rgb(255, 255, 255)"
    page.get_by_role("button", name="Show in dark colours").click()
    dark = page.evaluate(background)
    assert dark != light
    page.get_by_role("button", name="Show in light colours").click()
    assert page.evaluate(background) == light
    assert open_page(color_scheme="dark").evaluate(background) == dark


def test_text_stands_out_in_both_themes(open_page: Open) -> None:
    """WCAG's contrast of 4.5 between every colour of text and the page behind it."""
    ratio = """() => {
      const parse = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const light = (color) => parse(color).map((value) => value / 255)
        .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
      const page = light(getComputedStyle(document.body).backgroundColor);
      const between = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      const contrast = (color) => between(light(color), page);
      const kinds = 'h1, h2, p, a, td, th, figcaption, label, button, summary, small, sup';
      const texts = [...document.querySelectorAll(kinds)]
        .filter((node) => node.checkVisibility()).map((node) => contrast(getComputedStyle(node).color));
      const drawn = [...document.querySelectorAll('svg text')].map((node) => contrast(getComputedStyle(node).fill));
      return Math.min(...texts, ...drawn);
    }"""
    for scheme in ("light", "dark"):
        assert open_page(color_scheme=scheme).evaluate(ratio) >= 4.5


def test_nothing_is_wider_than_a_phone(open_page: Open) -> None:
    page = open_page(viewport={"width": 375, "height": 800}, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    page.locator("#plot .chart").tap(position={"x": 150, "y": 100})
    assert re.search(r"round \d+$", page.locator("#plot .legend caption").inner_text())
    for details in page.locator("details").all():
        details.locator("summary").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_on_paper_there_are_no_controls_and_nothing_is_folded(page: Page) -> None:
    page.get_by_role("button", name="Show in dark colours").click()
    page.emulate_media(media="print")
    assert page.locator("select:visible, input:visible, nav:visible, button:visible:not(thead button)").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.get_by_text("how samples are partitioned").is_visible()
    assert len(page.pdf()) > 10_000


def test_headings_and_labels_are_in_order(page: Page) -> None:
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((node) => Number(node.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    unnamed = """() => {
      const named = (node) => node.getAttribute('aria-label') || node.getAttribute('alt') || node.textContent.trim();
      const kinds = 'button, select, input, [tabindex], svg[role=img], img';
      return [...document.querySelectorAll(kinds)].filter((node) => !named(node) && !node.labels?.length).length;
    }"""
    assert page.evaluate(unnamed) == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"


def test_without_a_script_words_and_tables_are_all_there(open_page: Open, folder: Path) -> None:
    page = open_page(java_script_enabled=False)
    assert len(shown_rows(page)) == 12
    assert page.locator("button:visible, select:visible").count() == 0
    assert page.locator("noscript").count() >= 3
    assert page.locator("#summary svg").first.is_visible()


def test_a_page_of_sections_alone_opens(open_page: Open, tmp_path: Path) -> None:
    rows = ((Cell("b"), Cell("2", 2.0)), (Cell("a"), Cell("10", 10.0, note="of one seed")))
    section = Section("one", "One", ("Words.",), (Table("t", "T", ("name", "value"), rows),))
    page = open_page(write_page(tmp_path, tmp_path / "page.html", [section]))
    page.get_by_role("button", name="value").click()
    assert page.locator("tbody td").all_inner_texts() == ["10a", "2"]
    assert downloaded(page, "Download as CSV") == ("t.csv", "name,value\na,10\nb,2\n")


def test_a_table_downloads_as_its_values(open_page: Open, tmp_path: Path) -> None:
    """What a cell shows is rounded and dressed for a reader; a file is for who counts on."""
    rows = (
        (Cell("b, c"), Cell("0.877\u00a0±\u00a00.012", 0.8765, deviation=0.0125, note="of five"), Cell("1,234", 1234)),
        (Cell("a"), Cell("–"), Cell("−12 345 678", -12345678)),
    )
    table = Table("t", "T", ("name", "value", "size"), rows)
    page = open_page(write_page(tmp_path, tmp_path / "page.html", [Section("one", "One", (), (table,))]))
    assert downloaded(page, "Download as CSV") == ("t.csv", comma_separated(table))
    assert comma_separated(table).splitlines()[1:] == ['"b, c",0.8765,0.0125,1234', "a,,,-12345678"]


def downloaded(page: Page, name: str) -> tuple[str, str]:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=name).click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_text(encoding="utf-8")


def test_the_csv_is_that_of_the_command(page: Page, folder: Path) -> None:
    stream = io.StringIO()
    with Store(folder) as store:
        store.write_results(stream, "csv")
    assert downloaded(page, "Download all rows") == ("rounds.csv", stream.getvalue())


def test_the_table_downloads_as_it_is_filtered(page: Page, folder: Path) -> None:
    page.locator("#results").get_by_label("preset").select_option("strong")
    name, text = downloaded(page, "Download the table of results")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert name == "results.csv"
    assert len(rows) == 6
    assert rows[0]["preset"] == "strong"
    found = last_values(folder, "accuracy", preset="strong", alpha=0.1, algorithm="fedavg")
    assert float(rows[0]["accuracy"]) == pytest.approx(statistics.mean(found))
    assert float(rows[0]["accuracy deviation"]) == pytest.approx(statistics.stdev(found))


def test_of_a_large_study_the_curves_can_be_downloaded(
    open_page: Open, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "MOST_ROWS", 10)
    monkeypatch.setattr(payload, "MOST_ROUNDS", 6)
    monkeypatch.setattr(payload, "FEWEST_ROUNDS", 6)
    page = open_page(write_page(folder, tmp_path / "large.html"))
    name, text = downloaded(page, "Download the curves' rows")
    rows = list(csv.DictReader(io.StringIO(text)))
    with Store(folder) as store, store.results() as table:
        whole = {tuple(map(str, row[:7])): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert name == "curves.csv"
    assert list(rows[0]) == list(table.columns)
    assert len(rows) == 6 * 36
    for row in rows[::7]:
        found = whole[tuple(row[name] for name in table.columns[:7])]
        assert float(row["accuracy"]) == pytest.approx(found["accuracy"], abs=1e-6)
        assert float(row["ea_ratio"]) == pytest.approx(found["ea_ratio"], rel=1e-5)


def pixels(page: Page, source: str) -> np.ndarray:
    """What the browser paints of an SVG."""
    page.set_content(f'<body style="margin:0"><img width="700" src="{html.escape(source)}">')
    page.wait_for_function("document.images[0].complete")
    shot = page.locator("img").screenshot()
    return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"), dtype=np.int64)


def test_shortened_pictures_look_the_same(desk: BrowserContext) -> None:
    curves = make_curves(3)
    counts = np.random.default_rng(0).integers(0, 9, (12, 10))
    drawings = {
        "lines and bands": figures.accuracy_curves(curves),
        "hatched bars": figures.forgetting_bars(curves),
        "numbers in cells": figures.label_heatmap(counts, [f"class {number}" for number in range(10)]),
        "cells as pixels": figures.label_heatmap(np.tile(counts, (10, 3)), [f"class {number}" for number in range(30)]),
    }
    page = desk.new_page()
    for name, figure in drawings.items():
        stream = io.BytesIO()
        with drawing():
            figure.savefig(stream, format="svg")
        whole = pixels(page, f"data:image/svg+xml;base64,{base64.b64encode(stream.getvalue()).decode()}")
        short = pixels(page, svg_url(figure))
        assert whole.shape == short.shape
        assert whole.std() > 10, name
        assert np.abs(whole - short).mean() < 1.0, name
    page.close()


def test_hostile_names_are_inert(open_page: Open, tmp_path: Path) -> None:
    page = open_page(write_page(hostile_store(tmp_path / "out"), tmp_path / "page.html", title=HOSTILE))
    page.locator("#plot summary").click()
    page.locator("#map summary").click()
    page.locator("#client-charts summary").click()
    page.locator("#client-charts details.data table").wait_for()
    page.locator("#map .chart").press("ArrowRight")
    page.locator("#plot .chart").press("ArrowLeft")
    page.locator("#results th button").first.click()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE
    assert HOSTILE in page.locator("#map details th").all_inner_texts()
