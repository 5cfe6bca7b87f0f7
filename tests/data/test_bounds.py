"""Files that promise more than there is, that are no files, or that never end: refused before they are unpacked."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from PIL import Image

from fedga.data import cache as cache_module
from fedga.data import load_dataset
from fedga.data.formats import csv_files
from fedga.data.formats.files import reading, within_memory
from fedga.data.formats.parquet import _rows_at_once
from fedga.data.site import columns_digest, load_site
from fedga.errors import FedGAError
from tests.data.data_makers import pictures, write_parquet, write_picture_classes
from tests.patience import PATIENCE_S
from tests.sentences import one_sentence
from tests.store.conftest import unprivileged

MEGABYTE = 1_000_000
Limit = Callable[[int], None]


def refused(name: str | Path, **options: object) -> str:
    with pytest.raises(FedGAError) as caught:
        load_dataset(name, **options)  # type: ignore[arg-type]
    return one_sentence(caught.value)


def npy_header(shape: tuple[int, ...], kind: str) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_2_0(out, {"shape": shape, "fortran_order": False, "descr": kind})
    return out.getvalue()


# --- what is no file ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
@pytest.mark.parametrize("load", [load_dataset, lambda path: load_site(path, ["a", "b"])])
def test_only_files_are_opened(ending: str, load: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe.{ending}")
    (tmp_path / f"endless.{ending}").symlink_to("/dev/zero")
    (tmp_path / f"linked.{ending}").symlink_to(tmp_path / f"pipe.{ending}")
    for name, kind in (("pipe", "a pipe"), ("endless", "a device"), ("linked", "a pipe")):
        with pytest.raises(FedGAError, match=rf"{name}.{ending} is {kind}, where a plain file is expected: put a copy"):
            load(tmp_path / f"{name}.{ending}")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_are_compared_of_files_alone(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe.{ending}")
    with pytest.raises(FedGAError, match="is a pipe"):
        columns_digest(tmp_path / f"pipe.{ending}")


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "blob", x=np.eye(10), y=np.arange(10) % 2)
    (tmp_path / "mine.npz").symlink_to(tmp_path / "blob.npz")
    assert load_dataset(tmp_path / "mine.npz").num_classes == 2


def test_pictures_that_are_no_files(tmp_path: Path) -> None:
    write_picture_classes(tmp_path, pictures(2, (1, 8, 8)), ["a", "b"])
    os.mkfifo(tmp_path / "a" / "x.png")
    assert "a/x.png is a pipe" in refused(tmp_path)
    (tmp_path / "a" / "x.png").unlink()
    (tmp_path / "a" / "x.png").symlink_to("/dev/zero")
    assert "a/x.png is a device" in refused(tmp_path)
    (tmp_path / "a" / "x.png").unlink()
    (tmp_path / "a" / "x.png").symlink_to("x.png")
    assert "x.png is not a file, or is damaged (" in refused(tmp_path)


def test_links_between_folders_end(tmp_path: Path) -> None:
    write_picture_classes(tmp_path / "all", pictures(10, (1, 8, 8)), ["a", "b"] * 5)
    (tmp_path / "all" / "a" / "again").symlink_to(tmp_path / "all")
    assert len(load_dataset(tmp_path / "all").train_targets) == 8
    (tmp_path / "all" / "c").symlink_to(tmp_path)
    assert "all/c links to a folder that it lies in itself" in refused(tmp_path / "all")


def test_a_folder_that_may_not_be_looked_into() -> None:
    """In a place that every user may enter, as one whom permissions bind."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        write_picture_classes(folder, pictures(10, (1, 8, 8)), ["a", "b"] * 5)
        (folder / "a" / "closed").mkdir(mode=0)
        with unprivileged():
            assert "may not be read" in refused(folder)


