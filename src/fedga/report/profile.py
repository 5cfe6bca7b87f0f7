"""Where a round's time went, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from fedga.engine.profile import PHASES, Measured
from fedga.report.terminal import Column, TitledTable, make_table
from fedga.report.words import plural

BAR = 20  # cells of a phase that takes all the time
_EIGHTHS = " ▏▎▍▌▋▊▉"


def profile_table(measured: Measured, *, width: int | None = None) -> TitledTable:
    """Seconds, share and milliseconds per round of every phase, over the steady rounds."""
    stage = measured.telling
    rows = [(phase, stage.seconds[phase], stage.share(phase)) for phase in PHASES]
    whole = ("all", stage.wall, 1.0)
    styles = ["" if share >= 0.005 else "dim" for _, _, share in rows] + ["bold"]
    cells = [
        (phase, f"{seconds:.2f}", f"{share:.1%}", f"{1000 * seconds / max(stage.rounds, 1):.1f}")
        for phase, seconds, share in [*rows, whole]
    ]
    bars = [Text(bar(share), style="cyan") for _, _, share in rows] + [Text("")]
    names, *numbers = zip(*cells, strict=True)
    columns = [Column("phase", _styled(names, styles))]
    columns += [
        Column(heading, _styled(texts, styles), "right")
        for heading, texts in zip(("seconds", "share", "ms per round"), numbers, strict=True)
    ]
    return make_table(
        [*columns, Column("", bars)],
        title=_title(measured),
        caption=_caption(measured),
        width=width,
        sections=[len(rows) - 1],
    )


def _styled(texts: Sequence[str], styles: Sequence[str]) -> list[Text]:
    return [Text(text, style=style) for text, style in zip(texts, styles, strict=True)]


def bar(share: float, cells: int = BAR) -> str:
    """A lying bar of text, to an eighth of a cell.

    >>> bar(0.5, 4), bar(0.3, 4), bar(0.0, 4)
    ('██', '█▎', '')
    """
    whole, rest = divmod(round(8 * cells * share), 8)
    return "█" * whole + _EIGHTHS[rest].strip()


def _title(measured: Measured) -> str:
    stage = measured.telling
    kind = "steady round" if measured.steady.rounds else "warm-up round"
    mean = stage.run_rounds / max(stage.rounds, 1)
    runs = "1 run" if mean == 1 else f"{round(mean, 1):,g} runs at once"
    threads = f", {plural(measured.threads, 'thread')}" if measured.device == "cpu" else ""
    return f"Where the time went: {plural(stage.rounds, kind)} of {runs}, on {measured.device}{threads}"


def _caption(measured: Measured) -> str:
    stage = measured.telling
    parts = []
    if stage.wall:
        parts.append(f"{stage.client_steps / stage.wall:,.0f} local steps of a client per second.")
    first = measured.warm_up
    warm_up = f"{plural(first.rounds, 'warm-up round')} {first.wall:.2f} s; " if measured.steady.rounds else ""
    outside = f"outside of rounds (reading data, building, waiting) {measured.outside.wall:.2f} s"
    parts.append(f"Not in the table: {warm_up}{outside}.")
    memory = [(measured.peak_memory, "resident"), (measured.peak_cuda_memory, "on the GPU")]
    known = [f"{size / 2**20:,.0f} MiB {where}" for size, where in memory if size is not None]
    if known:
        parts.append(f"Peak memory: {', '.join(known)}.")
    if measured.device != "cpu":
        parts.append("To measure, every phase waited for the GPU: without --profile the run is a little faster.")
    return " ".join(parts)
