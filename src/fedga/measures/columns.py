"""The metrics of a run: names, titles, directions and scales, registered once for every table and picture."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

AVERAGED = "averaged_"  # before the name of a metric: that of the model averaged over rounds on the server
GLOBAL_MODEL, AVERAGED_MODEL, CLIENTS = "global model", "model averaged over rounds", "active clients"


@dataclass(frozen=True)
class MetricColumn:
    """One metric: ``title`` names an axis, ``heading`` a column of a table."""

    name: str
    title: str
    heading: str = ""
    measured_on: str = GLOBAL_MODEL
    higher_is_better: bool | None = True  # None: unknown, and no value is marked as the best
    bounded: bool = False  # from 0 to 1
    ratio: bool = False  # heavy-tailed: median over seeds and a logarithmic axis
    over_rounds: bool = False  # a table shows the mean over the evaluated rounds, not the last one
    explanation: str = ""  # a sentence below a table that has the column

    def best(self, values: Sequence[float]) -> float:
        """The best of several finite values; NaN where there is nothing to choose from."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite or len(values) < 2 or self.higher_is_better is None:
            return math.nan
        return max(finite) if self.higher_is_better else min(finite)


_EA = "EA ratio: median over seeds, 1 is unbiased."
_LOST: Any = {
    "measured_on": CLIENTS,
    "higher_is_better": False,
    "over_rounds": True,
    "explanation": "Lost: accuracy that a round of local training takes from the classes of which a client holds few "
    "(rare) or none (missing).",
}
_OF_MODELS = (
    MetricColumn("accuracy", "test accuracy", "accuracy", bounded=True),
    MetricColumn("macro_f1", "macro F1", "macro F1", bounded=True),
    MetricColumn("balanced_accuracy", "balanced accuracy", "balanced accuracy", bounded=True),
    MetricColumn("ea_ratio", "EA ratio", "EA ratio", higher_is_better=False, ratio=True, explanation=_EA),
    MetricColumn("loss", "test loss", "loss", higher_is_better=False),
)
_MIX = "Client accuracy: of the clients' own models, each by its own label mix; mean over all clients."
_OWN_MIX: Any = {"bounded": True, "explanation": _MIX}
_OF_OWN_MODELS = (
    MetricColumn("client_accuracy", "accuracy of clients' own models", "client accuracy", "all clients", **_OWN_MIX),
)
_OF_CLIENTS = (
    MetricColumn("client_ea_ratio", "EA ratio of clients' models", "clients' EA ratio", CLIENTS, False, ratio=True),
    MetricColumn("forgetting_frequent", "accuracy lost on frequent classes", "lost on frequent", **_LOST),
    MetricColumn("forgetting_rare", "accuracy lost on rare classes", "lost on rare", **_LOST),
    MetricColumn("forgetting_missing", "accuracy lost on missing classes", "lost on missing", **_LOST),
)


def _averaged(column: MetricColumn) -> MetricColumn:
    heading = "averaged model" if column.name == "accuracy" else f"averaged {column.heading}"
    name, title = f"{AVERAGED}{column.name}", f"{column.title}, averaged model"
    return replace(column, name=name, title=title, heading=heading, measured_on=AVERAGED_MODEL)


_EVERY = (*_OF_MODELS, *map(_averaged, _OF_MODELS), *_OF_OWN_MODELS, *_OF_CLIENTS)
COLUMNS: Mapping[str, MetricColumn] = {column.name: column for column in _EVERY}
OF_MODELS, OF_CLIENTS = (tuple(column.name for column in some) for some in (_OF_MODELS, _OF_CLIENTS))


def metric_column(name: str) -> MetricColumn:
    """The column of a built-in metric, or of one of the user's own, of which only the name is known.

    >>> metric_column("averaged_accuracy").title, metric_column("worst_recall").title
    ('test accuracy, averaged model', 'worst recall')
    """
    if name in COLUMNS:
        return COLUMNS[name]
    base = name.removeprefix(AVERAGED)
    own = MetricColumn(base, base.replace("_", " "), base, higher_is_better=None)
    return own if base == name else _averaged(own)