def test_tiny_imagenet_stays_in_its_folder(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    root.mkdir()
    (root / "wnids.txt").write_text("../../elsewhere\n")
    assert "lists '../../elsewhere', which is no plain name" in refused("tiny-imagenet", data_dir=tmp_path)


def test_a_damaged_cache_of_pipes_is_rebuilt(tmp_path: Path, cache: Path) -> None:
    write_picture_classes(tmp_path / "all", pictures(10, (1, 8, 8)), ["a", "b"] * 5)
    first = load_dataset(tmp_path / "all")
    [entry] = (cache / "decoded").iterdir()
    for name in ("meta.json", "train_inputs.npy"):
        (entry / name).unlink()
        os.mkfifo(entry / name)
        again = load_dataset(tmp_path / "all")
        np.testing.assert_array_equal(again.train_inputs, first.train_inputs)
        assert isinstance(again.train_inputs, np.memmap)


# --- arrays ---------------------------------------------------------------------------------------


def test_an_array_that_is_not_there(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("x.npy", npy_header((350_000_000, 1000), "<f8"))
        archive.writestr("y.npy", npy_header((350_000_000,), "<i8"))
    said = refused(tmp_path / "t.npz")
    assert "array 'x' of" in said
    assert "promises 2,800,000,000,128 bytes where 128 are, so it is damaged: replace it by an intact copy" in said


def test_arrays_that_unpack_to_more_than_memory(tmp_path: Path, memory: Limit) -> None:
    np.savez_compressed(tmp_path / "t.npz", x=np.zeros((MEGABYTE, 4), np.uint8), y=np.zeros(MEGABYTE, np.uint8))
    assert (tmp_path / "t.npz").stat().st_size < 20_000
    memory(3 * MEGABYTE)
    assert re.search(r"array 'x' of .* needs 0.00 GB of memory, .*: give fewer samples", refused(tmp_path / "t.npz"))


def test_arrays_of_other_names_are_not_read(tmp_path: Path, memory: Limit) -> None:
    np.savez(tmp_path / "t.npz", x=np.eye(10, dtype=np.float32), y=np.arange(10) % 2, other=np.zeros(MEGABYTE))
    memory(MEGABYTE)
    assert load_dataset(tmp_path / "t.npz").num_classes == 2


def test_names_of_classes_without_end(tmp_path: Path, memory: Limit) -> None:
    np.savez(tmp_path / "t.npz", x=np.eye(10), y=np.arange(10) % 2, class_names=np.zeros(MEGABYTE, np.uint8))
    memory(50 * MEGABYTE)
    assert "name every class once in it" in refused(tmp_path / "t.npz")


# --- the files of authors -------------------------------------------------------------------------


def idx(shape: tuple[int, ...], values: bytes) -> bytes:
    return bytes((0, 0, 8, len(shape))) + b"".join(struct.pack(">I", length) for length in shape) + values


def write_mnist(folder: Path, train_images: bytes, zipped: bool) -> None:
    contents = {
        "train-images-idx3-ubyte": train_images,
        "train-labels-idx1-ubyte": idx((1,), b"0"),
        "t10k-images-idx3-ubyte": idx((1, 28, 28), bytes(784)),
        "t10k-labels-idx1-ubyte": idx((1,), b"0"),
    }
    for name, content in contents.items():
        path = folder / (name + ".gz" * zipped)
        path.write_bytes(gzip.compress(content) if zipped else content)


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_promises(zipped: bool, tmp_path: Path) -> None:
    write_mnist(tmp_path, idx((2**32 - 1, 2**32 - 1, 784), b""), zipped)
    said = refused("mnist", data_dir=tmp_path)
    assert "GB are free here: replace it by an intact copy if it should be smaller, or use a machine" in said
    write_mnist(tmp_path, idx((1, 28, 28), bytes(100 * MEGABYTE)), zipped)
    assert "its header promises 784 values and more follow" in refused("mnist", data_dir=tmp_path)
    write_mnist(tmp_path, idx((1000, 1000, 784), bytes(10)), zipped)
    assert "its header promises 784000000 values and 10 follow" in refused("mnist", data_dir=tmp_path)


def test_cifar_archive_that_unpacks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedga.data.formats.originals._MOST_UNPACKED", MEGABYTE)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        member = tarfile.TarInfo("x" * 200)
        member.size = 2 * MEGABYTE
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(gzip.compress(content.getvalue()))
    assert "unpacks to more than 1,000,000 bytes" in refused("cifar10", data_dir=tmp_path)


def test_cifar_labels_that_multiply(tmp_path: Path) -> None:
    """Lists of lists of the same list: a few hundred bytes that stand for 10 ** 12 numbers."""
    labels: object = 0
    for _ in range(12):
        labels = [labels] * 10
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        batch = {b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": labels}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    assert "labels that are no whole numbers" in refused("cifar100", data_dir=tmp_path)


def test_mat_that_unpacks_to_more_than_memory(tmp_path: Path, memory: Limit) -> None:
    content = {"X": np.zeros((32, 32, 3, 1000), np.uint8), "y": np.ones((1000, 1), np.uint8)}
    for split in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{split}_32x32.mat", content, do_compression=True)
    memory(5 * MEGABYTE)
    assert "train_32x32.mat needs 0.01 GB of memory" in refused("svhn", data_dir=tmp_path)


# --- pictures -------------------------------------------------------------------------------------


def blank(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("1", (width, height)).save(out, "PNG")
    return out.getvalue()


def test_large_pictures(tmp_path: Path, memory: Limit) -> None:
    data = blank(13_000, 13_000)
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    memory(1000 * MEGABYTE)
    said = refused(tmp_path)  # without a word of Pillow's on bombs: warnings are errors here
    assert "4 pictures of 13,000x13,000 pixels, needs 2.0 GB of memory, and 1.0 GB are free here: shrink" in said


def test_pictures_beyond_what_pillow_opens(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(blank(20_000, 20_000))
    assert "a/0.png has more than 178,956,970 pixels: shrink the pictures" in refused(tmp_path)


def test_a_large_picture_among_small_ones_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_picture_classes(tmp_path, pictures(10, (1, 8, 8)), ["a", "b"] * 5)
    (tmp_path / "a" / "x.png").write_bytes(blank(13_000, 13_000)[:2000])  # its pixels would not be found
    assert "a/x.png is 13000x13000 pixels while" in refused(tmp_path)


def test_warnings_of_others_are_still_shown(tmp_path: Path) -> None:
    write_picture_classes(tmp_path, pictures(10, (1, 8, 8)), ["a", "b"] * 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_dataset(tmp_path)
        with pytest.raises(Image.DecompressionBombWarning):
            Image.open(io.BytesIO(blank(13_000, 13_000)))


def test_one_picture_for_many_rows(tmp_path: Path, memory: Limit) -> None:
    """A megabyte that is written once, for a hundred thousand rows: 1.6 kB on disk, 100 GB in memory."""
    cells = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), pa.array([bytes(MEGABYTE)]))
    table = pa.table({"image": cells, "label": np.arange(100_000) % 2})
    options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "store_schema": False}
    pq.write_table(table, tmp_path / "t.parquet", **options)
    assert (tmp_path / "t.parquet").stat().st_size < 5000
    memory(80 * MEGABYTE)
    assert _rows_at_once(pq.ParquetFile(tmp_path / "t.parquet"), "image") == 9  # of a megabyte each
    before = pa.default_memory_pool().max_memory()
    assert "row 0 of" in refused(tmp_path / "t.parquet")
    assert pa.default_memory_pool().max_memory() <= max(before, 200 * MEGABYTE)


# --- tables ---------------------------------------------------------------------------------------


def test_rows_without_end(tmp_path: Path) -> None:
    """Of zeros alone, a row costs nothing on disk; one group of rows is made, and stands there many times."""
    rows = MEGABYTE
    table = pa.table({"x": np.zeros(rows), "label": np.zeros(rows, np.int64)})
    with pq.ParquetWriter(tmp_path / "t.parquet", table.schema) as writer:
        writer.write_table(table, row_group_size=rows)
    shards = [tmp_path / f"train-{i:05d}-of-09999.parquet" for i in range(9999)]
    for shard in shards:
        os.link(tmp_path / "t.parquet", shard)
    (tmp_path / "t.parquet").unlink()
    said = refused(tmp_path)
    assert "and 9998 more, with 9,999,000,000 rows of 2 columns, needs 799.9 GB of memory" in said
    assert "give fewer rows or columns, or use a machine with more memory" in said


def test_one_text_for_many_rows(tmp_path: Path, memory: Limit) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), pa.array(["x" * MEGABYTE]))
    options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "store_schema": False}
    pq.write_table(pa.table({"x": np.zeros(100_000), "label": texts}), tmp_path / "t.parquet", **options)
    memory(50 * MEGABYTE)
    said = "column 'label' of .* has a text of 1,000,000 characters, where a label has at most 1,000: correct it"
    assert re.search(said, refused(tmp_path / "t.parquet"))
    pq.write_table(pa.table({"label": np.arange(100_000) % 2, "x": texts}), tmp_path / "t.parquet", **options)
    assert re.search("column 'x' of .* holds text such as 'xxx.*…', not numbers", refused(tmp_path / "t.parquet"))


