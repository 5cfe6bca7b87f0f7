"""Pieces of work in forked processes: the same results as in one, also where processes are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.profile import LOCAL_TRAINING, Profile, Stopwatch
from fedga.engine.stack import kinds
from fedga.engine.stack.forks import is_at_work_elsewhere, map_in_forks, why_no_forks
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
def _nobody_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forked, fork = list[int](), os.fork

    def noted() -> int:
        pid = fork()
        forked.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", noted)
    yield
    for pid in forked:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


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
    said: list[str] = []
    found = list(map_in_forks(deadly(numbers), range(8), 2, said.append))
    assert [item for item, _ in found] == list(range(8))
    by_caller = {item for item, pid in found if pid == HERE}
    assert by_caller >= numbers & {0, 1}  # those that are begun at once
    assert set(said) == {"a worker process was ended by signal 9"}
    assert 1 <= len(said) <= min(2, len(numbers))


def test_an_error_is_raised_where_it_can_be_seen() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError(f"raised in {os.getpid()}")
        return item

    results = map_in_forks(work, range(6), 2, pytest.fail)
    with pytest.raises(ValueError, match=f"raised in {HERE}"):
        list(results)


def test_the_caller_may_do_what_failed_in_another_way() -> None:
    def work(item: int) -> Any:
        return item if item != 1 else lambda: None  # which cannot be sent

    assert list(map_in_forks(work, range(3), 2, pytest.fail, lambda item: "here")) == [0, "here", 2]


def test_where_no_process_may_be_forked_the_caller_works(monkeypatch: pytest.MonkeyPatch) -> None:
    before, open_files = os.fork, len(os.listdir("/proc/self/fd"))
    for allowed in (0, 1):
        left = iter(range(allowed))

        def fork(left: Iterator[int] = left) -> int:
            if next(left, None) is None:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return before()

        monkeypatch.setattr(os, "fork", fork)
        found = list(map_in_forks(lambda item: (item, os.getpid()), range(9), 3, pytest.fail))
        assert [item for item, _ in found] == list(range(9))
        assert {pid == HERE for _, pid in found} == {not allowed}
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_few_pieces_are_begun_before_results_are_taken(tmp_path: Path) -> None:
    def work(item: int) -> int:
        (tmp_path / str(item)).touch()
        return item

    results = map_in_forks(work, range(100), 2, pytest.fail)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) <= 3 + 2 * 2
    results.close()  # type: ignore[attr-defined]


def test_children_end_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    """Also those that would have worked for long, with files of the caller's open."""
    code = (
        "import os, sys, time; from fedga.engine.stack.forks import map_in_forks\n"
        "def work(item): os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)\n"
        "list(map_in_forks(work, range(2), 2, print))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    children = [int(caller.stdout.readline()) for _ in range(2)]
    caller.kill()
    caller.wait()
    caller.stdout.read()  # ends when the last of them is gone
    caller.stdout.close()
    assert not any(Path(f"/proc/{pid}/cmdline").exists() and _is_python(pid) for pid in children)


def _is_python(pid: int) -> bool:
    try:
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_thread_at_work_in_pytorch_is_seen_and_an_idle_one_is_not() -> None:
    may_end, begun = threading.Event(), threading.Event()

    def idle() -> None:
        begun.set()
        may_end.wait()

    def busy() -> None:
        begun.set()
        while not may_end.is_set():
            torch.rand(64, 64) @ torch.rand(64, 64)

    for work, is_seen in ((idle, False), (busy, True)):
        may_end.clear()
        begun.clear()
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        seen = any(is_at_work_elsewhere() for _ in range(50))
        may_end.set()
        thread.join()
        assert seen == is_seen


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


def not_here(work: Any) -> Any:
    def checked(*given: Any) -> Any:
        assert os.getpid() != HERE
        return work(*given)

    return checked


def test_processes_change_no_bit(large: DeviceData, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not in what clients report and keep (SCAFFOLD, FedDyn), in surveys (CLIMB), heads and single models."""
    algorithms = ["climb", "scaffold", "feddyn", "fedga"]
    in_threads, in_processes = (engine_in(kind, large, algorithms, augment="shift:1") for kind in (THREADS, PROCESSES))
    monkeypatch.setattr(in_processes, "_train_chunk", not_here(in_processes._train_chunk))
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


@pytest.mark.parametrize("fails", [False, True])
def test_a_profile_counts_what_processes_do(
    large: DeviceData, cores: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the caller has to do it after all."""
    steps, seconds = [], []
    for kind in KINDS:
        watch = Stopwatch(CPU)
        engine = engine_in(kind, large, ["fedavg"], watch)
        if fails and kind == PROCESSES:
            monkeypatch.setattr(engine, "_train_chunk", here_alone(engine._train_chunk))
        watch.built()
        for _ in range(2):
            with watch.round(1):
                engine.run_round()
        steps.append(watch.shown.client_steps)
        seconds.append(watch.shown.seconds[LOCAL_TRAINING])
        assert watch.as_json()["workers"] == f"3 {kind}"
    assert steps[0] == steps[1] > 0
    assert all(each > 0 for each in seconds)


def here_alone(work: Any) -> Any:
    def checked(*given: Any) -> Any:
        if os.getpid() != HERE:
            raise OSError
        return work(*given)

    return checked


class Clock:
    """Time that passes as work is done: one second for an amount of one, or what a kind needs more."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "chosen"), [((1.0, 2.0), THREADS), ((2.0, 1.0), PROCESSES)])
@pytest.mark.parametrize("is_falling", [False, True])
def test_the_faster_kind_is_chosen_and_remembered(
    seconds: tuple[float, float], chosen: str, is_falling: bool, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    clock = Clock()
    monkeypatch.setattr(kinds, "time", clock)
    needs = dict(zip(KINDS, seconds, strict=True))

    def lengths(count: int) -> list[int]:
        """Of rounds: longer and longer or the other way round, which says nothing of the kind."""
        return list(range(1, count + 1))[:: -1 if is_falling else 1]

    def rounds(choice: KindOfWorker, count: int) -> list[str]:
        taken = []
        for amount in lengths(count):
            with choice.turn(lambda amount=amount: amount) as kind:
                clock.now += amount * needs[kind]
            with choice.turn():
                clock.now += 1000  # an evaluation does not count
            with suppress(KeyError), choice.turn(lambda: 1.0):
                clock.now += 1000
                raise KeyError  # nor what was not finished
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
        with choice.turn(lambda: 1.0) as kind:
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
        with engine.workers._kind.turn() as kind:
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


def test_draws_from_global_generators_keep_a_run_in_threads() -> None:
    for draws, kind in ((lambda: None, PROCESSES), (lambda: torch.rand(1), THREADS)):
        choice = KindOfWorker(key=f"draws {kind}")
        with choice.turn(lambda: 1.0):
            draws()
        with choice.turn() as found:
            assert found == kind
