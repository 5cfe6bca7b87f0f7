"""Whatever is wrong with a file is said in one sentence that names it."""

from __future__ import annotations

import datetime
import io
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from PIL import Image

from fedga.data import SOURCES, load_dataset
from fedga.errors import FedGAError
from tests.data.data_makers import (
    cifar10_batches,
    encode,
    pictures,
    splits,
    write_folder,
    write_mnist_originals,
    write_parquet,
    write_picture_classes,
    write_tar,
)


def refused(message: str, name: str | Path, **options: object) -> None:
    with pytest.raises(FedGAError, match=message) as caught:
        load_dataset(name, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def save_csv(folder: Path, text: str) -> Path:
    (folder / "t.csv").write_text(text)
    return folder / "t.csv"


# --- damaged files --------------------------------------------------------------------------------


def cut(path: Path, keep: float = 0.6) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    place = int(len(data) * at)
    data[place : place + 64] = bytes(64)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage", [lambda path: cut(path), lambda path: path.write_bytes(b""), lambda path: flip(path, 0.3)]
)
def test_damaged_parquet(damage: Callable[[Path], object], tmp_path: Path) -> None:
    arrays = splits(SOURCES["mnist"], per_class=5)
    write_parquet(tmp_path / "mnist-train.parquet", *arrays[:2])
    write_parquet(tmp_path / "mnist-test.parquet", *arrays[2:])
    damage(tmp_path / "mnist-train.parquet")
    refused(
        r"mnist-train.parquet.* is not a (Parquet file|picture), or is damaged \(.*\): replace it",
        "mnist",
        data_dir=tmp_path,
    )


@pytest.mark.parametrize("zipped", [False, True])
def test_damaged_idx(zipped: bool, tmp_path: Path) -> None:
    write_mnist_originals(tmp_path, splits(SOURCES["mnist"]), zipped=zipped)
    images = tmp_path / f"train-images-idx3-ubyte{'.gz' if zipped else ''}"
    cut(images)
    refused(r"train-images-idx3-ubyte\S* is not an IDX file, or is damaged", "mnist", data_dir=tmp_path)
    images.write_bytes(b"hello")
    refused("no header of an IDX file", "mnist", data_dir=tmp_path)
    images.unlink()
    refused(r"is there but train-images-idx3-ubyte is not", "mnist", data_dir=tmp_path)


def test_idx_with_more_pictures_than_labels(tmp_path: Path) -> None:
    train, labels, test, tests = splits(SOURCES["mnist"])
    write_mnist_originals(tmp_path, (train, labels[:-1], test, tests))
    refused("has 20 pictures but .* has 19 labels", "mnist", data_dir=tmp_path)


def test_damaged_cifar(tmp_path: Path) -> None:
    batches = cifar10_batches(splits(SOURCES["cifar10"]))
    write_folder(tmp_path / "a" / "cifar-10-batches-py", batches)
    cut(tmp_path / "a" / "cifar-10-batches-py" / "data_batch_2")
    refused("data_batch_2 is not a CIFAR batch, or is damaged", "cifar10", data_dir=tmp_path / "a")
    (tmp_path / "a" / "cifar-10-batches-py" / "data_batch_2").unlink()
    refused("has no file data_batch_2: unpack cifar-10-python.tar.gz again", "cifar10", data_dir=tmp_path / "a")
    (tmp_path / "b").mkdir()
    archive = tmp_path / "b" / "cifar-10-python.tar.gz"
    write_tar(archive, "cifar-10-batches-py", batches)
    cut(archive)
    refused(r"cifar-10-python.tar.gz is not a .tar.gz archive, or is damaged", "cifar10", data_dir=tmp_path / "b")
    write_tar(archive, "cifar-10-batches-py", {"data_batch_1": batches["data_batch_1"]})
    refused("does not contain data_batch_2", "cifar10", data_dir=tmp_path / "b")


