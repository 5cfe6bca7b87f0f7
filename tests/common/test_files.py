from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fedga.common.files import write_whole


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    assert write_whole(path, "α\nβ\r\n") == path
    assert path.read_bytes() == "α\nβ\r\n".encode()
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]


def test_bytes_replace_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"a longer file than the next")
    write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(partial: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_text_that_no_file_can_hold_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "a.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_or_a_file_in_the_way_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "taken", "new")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file" / "a.txt", "new")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "taken"]


def test_a_reader_sees_one_whole_file_while_others_write(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "a.txt", "0" * 50_000)
    writers = [
        threading.Thread(target=lambda sign=str(sign): [write_whole(path, sign * 50_000) for _ in range(20)])
        for sign in range(4)
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        text = path.read_text()
        assert len(text) == 50_000
        assert len(set(text)) == 1
    for writer in writers:
        writer.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
