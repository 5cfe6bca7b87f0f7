"""Made-up results that every test of pictures and tables shares."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedga.report.curves import Curve, curves_from_rows

ROUNDS = range(1, 21)


def make_rows(
    algorithm: str, seed: int, level: float, *, preset: str = "paper", alpha: float | None = 0.1, **settings: Any
) -> list[dict[str, Any]]:
    """A run that rises to about ``level``; its clients are examined in every fifth round."""
    noise = np.random.default_rng([seed, len(algorithm), len(preset)])
    rows = []
    for number in ROUNDS:
        accuracy = level * (1 - np.exp(-number / 5)) + noise.normal(0, 0.01)
        rows.append(
            {
                "dataset": "digits",
                "alpha": alpha,
                "algorithm": algorithm,
                "preset": preset,
                "server": "momentum" if preset == "strong" else "sgd",
                "seed": seed,
                "round": number,
                "accuracy": accuracy,
                "macro_f1": accuracy - 0.01,
                "balanced_accuracy": accuracy - 0.02,
                "ea_ratio": 10 / level + seed,
                "loss": 1 - accuracy,
                **settings,
            }
        )
        if preset == "strong":
            rows[-1]["averaged_accuracy"] = accuracy + 0.02
        if number % 5 == 0:
            lost = {"forgetting_frequent": -0.1, "forgetting_rare": 0.5 - level / 2, "forgetting_missing": 1 - level}
            rows[-1] |= {"client_ea_ratio": 100.0 + number, **lost}
    return rows


def make_curves(seeds: int = 3, **settings: Any) -> list[Curve]:
    """FedAvg and FedGA, each as in the paper and strong."""
    rows = []
    for seed in range(seeds):
        for preset, bonus in (("paper", 0.0), ("strong", 0.1)):
            rows += make_rows("fedavg", seed, 0.7 + bonus, preset=preset, **settings)
            rows += make_rows("fedga", seed, 0.8 + bonus, preset=preset, **settings)
    return curves_from_rows(rows)