class Malicious:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch OWNED",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_cannot_run_code(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    batches = cifar10_batches(splits(SOURCES["cifar10"]))
    batches["data_batch_3"] = pickle.dumps({b"data": Malicious()}, protocol=protocol)
    write_folder(tmp_path / "cifar-10-batches-py", batches)
    refused(r"data_batch_3 is not a CIFAR batch.*it asks for \w+.system", "cifar10", data_dir=tmp_path)
    assert not (tmp_path / "OWNED").exists()


def test_cifar_batch_of_another_shape(tmp_path: Path) -> None:
    batches = cifar10_batches(splits(SOURCES["cifar10"]))
    batches["test_batch"] = pickle.dumps({b"data": np.zeros((2, 100), dtype=np.uint8), b"labels": [0, 1]}, protocol=2)
    write_folder(tmp_path / "cifar-10-batches-py", batches)
    refused(r"test_batch is not a CIFAR batch.*shape \(2, 100\) for 2 labels", "cifar10", data_dir=tmp_path)


def test_damaged_mat(tmp_path: Path) -> None:
    train, labels, test, tests = splits(SOURCES["svhn"])
    for name, images, digits in (("train", train, labels), ("test", test, tests)):
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": digits[:, None]})
    cut(tmp_path / "test_32x32.mat")
    refused("test_32x32.mat is not an SVHN .mat file, or is damaged", "svhn", data_dir=tmp_path)
    scipy.io.savemat(tmp_path / "test_32x32.mat", {"other": np.zeros(3)})
    refused("test_32x32.mat is not an SVHN .mat file", "svhn", data_dir=tmp_path)
    (tmp_path / "test_32x32.mat").unlink()
    refused("is there but test_32x32.mat is not", "svhn", data_dir=tmp_path)


def test_damaged_npz(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=pictures(20, (1, 8, 8)), y=np.zeros(20, dtype=int))
    cut(path)
    refused("mine.npz is not an .npz file, or is damaged", path)
    path.write_bytes(b"")
    refused("mine.npz is not an .npz file, or is damaged", path)
    np.savez(path, x=np.array([{}], dtype=object), y=[0])
    refused("array 'x' of .*mine.npz holds pickled Python objects, .*: store numbers or text", path)


def test_damaged_picture(tmp_path: Path) -> None:
    write_picture_classes(tmp_path, pictures(6, (3, 8, 8)), ["a", "b"] * 3)
    cut(tmp_path / "a" / "002.png")
    refused(r"a/002.png is not a picture, or is damaged", tmp_path)
    (tmp_path / "a" / "002.png").write_bytes(b"%!PS-Adobe not for us")
    refused(r"a/002.png is not a picture, or is damaged", tmp_path)


def test_damaged_csv(tmp_path: Path) -> None:
    refused("t.csv is empty: write a header line", save_csv(tmp_path, ""))
    refused("t.csv has a header and no rows: add a row per sample", save_csv(tmp_path, "a,label\n"))
    refused("t.csv is not a text file: save the table as CSV", save_csv(tmp_path, "a,label\n\0\0"))
    refused("t.csv is not a CSV table, or is damaged", save_csv(tmp_path, "a,label\n1,0\n1,2,3\n"))


def test_damaged_tiny_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    write_picture_classes(root / "train" / "n01", pictures(2, (3, 64, 64)), ["images"] * 2)
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("n01\n")
    refused("val_annotations.txt does not exist", "tiny-imagenet", data_dir=tmp_path)
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG n01\n")
    refused("val_annotations.txt has lines without a tab", "tiny-imagenet", data_dir=tmp_path)
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\n")
    refused("val_0.JPEG is named in .* but does not exist", "tiny-imagenet", data_dir=tmp_path)


