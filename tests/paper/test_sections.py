"""The section of an experiment, from folders in which something is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedga.errors import FedGAError
from fedga.paper.report import pictures
from fedga.paper.report.sections import section_of, sections_of
from fedga.paper.runs import EXPERIMENTS, Scope, remember
from fedga.report.documents import Section
from fedga.report.general import as_file
from fedga.report.writers import write_section
from fedga.spec.settings import RunSpec
from fedga.store.store import RoundMetrics, Store
from tests.report.page_stores import made_up, partition, write_store

FEW = Scope("quick", (), (0.1,), (0,), ("fedavg", "fedga"))


def specs_of(name: str, scope: Scope = FEW) -> list[RunSpec]:
    return EXPERIMENTS[name].runs(scope)


def section(folder: Path, name: str, scope: Scope = FEW) -> Section:
    return section_of(folder, EXPERIMENTS[name], [scope])


def few_rounds(specs: Sequence[RunSpec], rounds: int = 3, **values: Any) -> list[RoundMetrics]:
    return [replace(made_up(spec, number), **values) for spec in specs for number in range(rounds)]


def table_names(of: Section) -> list[str]:
    return [table.name for table in of.tables]


def test_algorithms_of_which_the_paper_prints_one_are_compared_and_not_ranked(tmp_path: Path) -> None:
    scope = replace(FEW, algorithms=("fedavg", "scaffold"))
    specs = specs_of("table-main", scope)
    found = section(write_store(tmp_path / "one", specs, few_rounds(specs)), "table-main", scope)
    assert "agreement-main-accuracy-mean" in table_names(found)
    assert not [name for name in table_names(found) if name.startswith("ranking")]
    assert not [sentence for sentence in found.words if "Nothing to show" in sentence]
    both = specs_of("table-main")
    ranked = section(write_store(tmp_path / "both", both, few_rounds(both)), "table-main")
    assert "ranking-main-accuracy-mean" in table_names(ranked)


def test_what_is_printed_alike_in_both_tables_is_compared_at_both_moments(tmp_path: Path) -> None:
    scope = replace(FEW, scale="full", datasets=("mnist", "svhn"))
    specs = specs_of("table-main", scope)
    folder = write_store(tmp_path, specs, few_rounds(specs, 6))
    main, at_80 = section(folder, "table-main", scope), section(folder, "table-80", scope)
    for moment in ("mean", "80", "last"):
        assert f"agreement-main-accuracy-{moment}" in table_names(main)
    assert [name for name in table_names(at_80) if name.startswith("agreement")] == [
        "agreement-at-80",
        "agreement-at-80-accuracy-80",
        "agreement-at-80-macro-f1-80",
        "agreement-at-80-accuracy-last",
    ]
    for found, moments in ((main, ("in the mean over", "at 80 %", "after the last")), (at_80, ("at 80 %",) * 2)):
        [summary] = [table for table in found.tables if table.title == "Agreement with print"]
        assert [row[0].text for row in summary.rows] == ["MNIST", "SVHN", "SVHN"]
        assert all(row[1].text.startswith(at) for row, at in zip(summary.rows, moments, strict=False))


def test_quick_runs_of_a_published_data_set_are_not_set_against_print(tmp_path: Path) -> None:
    scope = replace(FEW, datasets=("mnist", "svhn"))
    specs = specs_of("table-main", scope)
    folder = write_store(tmp_path, specs, few_rounds(specs, 6))
    for name in ("table-main", "table-80"):
        found = section(folder, name, scope)
        assert found.tables
        assert not any("printed" in sentence for sentence in found.words)
        assert not any(table.startswith(("agreement", "ranking")) for table in table_names(found))


def test_a_picture_that_cannot_be_drawn_is_a_sentence_and_the_page_goes_on(tmp_path: Path) -> None:
    specs = specs_of("figure-ea")
    folder = write_store(tmp_path, specs, few_rounds(specs), looks=False)
    remember(folder, [EXPERIMENTS["figure-ea"], EXPERIMENTS["figure-curves"]], FEW)
    found = {one.name: one for one in sections_of(folder)}
    assert found["figure-ea"].pictures == ()
    told = [sentence for sentence in found["figure-ea"].words if sentence.startswith("No picture of")]
    assert len(told) == 1
    assert told[0].startswith('No picture of "EA ratio of the active clients": there is nothing to draw')
    assert [picture.name for picture in found["figure-curves"].pictures] == ["curves"]
    assert write_section(found["figure-ea"], tmp_path / "out") == []


def test_a_picture_is_drawn_once_and_only_an_expected_error_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = specs_of("figure-zoom")
    folder = write_store(tmp_path, specs, few_rounds(specs))
    drawn, draw = [], pictures.zoom_picture
    monkeypatch.setattr(pictures, "zoom_picture", lambda *of, **how: drawn.append(1) or draw(*of, **how))
    [picture] = section(folder, "figure-zoom").pictures
    assert picture.draw() is picture.draw()
    assert len(drawn) == 1

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pictures, "zoom_picture", broken)
    with pytest.raises(ZeroDivisionError):
        section(folder, "figure-zoom")


def test_own_data_have_pictures_inside_the_folder_under_names_of_their_own(tmp_path: Path) -> None:
    paths = (str(tmp_path / "a" / "x.csv"), str(tmp_path / "b" / "x.csv"), "../../x.csv")
    scope = replace(FEW, datasets=paths)
    specs = specs_of("figure-zoom", scope)
    found = section(write_store(tmp_path / "store", specs, few_rounds(specs)), "figure-zoom", scope)
    assert len(found.pictures) == 3
    written = write_section(found, tmp_path / "out")
    assert len(set(written)) == 9
    assert {path.parent for path in written} == {tmp_path / "out" / "figures"}
    assert {picture.name for picture in found.pictures} == {f"zoom-{as_file(path)}-0.1" for path in paths}


def test_a_path_as_a_file_is_its_stem_and_a_hash() -> None:
    assert as_file("../../x.csv") == f"x-{hashlib.sha256(b'../../x.csv').hexdigest()[:8]}"
    assert len({as_file(name) for name in ("x.csv", "./x.csv", "a/x.csv", "a\\x.csv", "a x.csv", "a_x.csv")}) == 6
    assert not set("/\\ :") & set(
        "".join(as_file(name) for name in ("C:\\x y.csv", "/", "..", "fedga:variant=aligned"))
    )


def test_label_maps_are_of_the_experiments_own_seed_and_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = replace(FEW, seeds=(3, 1))
    specs = specs_of("figure-labels", scope)
    folder = write_store(tmp_path, specs, few_rounds(specs), looks=False)
    clients = specs[0].clients
    own = partition("digits", 0.1)
    dealt = [
        replace(own, clients=many, seed=seed, class_counts=np.full((20, 10), 10 * seed + many))
        for many, seed in ((clients, 1), (clients, 3), (clients, 0), (clients + 1, 1))
    ]
    with Store(folder) as store:
        store.keep_partitions(dealt)
    shown: list[np.ndarray] = []
    draw = pictures.labels_picture
    monkeypatch.setattr(
        pictures, "labels_picture", lambda counts, names: shown.extend(counts.values()) or draw(counts, names)
    )
    [picture] = section(folder, "figure-labels", scope).pictures
    assert picture.name == "labels-digits"
    assert [int(counts[0, 0]) for counts in shown] == [10 + clients]


def test_runs_that_are_missing_and_runs_that_are_not_finished_are_counted_together(tmp_path: Path) -> None:
    scope = replace(FEW, seeds=(0, 1))
    first, second, *rest = specs = specs_of("figure-curves", scope)
    assert len(specs) == 4
    kept = [first, second, rest[0]]
    found = section(write_store(tmp_path / "some", kept, few_rounds(kept), unfinished=[second]), "figure-curves", scope)
    assert found.words[-1] == "Not in this folder or not finished: 2 of 4 runs."
    found = section(write_store(tmp_path / "three", kept, few_rounds(kept)), "figure-curves", scope)
    assert found.words[-1] == "Not in this folder or not finished: 1 of 4 runs."
    whole = section(write_store(tmp_path / "all", specs, few_rounds(specs)), "figure-curves", scope)
    assert not any("not finished" in sentence for sentence in whole.words)


def test_no_run_and_runs_without_a_number_are_told_apart(tmp_path: Path) -> None:
    other, specs = specs_of("table-main", replace(FEW, seeds=(7,))), specs_of("figure-curves")
    empty = write_store(tmp_path / "other", other, few_rounds(other))
    assert section(empty, "figure-curves").words == (
        "None of its 2 runs has an evaluated round: 0 are here, 0 diverged.",
    )
    store = write_store(tmp_path / "there", specs, [], diverged=specs[:1], unfinished=specs[1:])
    assert section(store, "figure-curves").words[0].endswith("2 are here, 1 diverged.")


def test_rates_tried_at_two_scales_are_rows_of_their_own_without_a_picture(tmp_path: Path) -> None:
    scope = replace(FEW, datasets=("mnist",), algorithms=())
    specs = [spec for full in ("quick", "full") for spec in specs_of("tuning", replace(scope, scale=full))]
    folder = write_store(tmp_path, specs, few_rounds(specs))
    found = section_of(folder, EXPERIMENTS["tuning"], [scope, replace(scope, scale="full")])
    [table] = found.tables
    assert table.headings[2] == "setting"
    assert len(table.rows) == 2
    assert found.pictures == ()
    assert any("differ in rounds" in sentence for sentence in found.words)


def test_an_error_that_is_expected_leaves_the_other_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = specs_of("figure-curves")
    folder = write_store(tmp_path, specs, few_rounds(specs))

    def refuse(*_: Any, **__: Any) -> None:
        raise FedGAError("not today")

    monkeypatch.setattr("fedga.paper.report.sections.speed_table", refuse)
    assert "Nothing to show: not today." in section(folder, "table-speed").words
    assert section(folder, "figure-curves").pictures
