"""Files that carry a digest: any flipped bit is noticed, and files of 0.1 are still read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedga.common.sealed import DamagedError, is_whole, seal, unseal
from fedga.errors import FedGAError

TENSORS = {"a": torch.arange(5.0), "b": torch.ones(3, dtype=torch.int64)}
METADATA = {"text": '"sha256":"' + "0" * 64 + '"', "more": "x"}  # what looks like the digest's place


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path, content = tmp_path / "f.safetensors", seal(TENSORS, METADATA)
    path.write_bytes(content)
    whole = unseal(path)
    assert whole.has_digest
    assert whole.metadata == METADATA
    assert all(torch.equal(whole.tensors[name], tensor) for name, tensor in TENSORS.items())
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedError):
            unseal(path)


@pytest.mark.parametrize("length", [0, 4, 8, 60, -1])
def test_a_cut_file_is_noticed(tmp_path: Path, length: int) -> None:
    path = tmp_path / "f.safetensors"
    path.write_bytes(seal(TENSORS, METADATA)[:length])
    assert not is_whole(path)
    with pytest.raises(DamagedError):
        unseal(path)


def test_a_file_without_digest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    save_file(TENSORS, path, {"000000": "run"})
    assert not unseal(path).has_digest
    assert unseal(path).metadata == {"000000": "run"}


def test_a_header_of_nested_brackets_is_refused(tmp_path: Path) -> None:
    path, header = tmp_path / "f.safetensors", b'{"__metadata__":' + b"[" * 200_000
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedError, match="header"):
        unseal(path)


def test_only_files_are_opened(tmp_path: Path) -> None:
    with pytest.raises(FedGAError, match="is a device"):
        unseal(Path("/dev/zero"))
    with pytest.raises(FedGAError, match="is a folder"):
        unseal(tmp_path)
    with pytest.raises(FileNotFoundError):
        unseal(tmp_path / "nothing")
