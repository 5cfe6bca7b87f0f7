"""Every named data set, read back exactly from every format it is published in."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from sklearn.datasets import load_digits

from fedga import plugins
from fedga.data import SOURCES, Dataset, load_dataset, make_federation
from fedga.errors import FedGAError
from tests.data.data_makers import (
    check_equal,
    cifar10_batches,
    cifar100_batches,
    encode,
    splits,
    write_folder,
    write_mnist_originals,
    write_parquet,
    write_tar,
)

REAL_DATA = os.environ.get("FEDGA_DATA")
ON_DISK = sorted(set(SOURCES) - {"digits"})


def write_named(root: Path, name: str, stem: str | None = None) -> tuple[np.ndarray, ...]:
    source = SOURCES[name]
    arrays = splits(source, classes=min(source.classes, 100))
    stem = stem or source.stems[0]
    label = "fine_label" if name == "cifar100" else "label"
    names = [f"n{i:08d}" for i in range(100)] if name == "tiny-imagenet" else None
    image = "img" if name.startswith("cifar") else "image"
    for split, (pictures, labels) in {"train": arrays[:2], source.test_splits[0]: arrays[2:]}.items():
        write_parquet(root / f"{stem}-{split}.parquet", pictures, labels, image=image, label=label, names=names)
    return arrays


def write_tiny_imagenet(root: Path) -> tuple[np.ndarray, ...]:
    """Three classes as published; wnids.txt is out of order on purpose, as the real one is."""
    wnids = ["n03", "n01", "n02"]
    arrays = splits(SOURCES["tiny-imagenet"], per_class=2, classes=3)
    order = np.argsort(arrays[1], kind="stable")
    train, labels = arrays[0][order], arrays[1][order]
    train[0] = train[0, :1]
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    for i, (picture, label) in enumerate(zip(train, labels, strict=True)):
        path = root / "train" / sorted(wnids)[label] / "images" / f"{sorted(wnids)[label]}_{i}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture[:1] if i == 0 else picture))  # a PNG inside: JPEG would change the values
    rows = []
    for i, (picture, label) in enumerate(zip(arrays[2], arrays[3], strict=True)):
        (root / "val" / "images" / f"val_{i}.JPEG").write_bytes(encode(picture))
        rows.append(f"val_{i}.JPEG\t{sorted(wnids)[label]}\t0\t0\t62\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    return train, labels, arrays[2], arrays[3]


def test_digits_need_no_file() -> None:
    dataset = load_dataset("digits")
    bunch = load_digits()
    test = np.arange(1797) % 5 == 4
    check_equal(
        dataset,
        (bunch.images[~test][:, None], bunch.target[~test], bunch.images[test][:, None], bunch.target[test]),
    )
    assert dataset.train_inputs.dtype == np.uint8
    assert dataset.input_shape == (1, 8, 8)
    assert dataset.input_scale == 16.0
    assert dataset.train_inputs.max() == 16
    assert len(dataset.fingerprint) == 32
    described = SOURCES["digits"]
    assert (described.train_samples, described.test_samples) == (len(dataset.train_targets), len(dataset.test_targets))


@pytest.mark.parametrize("name", ON_DISK)
def test_parquet(name: str, tmp_path: Path) -> None:
    arrays = write_named(tmp_path, name)
    dataset = load_dataset(name, data_dir=tmp_path)
    check_equal(dataset, arrays)
    assert dataset.name == name
    assert dataset.input_shape == SOURCES[name].shape
    assert dataset.input_scale == 255.0
    if SOURCES[name].class_names:
        assert dataset.class_names == SOURCES[name].class_names
    else:
        assert dataset.class_names[:2] == ("n00000000", "n00000001")


@pytest.mark.parametrize("name", ON_DISK)
def test_hub_folder_layout(name: str, tmp_path: Path) -> None:
    arrays = write_named(tmp_path / "made", name)
    hub = SOURCES[name].hub
    assert hub is not None
    for file, made in zip(hub.files, ("train", SOURCES[name].test_splits[0]), strict=True):
        target = tmp_path / "data" / name / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made" / f"{SOURCES[name].stems[0]}-{made}.parquet").rename(target)
    check_equal(load_dataset(name, data_dir=tmp_path / "data"), arrays)


def test_hub_cache_and_converted_layouts(tmp_path: Path) -> None:
    arrays = splits(SOURCES["mnist"])
    hub = SOURCES["mnist"].hub
    assert hub is not None
    snapshot = tmp_path / "a" / "datasets--ylecun--mnist" / "snapshots" / hub.revision / "mnist"
    for folder, names in (
        (snapshot, ("train-00000-of-00001", "test-00000-of-00001")),
        (tmp_path / "b" / "mnist" / "mnist", ("train/0000", "test/0000")),
    ):
        write_parquet(folder / f"{names[0]}.parquet", *arrays[:2])
        write_parquet(folder / f"{names[1]}.parquet", *arrays[2:])
    check_equal(load_dataset("mnist", data_dir=tmp_path / "a"), arrays)
    check_equal(load_dataset("mnist", data_dir=tmp_path / "b"), arrays)


def test_shards_are_read_in_order_and_all_of_them(tmp_path: Path) -> None:
    arrays = splits(SOURCES["mnist"])
    for i, part in enumerate((slice(0, 7), slice(7, 11), slice(11, None))):
        write_parquet(tmp_path / f"mnist-train-{i:05d}-of-00003.parquet", arrays[0][part], arrays[1][part])
    write_parquet(tmp_path / "mnist-test.parquet", *arrays[2:])
    check_equal(load_dataset("mnist", data_dir=tmp_path), arrays)
    (tmp_path / "mnist-train-00001-of-00003.parquet").unlink()
    with pytest.raises(FedGAError, match="is one of 3 shards and 2 are there: put all shards into one folder"):
        load_dataset("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
def test_raw_bytes_column(kind: str, tmp_path: Path) -> None:
    arrays = splits(SOURCES["cifar10"])
    write_parquet(tmp_path / "cifar10-train.parquet", *arrays[:2], raw=True, kind=kind)
    write_parquet(tmp_path / "cifar10-test.parquet", *arrays[2:], raw=True, kind=kind)
    check_equal(load_dataset("cifar10", data_dir=tmp_path), arrays)


def test_client_and_other_label_column_of_named_pictures(tmp_path: Path) -> None:
    arrays = splits(SOURCES["cifar100"])
    coarse = (arrays[1] // 50).tolist()
    writers = [f"w{i % 3}" for i in range(len(arrays[0]))]
    train, test = tmp_path / "cifar100-train.parquet", tmp_path / "cifar100-test.parquet"
    write_parquet(train, *arrays[:2], label="fine_label", extra={"coarse_label": coarse, "writer": writers})
    write_parquet(test, *arrays[2:], label="fine_label", extra={"coarse_label": (arrays[3] // 50).tolist()})
    dataset = load_dataset("cifar100", data_dir=tmp_path, label_column="coarse_label", client_column="writer")
    assert dataset.num_classes == 2
    assert dataset.client_names == ("w0", "w1", "w2")
    assert make_federation(dataset, "natural", clients=None, seed=0).num_clients == 3
    assert load_dataset("cifar100", data_dir=tmp_path).num_classes == 100


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "."),
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
def test_idx(name: str, folder: str, zipped: bool, tmp_path: Path) -> None:
    arrays = splits(SOURCES[name])
    write_mnist_originals(tmp_path / folder, arrays, zipped=zipped)
    dataset = load_dataset(name, data_dir=tmp_path)
    check_equal(dataset, arrays)
    assert dataset.class_names == SOURCES[name].class_names


def test_idx_files_of_mnist_are_never_taken_for_fashion(tmp_path: Path) -> None:
    write_mnist_originals(tmp_path, splits(SOURCES["mnist"]))
    with pytest.raises(FedGAError, match="no local copy of fashion-mnist"):
        load_dataset("fashion-mnist", data_dir=tmp_path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_pickles(name: str, packed: bool, tmp_path: Path) -> None:
    arrays = splits(SOURCES[name])
    batches = cifar10_batches(arrays) if name == "cifar10" else cifar100_batches(arrays)
    folder = "cifar-10-batches-py" if name == "cifar10" else "cifar-100-python"
    if packed:
        write_tar(tmp_path / SOURCES[name].originals[1], folder, batches)
    else:
        write_folder(tmp_path / folder, batches)
    check_equal(load_dataset(name, data_dir=tmp_path), arrays)


def python2_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    """What Python 2's cPickle wrote, as the published files are: byte strings throughout, flags as 0 and 1."""
    data = images.tobytes()
    return (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01"
        + b"K"
        + bytes([len(labels)])
        + b"M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03"
        b"U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(data)) + data + b"tb"
        b"U\x06labels](" + b"".join(b"K" + bytes([label]) for label in labels) + b"eu."
    )


