"""The documentation site: it builds without a warning, asks nobody for anything, and holds all of the public names."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import sync_playwright

from fedga.cli import _program
from fedga.spec.settings import SETTINGS
from tests.browser import CHROMIUM, needs_chromium
from tests.docs.blocks import ROOT, read_blocks

ROOMS = ("algorithms", "data", "diagnosis", "flower", "models", "selection", "servers")
PUBLIC = ("fedga", *(f"fedga.{room}" for room in ROOMS))
FETCHED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}


class Seen(HTMLParser):
    """What a page loads, the ids it has, and how many blocks of code."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.blocks = 0
        self.text = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in FETCHED and FETCHED[tag] in given and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given[FETCHED[tag]])
        self.ids.add(given.get("id", ""))
        self.blocks += tag == "pre"

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Seen]:
    """By name; the report among the results is a page of ours, with tests of its own."""
    found = {str(path.relative_to(site)): Seen(path) for path in site.rglob("*.html") if path.name != "report.html"}
    assert len(found) > 10
    return found


def test_nothing_is_loaded_from_the_network(site: Path, pages: dict[str, Seen]) -> None:
    assert [link for page in pages.values() for link in page.loads if "//" in link] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*", styles) == []
    assert re.findall(r"@import[^;]*//[^;]*", styles) == []


def test_everything_a_page_loads_is_there(site: Path, pages: dict[str, Seen]) -> None:
    for name, page in pages.items():
        for link in page.loads:
            base = site if name == "404.html" else (site / name).parent
            path = unquote(link.partition("?")[0]).removeprefix("/" if name == "404.html" else "")
            assert link.startswith("data:") or (base / path).is_file(), f"{name} loads {link}"


def test_every_code_block_is_one_that_the_tests_run(pages: dict[str, Seen]) -> None:
    """An indented block of code has no language, and `test_pages` does not see it."""
    for source in (ROOT / "docs").rglob("*.md"):
        name = str(source.relative_to(ROOT / "docs").with_suffix(".html"))
        if not name.startswith("reference/"):  # there they are docstrings', which are run as doctests
            fences = sum(not block.hidden for block in read_blocks(source.read_text(encoding="utf-8")))
            assert pages[name].blocks == fences, f"{source} has code that is not in a fence, or a fence that is broken"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str, pages: dict[str, Seen]) -> None:
    ids = set().union(*(page.ids for name, page in pages.items() if name.startswith("reference/")))
    home = importlib.import_module(module)
    names = [name for name in getattr(home, "_HOME_OF", home.__all__) if not name.startswith("__")]
    assert {name for name in names if f"{module}.{name}" not in ids} == set()


def test_the_docstrings_examples_and_roles_are_rendered(pages: dict[str, Seen]) -> None:
    for name, page in pages.items():
        assert not re.search(r":(func|class|mod|meth|attr):", page.text), name
        assert "```" not in page.text, name


def test_every_command_option_and_setting_is_in_the_reference(pages: dict[str, Seen]) -> None:
    waiting = [_program()]
    options = set()
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        options |= {flag for option in command.params if option.param_type_name == "option" for flag in option.opts}
    assert len(options) > 50
    assert {flag for flag in options if flag not in pages["reference/command-line.html"].text} == set()
    assert {name for name in SETTINGS if name not in pages["reference/settings.html"].text} == set()


@needs_chromium
def test_it_opens_from_disk_without_a_network_and_finds_what_is_searched(site: Path) -> None:
    trouble: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.on("requestfailed", lambda request: trouble.append(request.url))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto((site / "reference" / "losses.html").as_uri())
        page.get_by_role("textbox", name="Search").press_sequentially("EARatio")
        page.locator(".md-search-result__item a[href*='reference/measures.html']").first.click()
        page.wait_for_url("**/reference/measures.html*")
        browser.close()
    assert trouble == []
