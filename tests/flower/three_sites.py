"""Three sites that read their own files, and a server that may be started again, all within this process."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict

from fedga.data import load_dataset, make_federation
from fedga.flower import client_app, wire
from fedga.flower.server.app import server_app
from fedga.store.store import Store
from tests.flower.loopback import Loopback

SITES = ("north", "south", "west")
CLASSES = tuple(map(str, range(10)))


def write_files(folder: Path) -> None:
    """digits partitioned over three sites, a CSV file each; the server's file has the test split; whole.csv has all."""
    dataset = load_dataset("digits")
    federation = make_federation(dataset, clients=3, seed=0, alpha=1.0)
    parts = {name: federation.client(client) for client, name in enumerate(SITES)}
    whole: list[list[Any]] = []
    for name, places in parts.items():
        rows = _rows(dataset.train_inputs[places], dataset.train_targets[places], "train")
        _write(folder / f"{name}.csv", rows)
        whole += [[*row, name] for row in rows]
    test = _rows(dataset.test_inputs, dataset.test_targets, "test")
    _write(folder / "server.csv", test)
    _write(folder / "whole.csv", [*whole, *([*row, "north"] for row in test)], "client")


def _rows(inputs: np.ndarray, labels: np.ndarray, split: str) -> list[list[Any]]:
    pixels = inputs.reshape(len(inputs), -1) / 16
    return [[*row, label, split] for row, label in zip(pixels.tolist(), labels.tolist(), strict=True)]


def _write(path: Path, rows: list[list[Any]], *more: str) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"pixel{place}" for place in range(64)), "label", "split", *more])
        writer.writerows(rows)


class Federation:
    """The three sites, and a server that may be started again."""

    def __init__(self, files: Path, folder: Path) -> None:
        self.files, self.folder = files, folder
        nodes = [{"site": name, "data": str(files / f"{name}.csv"), "state": str(folder / name)} for name in SITES]
        self.grid = Loopback(client_app, nodes)

    def run(self, **settings: Any) -> None:
        config = {
            **{"sites": ",".join(SITES), "classes": ",".join(CLASSES), "server-data": str(self.files / "server.csv")},
            **{"out": str(self.folder / "results"), "name": "three", "wait-for-sites": 0.2, "device": "cpu"},
            **{"algorithm": "fedga", "rounds": 3, "batch-size": 16, "local-epochs": 1, "diagnose-every": 1},
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        config = {name: value for name, value in config.items() if value is not None}
        server_app(self.grid, Context(1, 1, {}, RecordDict(), config))

    def results(self) -> list[dict[str, Any]]:
        with Store(self.folder / "results") as store, store.results() as table:
            return [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    def last(self) -> Mapping[str, float | None]:
        with Store(self.folder / "results") as store:
            return store.summaries()[0].last

    def tell(self, place: int, **config: Any) -> None:
        context = self.grid.contexts[self.grid.node(place)]
        context.node_config |= {name.replace("_", "-"): value for name, value in config.items()}

    def trained(self) -> list[tuple[Message, Message]]:
        return [pair for pair in self.grid.seen if pair[0].metadata.message_type == wire.TRAIN]
