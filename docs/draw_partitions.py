"""Draws the pictures of docs/how-to/partitions.md from scikit-learn's digits, into docs/pictures or the folder given.

Who holds what under each partition, with the same number of clients, the same α and the same seed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedga.data import Dataset, Federation, load_dataset, make_federation
from fedga.drawing.heatmap import label_heatmap
from fedga.drawing.style import save

COLORS = 64
CLIENTS, ALPHA, SEED = 12, 0.3, 0
PARTITIONS: Mapping[str, Mapping[str, Any]] = {
    "dirichlet": {"alpha": ALPHA},
    "dirichlet-class": {"alpha": ALPHA},
    "even": {"alpha": ALPHA},
    "shards": {"classes_per_client": 2},
    "iid": {},
    "natural": {"clients": None},
}
SITES = {"north": range(6), "south": range(4, 10), "east": (0, 9)}  # made up: the digits that each site collects


def with_sites(dataset: Dataset) -> Dataset:
    """The digits as if sites had collected them: of each class, its sites in turn have a sample."""
    names = tuple(SITES)
    owners = np.zeros(len(dataset.train_targets), dtype=np.int64)
    for label in range(dataset.num_classes):
        having = [at for at, name in enumerate(names) if label in SITES[name]]
        places = np.flatnonzero(dataset.train_targets == label)
        owners[places] = np.resize(having, len(places))
    return replace(dataset, train_clients=owners, client_names=names)


def federations() -> dict[str, Federation]:
    digits = with_sites(load_dataset("digits"))
    usual: dict[str, Any] = {"clients": CLIENTS, "seed": SEED}
    return {name: make_federation(digits, name, **usual | dict(options)) for name, options in PARTITIONS.items()}


def main(folder: str | Path) -> list[Path]:
    written = []
    for name, federation in federations().items():
        dataset, used = federation.dataset, int(federation.sizes.sum())
        title = f"{name}: {used:,} of {len(dataset.train_targets):,} samples used"
        called = dataset.client_names if name == "natural" else ()
        figure = label_heatmap(federation.class_counts, dataset.class_names, title, client_names=called)
        [path] = save(figure, Path(folder) / f"partition-{name}", ("png",))
        picture = Image.open(path).convert("RGB").quantize(COLORS)  # a third of the bytes
        picture.save(path, optimize=True)
        written.append(path)
    return written


if __name__ == "__main__":
    print(*main(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("pictures")), sep="\n")
