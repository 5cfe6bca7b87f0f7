"""From evaluations to the numbers a run records."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedga import plugins
from fedga.engine.evaluation.evaluate import Evaluation
from fedga.errors import FedGAError
from fedga.measures import asymmetry
from fedga.measures import scores as score
from fedga.measures.columns import AVERAGED, COLUMNS, OF_CLIENTS

Metric = Callable[[Evaluation], Tensor]  # from what models did on the test split to one number per model, [models]


@dataclass(frozen=True)
class ClientRecord:
    """One active client before and after its local training, on the test split."""

    client: int
    class_counts: list[int]
    accuracy_before: list[float]  # per class; NaN where the test split has none of it
    accuracy_after: list[float]
    ea_before: list[float]
    ea_after: list[float]


def scores(evaluation: Evaluation, prefix: str = "", further: Mapping[str, Metric] = {}) -> list[dict[str, float]]:
    """The global model's row of every lane; ``further`` are metrics beside the built-in ones."""
    confusion = evaluation.confusion.double()  # counts: 0.95 is to be recorded as 0.95
    columns = {
        "accuracy": score.accuracy(confusion),
        "macro_f1": score.macro_f1(confusion),
        "balanced_accuracy": score.balanced_accuracy(confusion),
        "ea_ratio": asymmetry.ratio_of(asymmetry.asymmetry_from_means(evaluation.mean_predictions)),
        "loss": evaluation.loss,
        **{name: _measured(name, metric, evaluation) for name, metric in further.items()},
    }
    table = torch.stack([column.double() for column in columns.values()], dim=1).tolist()
    return [dict(zip((prefix + name for name in columns), row, strict=True)) for row in table]


def own_metrics() -> dict[str, Metric]:
    """The metrics that the project file names or installed packages offer, each tried on two made-up models."""
    named = plugins.parts("metrics", COLUMNS)
    for name in named:
        check_name(name)
    found = {name: part.load() for name, part in named.items()}
    confusion = torch.tensor([[[3, 1], [0, 4]], [[2, 2], [1, 3]]])
    trial = Evaluation(confusion, confusion / confusion.sum(-1, keepdim=True), torch.tensor([0.5, 1.0]))
    for name, metric in found.items():
        _measured(name, metric, trial)
    return found


def check_name(name: str) -> None:
    """Refuse a name that a metric of the averaged model has, or may get."""
    if name.startswith(AVERAGED):
        raise FedGAError(f"metric {name}: {AVERAGED} begins the names of the averaged model's: choose another name")


def _measured(name: str, metric: Metric, evaluation: Evaluation) -> Tensor:
    """The values of a metric of the user's own, once it gave one number per model."""
    models = len(evaluation.loss)
    try:
        values = metric(evaluation)
    except Exception as error:
        words = " ".join(str(error).split())
        raise FedGAError(f"metric {name} failed ({type(error).__name__}: {words}): correct it") from error
    if not isinstance(values, Tensor) or values.shape != (models,):
        got = f"shape {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise FedGAError(
            f"metric {name} gave {got} for {models} models: return a tensor with one number per model, such as "
            "scores.recall(evaluation.confusion).amin(-1)"
        )
    return values.to(evaluation.loss.device)


def client_records(clients: Tensor, counts: Tensor, before: Evaluation, after: Evaluation) -> list[list[ClientRecord]]:
    """Per lane, its active clients. ``clients [lanes, active]``; ``before`` has a row per lane, ``after`` per slot."""
    shape = (*clients.shape, -1)
    by_lane = (score.recall(before.confusion.double()), asymmetry.asymmetry_from_means(before.mean_predictions))
    by_slot = (score.recall(after.confusion.double()), asymmetry.asymmetry_from_means(after.mean_predictions))
    each = (clients, counts.long(), *(values.view(shape) for values in by_slot))
    rows = zip(*(values.tolist() for values in (*by_lane, *each)), strict=True)
    return [
        [
            ClientRecord(client, counts, accuracy, accuracy_after, ea, ea_after)
            for client, counts, accuracy_after, ea_after in zip(*slots, strict=True)
        ]
        for accuracy, ea, *slots in rows
    ]


def client_scores(records: list[ClientRecord]) -> dict[str, float]:
    """Means over a lane's active clients: their EA ratio and what local training made them forget."""
    drop = asymmetry.forgetting(
        torch.tensor([record.accuracy_before for record in records], dtype=torch.float64),
        torch.tensor([record.accuracy_after for record in records], dtype=torch.float64),
        torch.tensor([record.class_counts for record in records]),
    )
    ratios = asymmetry.ratio_of(torch.tensor([record.ea_after for record in records]))
    means = (ratios[ratios.isfinite()].mean(), drop.frequent.nanmean(), drop.rare.nanmean(), drop.missing.nanmean())
    return {name: mean.item() for name, mean in zip(OF_CLIENTS, means, strict=True)}


def own_mix(confusion: Tensor, class_counts: Tensor) -> float:
    """Mean accuracy of clients' models, each weighted to the client's own label mix: ``[clients, classes]`` counts."""
    recall = score.recall(confusion.double())
    counts = torch.where(recall.isnan(), 0.0, class_counts.double())
    found = (recall.nan_to_num() * counts).sum(-1) / counts.sum(-1)
    return found.nanmean().item()


def mean_client_ratio(after: Evaluation, lanes: int) -> list[float]:
    """The EA ratio alone, for clients that do not say how many samples of a class they have: the mean per lane."""
    ratios = asymmetry.ratio_of(asymmetry.asymmetry_from_means(after.mean_predictions)).view(lanes, -1)
    return [row[row.isfinite()].mean().item() for row in ratios]
