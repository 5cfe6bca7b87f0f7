"""Files of every kind give the same numbers as arrays in memory, however they are written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from fedga.diagnosis import csv_blocks
from fedga.diagnosis.arrays import pieces_of, tally_arrays
from fedga.diagnosis.columns import Options
from fedga.diagnosis.predictions import read_predictions
from fedga.diagnosis.tally import Predictions
from tests.diagnosis.made_up import MadeUp, made_up, rows_of, write_csv, write_npz, write_parquet


def in_memory(data: MadeUp, **keywords: bool) -> Predictions:
    return tally_arrays(
        data.probs.shape, pieces_of(data.probs), data.labels, data.sites, data.names, "memory", **keywords
    )


def assert_same(found: Predictions, expected: Predictions) -> None:
    assert found.class_names == expected.class_names
    assert found.site_names == expected.site_names
    for field in dataclasses.fields(expected.tally):
        ours, theirs = getattr(found.tally, field.name), getattr(expected.tally, field.name)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=field.name)


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
    assert_same(read_predictions(write(kind, tmp_path, data), Options()), in_memory(data))


def test_csv_in_many_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_blocks, "BLOCK", 1000)
    data = made_up(3000)
    sites = np.where(data.sites == "site 1", 'a "quoted"\nsite, of two lines', data.sites)
    data = dataclasses.replace(data, sites=sites)
    assert_same(read_predictions(write_csv(tmp_path / "some.csv", rows_of(data)), Options()), in_memory(data))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_of_other_programs(tmp_path: Path, delimiter: str, end: str, mark: str) -> None:
    data = made_up(40)
    path = write_csv(tmp_path / "some.csv", rows_of(data), delimiter=delimiter, lineterminator=end)
    path.write_bytes(mark.encode() + path.read_bytes().rstrip())  # nor need the last line end
    assert_same(read_predictions(path, Options()), in_memory(data))


def test_csv_of_one_long_row(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("label,a,b\na,0.5,0.5\n\nb,0.25,0.75\n\n", encoding="utf-8")
    assert read_predictions(path, Options()).tally.sums[0].tolist() == [[0.5, 0.5], [0.25, 0.75]]


def test_labels_may_be_places_or_names(tmp_path: Path) -> None:
    data = made_up(60)
    rows = rows_of(data)
    numbered = [rows[0], *([site, label, *rest] for (site, _, *rest), label in zip(rows[1:], data.labels, strict=True))]
    assert_same(read_predictions(write_csv(tmp_path / "places.csv", numbered), Options()), in_memory(data))
    bare = [["site", "label", *data.names], *rows[1:]]
    assert_same(read_predictions(write_csv(tmp_path / "bare.csv", bare), Options()), in_memory(data))


def test_classes_called_by_numbers_are_names(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("label,1,2,3\n1,0.8,0.1,0.1\n3.0,0.1,0.1,0.8\n", encoding="utf-8")
    found = read_predictions(path, Options())
    assert found.class_names == ("1", "2", "3")
    assert found.tally.samples.tolist() == [[1, 0, 1]]


def test_columns_are_chosen_as_asked(tmp_path: Path) -> None:
    data = made_up(60)
    header, *rows = rows_of(data)
    longer = [["row", *header, "again"], *([at, *row, 7.0] for at, row in enumerate(rows))]
    path = write_csv(tmp_path / "some.csv", [["truth" if name == "label" else name for name in longer[0]], *longer[1:]])
    found = read_predictions(path, Options("truth", None, ("p_*",)))
    assert_same(found, in_memory(data))
    assert_same(read_predictions(path, Options("truth")), in_memory(data))  # a known prefix is enough
    assert read_predictions(path, Options("truth", "none")).site_names == ()


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_logits(tmp_path: Path, kind: str) -> None:
    data = made_up(500)
    shifted = dataclasses.replace(data, probs=np.log(data.probs) + 3.0)
    found = read_predictions(write(kind, tmp_path, shifted), Options(logits=True))
    expected = in_memory(data)
    np.testing.assert_allclose(found.tally.sums, expected.tally.sums, rtol=1e-12)
    assert found.tally.hits.tolist() == expected.tally.hits.tolist()


def test_one_column_is_the_probability_of_one_of_two_classes(tmp_path: Path) -> None:
    data = made_up(400, classes=2)
    for label, names in (("01", ("not ill", "ill")), (("healthy", "ill"), ("healthy", "ill"))):
        rows = [["label", "p_ill"], *([label[at], p] for at, p in zip(data.labels, data.probs[:, 1], strict=True))]
        found = read_predictions(write_csv(tmp_path / "some.csv", rows), Options())
        assert found.class_names == names
        np.testing.assert_allclose(found.tally.sums, in_memory(data).tally.pooled().sums, rtol=1e-12)
    np.savez(tmp_path / "one.npz", probs=data.probs[:, 1], labels=data.labels.astype(bool))
    found = read_predictions(tmp_path / "one.npz", Options())
    np.testing.assert_allclose(found.tally.sums, in_memory(data).tally.pooled().sums, rtol=1e-12)


def test_parquet_of_other_types(tmp_path: Path) -> None:
    data = made_up(300)
    columns = {name: arrow.array(data.probs[:, at].astype(np.float32)) for at, name in enumerate(data.names)}
    table = {"client": arrow.array(data.sites).dictionary_encode(), "y": arrow.array(data.labels, arrow.int8())}
    parquet.write_table(arrow.table(table | columns), tmp_path / "some.parquet", row_group_size=70)
    found, expected = read_predictions(tmp_path / "some.parquet", Options()), in_memory(data)
    assert found.site_names == expected.site_names
    np.testing.assert_allclose(found.tally.sums, expected.tally.sums, rtol=1e-6)


def test_npz_stored_by_columns_and_in_half_precision(tmp_path: Path) -> None:
    data = made_up(5000)
    np.savez(tmp_path / "some.npz", probs=np.asfortranarray(data.probs), labels=data.labels, sites=data.sites)
    found, expected = read_predictions(tmp_path / "some.npz", Options()), in_memory(data)
    np.testing.assert_allclose(found.tally.sums, expected.tally.sums, rtol=1e-12)
    np.savez(tmp_path / "half.npz", probs=data.probs.astype(np.float16), labels=data.labels)
    assert read_predictions(tmp_path / "half.npz", Options()).tally.samples.sum() == 5000


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_progress_reaches_the_end(tmp_path: Path, kind: str) -> None:
    seen: list[tuple[int, int]] = []
    path = write(kind, tmp_path, made_up(9000))
    read_predictions(path, Options(), lambda what, done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)
