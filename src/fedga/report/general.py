"""The pictures of any results folder: overview, curves, what clients forget, and the clients themselves."""

import hashlib
import string
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from fedga.drawing.style import display_name
from fedga.report import figures
from fedga.report.curves import Curve, main_accuracy
from fedga.report.documents import Picture
from fedga.spec.settings import RunSpec
from fedga.store.store import Store

_PLAIN = frozenset(string.ascii_letters + string.digits + "-=._:")  # letters that any file system takes, and a colon


def general_pictures(folder: Path, curves: Sequence[Curve], specs: Sequence[RunSpec]) -> list[Picture]:
    """What can be drawn of these runs; nothing while none of them was evaluated."""
    if not any(len(curve.rounds) for curve in curves):
        return []
    found = {name for curve in curves for name in curve.values}
    drawn = [Picture("overview", "Accuracy, and what clients forget", partial(figures.demo_picture, curves))]
    for name, title in {"accuracy": "Accuracy", "client_accuracy": "Accuracy of clients' own models"}.items():
        if name in found or name == main_accuracy(curves):
            draw = partial(figures.accuracy_curves, curves, metric=name)
            drawn.append(Picture(name.replace("_", "-"), f"{title} over rounds", draw))
    if not found.isdisjoint(("ea_ratio", "client_ea_ratio")):
        drawn.append(Picture("ea-ratio", "EA ratio over rounds", partial(figures.ea_ratio_curves, curves)))
    if "forgetting_missing" in found:
        drawn.append(Picture("forgetting", "What clients forget", partial(figures.forgetting_bars, curves)))
        drawn += _clients(folder, specs)
    return drawn


def _clients(folder: Path, specs: Sequence[RunSpec]) -> list[Picture]:
    """The clients of a round before and after local training: one run per algorithm, of the first data set and α."""
    first = specs[0]
    place = (first.dataset, first.partition, first.alpha)
    alike = [spec for spec in specs if (spec.dataset, spec.partition, spec.alpha) == place]
    drawn = []
    with Store(folder) as store:
        kept = store.partitions()
        held = next((of for of in kept if (of.dataset, of.partition) == (first.dataset, first.partition)), None)
        for algorithm, spec in {spec.algorithm: spec for spec in reversed(alike)}.items():
            if held and (seen := store.client_rounds(spec.run_id)):
                title = f"{display_name(algorithm)}, round {seen[-1].round}, seed {spec.seed}"
                around: dict[str, Any] = {"title": title, "client_names": held.client_names}
                draw = partial(figures.before_after, seen[-1].arrays, held.class_names, **around)
                drawn.append(Picture(f"clients-{as_file(algorithm)}", title, draw))
    return drawn


def as_file(name: str) -> str:
    """An algorithm or a data set as part of a file's name.

    Own data are named by a path, which must not leave the folder: its last part, and a hash so that two stay two.

    >>> as_file("cifar10"), as_file("fedga:variant=aligned"), as_file("../cats.csv"), as_file("/data/cats.csv")
    ('cifar10', 'fedga_variant=aligned', 'cats-b7aed353', 'cats-7251e3b2')
    """
    if set(name) <= _PLAIN:
        return name.replace(":", "_")
    stem = "".join(letter if letter in _PLAIN else "_" for letter in PurePath(name).stem).replace(":", "_")
    return f"{stem}-{hashlib.sha256(name.encode('utf-8', errors='surrogateescape')).hexdigest()[:8]}"
