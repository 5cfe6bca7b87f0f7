"""Folders of pictures: one sub-folder per class, and Tiny-ImageNet's own arrangement."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedga.data.assemble import Parts, Samples
from fedga.data.formats.files import Progress, read_whole, reading
from fedga.data.formats.images import SUFFIXES, decode
from fedga.errors import FedGAError, quoted

_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation")


@dataclass(frozen=True)
class Listing:
    """Picture files with their classes, found before any is decoded."""

    where: str
    files: tuple[Path, ...]
    labels: tuple[str, ...]

    def read(self, channels: int | None, progress: Progress | None) -> Samples:
        encoded = ((str(path), read_whole(path, "a picture")) for path in self.files)
        what = f"decoding {self.where}"
        inputs = decode(encoded, len(self.files), channels=channels, progress=progress, what=what)
        return Samples(inputs, np.array(self.labels, dtype=str), self.where)


def _listing(where: Path, pictures: Mapping[str, Sequence[Path]]) -> Listing:
    files = tuple(path for each in pictures.values() for path in each)
    return Listing(str(where), files, tuple(name for name, each in pictures.items() for _ in each))


@dataclass(frozen=True)
class PictureFolder:
    train: Listing
    test: Listing | None
    class_names: tuple[str, ...] = ()
    channels: int | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return self.train.files + (self.test.files if self.test else ())

    def read(self, progress: Progress | None) -> Parts:
        test = self.test.read(self.channels, progress) if self.test else None
        train = self.train.read(self.channels, progress)
        if test is not None and test.inputs.shape[1] != train.inputs.shape[1]:
            return PictureFolder(self.train, self.test, self.class_names, channels=3).read(progress)
        return Parts(train, test, self.class_names)


def image_folder(root: Path) -> PictureFolder:
    """``root/train/<class>/*`` with ``root/test/<class>/*``, or just ``root/<class>/*``."""
    folders = {path.name.lower(): path for path in _subfolders(root)}
    train = next((folders[name] for name in _TRAIN if name in folders), None)
    test = next((folders[name] for name in _TEST if name in folders), None)
    if test and not train:
        raise FedGAError(f"{root} has the folder {test.name} but no folder train: add {root / 'train'}")
    return PictureFolder(_by_class(train or root), _by_class(test) if test else None)


def any_pictures(root: Path) -> tuple[Path, ...]:
    """All pictures under a folder, whatever the folders inside it mean; or the one picture that ``root`` is."""
    if not root.is_dir():
        return (root,)
    found = _pictures_below(root)
    if not found:
        raise FedGAError(f"{root} holds no pictures: put some there ({', '.join(sorted(SUFFIXES))})")
    return tuple(found)


def _by_class(root: Path) -> Listing:
    pictures = {folder.name: _pictures_in(folder, root) for folder in _subfolders(root)}
    if not pictures:
        raise FedGAError(f"{root} has no folders of pictures: make one folder per class in it, or give a file")
    if empty := next((name for name, found in pictures.items() if not found), None):
        endings = ", ".join(sorted(SUFFIXES))
        raise FedGAError(f"{root / empty} holds no pictures: put some there ({endings}), or remove it")
    return _listing(root, pictures)


def _pictures_in(folder: Path, root: Path) -> list[Path]:
    """All pictures under a class's folder; links to folders inside it are not followed, which might never end."""
    if root.resolve().is_relative_to(folder.resolve()):
        raise FedGAError(f"{folder} links to a folder that it lies in itself: put the pictures of one class there")
    return _pictures_below(folder)


def _pictures_below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:  # else a folder that cannot be looked into would count as empty
        raise error

    with reading(folder, "a folder of pictures"):
        files = (Path(base) / name for base, _, names in os.walk(folder, onerror=refuse) for name in names)
        return sorted(path for path in files if path.suffix.lower() in SUFFIXES)


def _subfolders(root: Path) -> Sequence[Path]:
    with reading(root, "a folder"):
        return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def tiny_imagenet(root: Path) -> PictureFolder:
    """Tiny-ImageNet-200 as published: classes by sorted WordNet id, as on the Hub, the validation split for testing."""
    wnids = tuple(sorted(_lines(root / "wnids.txt")))
    _check_plain(root / "wnids.txt", wnids)
    trained = {wnid: sorted((root / "train" / wnid).glob("images/*")) for wnid in wnids}
    trained = {wnid: [path for path in found if path.suffix.lower() in SUFFIXES] for wnid, found in trained.items()}
    annotations = root / "val" / "val_annotations.txt"
    rows = [line.split("\t") for line in _lines(annotations)]
    if any(len(row) < 2 for row in rows):
        raise FedGAError(f"{annotations} has lines without a tab after the picture: replace it by an intact copy")
    _check_plain(annotations, [row[0] for row in rows])
    files = tuple(root / "val" / "images" / row[0] for row in rows)
    test = Listing(str(root / "val"), files, tuple(row[1].strip() for row in rows))
    if absent := next((path for path in test.files if not path.is_file()), None):
        raise FedGAError(f"{absent} is named in {annotations} but does not exist: unpack Tiny-ImageNet again")
    return PictureFolder(_listing(root / "train", trained), test, wnids, channels=3)


def _check_plain(path: Path, names: Sequence[str]) -> None:
    """A name with a slash would lead out of the data set's own folder."""
    if odd := [name for name in names if name in (".", "..") or Path(name).name != name]:
        raise FedGAError(f"{path} lists {quoted(odd[0])}, which is no plain name: replace it by an intact copy")


def _lines(path: Path) -> list[str]:
    content = read_whole(path, "a text file")
    with reading(path, "a text file"):
        return [line for line in content.decode("utf-8").splitlines() if line.strip()]
