"""A sweep that is stopped anywhere, in any company, ends with the numbers of one that never was."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedga.common.sealed import seal, unseal
from fedga.engine.engine import Engine
from fedga.engine.server import LaneRound
from fedga.errors import FedGAError
from fedga.spec.settings import RunSpec
from fedga.store.store import Store
from fedga.study import sweep
from fedga.study.prepare import Preparation
from fedga.study.states import read_states, write_states
from fedga.study.sweep import Interrupted, Observer, run_sweep

CPU = torch.device("cpu")
ROUNDS = 5


def make_spec(**values: object) -> RunSpec:
    defaults = {"dataset": "digits", "alpha": 0.1, "clients": 10, "active": 2, "batch_size": 16, "rounds": ROUNDS}
    return RunSpec(**{**defaults, "diagnose_every": 2, **values})  # type: ignore[arg-type]


# Two lengths, a rate that diverges at once, state on the server and at the clients, averaged models.
SPECS = [
    make_spec(algorithm="fedavg"),
    make_spec(algorithm="fedavg", seed=1, rounds=3),
    make_spec(algorithm="scaffold", server="momentum", server_average=0.2),
    make_spec(algorithm="fedga", lr=1e30),
    make_spec(algorithm="climb", server="adam"),
]
AXES = ("rounds", "lr", "server_average")


@pytest.fixture(scope="module")
def preparation() -> Preparation:
    return Preparation(SPECS)


def results(folder: Path) -> str:
    stream = io.StringIO()
    with Store(folder) as store:
        store.write_results(stream)
    return stream.getvalue()


def looks(folder: Path, spec: RunSpec) -> list[tuple[int, list[object]]]:
    """The class-wise looks at a run's clients, as plain values."""
    with Store(folder) as store:
        found = store.client_rounds(spec.run_id)
    return [(each.round, [str(array.tolist()) for array in each.arrays.values()]) for each in found]


def train(
    folder: Path, preparation: Preparation, specs: Sequence[RunSpec] = SPECS, observer: Observer | None = None
) -> list[str]:
    """Status of every run at the end."""
    with Store(folder) as store:
        runs = run_sweep(specs, store, CPU, axes=AXES, preparation=preparation, observer=observer)
    return [run.status for run in runs]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, preparation: Preparation) -> Path:
    """The results of a sweep that was left in peace."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(folder, preparation) == ["done", "done", "done", "diverged", "done"]
    return folder


class Watch(Observer):
    """Counts what is trained, and asks to stop once ``limit`` rounds are."""

    def __init__(self, limit: int | None = None) -> None:
        self.seen: list[tuple[str, int]] = []
        self.continued: list[tuple[int, int]] = []
        self.notices: list[str] = []
        self.rounds = 0
        super().__init__(
            started=lambda specs, done: self.continued.append((len(specs), done)),
            advanced=self._count,
            noticed=self.notices.append,
            should_stop=lambda: limit is not None and self.rounds >= limit,
        )

    def _count(self, specs: Sequence[RunSpec], rounds: Sequence[LaneRound]) -> None:
        self.rounds += 1
        self.seen += [(spec.run_id, result.round) for spec, result in zip(specs, rounds, strict=True)]


@pytest.mark.parametrize("limit", range(1, ROUNDS))
def test_stopped_after_any_round(limit: int, whole: Path, preparation: Preparation, tmp_path: Path) -> None:
    watch = Watch(limit)
    with pytest.raises(Interrupted):
        train(tmp_path, preparation, observer=watch)
    again = Watch()
    assert train(tmp_path, preparation, observer=again) == ["done", "done", "done", "diverged", "done"]
    assert results(tmp_path) == results(whole)
    assert [looks(tmp_path, spec) for spec in SPECS] == [looks(whole, spec) for spec in SPECS]
    assert again.continued == [(4 if limit < 3 else 3, limit)]  # one diverged in round 1, a short one ends with round 3
    assert len(watch.seen) + len(again.seen) == len({*watch.seen, *again.seen}) == 3 * ROUNDS + 3 + 1


@pytest.mark.parametrize("crash", [1, 2, 3, 4, 5])
def test_crash_between_commits(
    crash: int, whole: Path, preparation: Preparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that were trained and not committed are trained again, to the same numbers."""
    run_round = Engine.run_round

    def failing(self: Engine) -> list[LaneRound]:
        if self.round + 1 == crash:
            raise ZeroDivisionError
        return run_round(self)

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "run_round", failing)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path, preparation)
    train(tmp_path, preparation)
    assert results(tmp_path) == results(whole)


