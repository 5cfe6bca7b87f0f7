"""A bar of rounds on a terminal's error output, or in a notebook."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedga.errors import FedGAError, a_or_an

Advance = Callable[[int, Mapping[str, float] | None], None]  # the round that is done, and what was measured in it


@contextmanager
def shown_rounds(rounds: int, progress: bool | None) -> Iterator[Advance]:
    """A function to call after every round.

    ``progress`` None: a bar where somebody can see it move, which is a terminal or a notebook, and which is gone once
    the run is over. True: a bar, which elsewhere is written once, at the end. False: none.
    """
    if progress not in (None, True, False):
        raise FedGAError(f"progress is {a_or_an(progress)}: give True, False or None")
    if progress is False:
        yield lambda done, metrics: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    is_seen = console.is_terminal or console.is_jupyter
    if progress is None and not is_seen:
        yield lambda done, metrics: None
        return
    from rich import progress as bars

    columns: tuple[Any, ...] = ("round", bars.MofNCompleteColumn(), bars.BarColumn(), bars.TimeRemainingColumn())
    with bars.Progress(*columns, "{task.description}", console=console, transient=is_seen) as shown:
        task = shown.add_task("", total=rounds)

        def advance(done: int, metrics: Mapping[str, float] | None) -> None:
            found = metrics or {}
            name = next((name for name in ("accuracy", "client_accuracy") if name in found), None)
            shown.update(task, completed=done, description=None if name is None else f"accuracy {found[name]:.3f}")

        yield advance
