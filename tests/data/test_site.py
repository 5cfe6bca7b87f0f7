"""One party's own samples, labelled by the classes that the whole federation agreed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedga.data import Dataset, load_dataset
from fedga.data.assemble import fingerprint
from fedga.data.formats import folders as folders_module
from fedga.data.site import columns_digest, load_central, load_site
from fedga.errors import FedGAError
from tests.data.data_makers import check_equal, pictures, write_parquet, write_picture_classes

SKIN = ("melanoma", "nevus", "keratosis")
LOADERS = pytest.mark.parametrize("load", [load_site, load_central])


def save_csv(folder: Path, labels: Sequence[object], split: str | Sequence[str] | None = None) -> Path:
    """One feature, the number of the row."""
    splits = [split] * len(labels) if isinstance(split, str) or split is None else split
    rows = [
        f"{i},{label}" + (f",{part}" if part else "")
        for i, (label, part) in enumerate(zip(labels, splits, strict=True))
    ]
    (folder / "t.csv").write_text("\n".join(["x,label" + (",split" if split else ""), *rows]) + "\n")
    return folder / "t.csv"


def refused(
    message: str,
    path: str | Path,
    names: Sequence[str] = SKIN,
    load: Callable[..., Dataset] = load_site,
    **options: object,
) -> None:
    with pytest.raises(FedGAError, match=message) as caught:
        load(path, names, **options)
    assert "\n" not in str(caught.value)


def rows(dataset: Dataset) -> tuple[list[int], list[int]]:
    return dataset.train_inputs[:, 0].astype(int).tolist(), dataset.test_inputs[:, 0].astype(int).tolist()


# --- a site's splits ------------------------------------------------------------------------------


def test_a_site_without_a_class_holds_out_every_fifth_of_the_others(tmp_path: Path) -> None:
    path = save_csv(tmp_path, ["keratosis", "melanoma"] * 5)
    dataset = load_site(str(path), list(SKIN))
    assert dataset.class_names == SKIN
    assert dataset.name == "t"
    assert rows(dataset) == ([0, 1, 2, 3, 4, 5, 6, 7], [8, 9])
    assert dataset.train_targets.tolist() == [2, 0] * 4
    assert dataset.test_targets.tolist() == [2, 0]
    assert dataset.train_targets.dtype == dataset.test_targets.dtype == np.int64
    assert dataset.fingerprint == fingerprint(dataset)


def test_a_site_that_has_every_class_equals_the_data_set(tmp_path: Path) -> None:
    path = save_csv(tmp_path, ["a", "b", "c"] * 7)
    site, whole = load_site(path, ("a", "b", "c")), load_dataset(path)
    check_equal(site, (whole.train_inputs, whole.train_targets, whole.test_inputs, whole.test_targets))
    assert site.fingerprint == whole.fingerprint


def test_too_few_samples_leave_nothing_held_out(tmp_path: Path) -> None:
    dataset = load_site(save_csv(tmp_path, ["nevus"] * 3), SKIN)
    assert dataset.train_targets.tolist() == [1, 1, 1]
    assert dataset.test_inputs.shape == (0, 1)
    assert dataset.test_inputs.dtype == np.float32
    assert dataset.test_targets.shape == (0,)
    assert dataset.test_targets.dtype == np.int64


def test_a_site_keeps_the_split_of_its_file(tmp_path: Path) -> None:
    path = save_csv(tmp_path, ["nevus", "melanoma", "nevus"], ["train", "test", "Train"])
    assert rows(load_site(path, SKIN)) == ([0, 2], [1])
    path = save_csv(tmp_path, ["nevus"] * 10, "train")
    assert load_site(path, SKIN).test_inputs.shape == (0, 1)
    refused("t.csv has no samples to train on: add some, or move some", save_csv(tmp_path, ["nevus"] * 10, "test"))


def test_a_client_column_is_left_aside(tmp_path: Path) -> None:
    table = {"x": range(10), "client": [1.5] * 10, "label": ["nevus"] * 10}
    pq.write_table(pa.table({name: list(values) for name, values in table.items()}), tmp_path / "t.parquet")
    dataset = load_site(tmp_path / "t.parquet", SKIN)
    assert dataset.input_shape == (1,)
    assert dataset.train_clients is None
    assert dataset.client_names == ()


# --- what the server holds ------------------------------------------------------------------------


def test_all_samples_of_the_server_are_both_splits(tmp_path: Path) -> None:
    dataset = load_central(save_csv(tmp_path, ["keratosis", "nevus"] * 5), SKIN)
    assert rows(dataset) == (list(range(10)), list(range(10)))
    assert dataset.train_targets.tolist() == dataset.test_targets.tolist() == [2, 1] * 5
    assert dataset.fingerprint == fingerprint(dataset)


def test_the_server_keeps_the_split_of_its_file(tmp_path: Path) -> None:
    path = save_csv(tmp_path, ["nevus", "melanoma", "nevus"], ["train", "test", "test"])
    assert rows(load_central(path, SKIN)) == ([0], [1, 2])
    assert rows(load_central(save_csv(tmp_path, ["nevus"] * 3, "test"), SKIN)) == ([0, 1, 2], [0, 1, 2])
    refused("t.csv has no samples to evaluate on", save_csv(tmp_path, ["nevus"] * 3, "train"), load=load_central)


def test_a_site_and_the_server_read_one_file_differently(tmp_path: Path) -> None:
    write_picture_classes(tmp_path / "own", pictures(10, (1, 4, 4)), ["nevus"] * 10)
    assert len(load_site(tmp_path / "own", SKIN).test_targets) == 2
    assert len(load_central(tmp_path / "own", SKIN).test_targets) == 10
    assert len(load_dataset(tmp_path / "own").class_names) == 1


# --- formats --------------------------------------------------------------------------------------


def test_folder_of_pictures(tmp_path: Path) -> None:
    images, own = pictures(10, (3, 5, 4)), tmp_path / "own"
    write_picture_classes(own, images, ["nevus", "keratosis"] * 5)
    dataset = load_site(own, SKIN)
    check_equal(dataset, (images[[1, 3, 5, 7, 0, 2, 4, 6]], np.repeat([2, 1], 4), images[[9, 8]], np.array([2, 1])))
    assert (dataset.name, dataset.input_scale) == ("own", 255.0)
    (own / "keratosis").rename(own / "wart")
    refused(r"class wart, which is not among the agreed ones \(melanoma, nevus, keratosis\): correct", own)


def test_folder_of_pictures_with_a_test_split_of_a_class_that_is_missing(tmp_path: Path) -> None:
    train, test = pictures(2, (1, 3, 3)), pictures(1, (1, 3, 3), 1)
    write_picture_classes(tmp_path / "train", train, ["nevus"] * 2)
    write_picture_classes(tmp_path / "val", test, ["melanoma"])
    check_equal(load_site(tmp_path, SKIN), (train, np.array([1, 1]), test, np.array([0])))


def test_parquet_of_pictures(tmp_path: Path) -> None:
    images, names = pictures(10, (1, 6, 6)), ["nevus", "keratosis"] * 5
    write_parquet(tmp_path / "t.parquet", images, np.array(names), label="finding")
    dataset = load_site(tmp_path / "t.parquet", SKIN, label_column="finding")
    check_equal(dataset, (images[:8], np.array([1, 2] * 4), images[8:], np.array([1, 2])))


def test_parquet_splits_one_of_them_empty(tmp_path: Path) -> None:
    images, labels = pictures(3, (3, 6, 6)), np.array([2, 2, 0])
    write_parquet(tmp_path / "train.parquet", images, labels)
    pq.write_table(pq.read_table(tmp_path / "train.parquet").slice(0, 0), tmp_path / "test.parquet")
    site = load_site(tmp_path, SKIN)
    check_equal(site, (images, labels, images[:0], labels[:0]))
    assert load_site(tmp_path, SKIN).fingerprint == site.fingerprint
    (tmp_path / "train.parquet").rename(tmp_path / "full.parquet")
    (tmp_path / "test.parquet").rename(tmp_path / "train.parquet")
    (tmp_path / "full.parquet").rename(tmp_path / "test.parquet")
    check_equal(load_central(tmp_path, SKIN), (images, labels, images, labels))
    refused("train.parquet has no samples to train on", tmp_path)


@LOADERS
def test_npz(load: Callable[..., Dataset], tmp_path: Path) -> None:
    train, test = np.arange(8.0).reshape(4, 2), np.arange(2.0).reshape(1, 2)
    np.savez(tmp_path / "t.npz", x_train=train, y_train=[1, 1, 1, 0], x_test=test, y_test=[1], clients=[5, 5, 5, 5])
    dataset = load(tmp_path / "t.npz", SKIN)
    check_equal(dataset, (train, np.array([1, 1, 1, 0]), test, np.array([1])))
    assert dataset.train_clients is None


def test_pictures_are_decoded_once_for_each_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    original = folders_module.decode

    def count(*given: object, **options: object) -> np.ndarray:
        decoded.append(1)
        return original(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(folders_module, "decode", count)
    write_picture_classes(tmp_path / "own", pictures(10, (1, 4, 4)), ["nevus"] * 10)
    first, again = load_site(tmp_path / "own", SKIN), load_site(tmp_path / "own", SKIN)
    assert len(decoded) == 1
    assert again.fingerprint == first.fingerprint
    turned = load_site(tmp_path / "own", (*SKIN[::-1], "other"))
    assert turned.class_names == ("keratosis", "nevus", "melanoma", "other")
    other = load_site(tmp_path / "own", ("nevus", "melanoma"))
    assert other.train_targets.tolist() == [0] * 8
    assert len(decoded) == 3


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    write_picture_classes(tmp_path, pictures(3, (1, 4, 4)), ["nevus"] * 3)
    load_site(tmp_path, SKIN, progress=lambda *what: told.append(what))
    assert [each[1:] for each in told] == [(3, 3)]


# --- what a label means ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "names", "targets"),
    [
        ([2, 0, 2], SKIN, [2, 0, 2]),
        ([2.0, 0.0], SKIN, [2, 0]),
        (["true", "true"], ("no", "yes"), [1, 1]),
        ([7, 3], tuple("0123456789"), [7, 3]),
        ([2, 1], ("1", "2", "3"), [1, 0]),
        (["01", "03"], ("03", "02", "01"), [2, 0]),
        (["1.0", "2.0"], ("2.0", "1.0"), [1, 0]),
        ([2, 1], ("other", "1", "2"), [2, 1]),
        (["2", "other"], ("other", "1", "2"), [2, 0]),
        (["True", "False"], ("true", "false"), [0, 1]),
        (["true", "false"], ("no", "yes"), [1, 0]),
        (["a b", "ä"], ("ä", "a b"), [1, 0]),
    ],
)
def test_labels_of_a_csv(labels: list[object], names: tuple[str, ...], targets: list[int], tmp_path: Path) -> None:
    assert load_site(save_csv(tmp_path, labels), names).train_targets.tolist() == targets


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        (["nevus", "wart"], SKIN, r"t.csv has samples of class wart, which is not among the agreed ones \(melanoma, "),
        ([0, 3], SKIN, r"class 3, which is not among the agreed ones \(melanoma, nevus, keratosis\)"),
        ([0, -1], SKIN, "class -1, which is not"),
        ([0, 1, 2], ("1", "2", "3"), r"class 0, which is not among the agreed ones \(1, 2, 3\)"),
        ([1, 2], SKIN, r"no 0 among them: .* write the names of the classes \(melanoma, nevus, keratosis\)"),
        ([1.0, 3.0], SKIN, "they may count from 1, or class melanoma has no sample here"),
        (["true", "false"], ("ill", "healthy"), r"do not say which of the agreed classes \(ill, healthy\)"),
        ([4, 1], SKIN, "class 4, which is not"),
        ([0.5, 1], SKIN, "labels that are not whole numbers, such as 0.5"),
        (["nevus", '""'], SKIN, "empty"),
        (["Nevus"], SKIN, "class Nevus, which is not"),
        ([99], tuple(map(str, range(30))), r"\(0, 1, .*, 19, \.\.\.\): correct the label, or have the federation"),
    ],
)
@LOADERS
def test_labels_that_were_not_agreed_on(
    load: Callable[..., Dataset], labels: list[object], names: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    refused(message, save_csv(tmp_path, labels), names, load)


def test_a_file_that_names_its_classes_is_believed(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((3, 2)), y=[0, 1, 0], class_names=["nevus", "melanoma"])
    assert load_site(tmp_path / "t.npz", SKIN).train_targets.tolist() == [1, 0, 1]
    write_parquet(tmp_path / "t.parquet", pictures(2, (1, 3, 3)), np.array([0, 1]), names=["nevus", "wart"])
    refused("class wart, which is not among", tmp_path / "t.parquet")
    write_parquet(tmp_path / "t.parquet", pictures(2, (1, 3, 3)), np.array([2, 1]), names=["0", "1", "2"])
    assert load_site(tmp_path / "t.parquet", SKIN).train_targets.tolist() == [2, 1]


def test_a_0_in_either_split_tells_that_places_count_from_0(tmp_path: Path) -> None:
    site = load_site(save_csv(tmp_path, [1, 2, 0], ["train", "train", "test"]), SKIN)
    assert (site.train_targets.tolist(), site.test_targets.tolist()) == ([1, 2], [0])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_are_compared_without_the_label_whatever_it_is_called(suffix: str, tmp_path: Path) -> None:
    def digest(columns: str, label_column: str | None = None) -> str:
        path = tmp_path / f"t.{suffix}"
        if suffix == "csv":
            path.write_text(columns + "\n")
        else:
            pq.write_table(pa.table({name: [1] for name in columns.split(",")}), path)
        return columns_digest(path, label_column)

    plain = digest("age,dose,label")
    assert digest("age,diagnosis,dose", "diagnosis") == digest("client, Befund,age,dose,split", "Befund ") == plain
    assert digest("age,dose,befund") != plain
    assert digest("dose,age,label") != plain
    assert digest("age,dose,label,befund", "befund") != plain  # one called label is a feature beside it
    assert digest("age,y,label") != digest("y,age,label")


# --- bad input ------------------------------------------------------------------------------------


@LOADERS
def test_bad_files(load: Callable[..., Dataset], tmp_path: Path) -> None:
    refused("gone.csv does not exist: check the path", tmp_path / "gone.csv", load=load)
    (tmp_path / "notes.txt").write_text("hello")
    refused("notes.txt is not a data set: give", tmp_path / "notes.txt", load=load)
    (tmp_path / "t.csv").write_text("")
    refused("t.csv is empty: write a header line", tmp_path / "t.csv", load=load)
    (tmp_path / "t.csv").write_text("x,label\n")
    refused("t.csv has", tmp_path / "t.csv", load=load)
    np.savez(tmp_path / "t.npz", x=np.zeros((0, 2)), y=np.zeros(0, dtype=int))
    refused("t.npz has no samples to", tmp_path / "t.npz", load=load)
    np.savez(tmp_path / "t.npz", x=np.zeros((3, 2)), y=np.zeros(2, dtype=int))
    refused("t.npz has 3 samples but labels of shape", tmp_path / "t.npz", load=load)


def test_bad_columns(tmp_path: Path) -> None:
    path = save_csv(tmp_path, ["nevus"] * 3)
    refused("unknown label column of .*'labl': did you mean 'label'", path, label_column="labl")
    path.write_text("x,outcome\n1,nevus\n")
    refused("has no column named label, target, class, y: name its label column", path)
    write_picture_classes(tmp_path / "own", pictures(2, (1, 3, 3)), ["nevus"] * 2)
    refused("has no columns: leave out --label-column", tmp_path / "own", label_column="label")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"the agreed classes are \(\): give a list of names"),
        ("nevus", "the agreed classes are 'nevus': give a list"),
        ((0, 1), "give a list of names"),
        (("nevus", " "), "has an empty name"),
        (("nevus", "melanoma", "nevus"), "name 'nevus' twice"),
    ],
)
def test_bad_agreements(names: Sequence[str], message: str, tmp_path: Path) -> None:
    refused(message, save_csv(tmp_path, ["nevus"] * 3), names)
