"""Files of predictions that promise more than there is, that are no files, or whose cells have no end."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedga.data.formats import csv_files
from fedga.diagnosis.counts import holdings_of, read_counts
from fedga.diagnosis.diagnosis import diagnose
from fedga.diagnosis.reading.columns import ColumnOptions
from fedga.diagnosis.reading.tables import read_predictions
from fedga.errors import FedGAError
from tests.sentences import one_sentence

MEGABYTE = 1_000_000
Limit = Callable[[int], None]


def refused(path: Path, **options: object) -> str:
    with pytest.raises(FedGAError) as caught:
        read_predictions(path, ColumnOptions(**options))  # type: ignore[arg-type]
    return one_sentence(caught.value)


def refused_counts(path: Path) -> str:
    with pytest.raises(FedGAError) as caught:
        holdings_of(read_counts(str(path)), ("cat", "dog"), (), "given")
    return one_sentence(caught.value)


def npy(shape: tuple[int, ...], kind: str, values: bytes = b"") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_2_0(out, {"shape": shape, "fortran_order": False, "descr": kind})
    return out.getvalue() + values


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_only_files_are_opened(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe.{ending}")
    (tmp_path / f"endless.{ending}").symlink_to("/dev/zero")
    assert "is a pipe, where a plain file is expected: put a copy" in refused(tmp_path / f"pipe.{ending}")
    assert "is a device, where a plain file is expected: put a copy" in refused(tmp_path / f"endless.{ending}")


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_only_files_have_counts(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe.{ending}")
    assert "is a pipe, where a plain file is expected" in refused_counts(tmp_path / f"pipe.{ending}")


def test_arrays_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("probs.npy", npy((350_000_000, 1000), "<f8"))
        archive.writestr("labels.npy", npy((350_000_000,), "<i8"))
    assert "array 'probs' of" in (said := refused(path))
    assert "promises 2,800,000,000,128 bytes where 128 are, so it is damaged: replace it" in said


def test_labels_that_unpack_to_more_than_memory(tmp_path: Path, memory: Limit) -> None:
    path = tmp_path / "t.npz"
    np.savez_compressed(path, probs=np.full((MEGABYTE, 2), 0.5), labels=np.zeros(MEGABYTE, np.int64))
    assert path.stat().st_size < 50_000
    memory(5 * MEGABYTE)
    assert "array 'labels' of" in (said := refused(path))
    assert "give fewer samples, or use a machine with more memory" in said


def test_arrays_by_column_are_not_streamed(tmp_path: Path, memory: Limit) -> None:
    path = tmp_path / "t.npz"
    probs = np.full((2, 100_000), 0.5).T
    np.savez(path, probs=probs, labels=np.arange(100_000) % 2)
    memory(MEGABYTE)
    assert "stored column by column" in (said := refused(path))
    assert "store it row by row, with numpy.ascontiguousarray" in said
    np.savez(path, probs=np.ascontiguousarray(probs), labels=np.arange(100_000) % 2)
    assert read_predictions(path, ColumnOptions()).tally.samples.sum() == 100_000  # larger than memory, piece by piece


def test_classes_without_end(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("probs.npy", npy((1, 100 * MEGABYTE), "|u1", bytes(100 * MEGABYTE)))
        archive.writestr("labels.npy", npy((1,), "|u1", b"0"))
    assert "has 100,000,000 classes, too many for one page" in refused(path)


def test_wide_tables(tmp_path: Path) -> None:
    names = [f"p_{i}" for i in range(20_000)]
    row = ",".join(["0.5"] * len(names))
    (tmp_path / "t.csv").write_text(f"{','.join(names)},label\n{row},0\n{row},1\n")
    assert "has 20,000 classes, too many for one page, which holds 4,472: put" in refused(tmp_path / "t.csv")
    assert "has 20,000 classes" in refused(tmp_path / "t.csv", probability_columns=("p_*",))
    assert "unknown label column" in refused(tmp_path / "t.csv", label_column="truth")
    found = read_predictions(tmp_path / "t.csv", ColumnOptions(probability_columns=("p_0", "p_1")))
    assert found.class_names == ("0", "1")


def test_confusion_of_classes_needs_memory(tmp_path: Path, memory: Limit) -> None:
    memory(10 * MEGABYTE)
    with pytest.raises(FedGAError, match=r"of 1 site and 1,000 classes, needs 0.1 GB .*: put classes or sites"):
        diagnose(np.full((2, 1000), 1 / 1000), [0, 1])


def test_sites_need_memory() -> None:
    sites = [f"site {i}" for i in range(5000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedga.common.memory.available_memory", lambda: 10 * MEGABYTE)
        with pytest.raises(FedGAError, match=r"of 5,000 sites and 2 classes, needs .*: put classes or sites together"):
            diagnose(np.full((5000, 2), 0.5), np.arange(5000) % 2, sites)


def test_names_of_sites_have_an_end() -> None:
    with pytest.raises(FedGAError, match=r"a site has a name of 50,000 characters, 'xxx.*: name sites in at"):
        diagnose(np.full((4, 2), 0.5), [0, 1] * 2, ["x" * 50_000, "b"] * 2)


@pytest.mark.parametrize("name", ["a,b,note,label", "x" * 200_000 + ",b,note,label"])
def test_long_cells(name: str, tmp_path: Path) -> None:
    cell = "x" * 200_000 if name.startswith("a") else "x"
    (tmp_path / "t.csv").write_text(f"{name}\n0.5,0.5,{cell},a\n0.5,0.5,y,b\n")
    said = refused(tmp_path / "t.csv")
    assert "has a cell of more than 131,072 characters: shorten it, remove its column, or close the quotation" in said


def test_a_long_name_of_a_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{'x' * 2000},b,label\n0.5,0.5,b\n")
    assert "a column whose name has 2,000 characters: use at most 1,000" in refused(tmp_path / "t.csv")


def test_lines_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_files, "LONGEST_LINE", 200_000)
    (tmp_path / "t.csv").write_text("0.5," * 100_000)
    assert "has a line of more than" in refused(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("p_a,p_b,label\n0.5,0.5,a\n" + "0.5," * 100_000)
    assert "which is no row of a table: end every row with a line feed" in refused(tmp_path / "t.csv")


def test_one_word_for_many_rows(tmp_path: Path) -> None:
    """A megabyte that is written once: 1.6 kB on disk, 100 GB in memory if every row had a copy."""
    path = tmp_path / "t.parquet"
    word = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), pa.array(["x" * MEGABYTE]))
    table = pa.table({"p_a": np.full(100_000, 0.5), "p_b": np.full(100_000, 0.5), "label": word})
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)
    assert path.stat().st_size < 10_000
    before = pa.default_memory_pool().max_memory()
    assert "row 1 of" in (said := refused(path))
    assert "has label 'xxx" in said
    assert pa.default_memory_pool().max_memory() <= max(before, 100 * MEGABYTE)


def test_words_of_other_rows_are_no_sites(tmp_path: Path) -> None:
    """Columns that are read as a list of words and places may list words that no row has."""
    sites = pa.DictionaryArray.from_arrays(pa.array([0, 2] * 5), pa.array(["north", "nowhere", "south"]))
    table = pa.table({"p_a": [0.5] * 10, "p_b": [0.5] * 10, "label": ["a", "b"] * 5, "site": sites})
    pq.write_table(table, tmp_path / "t.parquet")
    assert read_predictions(tmp_path / "t.parquet", ColumnOptions()).site_names == ("north", "south")


def test_counts_larger_than_memory(tmp_path: Path, memory: Limit) -> None:
    memory(MEGABYTE)
    for name in ("t.json", "t.csv"):
        (tmp_path / name).write_text("x" * 100_000)
        assert "give a file with one number per class" in refused_counts(tmp_path / name)


def test_counts_in_bad_files(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[" * 100_000)
    assert "is not a JSON file, or is damaged" in refused_counts(tmp_path / "t.json")
    (tmp_path / "t.json").write_text('{"cat": 1, "dog": 1' + "0" * 400 + "}")
    assert "the count of class 'dog' is 1000" in refused_counts(tmp_path / "t.json")
    (tmp_path / "t.csv").write_text(f"class,count,{'x' * 200_000}\ncat,1\n")
    assert "has a cell of more than 131,072 characters" in refused_counts(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("class,count\ncat,1\ndog\n")
    assert "the count of class 'dog' is None" in refused_counts(tmp_path / "t.csv")


def test_wide_counts_do_not_multiply(tmp_path: Path) -> None:
    """Ten thousand columns that ten thousand short rows leave empty are not a hundred million cells."""
    names = ",".join(f"x{i}" for i in range(10_000))
    (tmp_path / "t.csv").write_text(f"class,count,{names}\n" + "".join(f"c{i},1\n" for i in range(10_000)))
    assert len(read_counts(str(tmp_path / "t.csv"))) == 10_000


def test_texts_are_no_formulas(tmp_path: Path) -> None:
    probs = np.tile([[0.9, 0.1], [0.2, 0.8]], (20, 1))
    names = ["=1+1", "@x"]
    found = diagnose(probs, names * 20, ["+site", "-site"] * 20, class_names=names)
    found.write(tmp_path / "page.html")
    rows = {
        kind: list(csv.DictReader((tmp_path / f"page-{kind}.csv").read_text().splitlines()))
        for kind in ("classes", "sites", "cells")
    }
    assert [row["class"] for row in rows["classes"]] == ["'=1+1", "'@x"]
    assert {row["site"] for row in rows["sites"]} == {"'+site", "'-site"}
    assert {row["class"] for row in rows["cells"]} == {"'=1+1", "'@x"}
    assert all(not row["missed"].startswith("'") for row in rows["cells"])
    described = json.loads((tmp_path / "page-numbers.json").read_text())
    assert [row["class"] for row in described["classes"]] == names  # which is no spreadsheet
