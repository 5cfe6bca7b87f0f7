"""Several processes on one folder, some of which die."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedga.common.files import leftovers
from fedga.spec.settings import RunSpec
from fedga.store.checkpoints import CHECKPOINT_NAME
from fedga.store.store import RoundMetrics, Store
from tests.patience import PATIENCE_S

Start = Callable[..., subprocess.Popen[str]]

SHARE_WORK = """
specs = [RunSpec(dataset="mnist", alpha=0.1, seed=seed, rounds=3) for seed in range(24)]
with Store(folder) as store:
    store.register(specs, {spec.run_id: "data" for spec in specs})
    store.create_groups([[spec.run_id for spec in specs[i : i + 2]] for i in range(0, 24, 2)])
    for group in store.pending_groups():
        with store.hold(group.id) as mine:
            if not mine:
                continue
            print(group.id, flush=True)
            for at in range(1, 4):
                rows = [RoundMetrics(run_id, at, accuracy=at / 10) for run_id in group.run_ids]
                finished = {run_id: "done" for run_id in group.run_ids} if at == 3 else {}
                store.commit(group.id, at, rows, checkpoint=lambda path: path.write_text(str(at)), finished=finished)
"""

TRAIN_FOREVER = """
spec = RunSpec(dataset="mnist", alpha=0.1, rounds=10**6)
store = Store(folder)
store.register([spec], {spec.run_id: "data"})
store.create_groups([[spec.run_id]])
[group] = store.pending_groups()
assert store.claim(group.id), "the dead owner still holds the group"
group = store.group(group.id)
at = 0 if group.checkpoint is None else int(group.checkpoint.read_text().split()[0])
assert at == group.round
print(at, flush=True)
while True:
    at += 1
    rows = [RoundMetrics(spec.run_id, at, accuracy=at / 2**20)]
    store.commit(group.id, at, rows, checkpoint=lambda path: path.write_text(f"{at} " + "x" * 200_000))
"""

DIE_WRITING = """
import resource, signal
import torch
from fedga.common import owner
from fedga.store import checkpoints
from fedga.study.states import write_states
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
states = {"run": {"params": torch.zeros(10_000)}}
me = owner.Owner.this_process()
checkpoints.write_checkpoint(Path(folder), me, 1, 1, lambda path: write_states(path, states))
"""

SLEEP = """
import time
store = Store(folder)
[group] = store.pending_groups()
assert store.claim(group.id)
print("claimed", flush=True)
time.sleep(600)
"""


def test_processes_share_the_work_of_one_folder(tmp_path: Path, start: Start) -> None:
    workers = [start(SHARE_WORK, tmp_path / "out") for _ in range(3)]
    done = []
    for worker in workers:
        output, errors = worker.communicate(timeout=PATIENCE_S)
        assert (worker.returncode, errors) == (0, "")
        done.extend(int(line) for line in output.split())
    assert sorted(done) == list(range(1, 13))
    with Store(tmp_path / "out") as store:
        assert {(run.status, run.rounds_done) for run in store.runs()} == {("done", 3)}
        with store.results() as table:
            assert sum(1 for _ in table.rows) == 72
    assert list((tmp_path / "out" / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.long)])
def test_a_kill_at_any_moment_leaves_rows_and_checkpoint_of_one_round(kills: int, tmp_path: Path, start: Start) -> None:
    folder, last = tmp_path / "out", 0
    moments = random.Random(0)
    for _ in range(kills):
        worker = start(TRAIN_FOREVER, folder)
        assert worker.stdout is not None
        began = worker.stdout.readline()
        assert began, worker.communicate()[1]
        assert int(began) == last
        time.sleep(moments.uniform(0.02, 0.3))
        worker.kill()  # SIGKILL
        worker.wait()
        with Store(folder) as store:
            [run], [group] = store.runs(), store.pending_groups()
            with store.results() as table:
                rounds = [row[6] for row in table.rows]
            assert rounds == list(range(1, run.rounds_done + 1))
            assert group.round == run.rounds_done >= last
            if group.checkpoint is not None:
                at, body = group.checkpoint.read_text().split()
                assert (int(at), len(body)) == (group.round, 200_000)
            assert store.claim(group.id)  # opens for writing: leftovers go
            left = list((folder / "checkpoints").iterdir()) if group.checkpoint else []
            assert left == ([group.checkpoint] if group.checkpoint else [])
        last = group.round
    assert last > 0


def test_what_a_process_killed_while_writing_leaves_is_found(tmp_path: Path, start: Start) -> None:
    worker = start(DIE_WRITING, tmp_path)  # by a limit on the size of files
    _, errors = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, errors) == (-signal.SIGXFSZ, "")
    [left] = tmp_path.iterdir()
    assert left.stat().st_size == 4096
    assert leftovers(tmp_path, CHECKPOINT_NAME) == [left]


def test_a_killed_owner_is_taken_over_and_a_living_one_is_not(tmp_path: Path, start: Start) -> None:
    spec = RunSpec(dataset="mnist", alpha=0.1)
    with Store(tmp_path) as store:
        store.register([spec], {spec.run_id: "data"})
        [group] = store.create_groups([[spec.run_id]])
        sleeper = start(SLEEP, tmp_path)
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "claimed\n", sleeper.communicate()[1]
        assert not store.claim(group.id)
        sleeper.kill()
        deadline = time.monotonic() + PATIENCE_S
        while not store.claim(group.id):  # even while it is a zombie nobody has waited for
            assert time.monotonic() < deadline
            time.sleep(0.01)
        store.commit(group.id, 1, [RoundMetrics(spec.run_id, 1, accuracy=0.5)], finished={spec.run_id: "done"})
        assert json.loads(store.runs()[0].spec.to_json())["dataset"] == "mnist"