def test_cifar_pickles_of_python_2(tmp_path: Path) -> None:
    train, labels, test, tests = splits(SOURCES["cifar10"])
    batches = {
        f"data_batch_{i + 1}": python2_batch(train[i * 4 : i * 4 + 4], labels[i * 4 : i * 4 + 4]) for i in range(5)
    }
    write_folder(tmp_path / "cifar-10-batches-py", {**batches, "test_batch": python2_batch(test, tests)})
    check_equal(load_dataset("cifar10", data_dir=tmp_path), (train, labels, test, tests))


def test_svhn_mat_files(tmp_path: Path) -> None:
    arrays = splits(SOURCES["svhn"])
    for name, pictures, labels in (("train", *arrays[:2]), ("test", *arrays[2:])):
        content = {
            "X": pictures.transpose(2, 3, 1, 0),
            "y": np.where(labels == 0, 10, labels).astype(np.uint8)[:, None],
        }
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", content)
    check_equal(load_dataset("svhn", data_dir=tmp_path), arrays)


@pytest.mark.parametrize("folder", ["tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200", "."])
def test_tiny_imagenet_folder(folder: str, tmp_path: Path) -> None:
    arrays = write_tiny_imagenet(tmp_path / "data" / folder)
    dataset = load_dataset("Tiny-ImageNet", data_dir=tmp_path / "data")
    check_equal(dataset, arrays)
    assert dataset.class_names == ("n01", "n02", "n03")
    assert dataset.input_shape == (3, 64, 64)


