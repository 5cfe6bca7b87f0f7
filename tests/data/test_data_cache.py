from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedga.data import SOURCES, load_dataset
from fedga.data import cache as cache_module
from fedga.data.formats import parquet as parquet_module
from tests.data.data_makers import check_equal, pictures, splits, write_parquet, write_picture_classes
from tests.patience import PATIENCE_S


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[np.ndarray, ...]:
    made = splits(SOURCES["mnist"])
    write_parquet(tmp_path / "mnist-train.parquet", *made[:2], extra={"client": [f"c{i % 3}" for i in range(20)]})
    write_parquet(tmp_path / "mnist-test.parquet", *made[2:])
    return made


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures each decoding had, in order."""
    counted: list[int] = []
    original = parquet_module.decode

    def count(pictures: object, count: int, **options: object) -> np.ndarray:
        counted.append(count)
        return original(pictures, count, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet_module, "decode", count)
    return counted


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "decoded").iterdir())


def test_second_load_maps_what_the_first_decoded(
    arrays: tuple[np.ndarray, ...], decodings: list[int], tmp_path: Path, cache: Path
) -> None:
    first = load_dataset("mnist", data_dir=tmp_path)
    assert decodings == [20, 10]
    second = load_dataset("mnist", data_dir=tmp_path)
    assert decodings == [20, 10]
    check_equal(second, arrays)
    assert isinstance(second.train_inputs, np.memmap)
    assert second.fingerprint == first.fingerprint
    assert second.class_names == first.class_names
    assert second.client_names == first.client_names == ("c0", "c1", "c2")
    np.testing.assert_array_equal(second.train_clients, first.train_clients)
    assert len(entries(cache)) == 1


def test_fingerprint_is_stored_and_right(
    arrays: tuple[np.ndarray, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedga.data import assemble

    first = load_dataset("mnist", data_dir=tmp_path)
    assert assemble.fingerprint(first) == first.fingerprint
    monkeypatch.setattr(assemble, "fingerprint", lambda dataset: pytest.fail("computed again"))
    assert load_dataset("mnist", data_dir=tmp_path).fingerprint == first.fingerprint


def test_mapped_arrays_never_write_back(arrays: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    load_dataset("mnist", data_dir=tmp_path).train_inputs[:] = 0
    check_equal(load_dataset("mnist", data_dir=tmp_path), arrays)


@pytest.mark.parametrize("name", ["train_inputs.npy", "test_targets.npy", "meta.json", "train_clients.npy"])
@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "garbage"])
def test_damaged_entry_is_rebuilt(
    name: str, damage: str, arrays: tuple[np.ndarray, ...], decodings: list[int], tmp_path: Path, cache: Path
) -> None:
    load_dataset("mnist", data_dir=tmp_path)
    (entry,) = entries(cache)
    data = (entry / name).read_bytes()
    if damage == "gone":
        (entry / name).unlink()
    else:
        (entry / name).write_bytes(
            {"cut": data[: len(data) // 2], "empty": b"", "garbage": b"\x00garbage" * 30}[damage]
        )
    check_equal(load_dataset("mnist", data_dir=tmp_path), arrays)
    assert len(decodings) == 4
    check_equal(load_dataset("mnist", data_dir=tmp_path), arrays)
    assert len(decodings) == 4
    assert entries(cache) == [entry]


def test_changed_file_is_decoded_again_and_the_old_entry_goes(
    arrays: tuple[np.ndarray, ...], tmp_path: Path, cache: Path
) -> None:
    load_dataset("mnist", data_dir=tmp_path)
    old = entries(cache)
    arrays[0][:] = 255 - arrays[0]
    write_parquet(tmp_path / "mnist-train.parquet", *arrays[:2])
    os.utime(tmp_path / "mnist-train.parquet", ns=(1, 1))
    check_equal(load_dataset("mnist", data_dir=tmp_path), arrays)
    assert len(entries(cache)) == 1
    assert entries(cache) != old


def test_new_reader_version_is_decoded_again(
    arrays: tuple[np.ndarray, ...], decodings: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_dataset("mnist", data_dir=tmp_path)
    monkeypatch.setattr(cache_module, "READER_VERSION", cache_module.READER_VERSION + 1)
    load_dataset("mnist", data_dir=tmp_path)
    assert len(decodings) == 4


def test_options_and_ways_of_naming_have_entries_of_their_own(tmp_path: Path, cache: Path) -> None:
    arrays = splits(SOURCES["mnist"])
    for split, part in (("train", arrays[:2]), ("test", arrays[2:])):
        write_parquet(tmp_path / "mnist" / f"{split}.parquet", *part, extra={"parity": (part[1] % 2).tolist()})
    assert load_dataset("mnist", data_dir=tmp_path).num_classes == 10
    assert load_dataset("mnist", data_dir=tmp_path, label_column="parity").num_classes == 2
    assert load_dataset(tmp_path / "mnist").class_names == tuple(map(str, range(10)))
    assert len(entries(cache)) == 3


def test_a_cache_that_cannot_be_written_costs_only_the_cache(
    arrays: tuple[np.ndarray, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDGA_CACHE", str(tmp_path / "file" / "cache"))
    dataset = load_dataset("mnist", data_dir=tmp_path)
    check_equal(dataset, arrays)
    assert not isinstance(dataset.train_inputs, np.memmap)


def test_a_full_disk_leaves_nothing_behind(
    arrays: tuple[np.ndarray, ...], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.np, "save", full)
    check_equal(load_dataset("mnist", data_dir=tmp_path), arrays)
    assert entries(cache) == []


def test_what_killed_processes_left_is_removed(arrays: tuple[np.ndarray, ...], tmp_path: Path, cache: Path) -> None:
    for name, age in ((".building-old", 1), (".building-new", None)):
        (cache / "decoded" / name).mkdir(parents=True)
        if age is not None:
            os.utime(cache / "decoded" / name, (age, age))
    load_dataset("mnist", data_dir=tmp_path)
    names = [path.name for path in entries(cache)]
    assert ".building-old" not in names
    assert ".building-new" in names


def test_tables_are_not_cached(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "t.csv").write_text("x,label\n" + "1,0\n" * 10)
    load_dataset(tmp_path / "t.csv")
    assert not cache.exists()


def test_cache_folder_by_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_module.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("FEDGA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_module.cache_dir() == tmp_path / "xdg" / "fedga"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_module.cache_dir() == tmp_path / "home" / ".cache" / "fedga"


def test_processes_that_decode_at_once_agree(tmp_path: Path, cache: Path) -> None:
    write_picture_classes(tmp_path / "pets", pictures(400, (3, 16, 16)), ["cat", "dog"] * 200)
    script = f"from fedga.data import load_dataset; print(load_dataset({str(tmp_path / 'pets')!r}).fingerprint)"
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = {process.communicate(timeout=PATIENCE_S)[0].strip() for process in running}
    assert all(process.returncode == 0 for process in running)
    assert printed == {load_dataset(tmp_path / "pets").fingerprint}
    assert len(entries(cache)) == 1
