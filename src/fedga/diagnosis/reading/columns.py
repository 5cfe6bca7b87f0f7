"""Which column of a table is the label, which the site, and which are probabilities of what."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fedga.data.assemble import listed
from fedga.data.formats.tables import CLIENT_COLUMNS, LABEL_COLUMNS, check_column_names, find_column
from fedga.diagnosis.counts import Adjustment
from fedga.diagnosis.reading.vocabulary import BinaryLabels, Labels, check_names
from fedga.errors import FedGAError

SITE_COLUMNS = ("site", "hospital", *CLIENT_COLUMNS)
NO_SITES = "none"
_LABEL_COLUMNS = (*LABEL_COLUMNS, "y_true")
_ROW_NUMBERS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # what pandas calls an index that has no name
_PREFIX = re.compile(r"(p|prob|probs|proba|probability|score|logit|logits)[_. :=-]+(?=.)", re.IGNORECASE)


@dataclass(frozen=True)
class ColumnOptions:
    label_column: str | None = None
    site_column: str | None = None
    probability_columns: tuple[str, ...] = ()  # names, or patterns with a star
    logits: bool = False
    adjust: Adjustment | None = None  # of the probabilities that were read


@dataclass(frozen=True)
class Columns:
    label: str
    site: str | None
    probabilities: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def labels(self, where: str) -> Labels:
        """The classes that the columns are of: their names, without the ``p_`` that all of them begin with."""
        prefixes = {found[0].lower() if (found := _PREFIX.match(name)) else "" for name in self.probabilities}
        cut = len(prefixes) == 1
        names = [_PREFIX.sub("", name, count=1) if cut else name for name in self.probabilities]
        return BinaryLabels(names[0]) if len(names) == 1 else Labels(check_names(names, where))


def choose_columns(where: str, names: Sequence[str], numeric: Sequence[str], options: ColumnOptions) -> Columns:
    """Find the columns by what the user says, else by their usual names; ``numeric`` are those that hold numbers."""
    check_column_names(where, names)
    label = find_column(f"label column of {where}", names, options.label_column, _LABEL_COLUMNS)
    if label is None:
        usual = ", ".join(LABEL_COLUMNS[:-1])
        cure = f"name the one that holds the true class with --label-column (columns: {listed(names, 12)})"
        raise FedGAError(f"{where} has no column named {usual}: {cure}")
    asked = options.site_column
    site = None if asked == NO_SITES else find_column(f"site column of {where}", names, asked, SITE_COLUMNS)
    if site == label:
        raise FedGAError(f"column {label!r} of {where} is named as label and as site: name two different ones")
    if options.probability_columns:
        return Columns(label, site, _asked(where, names, numeric, options.probability_columns))
    numbers = [name for name in numeric if name not in (label, site)]
    rest = [name for name in numbers if not _ROW_NUMBERS.fullmatch(name)]
    prefixed = [name for name in rest if _PREFIX.match(name)]
    if not rest:
        cure = f"add one column per class with its probability (columns: {listed(names, 12)})"
        raise FedGAError(f"{where} has no column of numbers beside {label!r}: {cure}")
    unnamed = [f"“{name}”" if name else "without a name" for name in numbers if _ROW_NUMBERS.fullmatch(name)]
    notes = [] if prefixed or not unnamed else [f"Left out as row numbers: the column {', '.join(unnamed)}."]
    if asked is None and site is None:
        used = {label, *numeric}
        if words := [name for name in names if name not in used]:  # one of which may name the sites
            cure = f"--site-column {shlex.quote(words[0])} would compare sites."
            notes.append(f"Not used: {listed(words, 6)}; {cure}")
    return Columns(label, site, tuple(prefixed or rest), tuple(notes))


def _asked(where: str, names: Sequence[str], numeric: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    chosen: dict[str, None] = {}
    for wish in asked:
        found = [name for name in names if name == wish] or [name for name in names if fnmatchcase(name, wish)]
        if not found:
            find_column(f"probability column of {where}", names, wish, ())
        chosen |= dict.fromkeys(found)
    numbers = set(numeric)
    if words := [name for name in chosen if name not in numbers]:
        raise FedGAError(f"column {words[0]!r} of {where} does not hold numbers: name columns of probabilities")
    return tuple(chosen)
