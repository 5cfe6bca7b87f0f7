"""An archive made again is the old one or the new one, whole, wherever its writer is killed or the disk is full.

The writer is a process that forks once for every place at which it touches a file: there it is killed, or told that
the disk is full. (Forks of one warm process take milliseconds, and pyarrow is loaded once.)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedga.experiments.archive import opened
from fedga.experiments.spec import RunSpec
from fedga.experiments.store import RoundMetrics, Store
from tests.patience import PATIENCE_S

Start = Callable[..., "subprocess.Popen[str]"]  # noqa: F821 - the fixture's

WRITER = """
import json, os, signal
import pyarrow.parquet
from fedga.experiments.archive import opened, write_archive
old, new, target, how, full = sys.argv[1], *sys.argv[2:]
FILES = ("open", "os.rename") + ("os.remove", "os.mkdir") * (how == "kill")

def rows(archive):
    with opened(Path(archive)) as folder, Store(folder) as store, store.results() as table:
        return len(list(table.rows))

def write(stop_at):
    touched = 0
    def hook(event, arguments):
        nonlocal touched
        if event in FILES and str(arguments[0]).startswith(target):
            touched += 1
            if touched == stop_at and how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if touched == stop_at:
                raise OSError(28, "No space left on device")
    sys.addaudithook(hook)
    try:
        write_archive(Path(new), Path(target), full=full == "full")
    except Exception as error:
        assert "No space left" in str(error), error
        os._exit(1)
    os._exit(0)

found, stop_at = [], 0
while True:
    stop_at += 1
    write_archive(Path(old), Path(target), full=full == "full")
    child = os.fork()
    if child == 0:
        write(stop_at)
    _, status = os.waitpid(child, 0)
    found.append((os.waitstatus_to_exitcode(status), rows(target)))
    if found[-1][0] == 0:
        break
left = sorted(str(path.relative_to(target)) for path in Path(target).rglob("*") if path.is_file())
print(json.dumps([found, left]))
"""


def results(folder: Path, rounds: int) -> Path:
    spec = RunSpec(dataset="digits", alpha=0.1, rounds=rounds)
    with Store(folder) as store:
        store.register([spec], {spec.run_id: "data"})
        [group] = store.create_groups([[spec.run_id]])
        store.claim(group.id)
        measured = [RoundMetrics(spec.run_id, at, accuracy=at / 10) for at in range(1, rounds + 1)]
        store.commit(group.id, rounds, measured, finished={spec.run_id: "done"})
    (folder / "models").mkdir()
    (folder / "models" / "one.json").write_text(str(rounds))
    return folder


@pytest.mark.parametrize("full", ["small", "full"])
@pytest.mark.parametrize("how", ["kill", "full disk"])
def test_an_archive_is_the_old_or_the_new_one(how: str, full: str, tmp_path: Path, start: Start) -> None:
    old, new = results(tmp_path / "old", 3), results(tmp_path / "new", 5)
    target = tmp_path / "archive"
    worker = start(WRITER, old, str(new), str(target), how, full)
    out, errors = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, errors) == (0, "")
    ended, left = json.loads(out)
    assert len(ended) > 10  # places at which it was stopped
    assert {code for code, _ in ended[:-1]} == {-9 if how == "kill" else 1}
    assert {rows for _, rows in ended} == {3, 5}
    assert ended[-1] == [0, 5]
    assert all(name == "manifest.json" or name.startswith("parts/") for name in left)
    with opened(target) as folder, Store(folder) as store:
        assert [run.rounds_done for run in store.runs()] == [5]
    assert not any(name.endswith(".tmp") for name in left), left  # the next writer removes what a killed one left
