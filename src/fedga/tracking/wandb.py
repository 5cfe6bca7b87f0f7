"""Weights & Biases: a run per run, grouped by results folder; with no login, in files that ``wandb sync`` uploads."""

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedga.tracking.service import Held, Service, TrackedRound, TrackedRun

_KILLED = 255  # the exit code by which wandb tells an interrupted run from a failed one


class Tracker(Service):
    """A run on the server is continued after the last step it has.

    An offline run cannot be continued: syncing its second file would erase what the first one brought. So a run that is
    begun again offline is written anew, from its first round, and its earlier file is removed.
    """

    def __init__(self, folder: Path, token: str, notify: Callable[[str], None]) -> None:
        super().__init__(folder, token, notify)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no connection but the one that was asked for
        os.environ.setdefault("WANDB_SILENT", "true")
        self.wandb = import_module("wandb")
        self.home = self.folder / "wandb"
        self.mode = self.wandb.setup().settings.mode
        if self.mode == "online" and not self.wandb.login(prompt=False, verify=False):
            self.mode = "offline"
            files = f"{shlex.quote(str(self.home))}/offline-run-*"
            notify(f"wandb is not logged in: after wandb login, wandb sync {files} uploads the runs")
        # Without what describes the machine and the program: hundreds of runs share one process, which is not theirs.
        self.settings = self.wandb.Settings(
            console="off",
            disable_git=True,
            save_code=False,
            stop_fn=lambda: None,  # stopping one of many runs on the web page must not end them all
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self.open: dict[str, Any] = {}
        self.notified = False

    def begin(self, run: TrackedRun) -> Held:
        name = f"{run.run_id}-{self.token}"
        offline = self.mode == "offline"
        if offline:
            for old in self.home.glob(f"offline-run-*-{name}"):
                shutil.rmtree(old)
        opened = self.wandb.init(
            id=name,
            resume=None if offline else "allow",
            reinit="create_new",  # beside the others that are open
            mode=self.mode,
            dir=self.folder,
            project=os.environ.get("WANDB_PROJECT") or "fedga",
            group=self.folder.name,
            name=run.name[:128],
            tags=[tag[:64] for tag in run.tags.values()],
            config=run.config,
            settings=self.settings,
        )
        if self.mode == "online" and not self.notified:
            self.notify(f"{opened.project_url} shows the curves")
            self.notified = True
        self.open[run.run_id] = opened
        return {}  # W&B counts whole rounds, of whatever metrics: `log` leaves out those it has

    def log(self, run: TrackedRun, rounds: Sequence[TrackedRound]) -> None:
        opened = self.open[run.run_id]
        for row in rounds:
            if row.round >= opened.starting_step:
                opened.log(dict(row.metrics), step=row.round, commit=True)

    def end(self, run: TrackedRun, diverged: bool, note: str) -> None:
        ended = self.open.pop(run.run_id)
        if diverged:
            ended.tags += ("diverged",)
            ended.summary["status"] = note
        ended.finish(exit_code=1 if diverged else 0)

    def close(self) -> None:
        for opened in self.open.values():
            opened.finish(exit_code=_KILLED)
