"""What each algorithm costs and reveals beyond FedAvg, from what it declares: ``fedga algorithms``."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rich.text import Text

from fedga.algorithms import ALGORITHMS, Algorithm, own_algorithms
from fedga.algorithms.base import Sent, overrides
from fedga.algorithms.limits import extra_passes, more_than_sums, sends_extra
from fedga.algorithms.parameters import Parameters
from fedga.drawing.style import algorithm_rank
from fedga.report.series import setting_text
from fedga.report.terminal import Column, TitledTable, make_table

FLOAT = 4  # bytes
_NOTHING = Sent("", "1").reveals  # what a message says that reveals nothing


def algorithms_rows(
    network: Parameters | None, num_classes: int, algorithms: Mapping[str, type[Algorithm]] | None = None
) -> list[dict[str, Any]]:
    """One row per algorithm, all of ours if none are given; ``defined_in`` is the file of one of the user's own.

    Bytes are per round and client, beyond the ``model_bytes`` sent both ways, 0 where ``network`` is unknown.
    ``extra_down_bytes`` and ``extra_up_bytes`` concern active clients. A survey asks every client before each round:
    ``survey_down_bytes`` (the model) reach each client that is not active, whose answer is ``survey_up_bytes``.
    """
    known, mine = ALGORITHMS if algorithms is None else algorithms, own_algorithms()
    rows = {name: _row(name, known[name], network, num_classes) for name in sorted(known, key=algorithm_rank)}
    return [row | {"defined_in": mine[name].origin if name in mine else ""} for name, row in rows.items()]


def _row(name: str, algorithm: type[Algorithm], network: Parameters | None, num_classes: int) -> dict[str, Any]:
    own, sizes = algorithm(), dict(zip(network.shapes, network.sizes, strict=True)) if network else {}
    moving = set(own.moves(network) if network and overrides(own, "moves") else sizes)
    kept = moving.difference(own.travels(network)) if network and overrides(own, "travels") else set()
    num_parameters, kept_bytes = (sum(sizes[each] for each in names) for names in (moving, kept))

    def total(sent: tuple[Sent, ...]) -> int:
        return sum(one.bytes(num_classes, num_parameters, getattr(network, "features", 0) or 0) for one in sent)

    survey = tuple(one for one in algorithm.uploads if one.name == "survey") if algorithm.evaluates_all_clients else ()
    exchanged = (*algorithm.uploads, *algorithm.downloads, *algorithm.final_uploads)
    learned = [one.reveals for one in exchanged if one.reveals != _NOTHING]
    learned += ["single updates"] if overrides(own, "inspect") else []
    keeps = [one.name.replace("_", " ") for one in algorithm.client_state_spec]
    if overrides(own, "travels"):
        keeps.append("its own head" if network and kept and kept <= set(network.head) else "its own parameters")
    model_bytes = FLOAT * (num_parameters - kept_bytes)
    return {
        "algorithm": name,
        "citation": algorithm.citation,
        "model_bytes": model_bytes,
        "extra_up_bytes": total(algorithm.uploads),
        "extra_down_bytes": total(algorithm.downloads),
        "survey_up_bytes": total(survey),
        "final_up_bytes": total(algorithm.final_uploads),
        "survey_down_bytes": model_bytes if algorithm.evaluates_all_clients else 0,
        "extra_forward_passes": "; ".join(extra_passes(own)),
        "client_keeps_bytes": total(algorithm.client_state_spec) + FLOAT * kept_bytes,
        "client_keeps": "; ".join(keeps),
        "server_learns": "; ".join(dict.fromkeys(learned)),
        "server_samples_per_class": algorithm.auxiliary_samples,
        "sends_extra": sends_extra(own),
        "sums_suffice": not more_than_sums(own),
        "needed_of_single_clients": "; ".join(more_than_sums(own)),
        "options": {field.name: field.default for field in fields(algorithm)},
    }


def algorithms_table(
    model_name: str,
    network: Parameters,
    num_classes: int,
    algorithms: Mapping[str, type[Algorithm]] | None = None,
    *,
    width: int | None = None,
) -> TitledTable:
    """The rows of `algorithms_rows` for the terminal; a dash is nothing beyond FedAvg."""
    rows = algorithms_rows(network, num_classes, algorithms)
    sources = ["\n".join(filter(None, [row["citation"], row["defined_in"]])) for row in rows]
    pairs = zip(rows, sources, strict=True)
    names = [Text(row["algorithm"], "bold").append(f"\n{source}", "not bold dim") for row, source in pairs]
    columns = [Column("algorithm", names)]
    shown = cost_columns(rows, network).items()
    columns += [Column(heading, [Text(text or "–") for text in texts]) for heading, texts in shown]
    model = f"{model_name} ({network.total:,} parameters, {human_bytes(FLOAT * network.total)})"
    title = f"What each algorithm adds to FedAvg, which sends {model} down and up, per client and round"
    return make_table(columns, title=title, width=width, leading=1)


def cost_columns(rows: Sequence[Mapping[str, Any]], network: Parameters | None) -> dict[str, list[str]]:
    """What stands below each heading, empty where it is nothing."""
    ups = [(row["extra_up_bytes"] - row["survey_up_bytes"], row["survey_up_bytes"]) for row in rows]
    downs = [(row["extra_down_bytes"], row["survey_down_bytes"]) for row in rows]
    less = [FLOAT * network.total - row["model_bytes"] if network else 0 for row in rows]
    final = [row["final_up_bytes"] for row in rows]
    samples = [(row["server_samples_per_class"], row["needed_of_single_clients"]) for row in rows]
    sizes = [f" ({human_bytes(row['client_keeps_bytes'])})" if network and row["client_keeps"] else "" for row in rows]
    return {
        "extra up": [_bytes_text(*of, "from every client") for of in zip(ups, less, final, strict=True)],
        "extra down": [_bytes_text(*of, 0, "to each client not active") for of in zip(downs, less, strict=True)],
        "extra forward passes": [row["extra_forward_passes"] for row in rows],
        "a client keeps": [row["client_keeps"] + size for row, size in zip(rows, sizes, strict=True)],
        "the server learns": [row["server_learns"] for row in rows],
        "the server needs": [_needs_text(*of) for of in samples],
        "options": [" ".join(f"{name}={setting_text(of)}" for name, of in row["options"].items()) for row in rows],
    }


def _bytes_text(sent: tuple[int, int], less: int, final: int, whom: str) -> str:
    """Bytes of active clients, of those that only answer a survey, of the model left out, and after the last round."""
    words = {f" {whom}": sent[1], " less of the model": less, " after the last round": final}
    return "; ".join(f"{human_bytes(number)}{word}" for word, number in ({"": sent[0]} | words).items() if number)


def _needs_text(samples: int, of_single: str) -> str:
    single = f"more than sums over clients ({of_single})" if of_single else ""
    return "; ".join(filter(None, [f"{samples} samples of each class" if samples else "", single]))


def human_bytes(number: int) -> str:
    """Bytes in the decimal units of disks and networks; nothing for 0.

    >>> [human_bytes(number) for number in (0, 40, 407_080, 12_000_000)]
    ['', '40 B', '407.1 kB', '12.0 MB']
    """
    power = min((len(str(number)) - 1) // 3, 4)
    size = f"{number / 1000**power:.{1 if power else 0}f}"
    return f"{size} {('B', 'kB', 'MB', 'GB', 'TB')[power]}" if number else ""
