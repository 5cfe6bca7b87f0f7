"""Folders of pictures: one sub-folder per class, or per client and class; Tiny-ImageNet's own arrangement."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedga.data.assemble import Parts, Samples
from fedga.data.formats.files import Progress, read_whole, reading
from fedga.data.formats.images import SUFFIXES, decode
from fedga.errors import FedGAError, quoted

_TRAIN = ("train", "training")
CLIENTS, CLASSES = "clients", "classes"
_TEST = ("test", "testing", "val", "valid", "validation")


@dataclass(frozen=True)
class Listing:
    """Picture files with their classes, found before any is decoded."""

    where: str
    files: tuple[Path, ...]
    labels: tuple[str, ...]
    clients: tuple[str, ...] = ()

    def read(self, channels: int | None, progress: Progress | None, **sizes: Any) -> Samples:
        encoded = ((str(path), read_whole(path, "a picture")) for path in self.files)
        what = f"decoding {self.where}"
        inputs = decode(encoded, len(self.files), channels=channels, progress=progress, what=what, **sizes)
        clients = np.array(self.clients, dtype=str) if self.clients else None
        return Samples(inputs, np.array(self.labels, dtype=str), self.where, clients)


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

    def read(self, progress: Progress | None, **sizes: Any) -> Parts:
        """Both splits; ``sizes`` are those of `images.decode`."""
        test = self.test.read(self.channels, progress, **sizes) if self.test else None
        train = self.train.read(self.channels, progress, **sizes)
        if test is not None and test.inputs.shape[1] != train.inputs.shape[1]:
            return PictureFolder(self.train, self.test, self.class_names, channels=3).read(progress, **sizes)
        if test is not None and test.inputs.shape[2:] != train.inputs.shape[2:] and "of_one_size" in sizes:
            trained = f"training samples of {train.where} have shape {train.inputs.shape[1:]}"
            tested = f"test samples of {test.where} have shape {test.inputs.shape[1:]}"
            raise FedGAError(f"{trained} but {tested}: {sizes['of_one_size']}")
        return Parts(train, test, self.class_names)


def image_folder(root: Path, outer: str | None = None) -> PictureFolder:
    """``root/train/<class>/*`` with ``root/test/<class>/*``, or just ``root/<class>/*``.

    Clients may stand before the class or before the split: ``root/<client>/<class>/*``, ``root/train/<client>/<class>``
    or ``root/<client>/train/<class>``. ``outer`` says whether of folders in folders the outer are ``CLIENTS`` or
    ``CLASSES``; without it they are clients where two of them have folders of one name in them. A folder of ``root``
    that is called like a split is one.
    """
    folders = {path.name.lower(): path for path in _subfolders(root)}
    train = next((folders[name] for name in _TRAIN if name in folders), None)
    test = next((folders[name] for name in _TEST if name in folders), None)
    if test and not train:
        raise FedGAError(f"{root} has the folder {test.name} but no folder train: add {root / 'train'}")
    if train is None and outer != CLASSES and (splits := _splits_of_clients(folders.values())):
        trained, tested = splits
        return PictureFolder(
            _of_clients(root, trained), _without_clients(_of_clients(root, tested)) if tested else None
        )
    trained_on = _split(train or root, outer)
    if test is None:
        return PictureFolder(trained_on, None)
    flat = not trained_on.clients or any(map(_holds_pictures, _subfolders(test)))
    return PictureFolder(trained_on, _without_clients(_split(test, CLASSES if flat else CLIENTS)))


def _split(root: Path, outer: str | None) -> Listing:
    folders = _subfolders(root)
    if (outer or _outer(root, folders)) == CLASSES:
        return _by_class(root)
    return _of_clients(root, {folder.name: folder for folder in folders})


def _outer(root: Path, folders: Sequence[Path]) -> str:
    """What folders are that may hold further ones; refused where the names do not say."""
    inner = [[path.name for path in _subfolders(folder)] for folder in folders if not _holds_pictures(folder)]
    names = {name for each in inner for name in each}
    if len(inner) < len(folders) or not all(inner) or len(names) < 2:  # pictures of a class may all lie in one folder
        return CLASSES
    if len(names) < sum(map(len, inner)):
        return CLIENTS
    found = f"{folders[0].name}/{inner[0][0]}"
    cure = "give --client-column outer if the outer ones are clients, --label-column outer if they are classes"
    raise FedGAError(f"{root} has folders in its folders ({found}), each of another name: {cure}")


def _splits_of_clients(folders: Iterable[Path]) -> tuple[dict[str, Path], dict[str, Path]] | None:
    """Folders of training and of test pictures by client, where every folder has the former, and nothing else."""
    trained, tested = dict[str, Path](), dict[str, Path]()
    for folder in folders:
        for inside in _subfolders(folder):
            kind = trained if inside.name.lower() in _TRAIN else tested if inside.name.lower() in _TEST else None
            if kind is None or folder.name in kind:
                return None
            kind[folder.name] = inside
        if folder.name not in trained:
            return None
    return (trained, tested) if trained else None


def _of_clients(root: Path, places: Mapping[str, Path]) -> Listing:
    """The folders of classes in each client's."""
    of_each = [(client, _by_class(folder)) for client, folder in places.items()]
    if not of_each:
        raise FedGAError(f"{root} has no folders of pictures: make one folder per client, with one per class in each")
    clients = tuple(client for client, found in of_each for _ in found.files)
    files, labels = ([value for _, found in of_each for value in getattr(found, name)] for name in ("files", "labels"))
    return Listing(str(root), tuple(files), tuple(labels), clients)


def _without_clients(listing: Listing) -> Listing:
    return replace(listing, clients=())


def _holds_pictures(folder: Path) -> bool:
    with reading(folder, "a folder of pictures"):
        return any(path.suffix.lower() in SUFFIXES and not path.is_dir() for path in folder.iterdir())


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