def test_long_names_for_many_rows(tmp_path: Path, memory: Limit) -> None:
    texts = pa.array(["a" * 900, "b"]).take(pa.array(np.arange(100_000) % 2))
    pq.write_table(pa.table({"x": np.zeros(100_000), "label": texts}), tmp_path / "t.parquet")
    memory(50 * MEGABYTE)
    assert "write shorter names" in refused(tmp_path / "t.parquet")


def test_lists_are_not_read(tmp_path: Path, memory: Limit) -> None:
    lists = pa.array([[0] * 2 * MEGABYTE] * 2)
    pq.write_table(pa.table({"x": lists, "label": [0, 1]}), tmp_path / "t.parquet")
    memory(MEGABYTE)
    assert re.search(
        "'x' of .* holds list<.*>, not numbers: make it one column per number", refused(tmp_path / "t.parquet")
    )


def test_other_columns_beside_pictures_are_not_read(tmp_path: Path, memory: Limit) -> None:
    boxes: list[object] = [[0] * MEGABYTE] * 10
    write_parquet(tmp_path / "t.parquet", pictures(10, (1, 8, 8)), np.arange(10) % 2, extra={"boxes": boxes})
    memory(MEGABYTE)
    assert len(load_dataset(tmp_path / "t.parquet").train_targets) == 8


