"""What is in each service's files, read with the service's own library, and what the results file says of the same."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedga.store.database import open_for_reading
from fedga.store.records import METRICS
from fedga.store.results import read_runs

Point = tuple[int, str, float]  # round, metric, value


@dataclass
class Seen:
    """A run as somebody finds it; ``points`` keeps duplicates."""

    name: str
    config: dict[str, Any]
    points: list[Point]
    status: str  # done, diverged, interrupted or running
    tags: frozenset[str] = frozenset()


def in_results(folder: Path) -> dict[str, Seen]:
    """By run id, what there is to be tracked."""
    found = {}
    with closing(open_for_reading(folder)) as connection:
        for run in read_runs(connection):
            query = f"SELECT round, {', '.join(METRICS)} FROM metrics WHERE run = ?"
            points = [
                (at, name, value)
                for at, *values in connection.execute(query, (run.key,))
                for name, value in zip(METRICS, values, strict=True)
                if value is not None
            ]
            found[run.run_id] = Seen("", {}, points, run.status)
    return found


def in_tensorboard(folder: Path) -> dict[str, Seen]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    found = {}
    for path in sorted(path for path in (folder / "tensorboard").iterdir() if path.is_dir()):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0})
        events.Reload()
        points = [(event.step, tag, event.value) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]
        told = events.summary_metadata
        start = metadata.parse_session_start_info_plugin_data(told[metadata.SESSION_START_INFO_TAG].plugin_data.content)
        config = {name: getattr(value, str(value.WhichOneof("kind"))) for name, value in start.hparams.items()}
        status = "running"
        if metadata.SESSION_END_INFO_TAG in told:
            end = metadata.parse_session_end_info_plugin_data(told[metadata.SESSION_END_INFO_TAG].plugin_data.content)
            status = {1: "done", 2: "diverged"}[end.status]
        if not config:  # wandb's service wrote once more into the folder of a run that is begun again: nothing is in it
            assert not points
            continue
        assert config["run_id"] not in found
        found[config["run_id"]] = Seen(path.name.rpartition(" ")[0], config, points, status)
    return found


def in_mlflow(folder: Path, uri: str | None = None) -> dict[str, Seen]:
    from mlflow import MlflowClient

    client = MlflowClient(uri or (folder / "mlflow").as_uri())
    experiment = client.get_experiment_by_name(folder.name)
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        points = [(metric.step, name, metric.value) for name, history in histories.items() for metric in history]
        status = {"FINISHED": "done", "FAILED": "diverged", "KILLED": "interrupted", "RUNNING": "running"}
        assert run.data.params["run_id"] not in found
        tags = frozenset(run.data.tags.values())
        found[run.data.params["run_id"]] = Seen(
            run.info.run_name, run.data.params, points, status[run.info.status], tags
        )
    return found


def in_wandb(folder: Path) -> dict[str, Seen]:
    """From the files of offline runs."""
    found = {}
    for path in (folder / "wandb").glob("offline-run-*/*.wandb"):
        name, config, points, status, tags = "", {}, [], "running", frozenset[str]()
        for record in _wandb_records(path):
            match record.WhichOneof("record_type"):
                case "run":
                    name, tags = record.run.display_name, frozenset(record.run.tags) or tags
                    config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
                    assert record.run.run_group == folder.name
                case "history":
                    items = {
                        item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item
                    }
                    assert items["_step"] == record.history.step.num
                    points += [(items["_step"], key, float(value)) for key, value in items.items() if key[0] != "_"]
                case "exit":
                    status = {0: "done", 1: "diverged", 255: "interrupted"}[record.exit.exit_code]
        if not config:  # wandb's service wrote once more into the folder of a run that is begun again: nothing is in it
            assert not points
            continue
        assert config["run_id"] not in found
        found[config["run_id"]] = Seen(name, config, points, status, tags)
    return found


def _wandb_records(path: Path) -> Iterator[Any]:
    """wandb's own reader is not part of its Python package; its log is LevelDB's, behind seven bytes of its own.

    A record is one piece or several, none of which crosses a block of 32 KiB. Each has a checksum, a length, and a type
    that says whether the record begins or ends with it.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, block = path.read_bytes(), 7, 1 << 15
    assert data[:4] == b":W&B"
    collected = b""
    while at + 7 <= len(data):
        left = block - at % block
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        collected += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(collected)
            collected = b""
            yield record


READERS = {"mlflow": in_mlflow, "tensorboard": in_tensorboard, "wandb": in_wandb}


def counts(found: dict[str, Seen]) -> dict[str, int]:
    """How many numbers there are of every run that has any."""
    return {run_id: len(seen.points) for run_id, seen in found.items() if seen.points}


def check_equal(service: str, folder: Path) -> None:
    """Every run, round, metric and status of the results is in the service, once, and nothing else is."""
    expected, found = in_results(folder), READERS[service](folder)
    assert found.keys() == expected.keys()
    for run_id, want in expected.items():
        points = [(at, name, float(np.float32(value))) for at, name, value in want.points]  # what TensorBoard keeps
        exact = service != "tensorboard"
        assert sorted(found[run_id].points) == sorted(want.points if exact else points)
        assert found[run_id].status == want.status