# --- labels and classes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, -1] * 5, r"has label -1, outside the classes 0 to 1: correct it"),
        ([0.0, 1.0, 0.5] * 5, "labels that are not whole numbers, such as 0.5"),
        ([0.0, float("nan"), 1.0] * 5, "has 5 labels that are NaN or infinite"),
        ([0.0, float("inf"), 1.0] * 5, "has 5 labels that are NaN or infinite"),
        ([0, 1, 3] * 5, "class 2 has no training sample"),
        ([1, 2, 4] * 5, "class 0, 3 has no training sample"),
        ([0, 1, 10**9] * 5, "label 1000000000 .* asks for 1000000001 classes, more than its 15 training samples"),
        ([0j] * 15, "labels of type complex128"),
        ([0, 1], "has 15 samples but labels of shape"),
        (["a", "", "b"] * 5, "empty"),
    ],
)
def test_bad_labels_in_npz(labels: list[object], message: str, tmp_path: Path) -> None:
    names = ["a", "b"] if isinstance(labels[0], str) else []
    np.savez(tmp_path / "t.npz", x=np.zeros((15, 2)), y=np.array(labels), **({"class_names": names} if names else {}))
    refused(message, tmp_path / "t.npz")


def test_label_outside_the_named_classes(tmp_path: Path) -> None:
    train, labels, test, tests = splits(SOURCES["mnist"])
    labels[3] = 10
    write_parquet(tmp_path / "mnist-train.parquet", train, labels)
    write_parquet(tmp_path / "mnist-test.parquet", test, tests)
    refused(r"mnist-train.parquet has label 10, outside the classes 0 to 9", "mnist", data_dir=tmp_path)


def test_named_class_without_training_samples(tmp_path: Path) -> None:
    train, labels, test, tests = splits(SOURCES["cifar10"])
    labels[labels == 3] = 4
    write_parquet(tmp_path / "cifar10-train.parquet", train, labels)
    write_parquet(tmp_path / "cifar10-test.parquet", test, tests)
    refused(r"class cat has no training sample in .*cifar10-train.parquet", "cifar10", data_dir=tmp_path)


def test_class_only_in_the_test_split(tmp_path: Path) -> None:
    write_picture_classes(tmp_path / "train", pictures(2, (1, 4, 4)), ["a", "b"])
    write_picture_classes(tmp_path / "test", pictures(2, (1, 4, 4)), ["a", "zebra"])
    refused("has samples of class zebra, which has no training sample", tmp_path)


def test_class_only_in_the_metadata(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", pictures(10, (1, 4, 4)), np.arange(10) % 2, names=["a", "b", "ghost"])
    refused("class ghost has no training sample", tmp_path / "t.parquet")


@pytest.mark.parametrize("pair", [("Benign", "benign"), (" cat", "cat"), ("left eye", "Left  eye")])
def test_labels_that_differ_in_case_or_spaces_alone(pair: tuple[str, str], tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((10, 2)), y=np.array([*pair] * 5))
    refused("which differ in case or spaces alone: write both alike if they are one class, or", tmp_path / "t.npz")
    x, letters = np.zeros((10, 2)), np.array(["a", "A"] * 5)
    np.savez(tmp_path / "t.npz", x=x, y=letters)
    assert load_dataset(tmp_path / "t.npz").class_names == ("A", "a")  # of handwriting: two classes


def test_text_in_one_split_numbers_in_the_other(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2], "label": [0, 1]}), tmp_path / "train.parquet")
    pq.write_table(pa.table({"x": [1, 2], "label": ["0", "1"]}), tmp_path / "test.parquet")
    refused("labels are text in one split", tmp_path)


def test_too_few_to_hold_out(tmp_path: Path) -> None:
    refused("has no class with 5 samples, too few to hold out", save_csv(tmp_path, "x,label\n1,0\n2,1\n"))


# --- tables ---------------------------------------------------------------------------------------

ROWS = 12


