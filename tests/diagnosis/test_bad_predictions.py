"""Malformed predictions are refused in one sentence that says which row is wrong, and what to do."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from fedga.diagnosis.reading import csv_blocks
from fedga.diagnosis.reading.columns import ColumnOptions
from fedga.diagnosis.reading.tables import read_predictions
from fedga.errors import FedGAError
from tests.diagnosis.made_up import made_up, write_npz

GOOD = "label,cat,dog\ncat,0.9,0.1\ndog,0.2,0.8\n"


def refused(path: Path, options: ColumnOptions | None = None) -> str:
    with pytest.raises(FedGAError) as caught:
        read_predictions(path, options or ColumnOptions())
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert str(path) in sentence
    return sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "cat,0.9,0.8\n", "probabilities in row 3 of"),
        (GOOD + "cat,0.9,0.8\n", "sum to 1.7, not to 1: correct them, or choose the right columns"),
        (GOOD + "cat,3.5,1.5\n", "sum to 5, not to 1: pass --logits"),
        (GOOD + "cat,90,10\n", "sum to 100, so these are per cent: divide them by 100"),
        ("label,p_ill\n1,90\n0,10\n", "divide per cent by 100"),
        (GOOD + "cat,1.5,-0.5\n", "class 'dog' the probability -0.5"),
        (GOOD + "cat,nan,0.5\n", "has no number for class 'cat' (nan): fill it in"),
        (GOOD + "cat,,0.5\n", "has no number for class 'cat' (nan): fill it in"),
        (GOOD + "cat,inf,0.5\n", "has no number for class 'cat' (inf): fill it in"),
        (GOOD + "bird,0.5,0.5\n", "has label 'bird', which is no class: it must be one of cat, dog"),
        (GOOD + "bird,0.5,0.5\n", "no column of probabilities is called 'bird'"),
        ("label,a,b,c\n1,0.8,0.1,0.1\n2,0.1,0.8,0.1\n3,0,0,1\n", "seem to count from 1, since 0 never occurs"),
        ("label,a,b,c\n1,0.8,0.1,0.1\n2,0.1,0.8,0.1\n", "names of the classes (a, b, c), or count from 0"),
        ("label,cat,dog\ncat,90%,10%\ndog,20%,80%\n", "row 1 of"),
        ("label,cat,dog\ncat,90%,10%\ndog,20%,80%\n", "'90%' in column 'cat', which is no number: write 0.5 for 50%"),
        ("label;cat;dog\ncat;0,9;0,1\ndog;0.2;0,8\n", "row 2 of"),
        (GOOD + "2,0.5,0.5\n", "has label '2', which is no class: it must be one of cat, dog, or a place from 0 to 1"),
        (GOOD + "-1,0.5,0.5\n", "has label '-1', which is no class"),
        (GOOD + ",0.5,0.5\n", "has no label: label it or remove it"),
        (GOOD + "cat,0.5\n", "has 2 cells, but the header has 3"),
        ("label,cat,dog\ncat,0.9,0.1\ncat,0.2,0.8\n", "are of class 'cat', so nothing can be mistaken for it"),
        ("truth,cat,dog\ncat,0.9,0.1\n", "has no column named label, target, class, y: name the one that holds"),
        ("label,name\ncat,tom\n", "has no column of numbers beside 'label'"),
        ("label,cat,dog\n", "has a header and no rows"),
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("label,cat,cat\ncat,0.9,0.1\n", "has several columns named 'cat'"),
        ("label,p_a,p_a \na,0.9,0.1\n", "has several columns named 'p_a'"),
        ("label,p_a,prob_a\na,0.9,0.1\n", "has label 'a', which is no class"),
        (GOOD.replace("\n", "\r"), "ends its lines with carriage returns alone"),
        (GOOD + f"{'9' * 5000},0.5,0.5\n", "has label '99999999"),
        (GOOD + f"{'9' * 5000},0.5,0.5\n", "...', which is no class"),
        (GOOD + 'cat,0.9,"0.1\ncat,0.9,0.1\n', "a quotation mark in line 4 of"),
        (GOOD + 'cat,0.9,"0.1\ncat,0.9,0.1\n', "is not closed: close or remove it"),
        ('label,"cat,dog\ncat,0.9,0.1\n', "a quotation mark in line 1 of"),
        (GOOD + f'cat,"{"x" * 200_000}",0.5\n', "has a cell of more than 131,072 characters: shorten it"),
        ("label,score\nill,0.9\nhealthy,0.1\n", "call the one column of probabilities after the class it means"),
        ("label,p_ill\nill,0.9\nhealthy,0.1\ndead,0.3\n", "has label 'dead'"),
        ("label,p_ill\n1,1.9\n0,0.1\n", "gives class 'ill' the probability 1.9"),
        ("label,p_2\n0,0.1\n1,0.9\n", "has label '1', which is no class: it must be '2', after which the one column"),
        ("label,p_yes,p_no\nTrue,0.9,0.1\nFalse,0.1,0.9\n", "'True', which is no class: it must be one of yes, no"),
        ("label,p_true,p_false\n1,0.9,0.1\n0,0.1,0.9\n", "'1', which is no class: it must be one of true, false"),
        ("label,site,cat,dog\ncat,,0.9,0.1\n", "row 1 of"),
        ("label,site,cat,dog\ncat,,0.9,0.1\n", "names no site: name one in every row"),
    ],
)
def test_csv(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "some.csv"
    path.write_text(text, encoding="utf-8")
    assert said in refused(path)


@pytest.mark.parametrize("word", ["half", "1_000", "Na", " NA", "  ", "٠.٥", "0x1"])
def test_a_word_among_numbers_is_named_with_its_row(tmp_path: Path, word: str) -> None:
    path = tmp_path / "some.csv"
    path.write_text(f"{GOOD}cat,0.5,{word}\n", encoding="utf-8")
    assert "row 3 of" in (said := refused(path))
    assert f"has {word.strip()!r} in column 'dog', which is no number" in said


@pytest.mark.parametrize("text", ["label,kätzchen,dog\ndog,0.9,0.1\n", GOOD + "kätzchen,0.5,0.5\n"])
def test_letters_of_another_encoding(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.csv"
    path.write_bytes(text.encode("latin-1"))
    assert "has letters that are not UTF-8: save it as CSV in the encoding UTF-8" in refused(path)


def test_probabilities_are_no_logits(tmp_path: Path) -> None:
    """Taken as logits they would all be nearly even."""
    path = tmp_path / "some.csv"
    path.write_text(GOOD, encoding="utf-8")
    assert "these are probabilities already: leave --logits out" in refused(path, ColumnOptions(logits=True))


def test_a_wrong_row_far_down_is_found(tmp_path: Path) -> None:
    """Behind many blocks, where rows are parsed by several threads."""
    path = tmp_path / "some.csv"
    good = "cat,0.9000000000000000,0.1\ndog,0.2,0.8000000000000000\n" * 100_000
    for bad, said in (("cat,0.9,0.9\n", "sum to 1.8"), ("cat,0.9,x\n", "has 'x' in column 'dog'"), ("cat\n", "1 cell")):
        path.write_text(f"label,cat,dog\n{good}{bad}{good}", encoding="utf-8")
        complaint = refused(path)
        assert "row 200,001 of" in complaint
        assert said in complaint


def test_a_stray_quotation_mark_costs_no_more_than_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_blocks, "BLOCK", 1000)
    counted = []
    monkeypatch.setattr(csv_blocks, "_open_quote", lambda block: counted.append(len(block)) or 5)
    path = tmp_path / "some.csv"
    path.write_text(GOOD + 'cat,0.9,"0.1\n' + "cat,0.9,0.1\n" * 80_000, encoding="utf-8")
    assert "is not closed" in refused(path)
    assert sum(counted) < 100_000  # no line is looked at again for each that follows


def test_a_quotation_that_never_ends_is_not_followed_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_blocks, "BLOCK", 1000)
    monkeypatch.setattr(csv_blocks, "_LONGEST_QUOTE", 5000)
    path = tmp_path / "some.csv"
    rows = "cat,0.9,0.1\n" * 10_000
    path.write_text(f'label,cat,dog\n{rows}cat,"0.9,0.1\n{rows}cat,0.9",0.1\n', encoding="utf-8")
    assert "a quotation mark in line 10,002 of" in refused(path)


@pytest.mark.parametrize("kind", [arrow.list_(arrow.int64()), arrow.struct([("a", arrow.int64())])])
@pytest.mark.parametrize("name", ["label", "site"])
def test_parquet_columns_of_lists(tmp_path: Path, name: str, kind: arrow.DataType) -> None:
    columns = {"label": arrow.array(["a", "b"]), "site": arrow.array(["x", "y"]), "a": [0.5, 0.5], "b": [0.5, 0.5]}
    columns[name] = arrow.array([[1], [2]] if arrow.types.is_list(kind) else [{"a": 1}, {"a": 2}], kind)
    parquet.write_table(arrow.table(columns), path := tmp_path / "some.parquet")
    assert f"column {name!r} of {path} has values of type" in refused(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ColumnOptions(label_column="lable"), "did you mean 'label'?"),
        (ColumnOptions(site_column="hospitl"), "unknown site column"),
        (ColumnOptions(site_column="label"), "is named as label and as site"),
        (ColumnOptions(probability_columns=("cat", "dgo")), "did you mean 'dog'?"),
        (ColumnOptions(probability_columns=("p_*",)), "unknown probability column"),
        (ColumnOptions(probability_columns=("label",)), "does not hold numbers"),
    ],
)
def test_columns_that_are_not_there(tmp_path: Path, options: ColumnOptions, said: str) -> None:
    path = tmp_path / "some.csv"
    path.write_text(GOOD, encoding="utf-8")
    assert said in refused(path, options)


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "nowhere.csv")
    assert "cannot be read (File name too long): check the path" in refused(tmp_path / f"{'a' * 300}.csv")
    assert "is a folder" in refused(tmp_path)
    for name in ("some.txt", "some"):
        (tmp_path / name).write_text("hello", encoding="utf-8")
        assert "give one that ends in .csv, .parquet, .npz" in refused(tmp_path / name)
    for name in ("some.parquet", "some.npz"):
        (tmp_path / name).write_bytes(b"")
        assert "is empty" in refused(tmp_path / name)
        (tmp_path / name).write_bytes(b"hello, I am no such file")
        assert "or is damaged" in refused(tmp_path / name)
    (tmp_path / "some.csv").write_bytes(b"\xff\xfe\x00binary")
    assert "is not a text file" in refused(tmp_path / "some.csv")


def test_damaged_files(tmp_path: Path) -> None:
    data = made_up(5000)
    for compressed in (False, True):
        path = write_npz(tmp_path / "some.npz", data, compressed=compressed)
        whole = bytearray(path.read_bytes())
        whole[len(whole) // 3 : len(whole) // 3 + 200] = bytes(200)
        path.write_bytes(whole)
        assert "damaged" in refused(path)
    table = arrow.table({"label": data.label_names, **dict(zip(data.names, data.probs.T, strict=True))})
    path = tmp_path / "some.parquet"
    parquet.write_table(table, path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "is not a Parquet file, or is damaged" in refused(path)


def test_parquet_without_rows_or_with_holes(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    parquet.write_table(arrow.table({"label": arrow.array([], arrow.string()), "a": [], "b": []}), path)
    assert "has no column of numbers" in refused(path)
    schema = arrow.schema([("label", arrow.string()), ("a", arrow.float64()), ("b", arrow.float64())])
    parquet.write_table(schema.empty_table(), path)
    assert "has no rows" in refused(path)
    parquet.write_table(arrow.table({"label": ["a", None], "a": [0.5, 0.5], "b": [0.5, 0.5]}), path)
    assert "row 2 of" in refused(path)
    parquet.write_table(arrow.table({"label": ["a", "b"], "a": [0.5, None], "b": [0.5, 0.5]}), path)
    assert "has no number for class 'a'" in refused(path)


class Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path("hostile").touch, ())


def test_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "some.npz"
    probs, labels = np.full((4, 2), 0.5), np.array([0, 1, 0, 1])

    def said(**arrays: object) -> str:
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return refused(path)

    assert "has 4 rows of probabilities and 3 labels" in said(probs=probs, labels=labels[:3])
    assert "has 4 rows of probabilities and 2 sites" in said(probs=probs, labels=labels, sites=[0, 1])
    assert "holds the arrays x, labels: call them probs" in said(x=probs, labels=labels)
    assert "has 2 classes and 3 class names" in said(probs=probs, labels=labels, class_names=["a", "b", "c"])
    assert "has two classes called 'a'" in said(probs=probs, labels=labels, class_names=["a", "a"])
    assert "have shape (2, 2, 2)" in said(probs=probs.reshape(2, 2, 2), labels=labels)
    assert "are empty, of shape (0, 2)" in said(probs=probs[:0], labels=labels[:0])
    assert "has type <U32: store probabilities as numbers" in said(probs=probs.astype(str), labels=labels)
    assert "has label '6', which is no class" in said(probs=probs, labels=labels + 6)
    assert "has label '0.5', which is no class" in said(probs=probs, labels=labels + 0.5)
    for name in ("probs", "labels", "sites"):
        arrays = {"probs": probs, "labels": labels, "sites": labels}
        arrays[name] = np.array([Hostile()] * 4, dtype=object)
        assert f"array '{name}' of {path} holds pickled Python objects" in said(**arrays)
    assert not Path("hostile").exists()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "holds the arrays readme.txt" in refused(path)


def test_logits_that_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    logits = np.zeros((5, 2))
    logits[3] = np.nan, 0
    np.savez(path, logits=logits, labels=[0, 1, 0, 1, 1])
    assert "row 4 of" in (said := refused(path))
    assert "has no number for class '0' (nan)" in said
    logits[3] = -np.inf, 0  # a probability of 0
    np.savez(path, logits=logits, labels=[0, 1, 0, 1, 1])
    assert read_predictions(path, ColumnOptions()).tally.sums.sum() == pytest.approx(5)


def test_logits_taken_for_probabilities(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    np.savez(path, probs=[[3.1, -2.0], [0.1, 4.0]], labels=[0, 1])
    assert "pass --logits (in Python logits=True) if these are logits" in refused(path)


def test_too_many_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedga.diagnosis.reading.tally.MOST_CELLS", 100)
    path = tmp_path / "some.npz"
    np.savez(path, probs=np.full((200, 2), 0.5), labels=np.arange(200) % 2, sites=np.arange(200))
    assert "too many for one page" in refused(path)
    assert read_predictions(path, ColumnOptions(site_column="none")).tally.samples.sum() == 200


def test_too_many_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedga.diagnosis.reading.tally.MOST_CELLS", 100)
    path = tmp_path / "some.npz"
    np.savez(path, probs=np.eye(11), labels=np.arange(11))
    assert "has 11 classes, too many for one page, which holds 10" in (said := refused(path))
    assert "site" not in said
