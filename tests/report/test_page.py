"""What is in a page: words, tables, packed numbers, and no name that could break out of its text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import json
import re
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedga.cli.commands.inspect import report
from fedga.drawing.style import algorithm_color
from fedga.errors import FedGAError
from fedga.report.documents import Cell, Picture, Section, Table
from fedga.report.page import payload
from fedga.report.page.build import results_section, write_page
from fedga.report.page.costs import cost_tables
from fedga.report.page.overview import draw_overview
from fedga.report.page.repeat import repeat
from fedga.report.page.study import Study, read_study
from fedga.report.page.svg import svg_url
from fedga.report.page.tables import at_chance, best_tables, headline, results_table, troubles_table
from fedga.spec.grid import build_sweep, parse_list, setting_name
from fedga.spec.settings import RunSpec
from fedga.store.archive import opened, write_archive
from fedga.store.store import Store
from tests.report.page_stores import (
    HOSTILE,
    asked,
    grid,
    hostile_store,
    last_values,
    look,
    made_up,
    mean_text,
    small_grid,
    small_store,
    write_store,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("small") / "out")


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return read_study(folder)


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return write_page(folder, folder.parent / "page.html").read_text(encoding="utf-8")


def packed(text: str, name: str = "charts-data") -> str:
    found = re.search(rf'id="{name}">([^<]*)<', text)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


def charts(text: str) -> Any:
    return json.loads(packed(text))


def unpacked(data: Any, line: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Rounds and values as the script of the page reads them."""
    rounds, values, *plain = line
    if plain:
        return np.cumsum(data["rounds"][rounds]), np.array([float(value) for value in values])
    return np.cumsum(data["rounds"][rounds]), np.cumsum(values) / data["scale"]


def cells(table: Table, heading: str) -> list[str]:
    return [row[table.headings.index(heading)].text for row in table.rows]


def draw() -> Figure:
    figure = Figure(figsize=(4, 3))
    figure.add_subplot().plot([1, 2, 3], [0.123456789, 2, 1])
    return figure


def written(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg")
    return stream.getvalue()


# Headline, tables of the best and troubles


def test_the_headline_says_what_was_run_and_who_is_best(study: Study) -> None:
    said = headline(study)
    assert said.startswith("36 runs: FedAvg, FedNTD and FedGA on digits. ")
    assert said.endswith("FedGA, in 4 of 4 comparisons under equal settings.")


def two(**lists: Any) -> list[RunSpec]:
    """FedAvg and FedGA under equal settings."""
    return grid(dataset="digits", algorithm=["fedavg", "fedga"], rounds=20, **lists)


def of(specs: list[RunSpec], algorithm: str, *alphas: float) -> list[RunSpec]:
    return [spec for spec in specs if spec.algorithm == algorithm and (not alphas or spec.alpha in alphas)]


def test_of_one_alpha_the_best_has_its_lead_over_fedavg(tmp_path: Path) -> None:
    folder = write_store(tmp_path, [spec for spec in small_grid() if (spec.alpha, spec.preset) == (0.1, "paper")])
    best, base = (statistics.mean(last_values(folder, "accuracy", algorithm=name)) for name in ("fedga", "fedavg"))
    [table] = best_tables(read_study(folder))
    [row] = table.rows
    assert [cell.text for cell in row] == ["digits", "paper", f"FedGA\u00a0{best:.3f} (+{100 * (best - base):.1f})"]


def test_fedavg_may_win_and_one_algorithm_alone_has_won_nothing(tmp_path: Path) -> None:
    specs = grid(dataset="digits", algorithm=["fedavg", "fedprox"], rounds=20, evaluate_every=20)
    [table] = best_tables(read_study(write_store(tmp_path / "two", specs)))
    assert re.fullmatch(r"FedAvg\u00a00\.\d{3}", table.rows[0][2].text)
    alone = read_study(write_store(tmp_path / "one", specs[:1]))
    assert best_tables(alone) == []
    assert headline(alone) == "1 run: FedAvg on digits."


def test_who_is_unfinished_is_compared_with_nobody(tmp_path: Path) -> None:
    """A lead over FedAvg's twelfth round would say nothing of FedAvg."""
    specs = two(preset="strong")
    study = read_study(write_store(tmp_path, specs, unfinished=of(specs, "fedavg")))
    assert best_tables(study) == []
    assert [dot["label"] for panel in draw_overview(study)["dots"] for dot in panel["dots"]] == ["FedGA, strong"]
    table = results_table(study)[0]
    assert not any(cell.bold for row in table.rows for cell in row)
    assert "leaving out what is unfinished" in table.caption


def test_a_done_seed_is_compared_whatever_the_others_do(tmp_path: Path) -> None:
    specs = two(seed=[0, 1])
    [table] = best_tables(read_study(write_store(tmp_path, specs, unfinished=of(specs, "fedavg")[:1])))
    assert re.fullmatch(r"FedGA\u00a00\.\d{3} \(\+\d+\.\d\)", table.rows[0][2].text)


def test_while_nobody_is_done_those_who_are_furthest_are_shown(tmp_path: Path) -> None:
    specs = two()
    rows = [made_up(spec, number) for spec in specs for number in range(7)]
    study = read_study(write_store(tmp_path, specs, rows, unfinished=specs))
    assert best_tables(study) == []
    assert [panel["title"] for panel in draw_overview(study)["dots"]] == ["digits, α = 0.1, unfinished"]


def test_over_alpha_it_is_noted_who_was_left_out_where(tmp_path: Path) -> None:
    specs = two(alpha=[0.1, 0.3, 1.0, 3.0])
    folder = write_store(
        tmp_path, specs, unfinished=[*of(specs, "fedavg", 0.3), *of(specs, "fedga", 3.0), *of(specs, "fedavg", 3.0)]
    )
    study = read_study(folder)
    [best] = best_tables(study)
    [row] = best.rows
    assert [(cell.text.partition("\u00a0")[0], cell.note) for cell in row[2:]] == [
        ("FedGA", ""),
        ("–", "unfinished, left out: FedAvg"),
        ("FedGA", ""),
        ("–", "unfinished"),
    ]
    [panel] = draw_overview(study)["over_alpha"]
    assert {line["label"]: len(line["marks"]) for line in panel["lines"]} == {"FedAvg": 2, "FedGA": 3}


def test_runs_that_went_wrong_are_in_a_table(study: Study) -> None:
    table = troubles_table(study)
    assert table is not None
    assert table.title == "1 run diverged, 1 run unfinished, 1 run at chance"
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["diverged", "1 of 3", "FedNTD, paper", "digits, α = 0.1"],
        ["unfinished", "1 of 3", "FedGA, strong", "digits, α = 1"],
        ["at chance", "1 of 3", "FedAvg, paper", "digits, α = 1"],
    ]