def test_crash_after_models_were_saved(
    whole: Path, preparation: Preparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Store.commit

    def failing(self: Store, group_id: int, at: int, *rest: object) -> None:
        if at == ROUNDS:
            raise ZeroDivisionError
        commit(self, group_id, at, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Store, "commit", failing)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path, preparation)
    with Store(tmp_path) as store:
        assert sorted(run.status for run in store.runs()) == ["diverged", "done", "pending", "pending", "pending"]
    train(tmp_path, preparation)
    assert results(tmp_path) == results(whole)
    names = [path.name for path in sorted((tmp_path / "models").iterdir())]
    assert names == [path.name for path in sorted((whole / "models").iterdir())]
    assert not list((tmp_path / "checkpoints").iterdir())


def test_finished_sweep_trains_nothing(whole: Path, preparation: Preparation) -> None:
    watch = Watch()
    assert train(whole, preparation, observer=watch) == ["done", "done", "done", "diverged", "done"]
    assert watch.seen == []


def test_asked_to_stop_at_once(preparation: Preparation, tmp_path: Path) -> None:
    watch = Watch(0)
    with pytest.raises(Interrupted):
        train(tmp_path, preparation, observer=watch)
    assert watch.seen == []
    assert train(tmp_path, preparation)[0] == "done"


def test_other_company_gives_the_same_numbers(
    whole: Path, preparation: Preparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "LANES_ON_CPU", 2)
    train(tmp_path / "pairs", preparation)
    assert results(tmp_path / "pairs") == results(whole)
    for spec in reversed(SPECS):
        train(tmp_path / "alone", preparation, [spec])
    assert results(tmp_path / "alone") == results(whole)


def test_group_whose_other_members_are_not_asked_for(whole: Path, preparation: Preparation, tmp_path: Path) -> None:
    """A group stays what it was made as, whoever asks for one of its runs; new runs make groups of their own."""
    with pytest.raises(Interrupted):
        train(tmp_path, preparation, SPECS[:3], Watch(2))
    watch = Watch()
    assert train(tmp_path, preparation, [SPECS[0], SPECS[4]], watch) == ["done", "done"]
    assert watch.continued == [(3, 2), (1, 0)]
    assert train(tmp_path, preparation) == ["done", "done", "done", "diverged", "done"]
    assert results(tmp_path) == results(whole)


def test_members_from_another_command_need_not_be_prepared(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path, Preparation(SPECS[:2]), SPECS[:2], Watch(1))
    train(tmp_path, Preparation(SPECS[1:2]), SPECS[1:2])
    with Store(tmp_path) as store:
        assert [run.status for run in store.runs()] == ["done", "done"]


def test_runs_that_cannot_be_stacked_train_one_group_after_the_other(tmp_path: Path) -> None:
    specs = [make_spec(batch_size=size, rounds=2) for size in (8, 16)]
    watch = Watch(2)
    prepared = Preparation(specs)
    with Store(tmp_path) as store, pytest.raises(Interrupted):
        run_sweep(specs, store, CPU, axes=("batch_size",), preparation=prepared, observer=watch)
    assert {run_id for run_id, _ in watch.seen} == {specs[0].run_id}  # the stop came between two groups
    with Store(tmp_path) as store:
        runs = run_sweep(specs, store, CPU, axes=("batch_size",), preparation=prepared)
    assert [run.status for run in runs] == ["done", "done"]


