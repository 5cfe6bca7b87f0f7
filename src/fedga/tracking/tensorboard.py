"""TensorBoard: an event file per run, under ``tensorboard/`` in the results folder."""

import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedga.tracking.service import Held, Service, TrackedRound, TrackedRun, setting_text


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
        self.plugin = import_module("tensorboard.plugins.hparams.plugin_data_pb2")
        self.api = import_module("tensorboard.plugins.hparams.api_pb2")
        self.struct = import_module("google.protobuf.struct_pb2")
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
        hparams = self.struct.Struct()
        settings = run.config.items()
        hparams.update({name: of if isinstance(of, int | float) else setting_text(of) for name, of in settings})
        info = {"group_name": run.run_id, "start_time_secs": time.time(), "hparams": dict(hparams.fields)}
        start = self.event.SessionLog(status=self.event.SessionLog.START)
        self._write(
            run,
            {"file_version": "brain.Event:2"},
            {"step": 0, "session_log": start},  # a TensorBoard that watches forgets what it read from the former file
            self._hparams("START", session_start_info=self.plugin.SessionStartInfo(**info)),
        )
        return {}

    def log(self, run: TrackedRun, rounds: Sequence[TrackedRound]) -> None:
        for at, metrics in rounds:
            values = [self.summary.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
            self._write(run, {"step": at, "summary": self.summary.Summary(value=values)})

    def end(self, run: TrackedRun, diverged: bool, note: str) -> None:
        status = self.api.STATUS_FAILURE if diverged else self.api.STATUS_SUCCESS
        info = self.plugin.SessionEndInfo(status=status, end_time_secs=time.time())
        self._write(run, self._hparams("END", session_end_info=info))
        del self.files[run.run_id]

    def close(self) -> None:
        """Nothing is open between two writes."""

    def _hparams(self, moment: str, **content: Any) -> dict[str, Any]:
        """What the HPARAMS page reads: a value without content, whose description is everything."""
        tag = getattr(self.hparams, f"SESSION_{moment}_INFO_TAG")
        described = self.hparams.create_summary_metadata(self.plugin.HParamsPluginData(**content))
        value = self.summary.Summary.Value(tag=tag, metadata=described, tensor=self.hparams.NULL_TENSOR)
        return {"summary": self.summary.Summary(value=[value])}

    def _write(self, run: TrackedRun, *events: Mapping[str, Any]) -> None:
        with self.files[run.run_id].open("ab") as file:
            writer = self.records.RecordWriter(file)
            for event in events:
                writer.write(self.event.Event(wall_time=time.time(), **event).SerializeToString())
