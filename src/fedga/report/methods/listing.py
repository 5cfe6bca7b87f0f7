"""All algorithms in a few columns, one line each where it can be: ``fedga algorithms`` without a name."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.text import Text

from fedga.algorithms.parameters import Parameters
from fedga.report.methods.costs import FLOAT, human_bytes
from fedga.report.terminal import Column, TitledTable, make_table

_NONE = "–"
_PASSES = {  # the words of `extra_passes`, in one
    "those of its gradient": "gradient",
    "1 over a client's data at its end": "after",
    "1 over all data of every client": "survey",
    "over the server's samples": "server's",
}
_CAPTION = (
    "Sent: ↑ by each active client, ↓ to it, beside the model (* and more to others, or at the end). Passes: further "
    "forward passes. Secure: runs under secure aggregation, where the server sees and learns sums over clients alone. "
    "One in full: fedga algorithms NAME."
)


def listing(
    rows: Sequence[Mapping[str, Any]], model_name: str, network: Parameters, *, width: int | None = None
) -> TitledTable:
    """The rows of `algorithms_rows` for the terminal; a dash is nothing beyond FedAvg."""
    model_bytes = FLOAT * network.total
    sent = [_sent(row, model_bytes) for row in rows]
    texts = {
        "algorithm": [row["algorithm"] for row in rows],
        "from": [re.sub(r" et al\.", "", row["citation"]) for row in rows],
        "sent": sent,
        "passes": [_passes(row["extra_forward_passes"]) for row in rows],
        "secure": ["yes" if row["sums_suffice"] else "no" for row in rows],
        "the server learns": [row["server_learns"] for row in rows],
    }
    columns = [Column(heading, [Text(text or _NONE) for text in of]) for heading, of in texts.items()]
    model = f"{model_name} ({network.total:,} parameters, {human_bytes(model_bytes)})"
    title = f"What each algorithm adds to FedAvg, which sends {model} down and up, per client and round"
    return make_table(columns, title=title, caption=_CAPTION, width=width)


def combinable_listing(rows: Collection[Mapping[str, Any]], *, width: int | None = None) -> TitledTable:
    """The rows of `combinable_rows` for the terminal, without their options."""
    texts = {
        "setting": [" ".join(filter(None, [row["setting"], _origin(row["source"])])) for row in rows],
        "what it does": [row["what it does"] for row in rows],
        "secure": ["yes" if row["sums_suffice"] else "no" for row in rows],
        "the server learns": [row["the server learns"] for row in rows],
    }
    columns = [Column(heading, [Text(text or _NONE) for text in of]) for heading, of in texts.items()]
    return make_table(columns, title="What goes with any algorithm", width=width)


def _origin(source: str) -> str:
    """Of somebody's own part the file that it is defined in, which stands behind what it cites."""
    last = source.rpartition("\n")[2]
    return f"({last})" if "." in last and "et al." not in last else ""


def _sent(row: Mapping[str, Any], model_bytes: int) -> str:
    """The bytes of an active client in both directions, less what of the model it is not sent."""
    less = model_bytes - row["model_bytes"]
    up = _signed(row["extra_up_bytes"] - less) or human_bytes(row["final_up_bytes"])
    down = _signed(row["extra_down_bytes"] - less)
    more = "*" if row["survey_down_bytes"] or row["final_up_bytes"] else ""
    if up and up == down:
        return f"↕ {up}{more}"
    return " ".join(f"{arrow} {text}" for arrow, text in (("↑", up), ("↓", down)) if text) + more


def _signed(number: int) -> str:
    return f"−{human_bytes(-number)}" if number < 0 else human_bytes(number)


def _passes(words: str) -> str:
    short = (_PASSES.get(each, each.replace(" per local step", "/step")) for each in words.split("; ") if each)
    return ", ".join(short)
