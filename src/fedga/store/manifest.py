"""A set of files that is swapped in whole: parts under names of their own, and one manifest that says which count.

Parts lie in a folder ``parts``, called after their content (``metrics-1f0c9a77.parquet``), so that a new set can be
written beside the old one, which counts until the manifest is replaced, in one step. A kill or a full disk leaves the
old set or the new one. The manifest has the size and SHA-256 of every part, and a SHA-256 of itself.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedga.common.files import open_regular, partial_name, remove_leftovers, sync_folder, write_whole
from fedga.common.sealed import DamagedError, digest_of_json
from fedga.errors import FedGAError, quoted

FILE_NAME, PARTS = "manifest.json", "parts"
FORMAT = "fedga-archive-2"
_BLOCK = 1 << 20
_MOST_BYTES = 64 << 20  # of a manifest
# What a part may be called, and the file it is in: letters that every file system takes, and no way out of the folder.
_NAMED = re.compile(r"((checkpoints|models)/)?[\w=+. -]+\.(parquet|jsonl|npz|sqlite|safetensors|json)")
_PART = re.compile(r"[\w=+. -]+-(?P<digest>[0-9a-f]{8})\.[a-z]+")


@dataclass(frozen=True)
class Part:
    file: str  # its name in the folder of parts
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The parts of a set by what they are called where they belong, such as ``checkpoints/group-0001….safetensors``."""

    kind: str
    parts: Mapping[str, Part]

    def to_json(self) -> str:
        parts = {name: [part.file, part.size, part.sha256] for name, part in sorted(self.parts.items())}
        content = {"format": FORMAT, "kind": self.kind, "parts": parts}
        return json.dumps({**content, "sha256": digest_of_json(content)}, indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is none. One that is damaged, or of a newer version, is refused."""
    path = folder / FILE_NAME
    try:
        with open_regular(path) as file:
            text = file.read(_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FedGAError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    broken = DamagedError(f"{path} is damaged, or is not the manifest of an archive: bring a whole copy")
    try:
        content = json.loads(text)
        if content.pop("sha256") != digest_of_json(content):
            raise broken
        if content["format"] != FORMAT:
            raise FedGAError(f"{path} is of format {quoted(content['format'])}: read it with a newer fedga")
        parts = {name: Part(str(file), int(size), str(sha)) for name, (file, size, sha) in content["parts"].items()}
        if not all(_NAMED.fullmatch(name) and _PART.fullmatch(part.file) for name, part in parts.items()):
            raise broken
        return Manifest(str(content["kind"]), parts)
    except FedGAError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise broken from None


def check_parts(folder: Path, manifest: Manifest) -> dict[str, Path]:
    """Where the parts lie; a set from which one is missing, or not as it was written, is refused."""
    paths = {name: folder / PARTS / part.file for name, part in manifest.parts.items()}
    for path, part in zip(paths.values(), manifest.parts.values(), strict=True):
        try:
            whole = _sha256(path, part.size) == part.sha256
        except FileNotFoundError:
            sentence = f"the archive {str(folder)!r} is incomplete ({part.file} is missing): bring a whole copy"
            raise DamagedError(sentence) from None
        except OSError as error:
            raise FedGAError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
        if not whole:
            raise DamagedError(f"{path} is damaged (it does not match the archive's manifest): bring a whole copy")
    return paths


def _sha256(path: Path, size: int) -> str:
    """Of a file; one of another size than promised is not read, and has none."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if os.fstat(file.fileno()).st_size == size else ""


class Writer:
    """A new set of parts, that nobody sees before all of them are there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / PARTS
        self.parts: dict[str, Part] = {}
        self.made: list[Path] = []  # files that were not there before

    def add(self, name: str, content: bytes | Path) -> None:
        """A part from bytes, or copied from a file."""
        if not _NAMED.fullmatch(name):
            raise FedGAError(f"{quoted(name)} is no name of ours, and an archive holds no others: move it elsewhere")
        called, digest, size = PurePosixPath(name), hashlib.sha256(), 0
        partial = partial_name(self.folder / called.name)
        source = io.BytesIO(content) if isinstance(content, bytes) else open_regular(content)
        try:
            with source, partial.open("xb") as file:
                while block := source.read(_BLOCK):
                    file.write(block)
                    digest.update(block)
                    size += len(block)
                file.flush()
                os.fsync(file.fileno())
            final = self.folder / f"{called.stem}-{digest.hexdigest()[:8]}{called.suffix}"
            if not final.exists():
                self.made.append(final)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
        self.parts[name] = Part(final.name, size, digest.hexdigest())


@contextmanager
def replacing(folder: Path, kind: str) -> Iterator[Writer]:
    """Write a new set into a folder: it takes the place of the one there at the end of the block, or not at all."""
    (folder / PARTS).mkdir(parents=True, exist_ok=True)
    if (folder / PARTS).is_symlink():
        raise FedGAError(f"{folder / PARTS} is a link, where a folder of its own is expected: remove it")
    writer = Writer(folder)
    try:
        yield writer
        manifest = Manifest(kind, writer.parts)
        check_parts(folder, manifest)
        sync_folder(folder / PARTS)
        write_whole(folder / FILE_NAME, manifest.to_json(), synced=True)
    except BaseException:
        current = None
        with suppress(FedGAError):
            current = read_manifest(folder)
        for path in writer.made if current is None or current.parts != writer.parts else ():
            path.unlink(missing_ok=True)  # not where an interrupt came right after the swap
        raise
    sync_folder(folder)
    # Remove parts of the set that was replaced, or of a writer that was killed: files called after their own content.
    counted = {part.file for part in manifest.parts.values()}
    for path in (folder / PARTS).iterdir():
        named = _PART.fullmatch(path.name)
        if not named or path.name in counted or path.is_symlink() or not path.is_file():
            continue
        if _sha256(path, path.stat().st_size).startswith(named["digest"]):
            path.unlink(missing_ok=True)
    for place in (folder, folder / PARTS):
        remove_leftovers(place)
