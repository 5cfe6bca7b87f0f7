"""`fedga run --profile`: where the time went, printed and written at the end of training, however it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedga.cli.console import err, say
from fedga.engine.profile import Profile, Stopwatch
from fedga.report.profile import profile_table
from fedga.store.database import explained
from fedga.study.sweep import Interrupted


@contextmanager
def profiling(profile: Profile, folder: Path) -> Iterator[None]:
    """Report what ``profile`` measured inside, if it measures; also when the user stops the run."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        _report(profile, folder)
        raise
    _report(profile, folder)


def _report(profile: Profile, folder: Path) -> None:
    if not isinstance(profile, Stopwatch):
        return
    if not profile.shown.rounds:
        say("nothing was trained, so there is no profile")
        return
    err.print(profile_table(profile, width=err.width))
    path = folder / "profile.json"
    with explained(folder):
        path.write_text(json.dumps(profile.as_json(), indent=2) + "\n", encoding="utf-8")
    say(f"the same as numbers: {path}")
