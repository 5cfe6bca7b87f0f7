"""Where a round's time went, for the terminal."""

import torch
from rich.text import Text

from fedga.engine.profile import PHASES, Stopwatch
from fedga.report.terminal import Column, TitledTable, make_table
from fedga.report.words import plural

_BAR = 20  # cells of a phase that takes all the time


def profile_table(watch: Stopwatch, *, width: int | None = None) -> TitledTable:
    """Seconds, share and milliseconds per round of every phase, over the steady rounds."""
    stage = watch.shown
    rows = [(phase, stage.seconds[phase], stage.share(phase)) for phase in PHASES]
    cells = [
        (phase, f"{seconds:.2f}", f"{share:.1%}", f"{1000 * seconds / max(stage.rounds, 1):.1f}")
        for phase, seconds, share in [*rows, ("all", stage.wall, 1.0)]
    ]
    styles = [*("" if share >= 0.005 else "dim" for _, _, share in rows), "bold"]
    texts = [[Text(text, style) for text, style in zip(of, styles, strict=True)] for of in zip(*cells, strict=True)]
    numbers = zip(("seconds", "share", "ms per round"), texts[1:], strict=True)
    columns = [Column("phase", texts[0]), *(Column(heading, of, "right") for heading, of in numbers)]
    bars = Column("", [*(Text(_bar(share), "cyan") for _, _, share in rows), Text("")])
    caption = " ".join(filter(None, _caption(watch)))
    return make_table([*columns, bars], title=_title(watch), caption=caption, width=width, sections=[len(rows) - 1])


def _bar(share: float) -> str:
    whole, eighths = divmod(round(8 * _BAR * share), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


def _title(watch: Stopwatch) -> str:
    stage, device = watch.shown, str(watch.device)
    kind = "steady round" if watch.steady.rounds else "warm-up round"
    runs = stage.run_rounds / max(stage.rounds, 1)
    at_once = f"{runs:g} run" if runs == 1 else f"{round(runs, 1):g} runs at once"
    workers = watch.workers or plural(torch.get_num_threads(), "thread")
    place = f"{device}, {workers}" if device == "cpu" else device
    return f"Where the time went: {plural(stage.rounds, kind)} of {at_once}, on {place}"


def _caption(watch: Stopwatch) -> list[str]:
    stage, first = watch.shown, watch.warm_up
    warm_up = f"{plural(first.rounds, 'warm-up round')} {first.wall:.2f} s; " if watch.steady.rounds else ""
    peaks = zip(watch.peak_memory().values(), ("resident", "on the GPU"), strict=True)
    memory = [f"{size / 2**20:,.0f} MiB {where}" for size, where in peaks if size is not None]
    return [
        f"{stage.client_steps / stage.wall:,.0f} local steps per second." if stage.wall else "",
        f"Not in the table: {warm_up}outside of rounds (data, building, waiting) {watch.outside.wall:.2f} s.",
        f"Peak memory: {', '.join(memory)}." if memory else "",
        "" if str(watch.device) == "cpu" else "Every phase waited for the GPU: runs without --profile are faster.",
    ]