def test_grey_tiny_imagenet_pictures_become_three_channels(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    first = load_dataset("tiny-imagenet", data_dir=tmp_path).train_inputs[0]
    np.testing.assert_array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[0], first[2])


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("CIFAR-10", "cifar10"), ("cifar-10", "cifar10"), ("Fashion_MNIST", "fashion-mnist"), ("SVHN", "svhn")],
)
def test_usual_spellings(spelling: str, name: str, tmp_path: Path) -> None:
    write_named(tmp_path, name)
    assert load_dataset(spelling, data_dir=tmp_path).name == name


@pytest.mark.parametrize("stem", ["svhn", "svhn_cropped"])
def test_both_stems_of_svhn(stem: str, tmp_path: Path) -> None:
    arrays = write_named(tmp_path, "svhn", stem)
    check_equal(load_dataset("svhn", data_dir=tmp_path), arrays)


def test_data_folder_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_named(tmp_path, "mnist")
    monkeypatch.setenv("FEDGA_DATA", str(tmp_path))
    assert load_dataset("mnist").name == "mnist"


def test_same_content_has_the_same_fingerprint_in_every_format(tmp_path: Path) -> None:
    arrays = write_named(tmp_path / "a", "mnist")
    write_mnist_originals(tmp_path / "b", arrays)
    one, other = (load_dataset("mnist", data_dir=tmp_path / folder) for folder in "ab")
    assert one.fingerprint == other.fingerprint
    arrays[1][:2] = arrays[1][1::-1]
    write_mnist_originals(tmp_path / "c", arrays)
    assert load_dataset("mnist", data_dir=tmp_path / "c").fingerprint != one.fingerprint


def test_progress_is_reported(tmp_path: Path) -> None:
    write_named(tmp_path, "mnist")
    seen: list[tuple[str, int, int]] = []
    load_dataset("mnist", data_dir=tmp_path, progress=lambda *report: seen.append(report))
    assert seen == [("decoding mnist-train.parquet", 20, 20), ("decoding mnist-test.parquet", 10, 10)]


