"""A federation of which only the label counts are known: samples of another data set, dealt to match them."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from fedga.common.files import read_text
from fedga.data.assemble import listed
from fedga.data.federation import Dataset
from fedga.data.formats.csv_files import cells_of
from fedga.data.formats.tables import CLIENT_COLUMNS
from fedga.errors import FedGAError


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """How many samples of every class each client holds."""

    clients: tuple[str, ...]
    classes: tuple[str, ...]
    counts: np.ndarray  # int64 [clients, classes]

    @classmethod
    def read(cls, path: Path) -> Self:
        """A CSV file: a row per client, a column per class, and one that names the client if there is any."""
        try:
            text = read_text(path)
        except FileNotFoundError:
            raise FedGAError(f"the file of --like does not exist: {path}") from None
        except OSError as error:
            raise FedGAError(f"the file of --like cannot be read: {path} ({error.strerror})") from None
        delimiter = ";" if text.partition("\n")[0].count(";") > text.partition("\n")[0].count(",") else ","
        rows = [row for row in cells_of(path, csv.reader(io.StringIO(text), delimiter=delimiter)) if any(row)]
        names, *cells = [[cell.strip() for cell in row] for row in rows] or [[]]
        shape = "write a header with the names of the classes, and a row of counts for every client"
        if not cells or any(len(row) != len(names) for row in cells):
            raise FedGAError(f"{path} is not a table of counts: {shape}")
        named = [at for at, name in enumerate(names) if name.lower() in CLIENT_COLUMNS][:1]
        named = named or [at for at in (0,) if not all(row[0].isdecimal() for row in cells)]
        of_class = [at for at in range(len(names)) if at not in named]
        wrong = [row[at] for row in cells for at in of_class if not (row[at].isdecimal() and len(row[at]) < 12)]
        if wrong or len(of_class) < 2:
            found = f"the count {wrong[0]!r}" if wrong else "fewer than two classes"
            raise FedGAError(f"{path} has {found}: {shape}")
        clients = tuple(row[named[0]] if named else f"client {at}" for at, row in enumerate(cells))
        counts = np.array([[int(row[at]) for at in of_class] for row in cells], dtype=np.int64)
        if len(set(clients)) < len(clients):
            raise FedGAError(f"{path} names a client twice: give every client one row")
        if empty := [name for name, row in zip(clients, counts, strict=True) if not row.any()]:
            raise FedGAError(f"{path} has clients without a sample ({listed(empty)}): leave them out")
        return cls(clients, tuple(names[at] for at in of_class), counts)


@dataclass(frozen=True, eq=False)
class Dealt:
    """Samples that clients hold, as the arrays of an ``.npz`` file, and the share of the counts they are."""

    arrays: dict[str, np.ndarray]
    share: float


def deal(dataset: Dataset, wanted: LabelCounts, generator: np.random.Generator) -> Dealt:
    """Give every client samples of ``dataset`` by its counts: her k-th class is the data set's k-th.

    Where the data set has too few samples of a class, all counts shrink by one factor.
    """
    number = len(wanted.classes)
    if number > dataset.num_classes:
        fewer = f"{dataset.name} has {dataset.num_classes}"
        raise FedGAError(f"the counts have {number} classes and {fewer}: give a --dataset with as many")
    there = np.bincount(dataset.train_targets, minlength=dataset.num_classes)[:number]
    asked = wanted.counts.sum(0)
    if not asked.all():
        names = listed([name for name, count in zip(wanted.classes, asked, strict=True) if not count])
        raise FedGAError(f"nobody holds a sample of class {names}: leave its column out")
    share = float(min(1.0, (there / asked).min()))
    counts = np.floor(wanted.counts * share + 1e-9).astype(np.int64)
    if not counts.any(1).all() or not counts.any(0).all():
        few = f"{dataset.name} has too few samples for these counts, even shrunk to {100 * share:.2g} % of them"
        raise FedGAError(f"{few}: give a larger --dataset")
    places, owners = [], []
    for label in range(number):
        shuffled = generator.permutation(np.flatnonzero(dataset.train_targets == label))
        places.append(shuffled[: counts[:, label].sum()])
        owners.append(np.repeat(np.arange(len(counts)), counts[:, label]))
    chosen, tested = np.concatenate(places), dataset.test_targets < number
    arrays = {
        "x_train": dataset.train_inputs[chosen],
        "y_train": dataset.train_targets[chosen],
        "clients": np.array(wanted.clients)[np.concatenate(owners)],
        "x_test": dataset.test_inputs[tested],
        "y_test": dataset.test_targets[tested],
        "class_names": np.array(wanted.classes),
    }
    return Dealt(arrays, share)