def test_chance_is_told_from_slow_learning(study: Study) -> None:
    stuck = [curve for curve in study.curves if at_chance(curve, 10)]
    assert len(stuck) == 1
    assert not any(at_chance(curve, None) for curve in study.curves)


# Tables


def test_the_results_table_has_the_numbers_of_the_file(study: Study, folder: Path) -> None:
    table = results_table(study)[0]
    assert table.title == "digits"
    assert table.headings[:5] == ("α", "preset", "algorithm", "accuracy", "averaged model")
    names = {"FedAvg": "fedavg", "FedNTD": "fedntd", "FedGA": "fedga"}
    for row in table.rows:
        alpha, preset, algorithm, accuracy = (cell.text for cell in row[:4])
        found = last_values(folder, "accuracy", alpha=float(alpha), preset=preset, algorithm=names[algorithm])
        assert accuracy == mean_text(found)
        assert row[table.headings.index("seeds")].text == str(len(found))
    bold = [(row[0].text, row[1].text, row[2].text) for row in table.rows if row[3].bold]
    assert bold == [("0.1", "strong", "FedGA"), ("1", "strong", "FedGA")]
    assert "1 of 3 diverged" in cells(table, "note")
    assert table.breaks == (5,)


def test_settings_beside_the_preset_are_told_by_how_they_differ(tmp_path: Path) -> None:
    lists = {"dataset": "digits", "algorithm": ["fedavg", "fedga"], "preset": "paper", "rounds": 4}
    specs = grid(**lists) + grid(**lists, lr=0.01) + grid(**lists, server="momentum", evaluate_every=2)
    study = read_study(write_store(tmp_path, specs, looks=False))
    assert [cohort.name for cohort in study.places[0].cohorts] == ["paper", "paper, lr 0.01", "paper, server momentum"]
    assert cells(results_table(study)[0], "setting") == [
        "–",
        "–",
        "lr 0.01",
        "lr 0.01",
        "server momentum",
        "server momentum",
    ]
    assert [member.style.color for member in study.places[0].cohorts[0].members] == [
        algorithm_color("fedavg"),
        algorithm_color("fedga"),
    ]
    assert [row[1].text for row in best_tables(study)[0].rows] == ["paper"]