def test_commits_happen_by_time(preparation: Preparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    commit = Store.commit

    def noted(self: Store, group_id: int, at: int, *rest: object) -> None:
        rounds.append(at)
        commit(self, group_id, at, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "commit", noted)
    train(tmp_path / "seldom", preparation, SPECS[:1])
    assert rounds == [ROUNDS]
    rounds.clear()
    monkeypatch.setattr(sweep, "COMMIT_EVERY_S", -1.0)
    train(tmp_path / "often", preparation, SPECS[:1])
    assert rounds == [1, 2, 3, 4, 5]


def test_diverged_run_leaves_a_note_and_no_model(whole: Path) -> None:
    with Store(whole) as store:
        [diverged] = [run for run in store.runs() if run.status == "diverged"]
    assert diverged.note == "the loss was no longer finite in round 1"
    assert diverged.rounds_done == 1
    assert not list((whole / "models").glob(f"*{diverged.run_id[:8]}*"))


def test_checkpoint_keeps_states_and_their_order(tmp_path: Path) -> None:
    states = {run_id: {"params": torch.randn(4), "server.step": torch.tensor(3)} for run_id in ("zz", "aa", "mm", "bb")}
    write_states(tmp_path / "states.safetensors", states)
    found = read_states(tmp_path / "states.safetensors")
    assert list(found) == ["zz", "aa", "mm", "bb"]
    for run_id, state in states.items():
        assert {name: value.tolist() for name, value in found[run_id].items()} == {
            name: value.tolist() for name, value in state.items()
        }


@pytest.mark.parametrize("damage", ["flip", "zeros", "cut", "gone", "older"])
def test_a_lost_checkpoint_restarts_its_runs_alone(
    damage: str, whole: Path, preparation: Preparation, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path, preparation, observer=Watch(1))
    [older] = (tmp_path / "checkpoints").iterdir()
    content = older.read_bytes()
    with pytest.raises(Interrupted):
        train(tmp_path, preparation, observer=Watch(3))  # one run has ended by then, and one diverged before
    [path] = (tmp_path / "checkpoints").iterdir()
    _damage(path, damage, content)
    watch = Watch()
    assert train(tmp_path, preparation, observer=watch) == ["done", "done", "done", "diverged", "done"]
    [notice] = watch.notices
    assert str(path) in notice
    assert notice.endswith("the 3 runs that need it start again from round 1, and all others are as they were")
    assert watch.continued == [(3, 0)]
    assert results(tmp_path) == results(whole)
    assert [looks(tmp_path, spec) for spec in SPECS] == [looks(whole, spec) for spec in SPECS]


def _reseal(path: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """A whole file with other content, as of another run, or of somebody who made it."""
    file = unseal(path)
    tensors = dict(file.tensors)
    change(tensors)
    path.write_bytes(seal(tensors, file.metadata))


CHANGES: dict[str, Callable[[dict[str, Tensor]], None]] = {
    "missing": lambda tensors: tensors.__delitem__(_params(tensors)),
    "other shape": lambda tensors: tensors.update({_params(tensors): torch.zeros(3)}),
    "other type": lambda tensors: tensors.update({_params(tensors): tensors[_params(tensors)].double()}),
    "other run": lambda tensors: tensors.update({"0000/params": torch.zeros(3)}),
}


def _params(tensors: dict[str, Tensor]) -> str:
    return next(name for name in tensors if name.endswith("/params"))


@pytest.mark.parametrize("change", CHANGES)
def test_a_whole_checkpoint_that_does_not_fit_restarts_its_runs(
    change: str, whole: Path, preparation: Preparation, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path, preparation, observer=Watch(3))
    [path] = (tmp_path / "checkpoints").iterdir()
    _reseal(path, CHANGES[change])
    watch = Watch()
    train(tmp_path, preparation, observer=watch)
    assert watch.continued == [(3, 0)]
    assert results(tmp_path) == results(whole)


def _damage(path: Path, how: str, older: bytes) -> None:
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 1
    elif how == "zeros":
        content[-4096:] = bytes(4096)
    elif how == "cut":
        del content[100:]
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(older if how == "older" else content)


def test_lost_models_of_finished_runs_are_told(preparation: Preparation, tmp_path: Path) -> None:
    train(tmp_path, preparation, SPECS[:3])
    first, second, *_ = sorted((tmp_path / "models").glob("*.safetensors"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    watch = Watch()
    train(tmp_path, preparation, SPECS[:3], watch)
    assert [notice.partition(":")[0] for notice in watch.notices] == [
        f"the model {first} of a finished run is missing",
        f"the model {second} of a finished run is damaged",
    ]


def test_what_a_received_folder_names_is_not_run(preparation: Preparation, tmp_path: Path) -> None:
    """A run that shares a group with those asked for is trained along, unless it names code or files."""
    strange = make_spec(algorithm="fedavg", model="subprocess:call", seed=7)
    with Store(tmp_path) as store:
        specs = [SPECS[0], strange]
        store.register(specs, {spec.run_id: preparation.dataset(SPECS[0]).fingerprint for spec in specs}, ["model"])
        store.create_groups([[spec.run_id for spec in specs]])
    with pytest.raises(FedGAError, match=r"together with one of 'subprocess:call', which is none of fedga's own"):
        train(tmp_path, preparation, SPECS[:1])
