"""The user's own files: npz, picture folders, CSV and Parquet tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedga.data import load_dataset, make_federation
from fedga.data.formats.csv_files import csv_start
from fedga.data.sources import names_clients
from fedga.errors import FedGAError
from tests.cli.program import fedga
from tests.data.data_makers import (
    check_equal,
    encode,
    pictures,
    write_mnist_originals,
    write_parquet,
    write_picture_classes,
)


@pytest.mark.parametrize(
    "names",
    [
        ("train_x", "train_y", "test_x", "test_y"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("X_train", "Y_train", "X_test", "Y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("train_data", "train_targets", "test_data", "test_targets"),
    ],
)
def test_npz_with_a_test_split(names: tuple[str, ...], tmp_path: Path) -> None:
    arrays = (pictures(6, (3, 5, 4)), np.arange(6) % 3, pictures(3, (3, 5, 4), 1), np.arange(3))
    np.savez_compressed(tmp_path / "mine.npz", **dict(zip(names, arrays, strict=True)))
    dataset = load_dataset(str(tmp_path / "mine.npz"))
    check_equal(dataset, arrays)
    assert dataset.name == "mine"
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.input_scale == 255.0


def test_npz_without_a_test_split_holds_out_every_fifth_of_each_class(tmp_path: Path) -> None:
    features = np.arange(40, dtype=np.float64).reshape(20, 2)
    labels = np.arange(20) % 2
    np.savez(tmp_path / "mine.npz", x=features, y=labels[:, None])
    dataset = load_dataset(tmp_path / "mine.npz")
    held_out = [8, 9, 18, 19]
    kept = np.setdiff1d(np.arange(20), held_out)
    check_equal(dataset, (features[kept], labels[kept], features[held_out], labels[held_out]))
    assert dataset.train_inputs.dtype == np.float32
    assert dataset.input_scale == 1.0


def test_npz_channels_last_grey_and_clients(tmp_path: Path) -> None:
    last = pictures(10, (6, 7, 3))
    owners = np.array(["b", "a"] * 5)
    np.savez(
        tmp_path / "last.npz", images=last, labels=np.zeros(10, dtype=np.int64), clients=owners, class_names=["only"]
    )
    dataset = load_dataset(tmp_path / "last.npz")
    kept = np.setdiff1d(np.arange(10), [4, 9])
    np.testing.assert_array_equal(dataset.train_inputs, last.transpose(0, 3, 1, 2)[kept])
    assert dataset.client_names == ("a", "b")
    assert dataset.train_clients is not None
    np.testing.assert_array_equal(dataset.train_clients, (owners == "b")[kept])
    assert dataset.class_names == ("only",)
    np.savez(
        tmp_path / "grey.npz", x=pictures(10, (6, 7, 1))[..., 0].astype(np.int32), y=[True, False] * 5, site=owners
    )
    dataset = load_dataset(tmp_path / "grey.npz", client_column="site")
    assert dataset.input_shape == (1, 6, 7)
    assert dataset.client_names == ("a", "b")


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_picture_folder_with_a_test_split(test_name: str, tmp_path: Path) -> None:
    train, test = pictures(4, (3, 6, 5)), pictures(2, (3, 6, 5), 1)
    write_picture_classes(tmp_path / "pets" / "train", train, ["dog", "cat", "dog", "cat"])
    write_picture_classes(tmp_path / "pets" / test_name, test, ["dog", "cat"])
    dataset = load_dataset(tmp_path / "pets")
    check_equal(dataset, (train[[1, 3, 0, 2]], np.array([0, 0, 1, 1]), test[[1, 0]], np.array([0, 1])))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.name == "pets"


def test_picture_folder_without_a_test_split_is_cut_80_20(tmp_path: Path) -> None:
    grey = pictures(20, (1, 4, 4))
    write_picture_classes(tmp_path / "shapes", grey, ["round", "square"] * 10)
    dataset = load_dataset(tmp_path / "shapes")
    assert dataset.input_shape == (1, 4, 4)
    assert (len(dataset.train_targets), len(dataset.test_targets)) == (16, 4)
    np.testing.assert_array_equal(dataset.test_inputs, grey[[8, 18, 9, 19]])
    np.testing.assert_array_equal(dataset.test_targets, [0, 0, 1, 1])
    assert load_dataset(tmp_path / "shapes").fingerprint == dataset.fingerprint


def test_grey_pictures_among_coloured_ones_are_repeated(tmp_path: Path) -> None:
    colour, grey = pictures(2, (3, 4, 4)), pictures(2, (1, 4, 4), 1)
    write_picture_classes(tmp_path / "train", grey, ["a", "b"])
    write_picture_classes(tmp_path / "test", colour, ["a", "b"])
    dataset = load_dataset(tmp_path)
    check_equal(dataset, (grey.repeat(3, axis=1), np.array([0, 1]), colour, np.array([0, 1])))
    write_picture_classes(tmp_path / "train" / "b", colour[:1], ["."], kind="bmp")
    np.testing.assert_array_equal(load_dataset(tmp_path).train_inputs[1], colour[0])


HOSPITALS = ["north/ill", "north/well", "south/ill", "north/ill", "south/ill", "north/well"]


def test_folders_of_hospitals_and_classes(tmp_path: Path) -> None:
    """However the split is arranged, the same samples belong to the same clients; the data set says who holds what."""
    train, test = pictures(6, (1, 4, 4)), pictures(2, (1, 4, 4), 1)
    order = [0, 3, 1, 5, 2, 4]  # as the names are sorted
    expected = (train[order], np.array([0, 0, 1, 1, 0, 0]), test, np.array([0, 1]))
    tests = ["north/ill", "south/well"]
    write_picture_classes(tmp_path / "inside" / "train", train, HOSPITALS)
    write_picture_classes(tmp_path / "inside" / "test", test, tests)
    for split, values, labels in (("train", train, HOSPITALS), ("val", test, tests)):
        write_picture_classes(tmp_path / "outside", values, [label.replace("/", f"/{split}/") for label in labels])
    for name in ("inside", "outside"):
        dataset = load_dataset(tmp_path / name)
        check_equal(dataset, expected)
        assert (dataset.class_names, dataset.client_names) == (("ill", "well"), ("north", "south"))
        assert dataset.train_clients is not None
        assert dataset.train_clients.tolist() == [0, 0, 0, 0, 1, 1]
        assert names_clients(str(tmp_path / name))
    write_picture_classes(tmp_path / "whole", pictures(20, (1, 4, 4)), (HOSPITALS * 4)[:20])
    assert load_dataset(tmp_path / "whole").client_names == ("north", "south")
    outer = load_dataset(tmp_path / "whole", label_column="outer")
    assert (outer.class_names, outer.train_clients) == (("north", "south"), None)


def test_folders_in_folders_that_may_be_either_are_asked_about(tmp_path: Path) -> None:
    pets = tmp_path / "pets"
    write_picture_classes(pets, pictures(20, (1, 4, 4)), ["cat/tom", "cat/kit", "dog/rex", "dog/pip"] * 5)
    with pytest.raises(
        FedGAError, match=r"\(cat/kit\), each of another name: give --client-column outer if .* clients"
    ):
        load_dataset(pets)
    assert not names_clients(str(pets))
    assert load_dataset(pets, label_column="outer").class_names == ("cat", "dog")
    asked = load_dataset(pets, client_column="outer")
    assert (asked.client_names, asked.num_classes) == (("cat", "dog"), 4)
    with pytest.raises(FedGAError, match="has no columns: leave out --client-column, or give one as"):
        load_dataset(pets, client_column="owner")


def test_one_folder_in_each_class_is_no_client(tmp_path: Path) -> None:
    write_picture_classes(tmp_path / "pets", pictures(10, (1, 4, 4)), ["cat/images", "dog/images"] * 5)
    assert load_dataset(tmp_path / "pets").class_names == ("cat", "dog")


def test_clients_that_a_file_names_are_the_partition_by_default(tmp_path: Path) -> None:
    names = np.array(["b", "a"] * 10)
    np.savez(tmp_path / "mine.npz", x=pictures(20, (1, 4, 4)), y=np.arange(20) % 2, clients=names)
    np.savez(tmp_path / "plain.npz", x=pictures(20, (1, 4, 4)), y=np.arange(20) % 2)
    (tmp_path / "t.csv").write_text("x,label,Client\n" + "1,a,b\n" * 3)
    (tmp_path / "plain.csv").write_text("x,label\n" + "1,a\n" * 3)
    there = {name: names_clients(str(tmp_path / name)) for name in ("mine.npz", "plain.npz", "t.csv", "plain.csv")}
    assert there == {"mine.npz": True, "plain.npz": False, "t.csv": True, "plain.csv": False}
    assert not names_clients("digits")
    shown = fedga("data", "show", str(tmp_path / "mine.npz"), "--out", str(tmp_path / "who"))
    assert "mine: 2 clients, natural, seed 0" in shown.out
    shown = fedga("data", "show", str(tmp_path / "mine.npz"), "--clients", "4", "--out", str(tmp_path / "who"))
    assert "mine: 4 clients, dirichlet" in shown.out


@pytest.mark.parametrize("inside", ["", "raw"])
def test_a_folder_of_idx_files_is_a_data_set(inside: str, tmp_path: Path) -> None:
    arrays = (pictures(6, (1, 5, 4)), np.arange(6) % 3, pictures(3, (1, 5, 4), 1), np.arange(3))
    write_mnist_originals(tmp_path / "shirts" / inside, arrays, zipped=bool(inside))
    dataset = load_dataset(tmp_path / "shirts")
    check_equal(dataset, arrays)
    assert (dataset.name, dataset.class_names) == ("shirts", ("0", "1", "2"))


def test_pictures_of_any_size_are_brought_to_one(tmp_path: Path) -> None:
    """Of one colour each, so that what they become is known; with the size that they have, they stay as they are."""
    flat = [np.full((1, 3 + at, 7 - at % 3), 20 * at, dtype=np.uint8) for at in range(10)]
    for at, picture in enumerate(flat):
        write_picture_classes(tmp_path / "own" / "ab"[at % 2], [picture], [f"sub{at}"])  # type: ignore[arg-type]
    dataset = load_dataset(tmp_path / "own", label_column="outer", resize="4x6")
    assert dataset.input_shape == (1, 4, 6)
    kept = [0, 2, 4, 6, 1, 3, 5, 7]
    np.testing.assert_array_equal(dataset.train_inputs, np.repeat(kept, 24).reshape(8, 1, 4, 6) * 20)
    other = load_dataset(tmp_path / "own", label_column="outer", resize=5)  # not what the cache has for another size
    assert other.input_shape == (1, 5, 5)
    assert other.fingerprint != dataset.fingerprint
    rows = [{"bytes": encode(picture), "path": "p.png"} for picture in flat]
    pq.write_table(pa.table({"image": rows, "label": [0, 1] * 5}), tmp_path / "t.parquet")
    in_file = load_dataset(tmp_path / "t.parquet", resize="4x6")
    np.testing.assert_array_equal(in_file.train_inputs, np.repeat(range(8), 24).reshape(8, 1, 4, 6) * 20)
    write_picture_classes(tmp_path / "alike", pictures(10, (3, 6, 5)), ["a", "b"] * 5)
    assert load_dataset(tmp_path / "alike", resize="6x5").fingerprint == load_dataset(tmp_path / "alike").fingerprint


def test_what_cannot_be_resized(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=pictures(10, (1, 4, 4)), y=np.arange(10) % 2)
    (tmp_path / "t.csv").write_text("x,label\n" + "1,a\n" * 5)
    pq.write_table(pa.table({"x": [1.0] * 5, "label": [0] * 5}), tmp_path / "t.parquet")
    for name in ("digits", tmp_path / "mine.npz", tmp_path / "t.csv", tmp_path / "t.parquet"):
        with pytest.raises(FedGAError, match="leave out --resize"):
            load_dataset(name, resize="8")
    for size in ("0", "8x", "5000", "8x8x8", True):
        with pytest.raises(FedGAError, match="--resize must be height and width from 1 to 4096 pixels, as 32 or 32x48"):
            load_dataset(tmp_path, resize=size)


@pytest.mark.parametrize("label", ["label", "target", "y", "class", "Label"])
def test_csv_table(label: str, tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{i / 4},{'true' if i % 3 else 'false'},{i % 2}" for i in range(20))
    (tmp_path / "beds.csv").write_text(f"age,dose,smokes,{label}\n{rows}\n")
    dataset = load_dataset(tmp_path / "beds.csv")
    kept = np.setdiff1d(np.arange(20), [8, 9, 18, 19])
    expected = np.array([[i, i / 4, bool(i % 3)] for i in range(20)], dtype=np.float32)
    np.testing.assert_array_equal(dataset.train_inputs, expected[kept])
    np.testing.assert_array_equal(dataset.train_targets, kept % 2)
    assert dataset.train_inputs.dtype == np.float32
    assert dataset.test_inputs.shape == (4, 3)


def test_csv_with_text_labels_clients_and_splits(tmp_path: Path) -> None:
    text = "hospital,x,outcome,split\n" + "\n".join(
        ["north,1,ill,train", "south,2,well,train", "north,3,ill,test", "north,4,well,train", "east,5,well,Test"]
    )
    (tmp_path / "beds.csv").write_text(text)
    dataset = load_dataset(tmp_path / "beds.csv", label_column="outcome", client_column="hospital")
    check_equal(dataset, (np.array([[1], [2], [4]]), np.array([0, 1, 1]), np.array([[3], [5]]), np.array([0, 1])))
    assert dataset.class_names == ("ill", "well")
    assert dataset.client_names == ("north", "south")
    federation = make_federation(dataset, "natural", clients=None, seed=0)
    assert federation.client(0).tolist() == [0, 2]


def as_semicolons(text: str) -> str:
    return text.replace(",", ";")


def as_spreadsheet(text: str) -> str:
    """As a spreadsheet of a country where half of one is written 0,5."""
    return as_semicolons(text).replace(".", ",")


@pytest.mark.parametrize(
    "written",
    [
        as_semicolons,
        as_spreadsheet,
        lambda text: text.replace(",", "\t"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace(",", " , ").replace(" \n", "\n"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text + "\n\n",
        lambda text: text.replace("split", "Split"),
    ],
)
def test_csv_of_other_programs(written: Callable[[str], str], tmp_path: Path) -> None:
    """Semicolons, decimal commas, tabs, a byte order mark, stray spaces: the same table."""
    rows = [f"{at}.25,site {at % 3},{'train' if at % 4 else 'test'},{'ill' if at % 2 else 'well'}" for at in range(20)]
    text = "\n".join(["dose,client,split,label", *rows])
    (tmp_path / "plain.csv").write_text(text, encoding="utf-8")
    (tmp_path / "other.csv").write_bytes(written(text).encode())
    plain, other = load_dataset(tmp_path / "plain.csv"), load_dataset(tmp_path / "other.csv")
    assert other.fingerprint == plain.fingerprint
    assert (other.class_names, other.client_names) == (plain.class_names, plain.client_names)
    assert plain.train_inputs.ravel().tolist() == [at + 0.25 for at in range(20) if at % 4]


def test_column_names_may_have_spaces(tmp_path: Path) -> None:
    rows = [f"{at},{'ab'[at % 2]},{at % 3}" for at in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["dose, final outcome ,home town", *rows]))
    dataset = load_dataset(tmp_path / "t.csv", label_column="final outcome", client_column="home town")
    assert (dataset.class_names, dataset.client_names) == (("a", "b"), ("0", "1", "2"))


def test_a_column_called_client_is_never_a_feature(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,x,label\n" + "\n".join(f"{10 - i % 2},{i},0" for i in range(10)))
    dataset = load_dataset(tmp_path / "t.csv")
    assert dataset.input_shape == (1,)
    assert dataset.client_names == ("9", "10")


def test_parquet_table(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array(range(10), pa.int32()),
            "b": pa.array(np.linspace(0, 1, 10)),
            "label": pa.array(["no", "yes"] * 5).dictionary_encode(),
            "__index_level_0__": pa.array(range(10)),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    dataset = load_dataset(tmp_path / "t.parquet")
    assert dataset.input_shape == (2,)
    assert dataset.class_names == ("no", "yes")
    assert len(dataset.test_targets) == 2


def test_parquet_of_pictures_with_clients(tmp_path: Path) -> None:
    images = pictures(10, (1, 6, 6))
    labels = np.arange(10) % 2
    extra: dict[str, list[object]] = {"writer": [f"w{i % 4}" for i in range(10)], "split": ["train"] * 8 + ["test"] * 2}
    write_parquet(tmp_path / "pens.parquet", images, labels, label="letter", names=["a", "b"], extra=extra)
    dataset = load_dataset(tmp_path / "pens.parquet", label_column="letter", client_column="writer")
    check_equal(dataset, (images[:8], labels[:8], images[8:], labels[8:]))
    assert dataset.class_names == ("a", "b")
    assert dataset.client_names == ("w0", "w1", "w2", "w3")


def test_folder_of_parquet_splits(tmp_path: Path) -> None:
    arrays = (pictures(4, (3, 4, 4)), np.array([0, 1, 0, 1]), pictures(2, (3, 4, 4), 1), np.array([1, 0]))
    write_parquet(tmp_path / "own" / "train-00000-of-00002.parquet", arrays[0][:3], arrays[1][:3])
    write_parquet(tmp_path / "own" / "train-00001-of-00002.parquet", arrays[0][3:], arrays[1][3:])
    write_parquet(tmp_path / "own" / "validation.parquet", *arrays[2:])
    check_equal(load_dataset(tmp_path / "own"), arrays)


def test_columns_of_a_test_file_are_matched_by_name(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"Client": ["p", "q"], "a": [1, 2], "b": [3, 4], "label": [0, 1]}), tmp_path / "train.parquet"
    )
    pq.write_table(pa.table({"label": [0, 1], "b": [7, 8], "more": ["u", "v"], "a": [5, 6]}), tmp_path / "test.parquet")
    dataset = load_dataset(tmp_path)
    np.testing.assert_array_equal(dataset.train_inputs, [[1, 3], [2, 4]])
    np.testing.assert_array_equal(dataset.test_inputs, [[5, 7], [6, 8]])
    assert dataset.client_names == ("p", "q")


def test_a_folder_called_like_a_data_set_is_given_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_picture_classes(tmp_path / "mnist", pictures(10, (1, 3, 3)), ["p", "q"] * 5)
    monkeypatch.chdir(tmp_path)
    assert load_dataset("./mnist").class_names == ("p", "q")


def test_palette_and_transparent_pictures_become_three_channels(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "a").mkdir()
    for i in range(3):
        (tmp_path / "a" / f"{i}.png").write_bytes(encode(pictures(1, (3, 4, 4), i)[0]))
    Image.new("RGBA", (4, 4), (10, 20, 30, 255)).save(tmp_path / "a" / "3.png")
    Image.new("P", (4, 4)).save(tmp_path / "a" / "4.gif")
    dataset = load_dataset(tmp_path)
    assert dataset.input_shape == (3, 4, 4)
    np.testing.assert_array_equal(dataset.train_inputs[3, :, 0, 0], [10, 20, 30])


def test_a_client_with_few_samples_keeps_them(tmp_path: Path) -> None:
    """Every fifth sample of a class is held out, and may be all that a small client has."""
    rows = [("A", 0), ("A", 0), ("A", 0), ("A", 0), ("solo", 0), ("A", 1), ("A", 1), ("A", 1), ("A", 1), ("A", 1)]
    lines = ["x,label,client", *(f"{place},{label},{client}" for place, (client, label) in enumerate(rows))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    dataset = load_dataset(tmp_path / "t.csv")
    assert dataset.client_names == ("A", "solo")
    assert dataset.train_clients is not None
    assert dataset.train_clients.tolist().count(1) == 1
    assert dataset.test_inputs.tolist() == [[9.0]]


def test_flattened_and_fractional_pictures_in_npz(tmp_path: Path) -> None:
    targets = np.arange(10) % 2
    flat = np.arange(40, dtype=np.uint8).reshape(10, 4) * 6
    np.savez(tmp_path / "flat.npz", x=flat, y=targets)
    dataset = load_dataset(tmp_path / "flat.npz")
    assert (dataset.train_inputs.dtype, dataset.input_scale) == (np.uint8, 255.0)
    np.savez(tmp_path / "fractions.npz", x=(flat / 255).reshape(10, 1, 2, 2), y=targets)
    dataset = load_dataset(tmp_path / "fractions.npz")
    assert (dataset.train_inputs.dtype, dataset.input_scale) == (np.float32, 1.0)
    assert dataset.train_inputs.max() <= 1


def test_a_run_on_columns_of_unlike_scale_says_what_to_do(tmp_path: Path) -> None:
    rows = [f"{at % 7},{4000 + at},{at % 2}" for at in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["a,grams,label", *rows]))
    run = f"run --dataset {tmp_path}/t.csv --partition iid --clients 2 --rounds 1 --threads 1 --no-pictures"
    as_they_are = fedga(f"{run} --out {tmp_path}/runs")
    assert "columns of t.csv lie between 6 and 4,037, " in as_they_are.err
    assert "columns of t.csv" not in fedga(f"{run} --standardize true --out {tmp_path}/others").err


@pytest.mark.parametrize(
    ("header", "row", "delimiter", "point"),
    [
        ("a,b,label", "0.5,1,x", ",", "."),
        ("a;b;label", "0,5;1;x", ";", ","),
        ('"age, years";b;label', "0,5;1;x", ";", ","),
        ("a;b;label", "0.5;1,5 kg;x", ";", "."),
        ("a;b;label", "0.5;1;1,5\n0.25;1;0.5", ";", "."),
        ("a;b;label", "0,5;31.12.1999;x", ";", ","),
        ("a;b;label", '"-0,5e-3";1;x', ";", ","),
        ("a\tb\tlabel", "0.5\t1\tx", "\t", "."),
        ("label", "x", ",", "."),
    ],
)
def test_how_a_csv_file_is_written(header: str, row: str, delimiter: str, point: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(f"{header}\n{row}\n")
    start = csv_start(tmp_path / "table.csv")
    assert (start.delimiter, start.decimal_point) == (delimiter, point)


def test_labels_that_count_from_one_are_the_names_of_their_classes(tmp_path: Path) -> None:
    rows = [f"{row},{row % 3 + 1},{'test' if row > 20 else 'train'}" for row in range(24)]
    (tmp_path / "table.csv").write_text("\n".join(["x,label,split", *rows]) + "\n")
    dataset = load_dataset(tmp_path / "table.csv")
    assert dataset.class_names == ("1", "2", "3")
    np.testing.assert_array_equal(dataset.train_targets, np.arange(21) % 3)
    np.testing.assert_array_equal(dataset.test_targets, [0, 1, 2])


def test_a_class_0_of_the_test_split_alone_is_missed_in_training(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("x,label,split\n1,1,train\n2,2,train\n3,2,train\n4,0,test\n")
    with pytest.raises(FedGAError, match="class 0 has no training sample"):
        load_dataset(tmp_path / "table.csv")
