"""What is written is the old or the new, whole, wherever its writer is killed or the disk is full: archives, models,
unpacked folders and repaired ones.

The writer is a process that forks once for every place at which it touches a file: there it is killed, or told that
the disk is full. (Forks of one warm process take milliseconds, and pyarrow is loaded once.)
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fedga.spec.settings import RunSpec
from fedga.store.archive import opened
from fedga.store.store import RoundMetrics, Store
from tests.patience import PATIENCE_S

Start = Callable[..., "subprocess.Popen[str]"]  # noqa: F821 - the fixture's

WRITER = """
import json, os, signal
import pyarrow.parquet
from fedga.store.archive import opened, write_archive
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


OTHERS = """
import json, os, shutil, signal
from fedga.store.archive import unpack, write_archive
from fedga.store.repair import repair_results
from fedga.common.files import remove_leftovers, write_whole
place, what = Path(sys.argv[1]), sys.argv[2]
whole, work = place / "whole", place / "work"
FILES = ("open", "os.rename", "os.remove", "os.mkdir", "os.link", "shutil.copyfile", "os.rmdir")

def prepare():
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    if what == "repair":
        shutil.copytree(place / "damaged", work / "results")
    elif what == "model":
        write_whole(work / "models" / "one", b"old" * 1000)

def act():
    if what == "unpack":
        unpack(place / "archive", work / "results")
    elif what == "repair":
        repair_results(work / "results")
    else:
        remove_leftovers(work / "models")  # as whoever opens a results folder to write does
        write_whole(work / "models" / "one", b"new" * 1000)

def state():
    if what == "model":
        return (work / "models" / "one").read_text()[:3]
    if not (work / "results").exists():
        return "nothing"
    try:
        with Store(work / "results") as store:
            store.check()
            return len(store.runs())
    except Exception as error:
        return "damaged" if "is damaged" in str(error) else repr(error)

if what == "unpack":
    write_archive(whole, place / "archive", full=True)
found, stop_at = [], 0
while True:
    stop_at += 1
    prepare()
    child = os.fork()
    if child == 0:
        touched = 0
        def hook(event, arguments):
            global touched
            if event in FILES and str(arguments[0]).startswith(str(work)):
                touched += 1
                if touched == stop_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        act()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = state()
    if code and not (what == "unpack" and seen == 2):
        act()  # the same command again
    left = sorted(path.name for path in work.rglob(".*"))
    found.append((code, seen, state(), left))
    if code == 0:
        break
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("what", "allowed", "end"),
    [("unpack", {"nothing", 2}, 2), ("repair", {"damaged", 1}, 1), ("model", {"old", "new"}, "new")],
)
def test_other_writers_are_killed_anywhere(
    what: str, allowed: set[object], end: object, tmp_path: Path, start: Start
) -> None:
    """And the same command, given again, ends as if nothing had been, and leaves nothing behind."""
    results(tmp_path / "whole", 3, seeds=2)
    damaged = results(tmp_path / "damaged", 3, seeds=2)
    with sqlite3.connect(damaged / "results.sqlite") as connection:
        connection.execute("UPDATE metrics SET accuracy = 0.75 WHERE run = 2 AND round = 2")
    connection.close()
    worker = start(OTHERS, tmp_path, what)
    out, errors = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, errors) == (0, "")
    found = json.loads(out)
    assert len(found) > 2
    assert {seen for _, seen, _, _ in found} == allowed
    assert {after for _, _, after, _ in found} == {end}
    assert [left for *_, left in found if left] == []


def results(folder: Path, rounds: int, seeds: int = 1) -> Path:
    with Store(folder) as store:
        for seed in range(seeds):
            spec = RunSpec(dataset="digits", alpha=0.1, rounds=rounds, seed=seed)
            store.register([spec], {spec.run_id: "data"})
            [group] = store.create_groups([[spec.run_id]])
            store.claim(group.id)
            measured = [RoundMetrics(spec.run_id, at, accuracy=at / 10) for at in range(1, rounds + 1)]
            store.commit(group.id, rounds, measured, finished={spec.run_id: "done"})
    (folder / "models").mkdir()
    (folder / "models" / "one.json").write_text(str(rounds))
    return folder


@pytest.mark.one_in(3)
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