def test_algorithms_with_other_settings_are_not_compared(tmp_path: Path) -> None:
    """Nothing in the folder needs the rate to tell these runs apart, and yet no lead would be the algorithm's."""
    specs = grid(dataset="digits", algorithm="fedavg", rounds=4) + grid(
        dataset="digits", algorithm="fedga", rounds=4, lr=0.01, evaluate_every=1
    )
    study = read_study(write_store(tmp_path, specs, looks=False))
    assert [cohort.own for cohort in study.places[0].cohorts] == ["", "lr 0.01"]
    assert best_tables(study) == []


def test_the_best_stand_in_a_table_over_alpha(study: Study) -> None:
    last, averaged = best_tables(study)
    assert last.headings == ("data set", "setting", "α = 0.1", "α = 1")
    assert [row[1].text for row in last.rows] == ["paper", "strong"]
    assert all(re.fullmatch(r"FedGA\u00a00\.\d{3} \(\+\d+\.\d\)", cell.text) for row in last.rows for cell in row[2:])
    assert [row[1].text for row in averaged.rows] == ["strong"]


def test_costs_are_those_of_the_algorithms_that_ran_on_the_network_they_trained(study: Study) -> None:
    [table] = cost_tables(study)
    assert cells(table, "algorithm") == ["FedAvg", "FedNTD", "FedGA"]
    assert cells(table, "extra forward passes") == ["–", "1 per local step", "–"]
    assert "9,610 parameters, 38.4 kB" in table.caption


def test_no_foreign_code_runs_to_count_parameters(tmp_path: Path) -> None:
    specs = grid(dataset="digits", algorithm="fedga", model="antigravity:fly", rounds=2)
    [table] = cost_tables(read_study(write_store(tmp_path, specs, looks=False)))
    assert "extra up" not in table.headings
    assert "is unknown here" in table.caption
    assert "antigravity" not in sys.modules


OWN = """
from dataclasses import dataclass
from fedga.algorithms import Algorithm

@dataclass(frozen=True)
class Mine(Algorithm):
    tau: float = 1.0

    def local_loss(self, batch):
        return self.tau * super().local_loss(batch)
"""


