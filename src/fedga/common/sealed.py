"""Tensors in a safetensors file that carries a digest of its own content, so that damage is noticed before use.

The header holds the SHA-256 of the whole file as it is with zeros in the digest's place: a flipped bit anywhere, header
and digest included, is noticed before a number is used. Version 0.1 wrote files without digests; those are still read.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedga.common.files import open_regular
from fedga.common.memory import require_memory
from fedga.errors import FedGAError

if TYPE_CHECKING:
    from torch import Tensor

DIGEST = "sha256"  # the key in the file's metadata
_SIGN = {"sealed": "fedga"}  # that there is a digest, also where a flipped bit has renamed its key
_BLANK = "0" * 64
_LENGTH = 8  # bytes before the header that say how long it is
_LONGEST_HEADER = 100_000_000  # as the library has it
_BLOCK = 1 << 20


class DamagedError(FedGAError):
    """A file that is not as it was written; the caller says what to do about it."""


def digest_of_json(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Sealed:
    tensors: dict[str, "Tensor"]
    metadata: dict[str, str]  # without the digest
    has_digest: bool  # False: of version 0.1, or of somebody else


def seal(tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> bytes:
    """The content of a file with its digest in it; equal tensors and metadata are equal bytes."""
    from safetensors.torch import save

    content = memoryview(save({name: tensor.contiguous() for name, tensor in tensors.items()}))
    begin = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    described = {"__metadata__": dict(sorted({**metadata, **_SIGN, DIGEST: _BLANK}.items()))}
    described |= json.loads(bytes(content[_LENGTH:begin]))  # the library would write metadata in any order
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    length = len(header).to_bytes(_LENGTH, "little")
    digest = hashlib.sha256(length + header)
    digest.update(content[begin:])
    return b"".join((length, header.replace(_marked(_BLANK), _marked(digest.hexdigest()), 1), content[begin:]))


def unseal(path: Path) -> Sealed:
    """The tensors and metadata of a file, once it is sure that they are as they were written.

    Raises ``DamagedError`` for a file that is not whole, and ``FileNotFoundError`` where there is none.
    """
    from safetensors import SafetensorError, safe_open

    metadata = _verified(path)
    has_digest = DIGEST in metadata
    described = {name: value for name, value in metadata.items() if name not in (DIGEST, *_SIGN)}
    try:
        with safe_open(path, "pt") as file:
            return Sealed({name: file.get_tensor(name) for name in file.keys()}, described, has_digest)  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedError(f"{path} is not a whole safetensors file ({error})") from error


def is_whole(path: Path) -> bool:
    """Whether the file is there and, where it carries a digest, as it was written; only its header is parsed."""
    try:
        _verified(path)
    except (FedGAError, OSError):
        return False
    return True


def _verified(path: Path) -> dict[str, str]:
    """The metadata of a file whose digest, if it has one, is that of its content."""
    with open_regular(path) as file:
        require_memory(os.fstat(file.fileno()).st_size, str(path), "is it a model or checkpoint at all?")
        length = file.read(_LENGTH)
        size = int.from_bytes(length, "little")
        header = file.read(size) if len(length) == _LENGTH and size <= _LONGEST_HEADER else b""
        if not header or len(header) != size:
            raise DamagedError(f"{path} is not a whole safetensors file")
        metadata = _metadata(path, header)
        digest = metadata.get(DIGEST)
        if (digest is not None) != (_SIGN.items() <= metadata.items()):
            raise DamagedError(f"{path} is damaged (the digest of its content cannot be found)")
        if digest is None:
            return metadata
        hashed = hashlib.sha256(length)
        hashed.update(header.replace(_marked(digest), _marked(_BLANK), 1))
        while block := file.read(_BLOCK):
            hashed.update(block)
        if hashed.hexdigest() != digest:
            raise DamagedError(f"{path} is damaged (its content does not match its digest)")
    return metadata


def _metadata(path: Path, header: bytes) -> dict[str, str]:
    try:
        found = json.loads(header).get("__metadata__", {})
    except (ValueError, AttributeError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise DamagedError(f"{path} is not a whole safetensors file (its header cannot be read)")
    return found


def _marked(digest: str) -> bytes:
    return json.dumps({DIGEST: digest}, separators=(",", ":")).encode()[1:-1]
