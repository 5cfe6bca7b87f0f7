"""Rules of client selection by name: ours, and the user's own (``fedga.plugins``)."""

from typing import Any

from fedga import plugins
from fedga.algorithms.options import with_options
from fedga.errors import FedGAError
from fedga.selection.balanced import Balanced
from fedga.selection.bandit import Bandit
from fedga.selection.base import Choice, Selection
from fedga.selection.in_turn import InTurn
from fedga.selection.power_of_choice import PowerOfChoice
from fedga.selection.swap_balanced import SwapBalanced
from fedga.selection.uniform import Uniform

__all__ = ["SELECTIONS", "Choice", "Selection", "known_selections", "make_selection", "own_selections"]

SELECTIONS: dict[str, type[Selection]] = {
    "uniform": Uniform,
    "in-turn": InTurn,
    "balanced": Balanced,
    "bandit": Bandit,
    "swap-balanced": SwapBalanced,
    "power-of-choice": PowerOfChoice,
}


def own_selections(*, installed: bool = True) -> dict[str, plugins.Plugin]:
    """The user's own rules by name; their code is not run."""
    return plugins.parts("selections", SELECTIONS, installed=installed)


def known_selections() -> dict[str, type[Selection]]:
    """Ours, and the user's own."""
    return {name: selection_class(name) for name in (*SELECTIONS, *own_selections())}


def selection_class(name: str) -> type[Selection]:
    mine = own_selections(installed=name not in SELECTIONS)
    if name in SELECTIONS:
        return SELECTIONS[name]
    if name not in mine:
        raise plugins.unknown("selections", name, [*SELECTIONS, *mine])
    found = mine[name].load()
    if not isinstance(found, type) or not issubclass(found, Selection):
        raise FedGAError(f"{mine[name]} is not a selection rule: inherit from fedga.selection.Selection")
    return found


def make_selection(name: str | Selection, **options: Any) -> Selection:
    """A rule by name, its options by keyword.

    >>> make_selection("bandit", explore="0.5")
    Bandit(explore=0.5, temperature=0.01, estimate='update', compose='top')
    """
    if isinstance(name, Selection):
        return name
    from fedga.selection.check import check_selection

    kind = selection_class(name)
    rule = kind(**with_options("--select", name, kind, options))
    if kind not in SELECTIONS.values():
        check_selection(rule, name)
    return rule