@pytest.fixture
def own_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Runs of an algorithm of one's own, whose file is mine.py of the folder one is in."""
    monkeypatch.setenv("FEDGA_PROJECT", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    Path("fedga.toml").write_text('[algorithms]\nmine = "mine.py:Mine"\n')
    specs = grid(dataset="digits", algorithm=["fedavg", "mine"], rounds=2)
    return read_study(write_store(tmp_path / "runs", specs, looks=False))


def test_code_of_ones_own_that_is_as_it_was_needs_no_note(own_study: Study) -> None:
    [table] = cost_tables(own_study)
    assert cells(table, "options") == ["–", "tau=1"]
    assert not any(row[0].note for row in table.rows)
    [code] = repeat(own_study).code
    digest = hashlib.sha256(OWN.encode()).hexdigest()
    assert code == f"algorithm mine (mine.py, SHA-256 {digest[:12]})"
    write_archive(own_study.folder, Path("archive"))
    with opened(Path("archive")) as restored:
        assert repeat(read_study(restored)).code == (code,)
    page = write_page(own_study.folder, Path("page.html")).read_text(encoding="utf-8")
    assert f"number for number, with the code they need besides fedga as it was then, which is {code}:" in " ".join(
        page.split()
    )


def test_code_of_ones_own_that_has_changed_is_said_to_have(own_study: Study) -> None:
    Path("mine.py").write_text(OWN.replace("1.0", "7.0"))
    [table] = cost_tables(own_study)
    assert [row[0].note for row in table.rows] == [
        "",
        "mine.py has changed since: the cost is that of today's code",
    ]
    assert repeat(own_study).code[0].endswith("), which has changed since")


def test_code_of_ones_own_that_is_elsewhere_keeps_its_row(own_study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    [table] = cost_tables(own_study)
    assert [(row[0].text, row[0].note[:20]) for row in table.rows] == [("FedAvg", ""), ("mine", "its code is not here")]
    assert repeat(own_study).code[0].endswith("), which is not here")


# What it takes to repeat it


def typed(command: str) -> list[RunSpec]:
    """The runs of a `fedga run` command line."""
    words = shlex.split(command)
    assert words[:2] == ["fedga", "run"]
    flags = dict(zip(words[2::2], words[3::2], strict=True))
    del flags["--out"]
    names = {setting_name(flag.removeprefix("--")): text for flag, text in flags.items()}
    return list(build_sweep({name: parse_list(name, text) for name, text in names.items()}).runs)


def test_the_command_makes_the_same_runs(study: Study) -> None:
    found = repeat(study)
    [command] = found.commands
    assert {spec.run_id for spec in typed(command)} == {run.run_id for run in study.runs}
    assert found.strays == 0
    assert found.versions["fedga"]


def test_runs_of_several_grids_take_several_commands(tmp_path: Path) -> None:
    specs = grid(dataset="digits", algorithm=["fedavg", "fedga"], rounds=3, seed=[0, 1])
    specs += grid(dataset="mnist", algorithm="fedga", rounds=3, alpha=[0.1, 1.0], lr=0.0123456789)
    found = repeat(read_study(write_store(tmp_path, specs, looks=False)))
    assert len(found.commands) == 2
    assert {run.run_id for command in found.commands for run in typed(command)} == {spec.run_id for spec in specs}
    assert found.strays == 0


def test_runs_of_no_grid_are_counted(tmp_path: Path) -> None:
    specs = [RunSpec(alpha=0.1, rounds=2, algorithm="fedga", algorithm_options=(("power", 2.0),))]
    assert repeat(read_study(write_store(tmp_path, specs, looks=False))).strays == 1


def test_settings_are_listed_with_all_their_values(study: Study) -> None:
    rows = {row[0].text: row[1].text for row in repeat(study).settings.rows}
    assert set(rows) == set(RunSpec.__dataclass_fields__)
    assert rows["server"] == "momentum, sgd"
    assert rows["rounds"] == "20"
    assert rows["seed"] == "0-2"


# The page as a whole


def test_the_page_holds_all_parts_and_asks_for_nothing(page: str) -> None:
    ids = re.findall(r'<section id="([^"]+)"', page)
    assert ids == ["summary", "results", "curves", "partitions", "clients", "costs", "repeat", "download"]
    rules = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert rules in re.sub(r"\s+", " ", page)
    assert not re.search(r'(src|href|action)="(?!#|data:)', page)
    assert not re.search(r"url\((?!#)|@import|\bfetch\(|XMLHttpRequest|innerHTML|localStorage", page)
    assert len(re.findall(r"\sid=\"([^\"]+)\"", page)) == len(set(re.findall(r"\sid=\"([^\"]+)\"", page)))
    assert page.count("<noscript>") >= 3


def test_the_numbers_can_be_read_without_a_script(page: str, folder: Path) -> None:
    plain = html.unescape(re.sub(r"<[^>]+>", "", page))
    for preset in ("paper", "strong"):
        assert mean_text(last_values(folder, "accuracy", alpha=0.1, preset=preset, algorithm="fedga")) in plain


def test_the_same_folder_gives_the_same_bytes(folder: Path, page: str, tmp_path: Path) -> None:
    assert write_page(folder, tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_curves_are_the_rows_of_the_file(page: str, folder: Path) -> None:
    data = charts(page)
    metric = [one["name"] for one in data["metrics"]].index("loss")
    place = next(place for place in data["places"] if place["alpha"] == "0.1")
    member = next(one for cohort in place["cohorts"] for one in cohort["members"] if one["label"] == "FedGA, strong")
    assert member["color"] == algorithm_color("fedga")
    for seed, run in enumerate(member["runs"]):
        named = "algorithm = 'fedga' AND preset = 'strong' AND alpha = 0.1 AND seed = ?"
        rows = np.array(asked(folder, f"SELECT round, loss FROM results WHERE {named}", seed))
        rounds, values = unpacked(data, data["lines"][run][metric])
        np.testing.assert_array_equal(rounds, rows[:, 0])
        np.testing.assert_allclose(values, rows[:, 1], atol=1e-6)


def test_a_small_study_has_its_whole_csv_in_the_page(page: str, folder: Path) -> None:
    stream = io.StringIO()
    with Store(folder) as store:
        store.write_results(stream, "csv")
    assert packed(page, "csv-data") == stream.getvalue()


def test_a_large_study_is_thinned_and_the_page_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "MOST_ROWS", 10)
    monkeypatch.setattr(payload, "MOST_ROUNDS", 10)
    monkeypatch.setattr(payload, "FEWEST_ROUNDS", 5)
    monkeypatch.setattr(payload, "MOST_VALUES", 100)
    monkeypatch.setattr(payload, "FINE_VALUES", 0)
    text = write_page(folder, tmp_path / "page.html").read_text(encoding="utf-8")
    data = charts(text)
    assert 'id="csv-data"></script>' in text
    rounds, values = unpacked(data, data["lines"][0][0])
    assert (rounds[0], rounds[-1], len(rounds)) == (0, 20, 5)
    np.testing.assert_array_equal(values, np.round(values, 4))
    assert data["scale"] == 10**4
    words = re.sub(r"\s+", " ", text)
    assert "a curve shows at most 5 of its rounds, evenly chosen, first and last included, to 4 digits" in words
    assert "of each run at most 5 of its rounds, to 4 digits" in words
    assert f"fedga results {folder} --format csv" in words
    assert data["columns"][0][:3] == ["dataset", "alpha", "algorithm"]
    assert data["runs"][0][2:5] == ["digits", "0.1", "fedavg"]


def test_infinite_ratios_are_kept(tmp_path: Path) -> None:
    from fedga.store.store import RoundMetrics

    [spec] = grid(dataset="digits", algorithm="fedga", rounds=2)
    rows = [RoundMetrics(spec.run_id, number, 0.5, ea_ratio=float("inf")) for number in (1, 2)]
    data = charts(write_page(write_store(tmp_path, [spec], rows, looks=False), tmp_path / "p.html").read_text())
    at = [one["name"] for one in data["metrics"]].index("ea_ratio")
    np.testing.assert_array_equal(unpacked(data, data["lines"][0][at])[1], [np.inf, np.inf])


def test_clients_and_maps_are_those_of_the_folder(page: str, folder: Path) -> None:
    data = charts(page)
    assert [(one["alpha"], one["seed"]) for one in data["maps"]] == [("0.1", 0), ("1", 0)]
    with Store(folder) as store:
        kept = store.partitions()
    assert data["maps"][0]["counts"] == kept[0].class_counts.tolist()
    seen = next(one for one in data["evaluations"] if one["place"] == 0 and one["label"] == "FedGA, strong")
    wanted = look(small_grid()[0], 20).arrays
    assert (seen["round"], seen["seed"], seen["clients"]) == (20, 0, [4, 8, 15])
    assert data["held"][seen["counts"]] == wanted["class_counts"].tolist()
    assert seen["before"][0][0] is None
    assert seen["after"][1][2] == round(1000 * wanted["accuracy_after"][1, 2])


def test_what_a_folder_does_not_know_is_left_out(tmp_path: Path) -> None:
    folder = write_store(tmp_path, grid(dataset="digits", algorithm="fedga", rounds=3, diagnose_every=0), looks=False)
    text = write_page(folder, tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'id="partitions"' not in text
    assert 'id="clients"' not in text
    assert 'href="#clients"' not in text


# Sections


def test_a_section_shows_its_words_tables_notes_and_pictures(folder: Path, tmp_path: Path) -> None:
    rows = (
        (Cell("MNIST"), Cell("0.876 (0.012)", 0.876, note="1 of 5 runs never left chance", deviation=0.012)),
        (Cell("SVHN"), Cell("0.9", 0.9, bold=True, note="1 of 5 runs never left chance")),
        (Cell("digits"), Cell("–", note="2 of 5 runs diverged")),
    )
    table = Table("t1", "Table 1", ("data set", "FedGA"), rows, "Five seeds.", breaks=(0,))
    picture = Picture("lines", "Three points", draw, "They rise.", 'a "line" that rises & falls')
    section = Section("Table main", "Table 1: all of it", ("It went <well>.",), (table,), (picture,))
    text = write_page(folder, tmp_path / "page.html", [section], title="A & B").read_text(encoding="utf-8")
    assert "<title>A &amp; B</title>" in text
    assert '<a href="#section-table-main">Table 1: all of it</a>' in text
    assert "<p>It went &lt;well&gt;.</p>" in text
    assert text.count('<sup title="1 of 5 runs never left chance">a</sup>') == 2
    assert '<sup title="2 of 5 runs diverged">b</sup>' in text
    assert "<sup>a</sup> 1 of 5 runs never left chance" in text
    assert '<td class="number" data-value="0.876" data-deviation="0.012">0.876 (0.012)<sup' in text
    assert '<tr class="rule"><th scope="row">MNIST</th>' in text
    assert "<strong>0.9</strong>" in text
    assert 'alt="a &#34;line&#34; that rises &amp; falls"' in text
    assert text.index('id="section-table-main"') < text.index('id="results"')


def test_sections_alone_make_a_page(tmp_path: Path) -> None:
    """An experiment without runs of its own leaves no results file."""
    assert results_section(tmp_path) == Section("results", "Results")
    text = write_page(tmp_path, tmp_path / "page.html", [Section("one", "One", ("Words.",))]).read_text(
        encoding="utf-8"
    )
    assert re.findall(r'<section id="([^"]+)"', text) == ["section-one"]
    assert re.findall(r'href="#([^"]+)"', text) == ["main", "section-one"]
    assert 'charts-data"' not in text.partition("<script>\n(")[0]


def test_pictures_are_short_svg_without_traces() -> None:
    url = svg_url(draw())
    assert url.startswith("data:image/svg+xml,<svg ")
    assert len(url) < 0.8 * len(written(draw()))
    assert not set(url) & set('"#&\n')
    assert "<!--" not in url
    assert "metadata" not in url
    assert url == svg_url(draw())


def test_a_short_picture_keeps_what_it_refers_to() -> None:
    text = unquote(svg_url(draw()))
    names = set(re.findall(r" id='([^']+)'", text))
    assert names == set(re.findall(r"#([\w-]+)(?='|\))", text))
    assert not re.search(r"<g>|\sstyle=|xlink", text)


# Names that would break out of their text


def test_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    folder = hostile_store(tmp_path / HOSTILE.replace("/", "_"))
    section = Section(
        HOSTILE, HOSTILE, (HOSTILE,), (Table("t", HOSTILE, (HOSTILE,), ((Cell(HOSTILE, HOSTILE, note=HOSTILE),),)),)
    )
    text = write_page(folder, tmp_path / "page.html", [section], title=HOSTILE).read_text(encoding="utf-8")
    assert "<img src=x" not in text
    assert "<script>window" not in text
    assert text.count("<script") == text.count("</script>") == 4
    assert "&lt;script&gt;window.hacked=2" in text


# Bad input


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedGAError, match="there are no results in"):
        report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_runs_without_a_round_are_refused(tmp_path: Path) -> None:
    specs = grid(dataset="digits", rounds=2)
    with Store(tmp_path) as store:
        store.register(specs, {spec.run_id: "data" for spec in specs})
    with pytest.raises(FedGAError, match=r"there is nothing to report in .*: no run has been evaluated yet"):
        report(tmp_path)


def test_runs_that_diverged_at_once_are_not_waited_for(tmp_path: Path) -> None:
    specs = two()
    folder = write_store(tmp_path / "all", specs, [], diverged=specs, looks=False)
    with pytest.raises(
        FedGAError, match=r"every run diverged before it was evaluated: train again with a smaller --lr$"
    ):
        report(folder)
    folder = write_store(tmp_path / "one", specs, [], diverged=specs[:1], unfinished=specs[1:], looks=False)
    with pytest.raises(FedGAError, match=r"no run has been evaluated yet, and 1 of 2 diverged$"):
        report(folder)


def test_runs_that_diverged_later_make_a_page(tmp_path: Path) -> None:
    specs = two()
    folder = write_store(tmp_path, specs, diverged=specs)
    text = write_page(folder, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "2 runs diverged" in text


def test_a_target_that_cannot_be_written_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        FedGAError, match=r"the page '.*page.html' cannot be written \(.*\): give another file with --out"
    ):
        report(folder, tmp_path / "file" / "page.html")
    with pytest.raises(FedGAError, match="is a folder: give a file with --out"):
        report(folder, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_jinja_or_matplotlib_it_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_matplotlib: None
) -> None:
    from fedga.report.page.svg import marker_path

    marker_path.cache_clear()
    with pytest.raises(FedGAError, match=r"needs matplotlib, .*: pip install 'fedga\[report\]'"):
        report(folder, tmp_path / "page.html")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(FedGAError, match=r"writing a page needs jinja2, .*: pip install 'fedga\[report\]'"):
        report(folder, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_one_file_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_store(tmp_path / "out", grid(dataset="digits", algorithm="fedga", rounds=2), looks=False)
    before = {path.name for path in folder.iterdir()}
    report(folder)
    assert {path.name for path in folder.iterdir()} - before == {"report.html"}
    assert capsys.readouterr().err == f"the page: {folder / 'report.html'}\n"
