"""From evaluations to the numbers a run records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedga import asymmetry
from fedga import scores as score
from fedga.simulation.evaluation import Evaluation


@dataclass(frozen=True)
class ClientRecord:
    """One active client before and after its local training, on the test split."""

    client: int
    class_counts: list[int]
    accuracy_before: list[float]  # per class; NaN where the test split has none of it
    accuracy_after: list[float]
    ea_before: list[float]
    ea_after: list[float]


def scores(evaluation: Evaluation, prefix: str = "") -> list[dict[str, float]]:
    """The global model's row of every lane."""
    confusion = evaluation.confusion.double()  # counts: 0.95 is to be recorded as 0.95
    columns = {
        "accuracy": score.accuracy(confusion),
        "macro_f1": score.macro_f1(confusion),
        "balanced_accuracy": score.balanced_accuracy(confusion),
        "ea_ratio": asymmetry.ratio_of(asymmetry.asymmetry_from_means(evaluation.mean_predictions)),
        "loss": evaluation.loss,
    }
    table = torch.stack([column.double() for column in columns.values()], dim=1).tolist()
    return [dict(zip((prefix + name for name in columns), row, strict=True)) for row in table]


def client_records(
    clients: Tensor, class_counts: Tensor, before: Evaluation, after: Evaluation
) -> list[list[ClientRecord]]:
    """Per lane, its active clients. ``clients [lanes, active]``; ``before`` has a row per lane, ``after`` per slot."""
    lanes, active = clients.shape
    accuracy_before = score.recall(before.confusion.double()).tolist()
    ea_before = asymmetry.asymmetry_from_means(before.mean_predictions).tolist()
    accuracy_after = score.recall(after.confusion.double()).view(lanes, active, -1).tolist()
    ea_after = asymmetry.asymmetry_from_means(after.mean_predictions).view(lanes, active, -1).tolist()
    chosen, counts = clients.tolist(), class_counts.long().tolist()
    return [
        [
            ClientRecord(
                chosen[lane][slot],
                counts[lane][slot],
                accuracy_before[lane],
                accuracy_after[lane][slot],
                ea_before[lane],
                ea_after[lane][slot],
            )
            for slot in range(active)
        ]
        for lane in range(lanes)
    ]


def client_scores(records: list[ClientRecord]) -> dict[str, float]:
    """Means over a lane's active clients: their EA ratio and what local training made them forget."""
    drop = asymmetry.forgetting(
        torch.tensor([record.accuracy_before for record in records], dtype=torch.float64),
        torch.tensor([record.accuracy_after for record in records], dtype=torch.float64),
        torch.tensor([record.class_counts for record in records]),
    )
    ratios = asymmetry.ratio_of(torch.tensor([record.ea_after for record in records]))
    return {
        "client_ea_ratio": ratios[ratios.isfinite()].mean().item(),
        "forgetting_frequent": drop.frequent.nanmean().item(),
        "forgetting_rare": drop.rare.nanmean().item(),
        "forgetting_missing": drop.missing.nanmean().item(),
    }


def mean_client_ratio(after: Evaluation, lanes: int) -> list[float]:
    """The EA ratio alone, for clients that do not say how many samples of a class they have: the mean per lane."""
    ratios = asymmetry.ratio_of(asymmetry.asymmetry_from_means(after.mean_predictions)).view(lanes, -1)
    return [row[row.isfinite()].mean().item() for row in ratios]
