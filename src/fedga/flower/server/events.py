"""How a run on Flower reports its progress to the command that waits for it: lines of JSON in a file."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedga.engine.server import LaneRound
from fedga.spec.settings import RunSpec
from fedga.study.sweep import Observer


def event_writer(events: Path, stop: Path) -> Observer:
    """On Flower's side. A file called ``stop`` asks it to end after the round it is in."""

    def write(**event: Any) -> None:
        with events.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def started(specs: Sequence[RunSpec], done: int) -> None:
        write(started=[spec.run_id for spec in specs], done=done)

    def advanced(specs: Sequence[RunSpec], rounds: Sequence[LaneRound]) -> None:
        results = [dataclasses.asdict(dataclasses.replace(result, clients=[])) for result in rounds]
        write(advanced=[spec.run_id for spec in specs], rounds=results)

    return Observer(started, advanced, lambda text: write(noticed=text), stop.exists)


class EventReader:
    """On the waiting side: hands what was written since the last look to an observer."""

    def __init__(self, events: Path, specs: Sequence[RunSpec], observer: Observer) -> None:
        self.events, self.observer, self._read = events, observer, 0  # bytes
        self._specs = {spec.run_id: spec for spec in specs}

    def look(self) -> None:
        if not self.events.exists():
            return
        with self.events.open("rb") as file:
            file.seek(self._read)
            lines = [line for line in file if line.endswith(b"\n")]  # the last one may be half written
        for line in lines:
            self._read += len(line)
            event = json.loads(line)
            specs = [self._specs[run_id] for run_id in event.get("started") or event.get("advanced", [])]
            if "noticed" in event:
                self.observer.noticed(event["noticed"])
            elif "started" in event:
                self.observer.started(specs, event["done"])
            else:
                self.observer.advanced(specs, [LaneRound(**result) for result in event["rounds"]])