def test_wide_csv_is_read(tmp_path: Path) -> None:
    names = [f"column_{i}_é" for i in range(2000)]
    lines = [";".join([*names, "label"]), *(";".join(["0,5"] * 2000 + [str(row % 2)]) for row in range(10))]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    dataset = load_dataset(tmp_path / "t.csv")
    assert dataset.train_inputs.shape == (8, 2000)
    assert (dataset.train_inputs == 0.5).all()
    assert dataset.feature_names == tuple(names)
    assert len(columns_digest(tmp_path / "t.csv")) == 16
    assert len(refused(tmp_path / "t.csv", label_column="column_7_É")) < 1000


def test_csv_with_lines_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_files, "_BLOCK", 1000)
    rows = [f"{row},{'é' * 5000 if row == 7 else 'é'},{'ab'[row % 2]}" for row in range(20)]
    (tmp_path / "t.csv").write_text("x,client,label\n" + "\n".join(rows), encoding="utf-8")
    assert "column 'client' of" in (said := refused(tmp_path / "t.csv"))
    assert "has a text of 5,000 characters, where a client has at most 1,000" in said
    monkeypatch.setattr(csv_files, "LONGEST_LINE", 9000)
    assert "has a line of more than" in (said := refused(tmp_path / "t.csv"))
    assert "end every row with a line feed, and remove columns with very long cells" in said


def test_csv_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_files, "LONGEST_LINE", 100_000)
    (tmp_path / "t.csv").write_text("0.5," * 100_000)
    assert "has a line of more than" in refused(tmp_path / "t.csv")