def column(name: str, values: list[object]) -> dict[str, list[object]]:
    return {"x": list(range(ROWS)), name: values, "label": [i % 2 for i in range(ROWS)]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (column("city", ["Oslo"] * ROWS), "column 'city' of .* holds text such as 'Oslo', not numbers: encode it"),
        (column("day", [datetime.date(2020, 1, 1)] * ROWS), "column 'day' .* not numbers"),
        (column("dose", [float("nan")] * ROWS), "column 'dose' of .* has NaN or infinite values"),
        (column("dose", [1e300] * ROWS), "column 'dose' of .* has NaN or infinite values"),
        (column("dose", [None, *range(ROWS - 1)]), "column 'dose' of .* has empty cells"),
        (column("dose", [None] * ROWS), "column 'dose' of .* has empty cells"),
        (column("client", [None, *["a"] * (ROWS - 1)]), "column 'client' of .* is empty in 1 rows"),
        (column("client", [1.5] * ROWS), "has clients of type float64"),
        (column("client", ["", *["a"] * (ROWS - 1)]), "samples with an empty client"),
        (column("split", ["train", "val"] * (ROWS // 2)), "column 'split' of .* holds 'val': write train or test"),
        (column("split", ["train"] * ROWS), "has no samples in its test split"),
        (column("", list(range(ROWS))), "column 2 of .* has no name"),
        ({"label": [0, 1] * 6}, "has no column beside label, client and split"),
        ({"x": [0, 1] * 6, "label": [0, None] * 6}, "column 'label' of .* is empty in 6 rows"),
        (
            {"x": [0, 1] * 6, "label": [[0]] * 12},
            "column 'label' of .* has type list.*: a label is a whole number or text",
        ),
        (
            {"x": [0, 1] * 6, "outcome": [0, 1] * 6},
            r"has no column named label, target, class, y: name its label column",
        ),
    ],
)
def test_bad_tables(columns: dict[str, list[object]], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    refused(message, tmp_path / "t.parquet")


def test_bad_columns(tmp_path: Path) -> None:
    path = save_csv(tmp_path, "x,outcome,x\n" + "1,0,2\n" * 10)
    refused("several columns named 'x'", path)
    path = save_csv(tmp_path, "x,outcome\n" + "1,0\n" * 10)
    refused("unknown label column of .*'outcom': did you mean 'outcome'", path, label_column="outcom")
    refused("unknown client column of", path, label_column="outcome", client_column="site")
    refused("column 'label' of .* is empty in 1 rows", save_csv(tmp_path, "x,label\n1,0\n2,\n"))


def rows_of(*cells: str, header: str = "x,z,label") -> str:
    """Twenty rows of two classes: ``cells`` are the odd values of the column z, from its top; the rest are numbers."""
    middle = [*cells, *map(str, range(20))][:20]
    return "\n".join([header, *(f"{19 - at % 7},{cell},{'ab'[at % 2]}" for at, cell in enumerate(middle))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (rows_of("?"), r"column 'z' of .* has cells such as '\?' among its numbers: write numbers there"),
        (rows_of(*['"1,000"'] * 20), "column 'z' of .* holds text such as '1,000', not numbers"),
        (rows_of(*(f"2020-01-{day:02d}" for day in range(1, 21))), "'z' .* holds dates such as '2020-01-01', not num"),
        (rows_of("", "NA"), "column 'z' of .* has empty cells in 2 of 20 rows: fill them"),
        (rows_of() + "\n3,4,\n3,4,NA", "column 'label' of .* is empty or NA in 2 rows: label or remove them"),
        (rows_of(*map(str, range(20)), header="x,Unnamed: 0,label"), "column 'Unnamed: 0' of .* only numbers the rows"),
        (rows_of(*map(str, range(1, 21)), header="x,ID,label"), "column 'ID' of .* only numbers the rows"),
        (rows_of(*map(str, range(20, 0, -1)), header="x,patient_id,label"), "column 'patient_id' of .* only numbers"),
        (rows_of(header="x,z,"), "has no column named label, target, class, y: name its label column with --label"),
        (rows_of(header="x,,label"), "column 2 of .* has no name"),
        (rows_of().split("\n", 1)[1], r"the first line of .* holds values \(19, 0, a\) where the names of the columns"),
    ],
)
def test_what_newcomers_stumble_over(text: str, message: str, tmp_path: Path) -> None:
    refused(message, save_csv(tmp_path, text))


def test_csv_in_another_encoding(tmp_path: Path) -> None:
    path = save_csv(tmp_path, "")
    for of_the_table in ("b", "z"):  # in a cell, in the header
        path.write_bytes(rows_of().replace(of_the_table, "Köln").encode("latin-1"))
        refused("t.csv has letters that are not UTF-8: save it as CSV in the encoding UTF-8", path)
    path.write_bytes(rows_of().encode("utf-16"))
    refused("t.csv is not a text file", path)


def test_test_file_without_a_feature(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2], "label": [0, 1]}), tmp_path / "train.parquet")
    pq.write_table(pa.table({"z": [1, 2], "label": [0, 1]}), tmp_path / "test.parquet")
    refused("test.parquet has no column 'x', which the training file has", tmp_path)


