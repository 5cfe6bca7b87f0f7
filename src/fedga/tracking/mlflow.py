"""MLflow: an experiment per results folder, at ``MLFLOW_TRACKING_URI`` or under ``mlflow/`` in the folder."""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from fedga.tracking.service import Held, Service, TrackedRound, TrackedRun, setting_text

RUN_ID, FOLDER = "fedga.run_id", "fedga.folder"
_MOST_METRICS = 1000  # that a server takes at once
_MOST_RUNS = 50_000  # that a server returns at once


class Tracker(Service):
    """A run that is begun again is found by its tags, and asked which rounds it has."""

    def __init__(self, folder: Path, token: str, notify: Callable[[str], None]) -> None:
        super().__init__(folder, token, notify)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no connection but the one that was asked for
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # all that the small package can do without a server
        self.mlflow = import_module("mlflow")
        home = self.folder / "mlflow"
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            show = f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {shlex.quote(str(home))}"
            notify(f"{show} shows the curves (where the whole mlflow package is installed)")
        self.client = self.mlflow.MlflowClient(uri or home.as_uri())
        found = self.client.get_experiment_by_name(self.folder.name)
        self.experiment = self.client.create_experiment(self.folder.name) if found is None else found.experiment_id
        self.open: dict[str, str] = {}
        runs = self.client.search_runs([self.experiment], f"tags.`{FOLDER}` = '{token}'", max_results=_MOST_RUNS)
        self.known = {run.data.tags[RUN_ID]: run.info.run_id for run in runs}  # only this process adds to them

    def begin(self, run: TrackedRun) -> Held:
        held: dict[str, int] = {}
        if run.run_id in self.known:
            at = self.known[run.run_id]
            self.client.update_run(at, status="RUNNING")
            for name in self.client.get_run(at).data.metrics:
                held[name] = max(metric.step for metric in self.client.get_metric_history(at, name))
        else:
            tags = {**run.tags, RUN_ID: run.run_id, FOLDER: self.token}
            at = self.client.create_run(self.experiment, tags=tags, run_name=run.name).info.run_id
        self.open[run.run_id] = at
        param = self.mlflow.entities.Param
        self.client.log_batch(at, params=[param(name, setting_text(value)) for name, value in run.config.items()])
        return held

    def log(self, run: TrackedRun, rounds: Sequence[TrackedRound]) -> None:
        now, metric = int(time.time() * 1000), self.mlflow.entities.Metric
        values = [metric(name, value, now, row.round) for row in rounds for name, value in row.metrics.items()]
        for start in range(0, len(values), _MOST_METRICS):
            self.client.log_batch(self.open[run.run_id], metrics=values[start : start + _MOST_METRICS])

    def end(self, run: TrackedRun, diverged: bool, note: str) -> None:
        at = self.open.pop(run.run_id)
        if diverged:
            self.client.set_tag(at, "status", "diverged")
            self.client.set_tag(at, "mlflow.note.content", note)
        self.client.set_terminated(at, "FAILED" if diverged else "FINISHED")

    def close(self) -> None:
        for at in self.open.values():
            self.client.set_terminated(at, "KILLED")
