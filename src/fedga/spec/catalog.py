"""The data sets known by name, of ``datasets.toml``, and how they are called and ordered in tables."""

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any


@dataclass(frozen=True)
class HubFile:
    """One file of a Hub repository at its pinned commit; ``sha256`` is empty where only the Hub states it."""

    path: str
    sha256: str = ""


@dataclass(frozen=True)
class Hub:
    repository: str
    revision: str  # a full commit, never a branch
    config: str
    train: HubFile
    test: HubFile

    @property
    def files(self) -> tuple[HubFile, HubFile]:
        return self.train, self.test


@dataclass(frozen=True)
class Source:
    """A data set known by name."""

    name: str
    title: str
    classes: int
    train_samples: int
    test_samples: int
    shape: tuple[int, int, int]  # channels, height, width
    licence: str
    citation: str
    augment: str = ""  # how training pictures are usually changed, as --augment takes it
    mirrored: bool = True  # whether a mirrored picture shows the same thing: --augment mirror
    class_names: tuple[str, ...] = ()  # empty where the files name the classes
    hub: Hub | None = None
    aliases: tuple[str, ...] = ()
    stems: tuple[str, ...] = ()  # Parquet files are STEM-train.parquet and STEM-test.parquet
    test_splits: tuple[str, ...] = ("test",)
    originals: tuple[str, ...] = ()  # the files of the data set's own authors

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The file names that are looked for, as a person would write them."""
        parquet = (f"{stem}-{split}.parquet" for stem in self.stems for split in ("train", self.test_splits[0]))
        return (*parquet, *self.originals)


def _read(name: str, fields: dict[str, Any]) -> Source:
    if hub := fields.get("hub"):
        fields["hub"] = Hub(**hub | {split: HubFile(**hub[split]) for split in ("train", "test")})
    lists = {field: tuple(value) for field, value in fields.items() if isinstance(value, list)}
    return Source(name, **(fields | lists))


_TABLES = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))
SOURCES: dict[str, Source] = {name: _read(name, fields) for name, fields in _TABLES.items()}


def plain(name: str) -> str:
    """A name without what people spell differently: case, hyphens, underscores and blanks.

    >>> plain("CIFAR-10") == plain("cifar10")
    True
    """
    return "".join(letter for letter in name.lower() if letter not in "-_ ")


_BY_PLAIN_NAME = {
    plain(spelling): source for source in SOURCES.values() for spelling in (source.name, *source.aliases, *source.stems)
}


def find_source(name: str) -> Source | None:
    """The source of that name in any usual spelling.

    >>> find_source("Tiny-ImageNet").name
    'tiny-imagenet'
    """
    return _BY_PLAIN_NAME.get(plain(name))


_TITLES = {  # in the order of the paper's tables
    **{"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"},
    **{"tiny-imagenet": "Tiny-ImageNet", "fashion-mnist": "Fashion-MNIST"},
}


def dataset_name(dataset: str) -> str:
    """A data set as the literature writes it; one's own by the last part of its path.

    >>> dataset_name("cifar10"), dataset_name("digits"), dataset_name("/data/cats.csv")
    ('CIFAR-10', 'digits', 'cats.csv')
    """
    return _TITLES.get(dataset) or PurePath(dataset).name or dataset


def place_name(dataset: str, alpha: float | None) -> str:
    """A data set and its partition.

    >>> place_name("cifar10", 0.05), place_name("patients.csv", None)
    ('CIFAR-10, α = 0.05', 'patients.csv')
    """
    return dataset_name(dataset) + ("" if alpha is None else f", α = {alpha:g}")


def dataset_rank(dataset: str) -> tuple[int, str]:
    """Sorts data sets into the order of the paper's tables, others last and by name."""
    names = list(_TITLES)
    return (names.index(dataset) if dataset in names else len(names), dataset)