def test_shards_with_other_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2], "label": [0, 1]}), tmp_path / "train-00000-of-00002.parquet")
    pq.write_table(pa.table({"z": [1, 2], "label": [0, 1]}), tmp_path / "train-00001-of-00002.parquet")
    refused("has other columns than", tmp_path)


# --- pictures -------------------------------------------------------------------------------------


def test_pictures_of_mixed_size(tmp_path: Path) -> None:
    write_picture_classes(tmp_path, pictures(5, (1, 8, 8)), ["a"] * 5)
    (tmp_path / "a" / "wide.png").write_bytes(encode(pictures(1, (1, 8, 9))[0]))
    refused(
        r"a/wide.png is 9x8 pixels while .*a/000.png is 8x8: give --resize 32x32 \(height x width\) to bring all",
        tmp_path,
    )
    write_parquet(tmp_path / "t.parquet", pictures(2, (1, 8, 8)), np.array([0, 1]))
    rows = [{"bytes": encode(pictures(1, (1, 8, width))[0]), "path": f"{width}.png"} for width in (8, 8, 7)]
    pq.write_table(pa.table({"image": rows, "label": [0, 1, 0]}), tmp_path / "t.parquet")
    refused(r"row 2 of .*t.parquet \(7.png\) is 7x8 pixels", tmp_path / "t.parquet")


def test_splits_of_other_size(tmp_path: Path) -> None:
    write_picture_classes(tmp_path / "train", pictures(2, (1, 8, 8)), ["a", "b"])
    write_picture_classes(tmp_path / "test", pictures(2, (1, 9, 9)), ["a", "b"])
    refused(r"have shape \(1, 8, 8\) but test samples of .* have shape \(1, 9, 9\): give --resize", tmp_path)


def test_named_set_of_another_size(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / f"mnist-{split}.parquet", pictures(10, (1, 32, 32)), np.arange(10))
    refused(r"has pictures of shape \(1, 32, 32\) where mnist has \(1, 28, 28\)", "mnist", data_dir=tmp_path)


def test_sixteen_bit_pictures(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16)).save(tmp_path / "a" / "deep.png")
    refused("deep.png has pixels of mode 'I;16', more than 8 bits deep", tmp_path)