def test_long_names_in_csv(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"a,{'x' * 200_000},label\n1,2,0\n")
    assert "a column whose name has 200,000 characters: use at most 1,000" in refused(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("header", "row", "size"), [("x,label", "0,1\n" * 5000, 100_000), ("x," * 999 + "label", "", MEGABYTE)]
)
def test_csv_larger_than_memory(header: str, row: str, size: int, tmp_path: Path, memory: Limit) -> None:
    (tmp_path / "t.csv").write_text(f"{header}\n{row}")
    memory(size)
    said = refused(tmp_path / "t.csv")
    assert re.search(r"t.csv, of 0 MB in [\d,]+ columns, needs .*: give fewer rows or columns", said)


# --- memory that ends all the same ----------------------------------------------------------------


def test_memory_that_ends_while_reading() -> None:
    for context in (reading("t.csv", "a table"), within_memory("t.csv")):
        with (
            pytest.raises(FedGAError, match=r"t.csv does not fit into the memory .*: give fewer samples, or use"),
            context,
        ):
            raise MemoryError


def test_splitting_needs_memory_too(tmp_path: Path, memory: Limit) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((100_000, 16), np.uint8), y=np.arange(100_000) % 2)
    memory(1_000_000)
    assert "array 'x'" in refused(tmp_path / "t.npz")
    sizes = iter([10 * MEGABYTE] * 2)  # for both arrays, and then for the copy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedga.common.memory.available_memory", lambda: next(sizes, 1000))
        assert "to split them, needs" in refused(tmp_path / "t.npz")


def test_under_a_limit_of_the_system(tmp_path: Path) -> None:
    """The whole program, with pictures whose promise fits the machine and not the process."""
    data = blank(13_000, 13_000)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(8):
            (tmp_path / name / f"{i}.png").write_bytes(data)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)); "
        "from fedga.data import load_dataset; load_dataset(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert "16 pictures of 13,000x13,000 pixels, needs 4.1 GB of memory" in done.stderr.splitlines()[-1]


# --- the cache ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train_inputs.npy", "train_targets.npy", "test_inputs.npy", "meta.json"])
def test_a_flipped_bit_in_the_cache_is_found(name: str, tmp_path: Path, cache: Path) -> None:
    write_picture_classes(tmp_path / "all", pictures(20, (1, 8, 8)), ["a", "b"] * 10)
    keys = ("train_inputs", "train_targets", "test_inputs", "test_targets")
    first = load_dataset(tmp_path / "all")
    right = {key: getattr(first, key).copy() for key in keys}  # what is mapped changes with the file
    [entry] = (cache / "decoded").iterdir()
    whole = bytearray((entry / name).read_bytes())
    place = whole.index(b'"a"') + 1 if name == "meta.json" else len(whole) - 1
    whole[place] ^= 2
    (entry / name).write_bytes(whole)
    again = load_dataset(tmp_path / "all")
    assert again.class_names == ("a", "b")
    for key in keys:
        np.testing.assert_array_equal(getattr(again, key), right[key])
    assert cache_module._open(entry, "all") is not None  # it is whole again


def test_an_entry_without_digests_is_rebuilt(tmp_path: Path, cache: Path) -> None:
    write_picture_classes(tmp_path / "all", pictures(20, (1, 8, 8)), ["a", "b"] * 10)
    load_dataset(tmp_path / "all")
    [entry] = (cache / "decoded").iterdir()
    described = (entry / "meta.json").read_text()
    (entry / "meta.json").write_text(described.replace('"digest"', '"other"'))
    assert cache_module._open(entry, "all") is None
    load_dataset(tmp_path / "all")
    assert (entry / "meta.json").read_text() == described


def test_digests_of_arrays_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_BLOCK", 16)
    values = np.arange(100, dtype=np.uint8)
    digests = {
        cache_module._digest_of_array(each) for each in (values, values[::-1], np.append(values, 0), values[:96])
    }
    assert len(digests) == 4
    assert cache_module._digest_of_array(values.reshape(10, 10)) in digests
