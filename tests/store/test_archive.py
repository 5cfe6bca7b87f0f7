"""An archive says what its folder says, rounded, and restores to a folder that every reader takes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedga.common.sealed import digest_of_json
from fedga.errors import FedGAError
from fedga.paper.runs import EXPERIMENTS, Scope, asked, remember
from fedga.spec.settings import RunSpec
from fedga.store.archive import DIGITS, opened, restore, unpack, write_archive
from fedga.store.store import Store
from fedga.study.sweep import Interrupted, Observer, run_sweep

SPECS = [
    RunSpec(dataset="digits", alpha=0.1, clients=10, active=2, batch_size=16, rounds=3, diagnose_every=1, **extra)
    for extra in (
        {"algorithm": "fedavg", "seed": 0},
        {"algorithm": "fedavg", "seed": 1, "server_average": 0.1},
        {"algorithm": "fedavg", "seed": 2},
        {"algorithm": "fedga", "lr": 1e30},
    )
]


AXES = ("lr", "server_average")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("results")
    with Store(place) as store:
        run_sweep(SPECS, store, torch.device("cpu"), axes=AXES)
    remember(place, [EXPERIMENTS["table-main"]], Scope("quick", alphas=(0.1,)))
    return place


def looks(folder: Path) -> list[list[tuple[int, str]]]:
    with Store(folder) as store:
        seen = [store.client_rounds(spec.run_id) for spec in SPECS]
    return [[(one.round, str({name: of.tolist() for name, of in one.arrays.items()})) for one in of] for of in seen]


def rows(folder: Path) -> list[tuple[object, ...]]:
    with Store(folder) as store, store.results() as table:
        return list(table.rows)


def test_a_restored_archive_has_the_same_rows_rounded(folder: Path, tmp_path: Path) -> None:
    write_archive(folder, tmp_path / "archive")
    restore(tmp_path / "archive", tmp_path / "again")
    before, after = rows(folder), rows(tmp_path / "again")
    assert len(before) == len(after) > 0
    for old, new in zip(before, after, strict=True):
        for one, other in zip(old, new, strict=True):
            if isinstance(one, float) and np.isfinite(one):
                assert other == float(f"{one:.{DIGITS}g}")
            else:
                assert other == one


def test_runs_partitions_and_what_was_asked_come_back(folder: Path, tmp_path: Path) -> None:
    write_archive(folder, tmp_path / "archive")
    with opened(tmp_path / "archive") as again, Store(folder) as here, Store(again) as there:
        assert [run.spec for run in here.runs()] == [run.spec for run in there.runs()]
        assert [run.status for run in there.runs()] == ["done", "done", "done", "diverged"]
        [old], [new] = here.partitions(), there.partitions()
        assert (old.class_counts == new.class_counts).all()
        assert old.class_names == new.class_names
        assert asked(again) == asked(folder) == {"table-main": (Scope("quick", alphas=(0.1,)),)}
    assert not again.exists()  # it was a place of its own, for the time it was read


def test_looks_at_clients_are_kept_of_the_lowest_seed_at_its_end(folder: Path, tmp_path: Path) -> None:
    write_archive(folder, tmp_path / "archive")
    restore(tmp_path / "archive", tmp_path / "again")
    with Store(folder) as here, Store(tmp_path / "again") as there:
        last = here.client_rounds(SPECS[0].run_id)[-1]
        [kept] = there.client_rounds(SPECS[0].run_id)
        assert kept.round == last.round == 3
        assert (kept.arrays["class_counts"] == last.arrays["class_counts"]).all()
        assert here.client_rounds(SPECS[2].run_id)
        assert there.client_rounds(SPECS[2].run_id) == []


def test_a_results_folder_is_opened_where_it_is(folder: Path) -> None:
    with opened(folder) as place:
        assert place == folder


def test_a_damaged_or_incomplete_archive_is_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    for path in write_archive(folder, archive):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(FedGAError, match=f"{path.name} is damaged"), opened(archive):
            pass
        path.unlink()
        with pytest.raises(FedGAError, match=rf"is incomplete \({path.name} is missing\)"), opened(archive):
            pass
        path.write_bytes(content)
    manifest = archive / "manifest.json"
    text = manifest.read_text()
    for at in range(0, len(text), 7):
        manifest.write_text(text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :])
        with pytest.raises(FedGAError, match=r"manifest.json is damaged"), opened(archive):
            pass


def test_an_archive_of_version_0_1_is_read_and_told(folder: Path, tmp_path: Path) -> None:
    """Its files had their plain names, and no manifest; of an incomplete one finished runs have no results."""
    write_archive(folder, tmp_path / "new")
    old = tmp_path / "old"
    old.mkdir()
    for path in (tmp_path / "new" / "parts").iterdir():
        (old / (path.stem.rpartition("-")[0] + path.suffix)).write_bytes(path.read_bytes())
    told: list[str] = []
    with opened(tmp_path / "new", told.append) as new:
        assert told == []
        with opened(old, told.append) as again:
            assert rows(again) == rows(new)
    assert len(told) == 1
    assert "is without digests, as fedga 0.1 wrote it" in told[0]
    (old / "metrics.parquet").unlink()
    with pytest.raises(FedGAError, match=r"is incomplete .3 finished runs have no results."), opened(old):
        pass


@pytest.mark.parametrize("name", ["paper.jsonl", "binary.npz"])
def test_links_are_not_followed(name: str, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(folder, copy)
    (copy / name).unlink(missing_ok=True)
    (tmp_path / "secret").write_text("secret")
    (copy / name).symlink_to(tmp_path / "secret")
    for full in (False, True):
        with pytest.raises(FedGAError, match=f"{name} is a link, where a plain file is expected"):
            write_archive(copy, tmp_path / "archive", full=full)
        assert not (tmp_path / "archive" / "manifest.json").exists()


def test_a_sweep_goes_on_elsewhere(folder: Path, tmp_path: Path) -> None:
    """Archived half-way, unpacked elsewhere and finished: every number and every byte of a model is the same."""
    asked = 0

    def half_way() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    here, there = tmp_path / "here", tmp_path / "there"
    with Store(here) as store, pytest.raises(Interrupted):
        run_sweep(SPECS, store, torch.device("cpu"), axes=AXES, observer=Observer(should_stop=half_way))
    write_archive(here, tmp_path / "archive", full=True)
    shutil.rmtree(here)
    with opened(tmp_path / "archive") as looked_at, Store(looked_at) as store:
        assert {run.status for run in store.runs()} >= {"pending"}
    unpack(tmp_path / "archive", there)
    with Store(there) as store:
        assert 0 < max(run.rounds_done for run in store.runs() if not run.finished) < 3
        run_sweep(SPECS, store, torch.device("cpu"), axes=AXES)
    assert rows(there) == rows(folder)
    assert looks(there) == looks(folder)
    models = sorted(path.name for path in (folder / "models").iterdir())
    assert models == sorted(path.name for path in (there / "models").iterdir())
    for name in models:
        assert (there / "models" / name).read_bytes() == (folder / "models" / name).read_bytes()


def test_what_cannot_be_unpacked(folder: Path, tmp_path: Path) -> None:
    write_archive(folder, tmp_path / "small")
    for source, words in ((tmp_path / "small", "is a small archive"), (folder, "is not an archive")):
        with pytest.raises(FedGAError, match=words):
            unpack(source, tmp_path / "new")
    write_archive(folder, tmp_path / "full", full=True)
    with pytest.raises(FedGAError, match="is there already"):
        unpack(tmp_path / "full", folder)
    with Store(folder) as store, pytest.raises(FedGAError, match="holds results of its own"):
        write_archive(store.folder, _results_of_its_own(tmp_path))


def _results_of_its_own(tmp_path: Path) -> Path:
    with Store(tmp_path / "other") as store:
        store.register(SPECS[:1], {SPECS[0].run_id: "data"})
    return tmp_path / "other"


def test_no_results_are_no_archive(tmp_path: Path) -> None:
    with pytest.raises(FedGAError, match="there are no results"):
        write_archive(tmp_path, tmp_path / "archive")


def test_looks_of_runs_that_differ_in_any_setting_are_all_kept(tmp_path: Path) -> None:
    specs = [replace(SPECS[0], lr=rate) for rate in (0.01, 0.1)]
    with Store(tmp_path / "results") as store:
        run_sweep(specs, store, torch.device("cpu"), axes=("lr",))
    write_archive(tmp_path / "results", tmp_path / "archive")
    with opened(tmp_path / "archive") as again, Store(again) as store:
        assert [len(store.client_rounds(spec.run_id)) for spec in specs] == [1, 1]


def test_an_archive_replaces_another_and_never_its_own_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    for name in ("binary.npz", "runs.parquet"):
        (tmp_path / "archive" / name).write_bytes(b"of an older version's archive")
    (tmp_path / "archive" / "report.html").write_text("a page beside it")
    write_archive(folder, tmp_path / "archive", full=True)
    first = {path.name for path in (tmp_path / "archive" / "parts").iterdir()}
    write_archive(folder, tmp_path / "archive")
    kept = first & {path.name for path in (tmp_path / "archive" / "parts").iterdir()}
    assert [name.partition("-")[0] for name in kept] == ["paper"]  # which is the same in both
    assert not (tmp_path / "archive" / "binary.npz").exists()
    assert (tmp_path / "archive" / "report.html").exists()
    with pytest.raises(FedGAError, match="cannot go where the results are"):
        write_archive(folder, folder)


def test_an_archive_removes_nothing_that_is_not_its_own(folder: Path, tmp_path: Path) -> None:
    """Nothing of a folder that was no archive; of parts only files called after their content; nothing by links."""
    target, elsewhere = tmp_path / "archive", tmp_path / "elsewhere"
    (target / "parts").mkdir(parents=True)
    mine = [target / "metrics.parquet", target / "paper.jsonl", target / "parts" / "thesis-deadbeef.tex"]
    for path in mine:
        path.write_text("mine")
    write_archive(folder, target)
    write_archive(folder, target)
    assert [path.read_text() for path in mine] == ["mine"] * 3
    elsewhere.mkdir()
    (elsewhere / "photo-12345678.jpg").write_text("mine")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "parts").symlink_to(elsewhere)
    with pytest.raises(FedGAError, match="parts is a link"):
        write_archive(folder, tmp_path / "linked")
    assert [path.name for path in elsewhere.iterdir()] == ["photo-12345678.jpg"]
    with pytest.raises(FedGAError, match="lies among the models"):
        write_archive(folder, folder / "models")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": None},
        {"kind": "full"},
        {"parts": {"/etc/x.json": ["runs-00000000.parquet", 1, ""]}},
        {"parts": {"../x.json": ["runs-00000000.parquet", 1, ""]}},
        {"parts": {"fedga.toml": ["runs-00000000.parquet", 1, ""]}},
        {"parts": {"models/a\0.json": ["runs-00000000.parquet", 1, ""]}},
        {"parts": {"runs.parquet": ["../runs-00000000.parquet", 1, ""]}},
        {"parts": {"runs.parquet": ["runs-00000000.parquet", float("inf"), ""]}},
        {"parts": {"runs.parquet": "text"}},
        {"parts": []},
    ],
)
def test_a_forged_manifest_is_refused_in_a_sentence(change: dict[str, object], folder: Path, tmp_path: Path) -> None:
    write_archive(folder, tmp_path / "archive")
    path = tmp_path / "archive" / "manifest.json"
    content = {name: value for name, value in (json.loads(path.read_text()) | change).items() if value is not None}
    content.pop("sha256")
    path.write_text(json.dumps(content | {"sha256": digest_of_json(content)}))
    with pytest.raises(FedGAError), opened(tmp_path / "archive"):
        pass
    with pytest.raises(FedGAError):
        unpack(tmp_path / "archive", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_target_that_is_no_folder_is_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FedGAError, match="the archive cannot be written to"):
            write_archive(folder, target)
