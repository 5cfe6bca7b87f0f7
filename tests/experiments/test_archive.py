"""An archive says what its folder says, rounded, and restores to a folder that every reader takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedga.errors import FedGAError
from fedga.experiments.archive import DIGITS, opened, restore, write_archive
from fedga.experiments.paper import EXPERIMENTS, Scope, asked, remember
from fedga.experiments.spec import RunSpec
from fedga.experiments.store import Store
from fedga.experiments.sweep import run_sweep

SPECS = [
    RunSpec(dataset="digits", alpha=0.1, clients=10, active=2, batch_size=16, rounds=3, diagnose_every=1, **extra)
    for extra in (
        {"algorithm": "fedavg", "seed": 0},
        {"algorithm": "fedavg", "seed": 1, "server_average": 0.1},
        {"algorithm": "fedavg", "seed": 2},
        {"algorithm": "fedga", "lr": 1e30},
    )
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("results")
    with Store(place) as store:
        run_sweep(SPECS, store, torch.device("cpu"), axes=("lr", "server_average"))
    remember(place, [EXPERIMENTS["table-main"]], Scope("quick", alphas=(0.1,)))
    return place


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


def test_a_damaged_archive_is_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    write_archive(folder, tmp_path / "archive")
    (tmp_path / "archive" / "metrics.parquet").write_bytes(b"PAR1 but not really")
    with (
        pytest.raises(FedGAError, match=r"metrics\.parquet is damaged or is not an archive's file"),
        opened(tmp_path / "archive"),
    ):
        pass


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
    (tmp_path / "archive" / "binary.npz").write_bytes(b"of other results")
    write_archive(folder, tmp_path / "archive")
    assert not (tmp_path / "archive" / "binary.npz").exists()
    with pytest.raises(FedGAError, match="cannot go where the results are"):
        write_archive(folder, folder)


def test_a_target_that_is_no_folder_is_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FedGAError, match="the archive cannot be written to"):
            write_archive(folder, target)
