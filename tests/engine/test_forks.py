"""Pieces of work in forked processes: the same results as in one, also where processes are killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.profile import LOCAL_TRAINING, Profile, Stopwatch
from fedga.engine.stack import kinds
from fedga.engine.stack.forks import map_in_forks, why_no_forks
from fedga.engine.stack.kinds import KINDS, PROCESSES, THREADS, KindOfWorker
from fedga.engine.stack.workers import Workers
from tests.engine.runs import TELLING, assert_same_state, make_dataset, make_lane

pytestmark = pytest.mark.skipif(why_no_forks() is not None, reason="forks are for Linux without a GPU")
HERE = os.getpid()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def large() -> DeviceData:
    """Pictures that LeNet takes."""
    return DeviceData(make_dataset((1, 16, 16)), CPU)


@pytest.fixture
def cores() -> Iterator[int]:
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGA_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def deadly(numbers: set[int]) -> Any:
    """Work that ends its process at the given items, unless the caller does it."""

    def work(item: int) -> tuple[int, int]:
        if item in numbers and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.getpid()

    return work


def test_results_come_in_order_from_other_processes() -> None:
    found = list(map_in_forks(lambda item: (item, os.getpid(), torch.is_grad_enabled()), range(30), 3, pytest.fail))
    assert [item for item, *_ in found] == list(range(30))
    assert HERE not in {pid for _, pid, _ in found}
    assert not any(grad for *_, grad in found)


def test_more_pieces_than_a_pipe_takes() -> None:
    assert list(map_in_forks(lambda item: item, range(20_001), 2, pytest.fail)) == list(range(20_001))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
def test_tensors_come_back_as_they_are(dtype: torch.dtype) -> None:
    whole = torch.arange(24).view(4, 6).to(dtype)

    def work(item: int) -> dict[str, Any]:
        return {"part": whole[:, item], "scalar": whole[item, 0], "none": whole[:0], "text": "é"}

    for item, found in enumerate(map_in_forks(work, range(4), 2, pytest.fail)):
        expected = work(item)
        assert found.pop("text") == expected.pop("text")
        for name, value in expected.items():
            assert (found[name].dtype, found[name].shape) == (dtype, value.shape)
            assert torch.equal(found[name], value)
        found["part"].zero_()  # it is the caller's to write to


@pytest.mark.parametrize("numbers", [{0}, {2, 5}, set(range(8))])
def test_what_a_killed_process_was_at_is_done_again(numbers: set[int]) -> None:
    deaths: list[int] = []
    found = list(map_in_forks(deadly(numbers), range(8), 2, deaths.append))
    assert [item for item, _ in found] == list(range(8))
    by_caller = {item for item, pid in found if pid == HERE}
    assert by_caller >= numbers & {0, 1}  # those that are begun at once
    assert set(deaths) == {signal.SIGKILL}
    assert 1 <= len(deaths) <= min(2, len(numbers))


def test_an_error_is_raised_where_it_can_be_seen() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError(f"raised in {os.getpid()}")
        return item

    results = map_in_forks(work, range(6), 2, pytest.fail)
    with pytest.raises(ValueError, match=f"raised in {HERE}"):
        list(results)


def test_a_caller_that_stops_early_ends_all_processes() -> None:
    results = map_in_forks(lambda item: item, range(1000), 2, pytest.fail)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]  # and the fixture finds no process


def engine_in(
    kind: str, data: DeviceData, algorithms: list[str], profile: Profile | None = None, **settings: Any
) -> Engine:
    lanes = [
        make_lane(data.dataset, model="lenet", algorithm=TELLING[name], seed=seed, diagnose_every=2, **settings)
        for seed, name in enumerate(algorithms)
    ]
    engine = Engine(lanes, data)
    engine.workers = Workers(engine.model, CPU, profile or engine.profile, KindOfWorker(kind), engine.budget.notice)
    engine.evaluator.workers = engine.workers
    engine.profile = profile or engine.profile
    return engine


def test_processes_change_no_bit(large: DeviceData, cores: int) -> None:
    """Also not in what clients report and keep (SCAFFOLD, FedDyn), in surveys (CLIMB), heads and single models."""
    algorithms = ["climb", "scaffold", "feddyn", "fedga"]
    in_threads, in_processes = (engine_in(kind, large, algorithms, augment="shift:1") for kind in (THREADS, PROCESSES))
    for _ in range(3):
        assert repr(in_threads.run_round()) == repr(in_processes.run_round())
    for actual, expected in zip(in_processes.stack.states(), in_threads.stack.states(), strict=True):
        assert_same_state(actual, expected, rtol=0.0, atol=0.0)


def test_a_killed_worker_is_said_and_costs_nothing(
    large: DeviceData, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, disturbed = (engine_in(PROCESSES, large, ["fedavg"]) for _ in range(2))
    whole = Engine._train_chunk

    def dying(self: Engine, *given: Any) -> Any:
        if self is disturbed and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, *given)

    monkeypatch.setattr(Engine, "_train_chunk", dying)
    for _ in range(2):
        assert repr(undisturbed.run_round()) == repr(disturbed.run_round())
    assert torch.equal(undisturbed.stack.params, disturbed.stack.params)
    assert "ended by signal 9: what it was at is trained again" in disturbed.budget.notices[0]
    assert "all that follows runs in threads" in disturbed.budget.notices[kinds._MOST_DEATHS - 1]


def test_a_profile_counts_what_processes_do(large: DeviceData, cores: int) -> None:
    steps, seconds = [], []
    for kind in KINDS:
        watch = Stopwatch(CPU)
        engine = engine_in(kind, large, ["fedavg"], watch)
        watch.built()
        for _ in range(2):
            with watch.round(1):
                engine.run_round()
        steps.append(watch.shown.client_steps)
        seconds.append(watch.shown.seconds[LOCAL_TRAINING])
        assert watch.as_json()["workers"] == f"3 {kind}"
    assert steps[0] == steps[1] > 0
    assert all(each > 0 for each in seconds)


class Clock:
    """Time that passes as work is done: one second for an amount of one, or what a kind needs more."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "chosen"), [((1.0, 2.0), THREADS), ((2.0, 1.0), PROCESSES)])
