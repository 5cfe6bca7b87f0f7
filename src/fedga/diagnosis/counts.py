"""How many samples of each class were trained on, where a user says so."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedga.common.files import require_regular
from fedga.common.memory import require_memory
from fedga.data.assemble import listed
from fedga.data.formats.csv_files import cells_of
from fedga.data.formats.files import read_whole, reading
from fedga.diagnosis.reading.vocabulary import UNKNOWN, Labels, text_of
from fedga.errors import FedGAError, quoted
from fedga.measures.prior import prior_shift

_BYTES_PER_LETTER = 30  # that a file of short names and numbers takes in memory, by its size
Given = Sequence[float] | np.ndarray | Mapping[Any, Any]


@dataclass(frozen=True, eq=False)
class TrainingCounts:
    """Who trained on how many samples of each class."""

    site_names: tuple[str, ...]  # empty: only the totals are known
    counts: np.ndarray  # [sites, classes], or [1, classes] where only the totals are known
    source: str  # where the numbers come from, as a clause: "counted in ..."

    @property
    def totals(self) -> np.ndarray:
        return self.counts.sum(0)


@dataclass(frozen=True, eq=False)
class Adjustment:
    """A prior correction of what a model predicts (`fedga.measures.prior`)."""

    tau: float
    counts: Given | None = None  # training samples; None: those of the run that a saved model comes from

    def shift(self, class_names: Sequence[str], known: TrainingCounts | None = None) -> np.ndarray:
        """What to add to logits, [classes]; ``known`` are the counts where none were given."""
        counts = known if self.counts is None else holdings_of(self.counts, class_names, (), "")
        if counts is None:
            cure = "give them with --class-counts cat=900,dog=30 (in Python class_counts=)"
            raise FedGAError(f"an adjustment needs the samples of each class that were trained on: {cure}")
        return prior_shift(counts.totals, self.tau)

    @property
    def note(self) -> str:
        return f"Predictions are adjusted, τ = {self.tau:g}: each logit less τ times the log of its class's share."


def read_counts(given: str) -> Mapping[str, Any] | list[float]:
    """Counts as text, ``cat=100,dog=3`` or ``100,3`` in the order of the classes, or in a file.

    A file is JSON, or CSV with the columns class, count and perhaps site.
    """
    path = Path(given)
    if path.suffix.lower() in (".csv", ".json"):
        read, what = (_from_csv, "a CSV file") if path.suffix.lower() == ".csv" else (_from_json, "a JSON file")
        with reading(path, what):
            needed = _BYTES_PER_LETTER * require_regular(path).st_size
            require_memory(needed, str(path), "give a file with one number per class, or per site and class")
            return read(path, read_whole(path, what))
    with suppress(ValueError):
        return [float(number) for number in given.split(",")]
    pairs = [part.rpartition("=") for part in given.split(",") if part.strip()]
    if not pairs or not all(sign and name.strip() for name, sign, _ in pairs):
        raise FedGAError(f"--class-counts {given!r} is neither a .csv or .json file nor a list such as cat=100,dog=3")
    return _once("--class-counts", ((name.strip(), number.strip()) for name, _, number in pairs))


def _once(where: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of pairs of which no name comes twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise FedGAError(f"{where} names {_shown(name)} twice: give one number for it")
        found[name] = value
    return found


def _from_json(path: Path, content: bytes) -> dict[str, Any]:
    found = json.loads(content, object_pairs_hook=lambda pairs: _once(str(path), pairs))
    if not isinstance(found, dict):
        raise FedGAError(f'{path} holds no counts by class: write {{"cat": 100, "dog": 3}}, or that for every site')
    return found


def _from_csv(path: Path, content: bytes) -> dict[str, Any]:
    reader = cells_of(path, csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    names = [name.strip() for name in next(reader, [])]
    if not {"class", "count"} <= set(names):
        raise FedGAError(f"{path} has the columns {listed(names, 12)}: call them class, count and, if there are, site")
    places = [names.index(name) if name in names else -1 for name in ("class", "count", "site")]
    rows = [[row[at] if 0 <= at < len(row) else None for at in places] for row in reader if row]
    by_site: dict[str, list[tuple[str, Any]]] = {}
    for name, count, site in rows:
        by_site.setdefault(text_of(site), []).append((text_of(name), count))
    if "site" not in names:
        return _once(str(path), by_site.get("", []))
    return {site: _once(f"{path} at {site}", pairs) for site, pairs in by_site.items()}


def _shown(value: object) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)[:80]


def holdings_of(given: Given, class_names: Sequence[str], site_names: Sequence[str], source: str) -> TrainingCounts:
    """Counts in one of the forms that a user may give them in: by place, by class, or by site and class."""
    if not isinstance(given, Mapping):
        if len(given) != len(class_names):
            there = f"{len(given)} class count{'s' * (len(given) != 1)} for {len(class_names)} classes"
            raise FedGAError(f"there {'is' if len(given) == 1 else 'are'} {there}: give one number for every class")
        class_names, given = tuple(map(str, range(len(class_names)))), dict(enumerate(given))
    labels = Labels(class_names)
    if not any(isinstance(value, Mapping) for value in given.values()):
        return TrainingCounts((), _row(given, labels)[None], source)
    by_site = _once("the class counts", ((text_of(site), of_site) for site, of_site in given.items()))
    if "" in by_site:
        raise FedGAError("there are class counts of a site without a name: name every site")
    if absent := [site for site in site_names if site not in by_site]:
        raise FedGAError(f"site {absent[0]!r} has predictions and no class counts: give its counts too")
    counts = np.stack([_row(of_site, labels, site) for site, of_site in by_site.items()])
    return TrainingCounts(tuple(by_site), counts, source)


def _row(given: Any, labels: Labels, site: str = "") -> np.ndarray:
    """Counts by class as an array: every class once, each a number that is not negative."""
    at = f" at {site}" if site else ""
    if not isinstance(given, Mapping):
        raise FedGAError(f"the class counts{at} are {_shown(given)}: give a number for every class")
    counts: dict[int, float] = {}
    for name, number in given.items():
        place = labels.code(name)
        if place == UNKNOWN:
            raise FedGAError(f"there are counts{at} for {_shown(name)}, which is no class: it must be {labels.known()}")
        if place in counts:
            raise FedGAError(f"the class counts{at} name {labels.names[place]!r} twice: give one number for it")
        try:
            counts[place] = float(number)
        except (TypeError, ValueError, OverflowError):
            counts[place] = math.nan
        if not 0 <= counts[place] < math.inf:
            shown = f"the count of class {_shown(name)}{at} is {_shown(number)}"
            raise FedGAError(f"{shown}: give a number of samples, 0 if none")
    missing = next((name for place, name in enumerate(labels.names) if place not in counts), None)
    if missing is not None:
        raise FedGAError(f"the class counts{at} leave out {missing!r}: give a number for every class, 0 if none")
    if not any(counts.values()) and not site:
        raise FedGAError("the class counts are all 0: say how many samples of each class were trained on")
    return np.array([counts[place] for place in range(len(labels.names))])
