"""TensorBoard: an event file per run, under ``tensorboard/`` in the results folder."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedga.tracking.service import Held, RoundMetrics, Service, TrackedRun, setting_text


class Tracker(Service):
    """Writes records with TensorBoard's own classes but its writer, which keeps a thread for each of hundreds of runs.

    A run that is begun again is written anew, from its first round: an event file cannot be asked cheaply what it has.
    """

    def __init__(self, folder: Path, token: str, notify: Callable[[str], None]) -> None:
        super().__init__(folder, token, notify)
        proto = "tensorboard.compat.proto"
        self.event, self.summary = import_module(f"{proto}.event_pb2"), import_module(f"{proto}.summary_pb2")
        self.records = import_module("tensorboard.summary.writer.record_writer")
        self.hparams = import_module("tensorboard.plugins.hparams.metadata")
        self.plugin, self.api = (
            import_module(f"tensorboard.plugins.hparams.{part}_pb2") for part in ("plugin_data", "api")
        )
        self.home = self.folder / "tensorboard"
        self.files: dict[str, Path] = {}
        notify(f"tensorboard --logdir {shlex.quote(str(self.home))} shows the curves")

    def begin(self, run: TrackedRun) -> Held:
        ending = f" {run.run_id[:8]}"
        for old in self.home.glob(f"*{ending}"):  # its name tells runs apart, and so may change with their company
            shutil.rmtree(old)
        safe = "".join(letter if letter.isalnum() or letter in " -_.,=+" else "_" for letter in run.name[:120])
        self.files[run.run_id] = self.home / f"{safe}{ending}" / f"events.out.tfevents.{time.time_ns()}.fedga"
        self.files[run.run_id].parent.mkdir(parents=True)
        start = self.event.SessionLog(status=self.event.SessionLog.START)
        settings = self.plugin.SessionStartInfo(group_name=run.run_id, start_time_secs=time.time())
        for name, value in run.config.items():
            _set(settings.hparams[name], value)
        self._write(
            run,
            [
                self.event.Event(wall_time=time.time(), file_version="brain.Event:2"),
                # A TensorBoard that watches forgets what it read from the file that was here.
                self.event.Event(wall_time=time.time(), step=0, session_log=start),
                self._hparams(self.hparams.SESSION_START_INFO_TAG, session_start_info=settings),
            ],
        )
        return {}

    def log(self, run: TrackedRun, rounds: Sequence[RoundMetrics]) -> None:
        self._write(run, [self._scalars(row) for row in rounds])

    def end(self, run: TrackedRun, diverged: bool, note: str) -> None:
        status = self.api.STATUS_FAILURE if diverged else self.api.STATUS_SUCCESS
        info = self.plugin.SessionEndInfo(status=status, end_time_secs=time.time())
        self._write(run, [self._hparams(self.hparams.SESSION_END_INFO_TAG, session_end_info=info)])
        del self.files[run.run_id]

    def close(self) -> None:
        """Nothing is open between two writes."""

    def _scalars(self, row: RoundMetrics) -> Any:
        """All metrics of a round as one event."""
        values = [self.summary.Summary.Value(tag=name, simple_value=value) for name, value in row.metrics.items()]
        return self.event.Event(wall_time=time.time(), step=row.round, summary=self.summary.Summary(value=values))

    def _hparams(self, tag: str, **content: Any) -> Any:
        """What the HPARAMS page reads: a value without content, whose description is everything."""
        described = self.hparams.create_summary_metadata(self.plugin.HParamsPluginData(**content))
        value = self.summary.Summary.Value(tag=tag, metadata=described, tensor=self.hparams.NULL_TENSOR)
        return self.event.Event(wall_time=time.time(), summary=self.summary.Summary(value=[value]))

    def _write(self, run: TrackedRun, events: Sequence[Any]) -> None:
        with self.files[run.run_id].open("ab") as file:
            writer = self.records.RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())


def _set(target: Any, value: Any) -> None:
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = value
    else:
        target.string_value = setting_text(value)