def test_missing_copy_says_what_was_looked_for_and_where(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(FedGAError) as caught:
        load_dataset("cifar10", data_dir=tmp_path / "nowhere")
    message = str(caught.value)
    for part in (
        "cifar10-train.parquet",
        "cifar10-test.parquet",
        "cifar-10-batches-py/",
        "cifar-10-python.tar.gz",
        f"{tmp_path / 'nowhere'} (which does not exist)",
        str(cache / "data"),
        "'fedga data get cifar10'",
        "FEDGA_DATA",
    ):
        assert part in message


def test_half_a_copy_says_which_half_is_missing(tmp_path: Path) -> None:
    arrays = splits(SOURCES["mnist"])
    write_parquet(tmp_path / "mnist-train.parquet", *arrays[:2])
    with pytest.raises(FedGAError, match=r"mnist-train.parquet is there but the test split of mnist is not"):
        load_dataset("mnist", data_dir=tmp_path)
    write_mnist_originals(tmp_path, arrays)
    check_equal(load_dataset("mnist", data_dir=tmp_path), arrays)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(FedGAError, match="unknown data set 'cifra10': did you mean 'cifar10'"):
        load_dataset("cifra10")


def test_catalogue_is_whole() -> None:
    for source in SOURCES.values():
        assert len(source.class_names) in (source.classes, 0)
        assert source.licence
        assert source.citation
        assert source.name == "digits" or source.files
        if source.hub is not None:
            assert len(source.hub.revision) == 40
            int(source.hub.revision, 16)
            assert all(len(file.sha256) in (0, 64) for file in source.hub.files)


def plugin_source(data_dir: Path | None) -> Dataset:
    inputs, targets = np.zeros((4, 2), dtype=np.float32), np.array([0, 1, 0, 1])
    return Dataset(f"from {data_dir}", inputs, targets, inputs, targets, ("a", "b"))


def bad_plugin_source(data_dir: Path | None) -> str:
    return "not a data set"


def test_packages_register_sources_by_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entries = [
        EntryPoint("my-hospital", f"{__name__}:plugin_source", "fedga.datasets"),
        EntryPoint("broken", f"{__name__}:bad_plugin_source", "fedga.datasets"),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries if group == "fedga.datasets" else [])
    dataset = load_dataset("My_Hospital", data_dir=tmp_path)
    assert dataset.name == f"from {tmp_path}"
    assert dataset.fingerprint
    with pytest.raises(FedGAError, match=r"returned str: its function must return a fedga.data.Dataset"):
        load_dataset("broken")
    with pytest.raises(FedGAError, match="did you mean 'my-hospital'"):
        load_dataset("my-hospitl")


def test_import_is_light_and_nothing_connects() -> None:
    script = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("a connection was opened")
socket.socket.connect = refuse
import fedga.data
heavy = {"torch", "pyarrow", "PIL", "sklearn", "scipy", "huggingface_hub"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
try:
    fedga.data.load_dataset("mnist")
except fedga.errors.FedGAError:
    pass
assert "huggingface_hub" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


if REAL_DATA is not None and (Path(REAL_DATA) / "mnist-train.parquet").is_file():  # as in CI

    def test_real_mnist() -> None:
        dataset = load_dataset("mnist", data_dir=REAL_DATA)
        assert dataset.train_inputs.shape == (60_000, 1, 28, 28)
        assert dataset.test_inputs.shape == (10_000, 1, 28, 28)
        assert np.bincount(dataset.train_targets).tolist() == [
            5923,
            6742,
            5958,
            6131,
            5842,
            5421,
            5918,
            6265,
            5851,
            5949,
        ]
        assert dataset.train_targets[:5].tolist() == [5, 0, 4, 1, 9]
        assert dataset.train_inputs.mean() == pytest.approx(33.318, abs=0.001)


@pytest.mark.parametrize(
    ("name", "other", "begins"),
    [
        ("mnist", "fashion-mnist", [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
        ("fashion-mnist", "mnist", [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]),
    ],
)
@pytest.mark.parametrize("folder", ["downloads", "fashion"])
def test_idx_files_are_told_apart_by_their_first_labels(
    name: str, other: str, begins: list[int], folder: str, tmp_path: Path
) -> None:
    """Both data sets name their files alike; a folder may be called anything."""
    train, labels, test, test_labels = splits(SOURCES[name])
    labels = np.concatenate([begins, labels])
    train = np.concatenate([np.zeros((len(begins), *train.shape[1:]), dtype=np.uint8), train])
    write_mnist_originals(tmp_path / folder, (train, labels, test, test_labels), zipped=True)
    dataset = load_dataset(name, data_dir=tmp_path / folder)
    check_equal(dataset, (train, labels, test, test_labels))
    with pytest.raises(FedGAError, match=f"no local copy of {other}"):
        load_dataset(other, data_dir=tmp_path / folder)
    assert load_dataset(tmp_path / folder).class_names == dataset.class_names
