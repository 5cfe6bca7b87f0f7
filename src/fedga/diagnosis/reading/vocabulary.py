"""Words to numbers: which class a label means, and which site a row belongs to."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedga.data.assemble import listed
from fedga.errors import FedGAError, quoted

UNKNOWN = -1
_LONGEST_SITE = 10_000  # characters
_SAYS_NOTHING = re.compile(r"p|probs?|proba|probability|score|logit|positive|prediction|y_(prob|proba|score)|1")
_TRUTH = {"false": 0, "true": 1}


class Labels:
    """The classes of a file: a label is a class's name or, where no class is called by a number, its place from 0.

    >>> labels = Labels(("cat", "dog"))
    >>> [labels.code(label) for label in ("dog", 0, 1.0, "bird", 2, True)]
    [1, 0, 1, -1, -1, -1]
    >>> Labels(("1", "2")).code(1)  # a name, since the classes are called by numbers
    0
    >>> Labels(("true", "false")).code(True), Labels(("1", "0")).code(True)  # a name too, and never a place
    (0, 0)
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._places = {name: place for place, name in enumerate(self.names)}
        self._truths = {name.lower(): place for place, name in enumerate(self.names) if name.lower() in _TRUTH}
        self._numbered = bool(self._truths) or any(whole_number(name) is not None for name in self.names)
        self._met_name, self._met_numbers = False, set[int]()

    def code(self, label: object) -> int:
        """The place of the class, or ``UNKNOWN``."""
        text = text_of(label)
        if text in self._places:
            self._met_name = True
            return self._places[text]
        truth = _TRUTH.get(text.lower())
        if truth is not None:
            return self._truths.get(text.lower(), self._places.get(str(truth), UNKNOWN))
        number = whole_number(text)
        if number is None:
            return UNKNOWN
        if self._numbered:
            return self._places.get(str(number), UNKNOWN)
        self._met_numbers.add(number)
        return number if 0 <= number < len(self.names) else UNKNOWN

    @property
    def seem_to_count_from_one(self) -> bool:
        """Whether all labels met are numbers from 1 to the number of classes, which are called otherwise."""
        met = self._met_numbers
        return bool(met) and not self._met_name and min(met) >= 1 and max(met) <= len(self.names)

    def known(self) -> str:
        """What a label may be, in words."""
        named = listed(self.names, 6)
        return f"one of {named}" if self._numbered else f"one of {named}, or a place from 0 to {len(self.names) - 1}"


class BinaryLabels(Labels):
    """The two classes of a file with one column, the probability of class ``positive``.

    Labels are 0 and 1, or the name of the positive class and any one other. Where that name is a number, labels are
    compared with it.

    >>> labels = BinaryLabels("ill")
    >>> [labels.code(label) for label in ("healthy", "ill", "healthy", "dead", 1)], labels.names
    ([0, 1, 0, -1, 1], ('healthy', 'ill'))
    >>> labels = BinaryLabels("0")
    >>> [labels.code(label) for label in (0, 1, 2, False)], labels.names
    ([1, 0, -1, 1], ('1', '0'))
    """

    def __init__(self, positive: str) -> None:
        self._named = not _SAYS_NOTHING.fullmatch(positive.lower())
        super().__init__((f"not {positive}", positive) if self._named else ("0", "1"))
        self._positive, self._negative = _as_number(positive), ""
        self._by_number = self._named and whole_number(positive) is not None
        self._one = _TRUTH.get(positive.lower(), 1)  # what the positive class is called where labels are 0 and 1

    def code(self, label: object) -> int:
        text = _as_number(text_of(label))
        number = whole_number(text)
        if number is not None and not self._by_number:
            return int(number == self._one) if number in (0, 1) else UNKNOWN
        if self._named and text == self._positive:
            return 1
        if self._named and text and not self._negative:
            self._negative = text
            self.names = (text, self.names[1])
        return 0 if self._named and text and text == self._negative else UNKNOWN

    def known(self) -> str:
        if self._by_number:
            return f"{self.names[1]!r}, after which the one column of probabilities is called, or {self.names[0]!r}"
        if self._named:
            numbers = f"{1 - self._one} or {self.names[0]!r}, and {self._one} or {self.names[1]!r}"
            return f"{numbers}, for there is one column of probabilities"
        return "0 or 1, or call the one column of probabilities after the class it means, such as p_ill"


class SiteNames:
    """Names of sites in the order in which they appear, each as it is written.

    >>> sites = SiteNames()
    >>> [sites.code(site) for site in ("007", "7", 7, 7.0, " 7", None)], sites.names
    ([0, 1, 1, 1, 1, -1], ('007', '7'))
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def code(self, site: object) -> int:
        text = text_of(site)
        if len(text) > _LONGEST_SITE:
            cure = f"name sites in at most {_LONGEST_SITE:,}, or pass --site-column none"
            raise FedGAError(f"a site has a name of {len(text):,} characters, {quoted(text, 40)}: {cure}")
        return self._places.setdefault(text, len(self._places)) if text else UNKNOWN

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._places)


Vocabulary = Labels | SiteNames


def encode(words: Vocabulary, values: np.ndarray) -> np.ndarray:
    """The number of every value, int64 [rows], ``UNKNOWN`` where it has none."""
    found, inverse = np.unique(values, return_inverse=True)
    return np.array([words.code(value) for value in found.tolist()], dtype=np.int64)[inverse.reshape(-1)]


def text_of(value: object) -> str:
    """A label or site as text, without spaces around it; nothing where a value is missing.

    >>> [text_of(value) for value in (" a ", b"a", 7, 7.0, 7.5, "7.0", None, float("nan"), "nan")]
    ['a', 'a', '7', '7', '7.5', '7.0', '', '', '']
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas, which need not be here
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace").strip()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))  # a column of whole numbers with a hole in it becomes one of floats
    text = str(value).strip()
    return "" if text == "nan" else text


def whole_number(text: str) -> int | None:
    """
    >>> whole_number("07"), whole_number("3.0"), whole_number("True"), whole_number("a"), whole_number("9" * 5000)
    (7, 3, None, None, None)
    """
    return int(text.partition(".")[0]) if re.fullmatch(r"[+-]?\d{1,18}(\.0*)?", text) else None


def _as_number(text: str) -> str:
    """A number, or the one that a truth value stands for, as short as it can be written; other text as it is.

    >>> [_as_number(text) for text in ("07", "3.0", "True", "a", "")]
    ['7', '3', '1', 'a', '']
    """
    number = _TRUTH.get(text.lower(), whole_number(text))
    return text if number is None else str(number)


def check_names(names: Sequence[object], where: str) -> tuple[str, ...]:
    """Class names as text, each once."""
    texts = tuple(text_of(name) for name in names)
    if twice := sorted(name for name, times in Counter(texts).items() if times > 1):
        raise FedGAError(f"{where} has two classes called {twice[0]!r}: give every class a name of its own")
    if "" in texts:
        raise FedGAError(f"class {texts.index('')} of {where} has an empty name: give every class a name")
    return texts