def test_pictures_kept_outside_the_parquet_file(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = pa.array([{"bytes": None, "path": "far/away.png"}] * 2, kind)
    pq.write_table(pa.table({"image": cells, "label": [0, 1]}), tmp_path / "t.parquet")
    refused(r"row 0 of .*t.parquet \(far/away.png\) has no picture bytes", tmp_path / "t.parquet")
    blobs = pa.array([encode(pictures(1, (1, 4, 4))[0])] * 2)
    pq.write_table(pa.table({"left": blobs, "right": blobs, "label": [0, 1]}), tmp_path / "t.parquet")
    refused(r"several columns of pictures \(left, right\)", tmp_path / "t.parquet")
    refused("column 'left' of .* holds pictures", tmp_path / "t.parquet", label_column="left")


def test_picture_folders_that_are_not(tmp_path: Path) -> None:
    refused("has no folders of pictures: make one folder per class", tmp_path)
    (tmp_path / "a").mkdir()
    refused("a holds no pictures: put some there", tmp_path)
    (tmp_path / "a").rmdir()
    (tmp_path / "test").mkdir()
    refused("has the folder test but no folder train", tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3), "b": np.zeros(3)}, "holds the arrays a, b: call them x and y"),
        ({"x_train": np.zeros((3, 2)), "y_train": np.zeros(3), "x_test": np.zeros((3, 2))}, "holds the arrays"),
        ({"x": np.full((5, 4, 4), 1.5), "y": np.zeros(5)}, "pictures of type float64 with values outside 0 to 1"),
        ({"x": np.full((5, 4, 4), 300), "y": np.zeros(5)}, "pictures of type int64 with values outside 0 to 255"),
        ({"x": np.zeros((5, 4, 4, 4), np.uint8), "y": np.zeros(5)}, "not clear which axis is the channels"),
        ({"x": np.zeros(5), "y": np.zeros(5)}, r"inputs of shape \(5,\): give features as"),
        ({"x": np.array(["a"] * 5), "y": np.zeros(5)}, "inputs of type <U1: store numbers"),
        ({"x": np.array([[1, np.nan]] * 5), "y": np.zeros(5)}, "NaN or infinite values in feature 1"),
        ({"x": np.zeros((5, 2)), "y": np.zeros(5), "clients": np.zeros(4)}, r"5 samples but clients of shape \(4,\)"),
    ],
)
def test_bad_npz(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    refused(message, tmp_path / "t.npz")


# --- what was asked for ---------------------------------------------------------------------------


def test_bad_paths(tmp_path: Path) -> None:
    refused("nothing.npz does not exist: check the path", tmp_path / "nothing.npz")
    refused("nothing does not exist: check the path", f"{tmp_path}/nothing")
    (tmp_path / "notes.txt").write_text("hello")
    refused("notes.txt is not a data set: give an .npz, .csv or .parquet file", tmp_path / "notes.txt")


def test_columns_of_what_has_none(tmp_path: Path) -> None:
    refused("digits has no columns: leave out --client-column", "digits", client_column="site")
    write_mnist_originals(tmp_path, splits(SOURCES["mnist"]))
    refused(
        "the copy of mnist at .* has no columns: leave out --label-column", "mnist", data_dir=tmp_path, label_column="y"
    )
    np.savez(tmp_path / "t.npz", x=np.zeros((5, 2)), y=np.zeros(5))
    refused("t.npz has no columns: leave out --label-column", tmp_path / "t.npz", label_column="y")
    refused("unknown client array of", tmp_path / "t.npz", client_column="site")


@pytest.mark.parametrize(
    ("module", "package", "name"),
    [
        ("pyarrow.parquet", "pyarrow", "mnist"),
        ("PIL.Image", "pillow", "mnist"),
        ("scipy.io", "scipy", "svhn"),
        ("sklearn.datasets", "scikit-learn", "digits"),
    ],
)
def test_missing_packages(
    module: str, package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = splits(SOURCES["mnist"])
    write_parquet(tmp_path / "mnist-train.parquet", *arrays[:2])
    write_parquet(tmp_path / "mnist-test.parquet", *arrays[2:])
    for split in ("train", "test"):
        (tmp_path / f"{split}_32x32.mat").write_bytes(io.BytesIO(b"x").read())
    monkeypatch.setitem(sys.modules, module, None)
    refused(rf"needs {package}, which is not installed: pip install 'fedga\[data\]'", name, data_dir=tmp_path)
