"""Predictions that are made up, and the files they may come in."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet

NAMES = ("nevus", "keratosis", "melanoma")


@dataclass(frozen=True, eq=False)
class MadeUp:
    """Predictions on samples of several sites."""

    probs: np.ndarray
    labels: np.ndarray
    sites: np.ndarray
    names: tuple[str, ...] = NAMES

    @property
    def label_names(self) -> list[str]:
        return [self.names[label] for label in self.labels]


def made_up(rows: int = 900, *, skew: float = 1.0, classes: int = 3, sites: int = 3, seed: int = 0) -> MadeUp:
    """A model that leans towards the first classes the more, the larger the skew."""
    draws = np.random.default_rng(seed)
    shares = np.exp(-skew * np.arange(classes))
    labels = draws.choice(classes, rows, p=shares / shares.sum())
    scores = draws.normal(size=(rows, classes)) + 2.0 * np.eye(classes)[labels] - skew * np.arange(classes)
    powers = np.exp(scores)
    names = NAMES if classes == len(NAMES) else tuple(f"class {number}" for number in range(classes))
    places = np.array([f"site {number}" for number in draws.integers(0, sites, rows)])
    return MadeUp(powers / powers.sum(1, keepdims=True), labels, places, names)


def rows_of(data: MadeUp) -> list[list[object]]:
    """A header and a row per sample, numbers to all their digits."""
    header: list[object] = ["site", "label", *(f"p_{name}" for name in data.names)]
    lines = zip(data.sites.tolist(), data.label_names, data.probs.tolist(), strict=True)
    return [header, *([site, label, *probs] for site, label, probs in lines)]


def write_csv(path: Path, rows: list[list[object]], **keywords: str) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, **keywords).writerows(rows)  # type: ignore[arg-type]
    return path


def write_parquet(path: Path, data: MadeUp) -> Path:
    header, *rows = rows_of(data)
    columns = dict(zip(map(str, header), zip(*rows, strict=True), strict=True))
    parquet.write_table(arrow.table({name: list(values) for name, values in columns.items()}), path)
    return path


def write_npz(path: Path, data: MadeUp, *, compressed: bool = False) -> Path:
    save = np.savez_compressed if compressed else np.savez
    save(path, probs=data.probs, labels=data.labels, sites=data.sites, class_names=np.array(data.names))
    return path
