"""The one exception a user's input can cause."""

import difflib
from collections.abc import Collection, Iterable

_MOST_LISTED = 50  # names in one sentence
_SYNONYMS = {"random": ("uniform", "iid"), "round-robin": ("in-turn",), "non-iid": ("dirichlet",)}


class FedGAError(ValueError):
    """Something the user asked for cannot be done.

    Its text is one sentence that says what was wrong and what to do. The command line prints it and
    exits with code 2; a traceback appears only with ``--traceback``.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> FedGAError:
    """The error for a misspelt name, with the nearest valid one.

    >>> print(unknown_name("algorithm", "fedgaa", ["fedavg", "fedga"]))
    unknown algorithm 'fedgaa': did you mean 'fedga'? (known: fedavg, fedga)
    """
    known = sorted(known)
    near = [one for one in known if one.casefold() == name.casefold() or one in _SYNONYMS.get(name.casefold(), ())]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(known[:_MOST_LISTED]) + ", …" * (len(known) > _MOST_LISTED)
    return FedGAError(f"unknown {kind} {quoted(name)}{hint} (known: {listed})")


def check_known(kind: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is none of these."""
    if name not in known:
        raise unknown_name(kind, name, known)


def quoted(text: object, most: int = 80) -> str:
    """A text that somebody else wrote, as a sentence may show it: in quotation marks, cut, nothing but plain letters.

    >>> print(quoted(chr(27) + "[31m alert"), quoted("a" * 100, most=5))
    '\\x1b[31m alert' 'aaaaa…'
    """
    whole = str(text)
    return repr(whole[:most] + "…" * (len(whole) > most))


def a_or_an(found: object) -> str:
    """The type of a value as a sentence says it.

    >>> a_or_an(1), a_or_an(1.0)
    ('an int', 'a float')
    """
    named = type(found).__name__
    return f"a{'n' * (named[0].lower() in 'aeiou')} {named}"


def needs_extra(package: str, extra: str, purpose: str) -> FedGAError:
    """The error for an optional dependency that is not installed."""
    return FedGAError(f"{purpose} needs {package}, which is not installed: pip install 'fedga[{extra}]'")