def test_the_faster_kind_is_chosen_and_remembered(
    seconds: tuple[float, float], chosen: str, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    clock = Clock()
    monkeypatch.setattr(kinds, "time", clock)
    needs = dict(zip(KINDS, seconds, strict=True))

    def rounds(choice: KindOfWorker, count: int) -> list[str]:
        taken = []
        for amount in range(1, count + 1):  # rounds of other lengths
            with choice.turn(amount) as kind:
                clock.now += amount * needs[kind]
            with choice.turn(None):
                clock.now += 1000  # an evaluation does not count
            taken.append(kind)
        return taken

    first = rounds(KindOfWorker(key="a"), 8)
    assert first[0] == THREADS  # what is made on first use is made in this process
    assert sorted(first[1:5]) == sorted(KINDS * 2)
    assert first[5:] == [chosen] * 3
    assert rounds(KindOfWorker(key="a"), 3) == [THREADS, chosen, chosen]
    assert rounds(KindOfWorker(key="b"), 3)[1:] == first[1:3]  # another network is tried anew
    [file] = (own_cache / "workers").glob("*.json")
    for text in ("", "{", '{"kind": "elephants"}', json.dumps({"kind": ["threads"]}), "[]", "\x00"):
        file.write_text(text)
        assert rounds(KindOfWorker(key="a"), 5) == first[:5]


def test_a_folder_that_cannot_be_written_to_costs_the_memory_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDGA_CACHE", str(tmp_path / "file"))
    choice = KindOfWorker(key="a")
    taken = []
    for _ in range(7):
        with choice.turn(1.0) as kind:
            taken.append(kind)
    assert set(taken) == set(KINDS)
    assert taken[5] == taken[6]


def test_choices_depend_on_network_and_machine(cores: int) -> None:
    key = kinds.key_of("lenet", 64)
    assert key == kinds.key_of("lenet", 64)
    assert key != kinds.key_of("lenet", 32)
    torch.set_num_threads(2)
    assert key != kinds.key_of("lenet", 64)


def test_networks_without_convolutions_and_single_threads_stay_in_threads(large: DeviceData, cores: int) -> None:
    def kind_of(model: str) -> str:
        engine = Engine([make_lane(large.dataset, model=model)], large)
        engine.run_round()
        with engine.workers._kind.turn(None) as kind:
            return kind

    assert kind_of("mlp") == THREADS
    assert kind_of("lenet") == PROCESSES  # tried in the second round of training
    torch.set_num_threads(1)
    assert kind_of("lenet") == THREADS


def test_where_forks_cannot_work_it_is_said(large: DeviceData, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    engine = Engine([make_lane(large.dataset, model="lenet")], large)
    assert "clients train in threads" in engine.budget.notices[0]
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert "GPU" in str(why_no_forks())
