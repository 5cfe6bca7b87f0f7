"""What pictures say below their panels."""

from __future__ import annotations

from collections.abc import Sequence

from fedga.report.series import Panel, measured


def seeds_text(panels: Sequence[Panel]) -> str:
    """How many seeds the lines are made of, in words."""
    numbers = sorted({len(series.sound) for panel in panels for series in panel.series if series.sound})
    if not numbers or numbers == [1]:
        return "one seed"
    return f"{numbers[0]} seeds" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"


def curves_caption(panels: Sequence[Panel], metric: str) -> str:
    """What lines, bands and crosses of `draw_accuracy` are, in words."""
    seeds = seeds_text(panels)
    caption = "One seed." if seeds == "one seed" else f"Mean over {seeds}, band: their standard deviation."
    if measured(panels, f"averaged_{metric}"):
        caption += " Dotted: the model averaged over rounds on the server."
    return caption + diverged_text(panels)


def diverged_text(panels: Sequence[Panel]) -> str:
    """Which runs a picture shows with a cross; empty if none."""
    found = [
        f"{len(series.diverged)} of {len(series.curves)} of {series.label}"
        + (f" at {panel.title}" if len(panels) > 1 else "")
        for panel in panels
        for series in panel.series
        if series.diverged
    ]
    return f" ×: runs that diverged, left out of the mean ({'; '.join(found)})." if found else ""


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["FedAvg", "FedNTD", "FedGA"]), listed(["FedAvg"]), listed([])
    ('FedAvg, FedNTD and FedGA', 'FedAvg', '')
    """
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
