"""Files of every kind give the same numbers as arrays in memory, however they are written."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from fedga.data import load_dataset
from fedga.diagnosis import diagnose
from fedga.diagnosis.diagnosis import diagnosis_of
from fedga.diagnosis.reading import csv_blocks
from fedga.diagnosis.reading.arrays import pieces_of, tally_arrays
from fedga.diagnosis.reading.columns import ColumnOptions
from fedga.diagnosis.reading.tables import read_predictions
from fedga.diagnosis.reading.tally import Predictions
from fedga.errors import FedGAError
from fedga.study.model_files import SavedModel
from tests.diagnosis.made_up import MadeUp, made_up, rows_of, write_csv, write_npz, write_parquet


def in_memory(data: MadeUp, **keywords: bool) -> Predictions:
    return tally_arrays(
        data.probs.shape, pieces_of(data.probs), data.labels, data.sites, data.names, "memory", **keywords
    )


def assert_same(found: Predictions, expected: Predictions) -> None:
    assert found.class_names == expected.class_names
    assert found.site_names == expected.site_names
    for name, ours, theirs in zip(expected.tally._fields, found.tally, expected.tally, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=name)


def write(kind: str, folder: Path, data: MadeUp) -> Path:
    if kind == "csv":
        return write_csv(folder / "some.csv", rows_of(data))
    if kind == "parquet":
        return write_parquet(folder / "some.parquet", data)
    return write_npz(folder / "some.npz", data, compressed=kind == "compressed")


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "compressed"])
@pytest.mark.parametrize("rows", [50, 9001])
def test_every_kind_of_file(tmp_path: Path, kind: str, rows: int) -> None:
    data = made_up(rows)
    assert_same(read_predictions(write(kind, tmp_path, data), ColumnOptions()), in_memory(data))


def test_csv_in_many_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_blocks, "BLOCK", 1000)
    data = made_up(3000)
    sites = np.where(data.sites == "site 1", 'a "quoted"\nsite, of two lines', data.sites)
    data = dataclasses.replace(data, sites=sites)
    assert_same(read_predictions(write_csv(tmp_path / "some.csv", rows_of(data)), ColumnOptions()), in_memory(data))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_of_other_programs(tmp_path: Path, delimiter: str, end: str, mark: str) -> None:
    data = made_up(40)
    path = write_csv(tmp_path / "some.csv", rows_of(data), delimiter=delimiter, lineterminator=end)
    path.write_bytes(mark.encode() + path.read_bytes().rstrip())  # nor need the last line end
    assert_same(read_predictions(path, ColumnOptions()), in_memory(data))


@pytest.mark.parametrize("blank", ["\n", "\n\n", "\ufeff\r\n \r\n"])
def test_csv_below_blank_lines(tmp_path: Path, blank: str) -> None:
    data = made_up(40)
    path = write_csv(tmp_path / "some.csv", rows_of(data))
    path.write_bytes(blank.encode() + path.read_bytes())
    assert_same(read_predictions(path, ColumnOptions()), in_memory(data))


def test_csv_of_one_long_row(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("label,a,b\na,0.5,0.5\n\nb,0.25,0.75\n\n", encoding="utf-8")
    assert read_predictions(path, ColumnOptions()).tally.sums[0].tolist() == [[0.5, 0.5], [0.25, 0.75]]


def test_labels_may_be_places_or_names(tmp_path: Path) -> None:
    data = made_up(60)
    rows = rows_of(data)
    numbered = [rows[0], *([site, label, *rest] for (site, _, *rest), label in zip(rows[1:], data.labels, strict=True))]
    assert_same(read_predictions(write_csv(tmp_path / "places.csv", numbered), ColumnOptions()), in_memory(data))
    bare = [["site", "label", *data.names], *rows[1:]]
    assert_same(read_predictions(write_csv(tmp_path / "bare.csv", bare), ColumnOptions()), in_memory(data))


def test_classes_called_by_numbers_are_names(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("label,1,2,3\n1,0.8,0.1,0.1\n3.0,0.1,0.1,0.8\n", encoding="utf-8")
    found = read_predictions(path, ColumnOptions())
    assert found.class_names == ("1", "2", "3")
    assert found.tally.samples.tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        ("p_0", "0 1"),
        ("p_0", "False True"),
        ("p_2", "2 1"),
        ("p_false", "0 1"),
        ("p_False", "false true"),
        ("p_true", "True False"),
        ("p_true", "1 0"),
        ("p_true,p_false", "True False"),
        ("p_False,p_True", "FALSE TRUE"),
        ("p_1,p_0", "True False"),
    ],
)
def test_a_label_that_its_column_is_called_after_is_no_place(tmp_path: Path, columns: str, labels: str) -> None:
    """Taken as a place, or as 1 for yes, it would make a perfect model the worst one."""
    first, second = labels.split()
    rows = [["label", *columns.split(",")], [first, 0.9, 0.1], [second, 0.1, 0.9]]
    path = write_csv(tmp_path / "some.csv", [row[: len(rows[0])] for row in rows])
    assert read_predictions(path, ColumnOptions()).tally.hits.tolist() == [[1, 1]]


def test_columns_are_chosen_as_asked(tmp_path: Path) -> None:
    data = made_up(60)
    header, *rows = rows_of(data)
    longer = [["row", *header, "again"], *([at, *row, 7.0] for at, row in enumerate(rows))]
    path = write_csv(tmp_path / "some.csv", [["truth" if name == "label" else name for name in longer[0]], *longer[1:]])
    found = read_predictions(path, ColumnOptions("truth", None, ("p_*",)))
    assert_same(found, in_memory(data))
    assert_same(read_predictions(path, ColumnOptions("truth")), in_memory(data))  # a known prefix is enough
    assert read_predictions(path, ColumnOptions("truth", "none")).site_names == ()


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_logits(tmp_path: Path, kind: str) -> None:
    data = made_up(500)
    shifted = dataclasses.replace(data, probs=np.log(data.probs) + 3.0)
    found = read_predictions(write(kind, tmp_path, shifted), ColumnOptions(logits=True))
    expected = in_memory(data)
    np.testing.assert_allclose(found.tally.sums, expected.tally.sums, rtol=1e-12)
    assert found.tally.hits.tolist() == expected.tally.hits.tolist()


@pytest.mark.parametrize("classes", [2, 3, 8])
def test_probabilities_rounded_to_two_digits_are_made_to_sum_to_one(classes: int) -> None:
    data = made_up(2000, classes=classes, skew=0.1)
    found = in_memory(dataclasses.replace(data, probs=data.probs.round(2)))
    np.testing.assert_allclose(found.tally.sums.sum(-1), found.tally.samples, rtol=1e-12)
    np.testing.assert_allclose(found.tally.sums.sum(0), in_memory(data).tally.sums.sum(0), atol=0.01 * 2000)


def test_a_sum_at_the_limit_is_accepted() -> None:
    found = diagnose([[0.34, 0.34, 0.33], [0.5, 0.25, 0.26]], [0, 1])
    np.testing.assert_allclose(found.everywhere.means[:2].sum(1), 1)


def test_csv_of_a_spreadsheet_with_decimal_commas(tmp_path: Path) -> None:
    data = made_up(60)
    path = write_csv(tmp_path / "some.csv", rows_of(data), delimiter=";")
    path.write_text(path.read_text(encoding="utf-8").replace(".", ","), encoding="utf-8")
    assert_same(read_predictions(path, ColumnOptions()), in_memory(data))


def test_a_column_that_no_sample_has_as_its_class_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("label,fold,a,b\na,0,0.5,0.5\nb,0,0.25,0.75\n", encoding="utf-8")
    [note] = read_predictions(path, ColumnOptions()).notes
    assert note.startswith("No sample has the class “fold”")
    assert "--probability-columns" in note
    assert read_predictions(path, ColumnOptions(probability_columns=("a", "b"))).notes == ()


def test_text_that_was_not_used_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("y_true,the centre,y_score\n1,Ulm,0.5\n0,Bern,0.25\n", encoding="utf-8")
    found = read_predictions(path, ColumnOptions())
    assert found.notes == ("Not used: the centre; --site-column 'the centre' would compare sites.",)
    assert found.class_names == ("0", "1")
    for said in ("none", "the centre"):
        assert read_predictions(path, ColumnOptions(site_column=said)).notes == ()


def test_one_column_is_the_probability_of_one_of_two_classes(tmp_path: Path) -> None:
    data = made_up(400, classes=2)
    for label, names in (("01", ("not ill", "ill")), (("healthy", "ill"), ("healthy", "ill"))):
        rows = [["label", "p_ill"], *([label[at], p] for at, p in zip(data.labels, data.probs[:, 1], strict=True))]
        found = read_predictions(write_csv(tmp_path / "some.csv", rows), ColumnOptions())
        assert found.class_names == names
        np.testing.assert_allclose(found.tally.sums, in_memory(data).tally.pooled().sums, rtol=1e-12)
    np.savez(tmp_path / "one.npz", probs=data.probs[:, 1], labels=data.labels.astype(bool))
    found = read_predictions(tmp_path / "one.npz", ColumnOptions())
    np.testing.assert_allclose(found.tally.sums, in_memory(data).tally.pooled().sums, rtol=1e-12)


def test_parquet_of_other_types(tmp_path: Path) -> None:
    data = made_up(300)
    columns = {name: arrow.array(data.probs[:, at].astype(np.float32)) for at, name in enumerate(data.names)}
    table = {"client": arrow.array(data.sites).dictionary_encode(), "y": arrow.array(data.labels, arrow.int8())}
    parquet.write_table(arrow.table(table | columns), tmp_path / "some.parquet", row_group_size=70)
    found, expected = read_predictions(tmp_path / "some.parquet", ColumnOptions()), in_memory(data)
    assert found.site_names == expected.site_names
    np.testing.assert_allclose(found.tally.sums, expected.tally.sums, rtol=1e-6)


@pytest.mark.parametrize("kind", [arrow.decimal128(6, 4), arrow.decimal256(6, 4)])
def test_parquet_of_decimals(tmp_path: Path, kind: arrow.DataType) -> None:
    shares = arrow.array([Decimal("0.75"), Decimal("0.25")], kind)
    parquet.write_table(arrow.table({"label": ["a", "b"], "a": shares, "b": shares[::-1]}), tmp_path / "some.parquet")
    sums = read_predictions(tmp_path / "some.parquet", ColumnOptions()).tally.sums
    assert sums.tolist() == [[[0.75, 0.25], [0.25, 0.75]]]


def test_npz_stored_by_columns_and_in_half_precision(tmp_path: Path) -> None:
    data = made_up(5000)
    np.savez(tmp_path / "some.npz", probs=np.asfortranarray(data.probs), labels=data.labels, sites=data.sites)
    found, expected = read_predictions(tmp_path / "some.npz", ColumnOptions()), in_memory(data)
    np.testing.assert_allclose(found.tally.sums, expected.tally.sums, rtol=1e-12)
    np.savez(tmp_path / "half.npz", probs=data.probs.astype(np.float16), labels=data.labels)
    assert read_predictions(tmp_path / "half.npz", ColumnOptions()).tally.samples.sum() == 5000


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_progress_reaches_the_end(tmp_path: Path, kind: str) -> None:
    seen: list[tuple[int, int]] = []
    path = write(kind, tmp_path, made_up(9000))
    read_predictions(path, ColumnOptions(), lambda what, done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)


@pytest.mark.parametrize("kind", ["csv", "memory", "parquet", "npz"])
def test_sites_are_called_as_they_are_written(tmp_path: Path, kind: str) -> None:
    sites, probs = ["007", "7", "true", "1", "01", "7.0", "³"], [[0.5, 0.5]] * 7
    labels = ["a", "b"] * 3 + ["a"]
    if kind == "memory":
        found: tuple[str, ...] = diagnose(probs, labels, sites, ["a", "b"]).site_names
    else:
        path = tmp_path / f"some.{kind}"
        columns = {"site": sites, "label": labels, "a": [0.5] * 7, "b": [0.5] * 7}
        if kind == "csv":
            write_csv(path, [list(columns), *map(list, zip(*columns.values(), strict=True))])
        elif kind == "parquet":
            parquet.write_table(arrow.table(columns), path)
        else:
            np.savez(path, probs=probs, labels=labels, sites=sites, class_names=["a", "b"])
        found = read_predictions(path, ColumnOptions()).site_names
    assert sorted(found) == sorted(sites)


def test_sites_that_are_numbers_are_the_same_in_every_type(tmp_path: Path) -> None:
    probs, labels = [[0.5, 0.5]] * 4, [0, 1, 0, 1]
    for sites in (np.array([1, 2, 1, 10]), np.array([1.0, 2.0, 1.0, 10.0]), pd.array([1, 2, 1, 10], dtype="Int64")):
        assert diagnose(probs, labels, sites).site_names == ("1", "2", "10")
    columns = {"site": arrow.array([1.0, 2.0, 1.0, 10.0]), "label": labels, "a": [0.5] * 4, "b": [0.5] * 4}
    parquet.write_table(arrow.table(columns), tmp_path / "some.parquet")
    assert read_predictions(tmp_path / "some.parquet", ColumnOptions()).site_names == ("1", "2", "10")


def test_sites_of_very_long_numbers_are_sorted() -> None:
    sites = ["9" * 5000, "site 10", "site 9", "10"]
    found = diagnose([[0.5, 0.5]] * 4, [0, 1, 0, 1], sites).site_names
    assert found == ("10", "9" * 5000, "site 9", "site 10")


def test_class_counts_name_sites_as_they_are_written() -> None:
    counts = {"01": {"a": 1, "b": 2}, "1": {"a": 3, "b": 4}}
    found = diagnose([[0.5, 0.5]] * 4, [0, 1, 0, 1], ["01", "1"] * 2, ["a", "b"], counts)
    assert found.holdings.counts.tolist() == [[1, 2], [3, 4]]


def test_labels_that_are_bytes(tmp_path: Path) -> None:
    data = made_up(300)
    arrays = {"labels": data.label_names, "sites": data.sites, "class_names": data.names}
    np.savez(tmp_path / "some.npz", probs=data.probs, **{name: np.array(some, "S") for name, some in arrays.items()})
    assert_same(read_predictions(tmp_path / "some.npz", ColumnOptions()), in_memory(data))
    columns = dict(zip(data.names, data.probs.T, strict=True))
    words = {"label": data.label_names, "site": data.sites.tolist()}
    table = {name: arrow.array([word.encode() for word in some], arrow.binary()) for name, some in words.items()}
    parquet.write_table(arrow.table(table | columns), tmp_path / "some.parquet")
    assert_same(read_predictions(tmp_path / "some.parquet", ColumnOptions()), in_memory(data))


@pytest.mark.parametrize("index", ["uint8", "uint32", "int16"])
def test_parquet_dictionaries_with_any_index(tmp_path: Path, index: str) -> None:
    data = made_up(300)
    kind = arrow.dictionary(getattr(arrow, index)(), arrow.string())
    words = {"label": data.label_names, "site": data.sites.tolist()}
    table = {name: arrow.array(some).dictionary_encode().cast(kind) for name, some in words.items()}
    table |= dict(zip(data.names, data.probs.T, strict=True))
    parquet.write_table(arrow.table(table), tmp_path / "some.parquet")
    assert_same(read_predictions(tmp_path / "some.parquet", ColumnOptions()), in_memory(data))


def test_csv_with_spaces_after_the_commas(tmp_path: Path) -> None:
    data = made_up(60)
    path = write_csv(tmp_path / "some.csv", rows_of(data))
    path.write_text(path.read_text().replace(",", ", "))
    assert_same(read_predictions(path, ColumnOptions()), in_memory(data))


def test_csv_with_quotation_marks_inside_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin no quotation, so that lines end where they end."""
    monkeypatch.setattr(csv_blocks, "BLOCK", 1000)
    path = tmp_path / "some.csv"
    path.write_text('label,site,a,b\na,5" wide,0.5,0.5\n' + "b,wide,0.5,0.5\n" * 500, encoding="utf-8")
    found = read_predictions(path, ColumnOptions())
    assert found.site_names == ('5" wide', "wide")
    assert found.tally.samples.tolist() == [[1, 0], [0, 500]]


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_row_numbers_of_pandas_are_no_class(tmp_path: Path, name: str, kind: str) -> None:
    data = made_up(60)
    frame = pd.DataFrame(data.probs, columns=list(data.names)).assign(label=data.label_names, site=data.sites)
    frame.insert(0, name, range(60))
    path = tmp_path / f"some.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    else:
        parquet.write_table(arrow.Table.from_pandas(frame, preserve_index=False), path)
    found = read_predictions(path, ColumnOptions())
    assert found.class_names == data.names
    np.testing.assert_allclose(found.tally.sums, in_memory(data).tally.sums)
    assert any("Left out as row numbers" in note for note in diagnosis_of(found, "some").notes)


def test_pandas_with_masks() -> None:
    data = made_up(300)
    frame = pd.DataFrame(data.probs).astype("Float64")
    found = diagnose(frame, pd.Series(data.label_names, dtype="string"), pd.Series(data.sites), data.names)
    np.testing.assert_allclose(found.everywhere.means, diagnose(data.probs, data.labels).everywhere.means)


def test_columns_of_a_frame_are_the_names_of_the_classes() -> None:
    data = made_up(300)
    found = diagnose(pd.DataFrame(data.probs, columns=list(data.names)), data.label_names)
    assert found.class_names == data.names
    assert diagnose(pd.DataFrame(data.probs), data.labels).class_names == ("0", "1", "2")


def test_a_partition_that_only_a_model_file_names_is_not_run() -> None:
    saved = SimpleNamespace(spec=SimpleNamespace(partition="mine"))
    with pytest.raises(FedGAError, match="names the partition 'mine', which is none of fedga's own: name it"):
        SavedModel.federation(saved, load_dataset("digits"))  # type: ignore[arg-type]
