"""What Xiao, Zuo and Wang printed in *FedGA* (AAAI 2025): main table, table at 80 % of the rounds, rounds needed."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fedga.errors import check_known
from fedga.spec.catalog import dataset_name

SCORE_TABLES = ("main", "at_80")
STAND_IN: Mapping[str, str] = {"digits": "mnist"}  # of the quick reproduction, which needs no download

_METRICS = {"accuracy": "accuracy", "f1": "macro_f1"}  # the file's name -> ours
_SAME_COLUMN = {"fedga-batch": "fedga"}  # the paper's program counts classes per batch


@dataclass(frozen=True)
class PrintedScore:
    """One cell of a score table: mean and deviation over the paper's five runs, three decimals each."""

    dataset: str
    alpha: float
    algorithm: str
    metric: str
    mean: float
    deviation: float
    bold: bool


@dataclass(frozen=True)
class PrintedRounds:
    """One cell of the speed table: rounds until an algorithm came near FedAvg's best, and FedAvg's over them."""

    dataset: str
    alpha: float
    algorithm: str
    rounds: int
    speedup: float
    bold: bool


def stand_in_text(datasets: Iterable[str]) -> str:
    """What to say where some of these data sets stand in for others; empty if none does."""
    return " ".join(
        f"Here {dataset_name(one)} stand in for {dataset_name(STAND_IN[one])}: other data, so that the order of the"
        " algorithms can be compared and the numbers cannot."
        for one in sorted(set(datasets) & set(STAND_IN))
    )


def printed_algorithm(algorithm: str) -> str:
    """The column of the paper's tables in which this algorithm stands: both ways to count classes are its FedGA."""
    return _SAME_COLUMN.get(algorithm, algorithm)


def printed_score(
    which: str, dataset: str, alpha: float | None, algorithm: str, metric: str = "accuracy"
) -> PrintedScore | None:
    """A cell of the table ``which``, "main" or "at_80"; None for what that table does not have.

    A data set that stands in for one of the paper's has that one's cell.

    >>> printed_score("at_80", "mnist", 0.05, "fedga").mean
    0.9
    """
    check_known("printed table", which, SCORE_TABLES)
    return _cells(which).get((STAND_IN.get(dataset, dataset), alpha, printed_algorithm(algorithm), metric))


def printed_rounds(dataset: str, alpha: float | None, algorithm: str) -> PrintedRounds | None:
    """A cell of the speed table; None for what it does not have.

    >>> printed_rounds("mnist", 0.05, "fedga").speedup
    1.75
    """
    return _cells("rounds").get((STAND_IN.get(dataset, dataset), alpha, printed_algorithm(algorithm)))


@cache
def _cells(which: str) -> Mapping[tuple[Any, ...], Any]:
    text = resources.files("fedga.paper").joinpath("printed_tables", f"{which}.csv").read_text(encoding="utf-8")
    cells: dict[tuple[Any, ...], Any] = {}
    for row in csv.DictReader(text.splitlines()):
        place, bold = (row["dataset"], float(row["alpha"]), row["algorithm"]), row["bold"] == "1"
        if which == "rounds":
            cells[place] = PrintedRounds(*place, int(row["rounds"]), float(row["speedup"]), bold)
        else:
            metric = _METRICS[row["metric"]]
            cells[*place, metric] = PrintedScore(*place, metric, float(row["mean"]), float(row["std"]), bold)
    return cells
