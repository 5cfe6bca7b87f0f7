"""Groups on several engines, any of which may die at any time: the results are those of one engine left in peace."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedga.errors import FedGAError
from fedga.spec.settings import RunSpec
from fedga.store.store import Store
from fedga.study import dispatch
from fedga.study.dispatch import Died, Dispatch, Trained
from fedga.study.model_files import load_model
from fedga.study.prepare import Preparation
from fedga.study.remote_engine import Assignment, RemoteEngine, Workplace
from fedga.study.sweep import ExecutionConfig, GroupJob, Groups, Interrupted, Observer, run_sweep

CPU = torch.device("cpu")
COMMON: dict[str, Any] = {"dataset": "digits", "alpha": 0.1, "clients": 10, "active": 2, "batch_size": 16}

# Two lengths, a rate that diverges at once, state on the server and at the clients, averaged models, another network.
SPECS = [
    RunSpec(**COMMON, **own, diagnose_every=2)
    for own in (
        {"algorithm": "fedavg", "rounds": 5},
        {"algorithm": "fedavg", "rounds": 3, "seed": 1},
        {"algorithm": "scaffold", "rounds": 5, "server": "momentum", "server_average": 0.2},
        {"algorithm": "fedga", "rounds": 5, "lr": 1e30},
        {"algorithm": "climb", "rounds": 5, "server": "adam"},
    )
]
AXES = ("rounds", "lr", "server_average")
ENDS = ["done", "done", "done", "diverged", "done"]


def train(folder: Path, observer: Observer | None = None, **execution: Any) -> list[str]:
    """Status of every run at the end."""
    with Store(folder) as store:
        given = {"axes": AXES, "observer": observer, "execution": ExecutionConfig(**execution)}
        return [run.status for run in run_sweep(SPECS, store, CPU, preparation=Preparation(SPECS), **given)]


def results(folder: Path) -> str:
    stream = io.StringIO()
    with Store(folder) as store:
        store.write_results(stream)
    return stream.getvalue()


def looks(folder: Path) -> list[list[str]]:
    """The class-wise looks at the clients of every run."""
    with Store(folder) as store:
        found = [store.client_rounds(spec.run_id) for spec in SPECS]
    return [
        [f"{each.round} { ({name: a.tolist() for name, a in each.arrays.items()}) }" for each in of] for of in found
    ]


def check_equal(folder: Path, whole: Path) -> None:
    """Rows, looks and models are equal to the last bit, and nothing else is left."""
    assert results(folder) == results(whole)
    assert looks(folder) == looks(whole)
    models = {path.name for path in (folder / "models").glob("*.safetensors")}
    assert models == {path.name for path in (whole / "models").glob("*.safetensors")}
    for name in models:
        weights, twins = (load_model(place / "models" / name).model.state_dict() for place in (folder, whole))
        assert all(torch.equal(weights[key], twins[key]) for key in twins)
    assert list((folder / "checkpoints").iterdir()) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one engine."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(folder) == ENDS
    return folder


class Pretended:
    """Engines in this process, which answer in any order and die when ``dies`` says so; messages are pickled."""

    kind = "cpu"

    def __init__(self, size: int = 2, dies: Callable[[int], bool] = lambda number: False, seed: int = 0) -> None:
        self.size, self._dies, self._random = size, dies, random.Random(seed)
        self.engines: dict[int, RemoteEngine] = {}
        self.asked: dict[int, Callable[[], Trained]] = {}
        self.most = 0  # engines that were at work at once

    def train(self, groups: Groups) -> None:
        self._groups = groups
        Dispatch(groups, self).run()

    def begin(self, number: int, job: GroupJob, commit_every_s: float) -> None:
        assignment = Assignment.of(job, self._groups.preparation.fingerprints(job.specs), commit_every_s)
        engine = self.engines[number] = RemoteEngine(Workplace.here("cpu", 1, None))
        self.asked[number] = lambda: engine.begin(pickle.loads(pickle.dumps(assignment)))
        self.most = max(self.most, len(self.engines))

    def go_on(self, number: int) -> None:
        self.asked[number] = self.engines[number].go_on

    def save(self, number: int) -> None:
        self.asked[number] = self.engines[number].save

    def has_begun(self, number: int) -> bool:
        return True

    def replies(self, wait_s: float) -> list[tuple[int, Trained | Died]]:
        number = self._random.choice(list(self.asked))
        answer = self.asked.pop(number)()
        return [(number, Died("pretended") if self._dies(number) else pickle.loads(pickle.dumps(answer)))]

    def free(self, number: int) -> None:
        self.engines.pop(number)
        self.asked.pop(number, None)


@pytest.mark.parametrize("commit_every_s", [-1.0, 20.0])
@pytest.mark.parametrize("seed", range(2))
def test_engines_that_die(seed: int, commit_every_s: float, whole: Path, tmp_path: Path) -> None:
    """Whatever was not committed is trained again, to the same numbers."""
    chance, deaths, notices = random.Random(seed), list[int](), list[str]()

    def dies(number: int) -> bool:
        if len(deaths) < dispatch.MOST_DEATHS - 1 and chance.random() < 0.5:
            deaths.append(number)
            return True
        return False

    engines = Pretended(2, dies, seed)
    observer = Observer(noticed=notices.append)
    assert train(tmp_path, observer, pool=engines, commit_every_s=commit_every_s) == ENDS
    assert engines.most == 2
    assert [int(each.split(" of group ")[1][0]) for each in notices if "another goes on" in each] == deaths != []
    check_equal(tmp_path, whole)


def test_an_engine_that_always_dies_ends_the_command(tmp_path: Path) -> None:
    begun: list[int] = []
    observer = Observer(started=lambda specs, done: begun.append(done))
    with pytest.raises(FedGAError, match=r"5 processes that trained the 2 runs of group 1 died .* \(pretended\): give"):
        train(tmp_path, observer, pool=Pretended(1, lambda number: True), together=2)
    assert begun == [0] * dispatch.MOST_DEATHS
    assert train(tmp_path) == ENDS


def test_deaths_count_anew_after_a_commit(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that dies in every second round makes progress."""
    monkeypatch.setattr(dispatch, "MOST_DEATHS", 2)
    turns = [0]

    def dies(number: int) -> bool:
        turns[0] += 1
        return turns[0] % 2 == 0

    assert train(tmp_path, pool=Pretended(1, dies), commit_every_s=-1.0) == ENDS
    assert turns[0] // 2 > dispatch.MOST_DEATHS
    check_equal(tmp_path, whole)


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_asked_to_stop(limit: int, whole: Path, tmp_path: Path) -> None:
    """All rounds that were trained are in the store, and one engine goes on from there."""
    seen: list[tuple[str, int]] = []
    observer = Observer(
        advanced=lambda specs, rounds: seen.extend((s.run_id, r.round) for s, r in zip(specs, rounds, strict=True)),
        should_stop=lambda: len(seen) >= limit,
    )
    with pytest.raises(Interrupted):
        train(tmp_path, observer, pool=Pretended(2), together=2, commit_every_s=0.01)
    with Store(tmp_path) as store:
        assert {run.run_id: run.rounds_done for run in store.runs() if run.rounds_done} == dict(sorted(seen))
        assert {run.status for run in store.runs()} <= {"pending", "done", "diverged"}
    assert train(tmp_path) == ENDS
    check_equal(tmp_path, whole)


def test_groups_are_small_enough_for_all_engines(whole: Path, tmp_path: Path) -> None:
    engines = Pretended(4)
    assert train(tmp_path, pool=engines) == ENDS
    with Store(tmp_path) as store:
        assert [len(store.group(number).run_ids) for number in (1, 2, 3)] == [2, 2, 1]
    assert engines.most == 3
    check_equal(tmp_path, whole)


def refused(**changes: Any) -> str:
    """What an engine says to a group that is not as on the machine of the command."""
    preparation = Preparation(SPECS[:1])
    job = GroupJob([preparation.lane(SPECS[0])], None, 0, record=None)  # type: ignore[arg-type]
    good = Assignment.of(job, preparation.fingerprints(SPECS[:1]), 20.0)
    with pytest.raises(FedGAError) as error:
        RemoteEngine(Workplace.here("cpu", 1, None)).begin(replace(good, **changes))
    return str(error.value)


def test_another_machine_must_have_the_same_of_everything() -> None:
    assert "where the command has 0.0.1: install the same version on all machines" in refused(version="0.0.1")
    assert "copy them there" in refused(fingerprints={SPECS[0].run_id: "other data"})
    assert "copy the project there" in refused(code="another digest")
