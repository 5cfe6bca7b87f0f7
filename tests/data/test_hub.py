"""Downloads, against a server on this machine that answers like the Hub."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

from fedga.data import SOURCES, load_dataset
from fedga.data.hub import download
from fedga.errors import FedGAError
from fedga.spec.catalog import Hub, Source
from tests.data.data_makers import check_equal, splits, write_parquet
from tests.data.fake_hub import FakeHub, serving

SOURCE = SOURCES["svhn"]  # its checksums are stated by the Hub alone
assert SOURCE.hub is not None
HUB: Hub = SOURCE.hub
TRAIN, TEST = HUB.train.path, HUB.test.path


@pytest.fixture(scope="module")
def arrays() -> tuple[np.ndarray, ...]:
    return splits(SOURCE)


@pytest.fixture
def hub(arrays: tuple[np.ndarray, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {}
    for path, part in ((TRAIN, arrays[:2]), (TEST, arrays[2:])):
        write_parquet(tmp_path / "made.parquet", *part)
        files[path] = (tmp_path / "made.parquet").read_bytes()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(FakeHub(HUB, files)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
    getattr(huggingface_hub, "close_session", lambda: None)()


def resolved(path: str) -> str:
    return f"/datasets/{HUB.repository}/resolve/{HUB.revision}/{path}"


def requested(hub: FakeHub) -> list[str]:
    return [path for _, path, _ in hub.requests if path.startswith("/datasets/")]


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != ".download.lock")


def part_file(folder: Path, path: str, digest: str) -> Path:
    part = folder / SOURCE.name / f"{path}.{digest[:16]}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    return part


def test_download_at_the_pinned_commit(hub: FakeHub, arrays: tuple[np.ndarray, ...], cache: Path) -> None:
    dataset = load_dataset("SVHN", download=True)
    check_equal(dataset, arrays)
    assert {name for name, _ in hub.downloads} == {Path(TRAIN).name, Path(TEST).name}
    assert set(hub.tokens) == {None}
    assert left_over(cache / "data") == sorted(Path(path).name for path in (TRAIN, TEST))
    asked = len(requested(hub))
    check_equal(load_dataset("svhn", download=True), arrays)
    check_equal(load_dataset("svhn"), arrays)
    assert len(requested(hub)) == asked


def test_nothing_but_the_files_is_requested(hub: FakeHub) -> None:
    script = "from fedga.data import load_dataset; load_dataset('svhn', download=True)"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert {path for _, path, _ in hub.requests} == {resolved(TRAIN), resolved(TEST)}


def test_download_into_a_data_folder(hub: FakeHub, arrays: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    check_equal(load_dataset("svhn", data_dir=tmp_path / "data", download=True), arrays)
    assert (tmp_path / "data" / "svhn" / TRAIN).is_file()


def test_nothing_is_fetched_unless_asked_or_while_a_copy_is_there(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(FedGAError, match="no local copy of svhn"):
        load_dataset("svhn")
    made = splits(SOURCE)
    write_parquet(tmp_path / "own" / "svhn-train.parquet", *made[:2])
    write_parquet(tmp_path / "own" / "svhn-test.parquet", *made[2:])
    load_dataset("svhn", data_dir=tmp_path / "own", download=True)
    assert hub.requests == []


@pytest.mark.parametrize("ignores_range", [False, True])
def test_interrupted_download_goes_on(
    hub: FakeHub, arrays: tuple[np.ndarray, ...], cache: Path, ignores_range: bool
) -> None:
    data = hub.files[resolved(TRAIN)]
    part_file(cache / "data", TRAIN, hashlib.sha256(data).hexdigest()).write_bytes(data[:1000])
    hub.ignores_range = ignores_range
    check_equal(load_dataset("svhn", download=True), arrays)
    assert dict(hub.downloads)[Path(TRAIN).name] == "bytes=1000-"
    assert dict(hub.downloads)[Path(TEST).name] is None


def test_complete_and_overlong_parts(hub: FakeHub, arrays: tuple[np.ndarray, ...], cache: Path) -> None:
    train, test = hub.files[resolved(TRAIN)], hub.files[resolved(TEST)]
    part_file(cache / "data", TRAIN, hashlib.sha256(train).hexdigest()).write_bytes(train)
    part_file(cache / "data", TEST, hashlib.sha256(test).hexdigest()).write_bytes(test + b"more")
    check_equal(load_dataset("svhn", download=True), arrays)
    assert hub.downloads == [(Path(TEST).name, None)]


def test_one_file_there_fetches_only_the_other(hub: FakeHub, arrays: tuple[np.ndarray, ...], cache: Path) -> None:
    target = cache / "data" / "svhn" / TRAIN
    target.parent.mkdir(parents=True)
    target.write_bytes(hub.files[resolved(TRAIN)])
    with pytest.raises(FedGAError, match=r"the test split of svhn is not.*'fedga data get svhn'"):
        load_dataset("svhn")
    check_equal(load_dataset("svhn", download=True), arrays)
    assert [name for name, _ in hub.downloads] == [Path(TEST).name]


def test_wrong_content_is_refused_and_not_kept(hub: FakeHub, cache: Path) -> None:
    hub.stated[resolved(TRAIN)] = "ab" * 32
    with pytest.raises(FedGAError, match=r"has SHA-256 \w{16}\.\.\. and not abababababababab\.\.\.: nothing was kept"):
        load_dataset("svhn", download=True)
    assert left_over(cache / "data") == []


def pinned(train: str) -> Source:
    return replace(SOURCE, hub=replace(HUB, train=replace(HUB.train, sha256=train)))


def test_pinned_checksum_beats_what_the_hub_states(hub: FakeHub, tmp_path: Path) -> None:
    right = hashlib.sha256(hub.files[resolved(TRAIN)]).hexdigest()
    with pytest.raises(FedGAError, match=r"and not cdcdcdcdcdcdcdcd\.\.\."):
        download(pinned("cd" * 32), tmp_path / "a", endpoint=hub.endpoint)
    assert hub.downloads == []
    assert left_over(tmp_path / "a") == []
    hub.without_checksum = True
    with pytest.raises(FedGAError, match=r"test-00000-of-00001.parquet comes without a SHA-256"):
        download(pinned(right), tmp_path / "b", endpoint=hub.endpoint)
    assert left_over(tmp_path / "b") == [Path(TRAIN).name]


def test_file_that_the_hub_does_not_have(hub: FakeHub, cache: Path) -> None:
    del hub.files[resolved(TEST)]
    with pytest.raises(FedGAError, match=r"svhn could not be downloaded from http://127.0.0.1:\d+ to .*: try again"):
        load_dataset("svhn", download=True)
    assert left_over(cache / "data") == [Path(TRAIN).name]


def test_no_network(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(FedGAError) as caught:
        load_dataset("svhn", download=True)
    message = str(caught.value)
    assert f"svhn could not be downloaded from http://127.0.0.1:{port} to {cache / 'data' / 'svhn'}" in message
    assert f"put svhn-train.parquet and svhn-test.parquet into {cache / 'data'} yourself" in message
    assert "\n" not in message


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FedGAError, match=r"downloading data sets needs huggingface_hub, which is not installed"):
        load_dataset("svhn", download=True)


def test_nowhere_to_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDGA_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FedGAError, match="can be written to: give a data_dir that can"):
        load_dataset("svhn", download=True)


def test_digits_are_never_downloaded(tmp_path: Path) -> None:
    with pytest.raises(FedGAError, match="'digits' is not on the Hub: it needs no download"):
        download(SOURCES["digits"], tmp_path)
