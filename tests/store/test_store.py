from __future__ import annotations

import errno
import io
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedga.common import owner
from fedga.common.owner import Owner
from fedga.errors import FedGAError
from fedga.spec.grid import build_sweep
from fedga.spec.settings import RunSpec
from fedga.store import database
from fedga.store import store as store_module
from fedga.store.archive import write_archive
from fedga.store.repair import repair_results
from fedga.store.store import ClientRound, Group, PartitionRecord, RoundMetrics, Store
from tests.patience import PATIENCE_S

Specs = Callable[..., RunSpec]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "out") as opened:
        yield opened


def register(store: Store, *specs: RunSpec, axes: tuple[str, ...] = (), data: str = "data") -> None:
    store.register(specs, {spec.run_id: data for spec in specs}, axes)


def claimed(store: Store, *specs: RunSpec) -> Group:
    register(store, *specs)
    [group] = store.create_groups([[spec.run_id for spec in specs]])
    assert store.claim(group.id)
    return group


def save(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


def files(store: Store) -> list[str]:
    return sorted(path.read_text() for path in (store.folder / "checkpoints").iterdir())


# Runs and their conflicts


def test_a_trace_that_once_stood_right_behind_the_data_is_read(store: Store, spec: Specs) -> None:
    traced, plain = spec(availability="tr.csv"), spec(algorithm="fedavg")
    register(store, traced, data=32 * "a" + 16 * "b")
    register(store, traced, data=32 * "a" + "+" + 16 * "b")
    register(store, plain, data=32 * "a")
    with pytest.raises(FedGAError, match=r"the file of --availability 'tr\.csv' is not the one"):
        register(store, traced, data=32 * "a" + "+" + 16 * "c")


def test_runs_are_entered_once(store: Store, spec: Specs) -> None:
    specs = [spec(seed=seed) for seed in (2, 0, 1)]
    first = store.register(specs, {one.run_id: "data" for one in specs})
    again = store.register(specs, {one.run_id: "data" for one in specs})
    assert first == again
    assert [run.spec for run in first] == specs
    assert [run.spec.seed for run in store.runs()] == [0, 1, 2]
    assert {(run.status, run.rounds_done, run.fingerprint) for run in first} == {("pending", 0, "data")}


def test_a_changed_setting_is_refused_with_both_values(store: Store, spec: Specs) -> None:
    register(store, spec(lr=0.1))
    with pytest.raises(FedGAError, match=r"holds mnist, α=0.1, fedga, seed 0 with --lr 0.1, .*0.05: .*--lr 0.1,0.05"):
        register(store, spec(lr=0.05))
    assert len(store.runs()) == 1


def test_all_changed_settings_are_named(store: Store, spec: Specs) -> None:
    register(store, spec(lr=0.1, clip=5, standardize=False))
    with pytest.raises(FedGAError, match=r"--clip 5 and --standardize false.* none and true: .*--clip 5,none"):
        register(store, spec(lr=0.1, clip=None, standardize=True))
    with pytest.raises(FedGAError, match=r"with algorithm options none, .* mu=1.0: give another --out$"):
        register(store, spec(lr=0.1, algorithm_options=(("mu", 1.0),)))


def test_a_listed_setting_may_grow(store: Store, spec: Specs) -> None:
    register(store, spec(lr=0.1))
    register(store, spec(lr=0.1), spec(lr=0.05), axes=("lr",))
    register(store, spec(lr=0.05))  # what is there is there, however it came
    with pytest.raises(FedGAError, match=r"with --lr 0\.(1|05), and now it should be 0\.2:"):
        register(store, spec(lr=0.2))
    with pytest.raises(FedGAError, match="with --rounds 100, and now it should be 7"):
        register(store, spec(lr=0.1, rounds=7), spec(lr=0.2, rounds=7), axes=("lr",))
    assert len(store.runs()) == 2


def test_what_the_columns_name_may_differ(store: Store, spec: Specs) -> None:
    register(store, spec())
    register(store, spec(seed=1, lr=0.5))
    register(store, spec(server="adam", lr=0.5))
    register(store, spec(preset="strong", lr=0.5))
    register(store, spec(algorithm="fedavg", lr=0.5))
    assert len(store.runs()) == 5


def test_a_whole_sweep_is_entered_twice_without_conflict(store: Store) -> None:
    sweep = build_sweep(
        {"dataset": ["mnist"], "preset": ["paper", "strong"], "lr": [0.1, 0.2], "partition": ["even", "iid"]}
    )
    for _ in range(2):
        register(store, *sweep.runs, axes=sweep.axes)
    assert len(store.runs()) == len(sweep.runs) == 16


def test_changed_data_are_refused(store: Store, spec: Specs) -> None:
    register(store, spec(), data="1" * 64)
    for other in (spec(), spec(seed=7)):
        with pytest.raises(
            FedGAError, match=r"the data of 'mnist' are not those .* was 1{16}, now it is 2{16}\): give"
        ):
            register(store, other, data="2" * 64)
    register(store, spec(dataset="svhn"), data="2" * 64)


# Groups and claims


def test_groups_keep_their_members_and_order(store: Store, spec: Specs) -> None:
    ids = [spec(seed=seed).run_id for seed in range(4)]
    register(store, *(spec(seed=seed) for seed in range(4)))
    [first] = store.create_groups([[ids[2], ids[0], ids[2]]])
    assert first == Group(first.id, (ids[2], ids[0]), 0, None)
    [second] = store.create_groups([[ids[0], ids[2]], [ids[3], ids[0], ids[1]]])
    assert second.run_ids == (ids[3], ids[1])
    assert store.pending_groups() == [first, second]
    assert store.pending_groups([ids[1]]) == [second]
    with pytest.raises(KeyError):
        store.create_groups([["unheard of"]])


def test_a_claim_marks_runs_and_a_release_gives_them_back(store: Store, spec: Specs) -> None:
    group = claimed(store, spec())
    assert store.runs()[0].status == "running"
    assert store.claim(group.id)  # one's own again
    store.release(group.id)
    assert store.runs()[0].status == "pending"
    with pytest.raises(KeyError):
        store.claim(77)


def test_closing_gives_back(store: Store, spec: Specs) -> None:
    claimed(store, spec())
    store.close()
    assert store.runs()[0].status == "pending"


@pytest.mark.parametrize(
    ("other", "age", "free"),
    [
        ("elsewhere-0000.1.5", 0, False),
        ("elsewhere-0000.1.5", 119, False),
        ("elsewhere-0000.1.5", 121, True),
        ("here.recycled", 0, True),
        ("here.dead", 0, True),
    ],
)
def test_the_group_of_a_dead_owner_is_free(store: Store, spec: Specs, other: str, age: float, free: bool) -> None:
    me = store.owner
    other = {"here.recycled": f"{me.machine}.{me.pid}.1", "here.dead": f"{me.machine}.4194999.{me.started}"}.get(
        other, other
    )
    group = claimed(store, spec())
    give_to(store, group, other, age)
    assert store.claim(group.id) is free


def test_a_sign_of_life_in_the_future_is_not_waited_for_without_end(
    store: Store, spec: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a clock leaves it that was set back across a restart: who lives gives another sign while we watch."""
    group, now = claimed(store, spec()), time.monotonic()
    other, an_hour = "elsewhere-0000.1.5", -3600.0
    give_to(store, group, other, an_hour)
    assert not store.claim(group.id)
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now + 100)
    give_to(store, group, other, an_hour - 30)  # it lives
    assert not store.claim(group.id)
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now + 219)
    assert not store.claim(group.id)
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now + 221)
    assert store.claim(group.id)


def test_an_owner_that_no_process_has_is_gone(store: Store, spec: Specs) -> None:
    group = claimed(store, spec())
    give_to(store, group, "damaged")
    assert store.claim(group.id)


def give_to(store: Store, group: Group, other: str, age: float = 0.0) -> None:
    with sqlite3.connect(store.folder / "results.sqlite") as connection:
        values = (other, time.time() - age, group.id)
        connection.execute("UPDATE groups SET owner = ?, heartbeat = ? WHERE id = ?", values)
    connection.close()


def test_where_processes_cannot_be_seen_silence_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    me = Owner.this_process()
    assert me.alive() is True
    assert Owner.parse(str(me)) == me
    monkeypatch.setattr(owner, "_started", lambda pid: "")
    assert me.alive() is None


def test_a_group_taken_over_is_not_written_to(store: Store, spec: Specs) -> None:
    group = claimed(store, spec())
    store.commit(group.id, 1, [RoundMetrics(spec().run_id, 1, accuracy=0.1)], checkpoint=save("round 1"))
    give_to(store, group, "elsewhere-0000.1.5")
    with pytest.raises(FedGAError, match=f"another process has taken over group {group.id}"):
        store.commit(group.id, 2, [RoundMetrics(spec().run_id, 2, accuracy=0.2)], checkpoint=save("round 2"))
    with pytest.raises(FedGAError, match="another process has taken over"):
        store.beat(group.id)
    assert files(store) == ["round 1"]
    assert store.summaries()[0].last_round == 1
    store.release(group.id)  # not its own any more: nothing happens
    assert not store.claim(group.id)


def test_hold_beats_in_the_background(store: Store, spec: Specs, monkeypatch: pytest.MonkeyPatch) -> None:
    group = claimed(store, spec())
    store.release(group.id)
    monkeypatch.setattr(store_module, "STALE_AFTER_S", 0.02)
    beaten = threading.Event()
    monkeypatch.setattr(store, "beat", lambda group_id: beaten.set())
    with store.hold(group.id) as mine:
        assert mine
        assert beaten.wait(PATIENCE_S)
    assert store.runs()[0].status == "pending"
    give_to(store, group, "elsewhere-0000.1.5")
    with store.hold(group.id) as mine:
        assert not mine


# Commits


def test_a_commit_replaces_the_checkpoint_with_its_rows(store: Store, spec: Specs) -> None:
    specs = [spec(seed=0), spec(seed=1, rounds=3)]
    ids = [one.run_id for one in specs]
    group = claimed(store, *specs)
    store.commit(group.id, 1, [RoundMetrics(run_id, 1, accuracy=0.1) for run_id in ids], checkpoint=save("one"))
    store.commit(group.id, 2, [RoundMetrics(run_id, 2, accuracy=0.2) for run_id in ids])
    now = store.group(group.id)
    assert now.round == 1  # rows of round 2 are kept, but training goes on from the checkpoint
    assert now.checkpoint is not None
    assert now.checkpoint.read_text() == "one"
    rows = [RoundMetrics(run_id, 3, accuracy=0.3) for run_id in ids]
    store.commit(group.id, 3, rows, checkpoint=save("three"), finished={ids[1]: "done"})
    assert files(store) == ["three"]
    assert [(run.status, run.rounds_done) for run in store.runs()] == [("running", 3), ("done", 3)]
    store.commit(
        group.id,
        4,
        [RoundMetrics(ids[0], 4, loss=float("nan"))],
        checkpoint=save("four"),
        finished={ids[0]: "diverged"},
        notes={ids[0]: "loss is NaN"},
    )
    assert files(store) == []
    assert store.group(group.id) == Group(group.id, tuple(ids), 4, None)
    runs = store.runs()
    assert [(run.status, run.rounds_done, run.note) for run in runs] == [
        ("diverged", 4, "loss is NaN"),
        ("done", 3, ""),
    ]
    assert all(run.finished for run in runs)
    assert store.pending_groups() == []
    assert not store.claim(group.id)
    assert [run.status for run in store.register(specs, dict.fromkeys(ids, "data"))] == ["diverged", "done"]


def test_what_clients_showed_comes_back(store: Store, spec: Specs) -> None:
    group = claimed(store, spec())
    arrays = {
        "clients": np.array([3, 1]),
        "accuracy_before": np.array([[0.5, np.nan], [0.25, 1.0]], np.float32),
        "ea_after": np.array([1.5, np.inf]),
    }
    store.commit(group.id, 10, clients=[ClientRound(spec().run_id, 10, arrays)])
    [seen] = store.client_rounds(spec().run_id)
    assert seen.round == 10
    assert set(seen.arrays) == set(arrays)
    for name, array in arrays.items():
        assert seen.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(seen.arrays[name], array)
    assert store.client_rounds("unheard of") == []


def test_a_failing_checkpoint_leaves_everything_as_it_was(store: Store, spec: Specs) -> None:
    group = claimed(store, spec())
    store.commit(group.id, 1, [RoundMetrics(spec().run_id, 1, accuracy=0.1)], checkpoint=save("one"))

    def full(path: Path) -> None:
        path.write_text("half of")
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_in_rust(path: Path) -> None:
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    def broken(path: Path) -> None:
        raise ZeroDivisionError

    for write, error in ((full, FedGAError), (full_in_rust, FedGAError), (broken, ZeroDivisionError)):
        with pytest.raises(error):
            store.commit(group.id, 2, [RoundMetrics(spec().run_id, 2, accuracy=0.2)], checkpoint=write)
    assert files(store) == ["one"]
    assert store.summaries()[0].last_round == 1
    store.commit(group.id, 2, [RoundMetrics(spec().run_id, 2, accuracy=0.2)], checkpoint=save("two"))
    assert files(store) == ["two"]


def test_an_interrupt_after_the_commit_keeps_the_checkpoint(
    store: Store, spec: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = claimed(store, spec())
    inner = store_module.transaction

    class Interrupted:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self.inner = inner(connection)

        def __enter__(self) -> None:
            self.inner.__enter__()

        def __exit__(self, *arguments: object) -> None:
            self.inner.__exit__(*arguments)  # type: ignore[arg-type]
            raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "transaction", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.commit(group.id, 1, [RoundMetrics(spec().run_id, 1, accuracy=0.1)], checkpoint=save("one"))
    monkeypatch.undo()
    now = store.group(group.id)
    assert now.round == 1
    assert now.checkpoint is not None
    assert now.checkpoint.read_text() == "one"


def test_an_interrupt_inside_a_transaction_undoes_it(store: Store, spec: Specs) -> None:
    group = claimed(store, spec())
    store._opened().execute("BEGIN IMMEDIATE")
    store._opened().execute("BEGIN IMMEDIATE")  # the first was rolled back
    with pytest.raises(KeyError):
        store.commit(group.id, 1, [RoundMetrics("unheard of", 1)])
    assert store.runs()[0].rounds_done == 0


def test_leftovers_of_dead_writers_are_removed_and_no_others(store: Store, spec: Specs) -> None:
    group = claimed(store, spec())
    store.commit(group.id, 1, checkpoint=save("current"))
    store.close()
    me, folder = store.owner, store.folder / "checkpoints"
    dead, live, other = f"{me.machine}.4194999.1", str(me), "elsewhere-0000.1.5"
    current = store.group(group.id).checkpoint
    assert current is not None
    renamed = current.rename(current.with_name(current.name.replace(live, dead)))
    with sqlite3.connect(store.folder / "results.sqlite") as connection:
        connection.execute("UPDATE groups SET checkpoint = ?", (renamed.name,))
    connection.close()
    for writer in (dead, live, other):
        (folder / f"group-0001.round-000002.{writer}.00000000.safetensors").write_text(f"stray {writer}")
        (folder / f"tmp-group-0001.round-000002.{writer}.00000000.safetensors").write_text(f"stray {writer}")
    (folder / "notes.txt").write_text("the user's own")
    register(store, spec())
    expected = ["current", "the user's own", *[f"stray {live}"] * 2, *[f"stray {other}"] * 2]
    assert files(store) == sorted(expected)


# Trouble with the folder


def test_nothing_is_made_before_something_is_written(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "b") as store:
        for read in (store.runs, store.summaries, store.pending_groups):
            with pytest.raises(FedGAError, match=r"there are no results in '.*': no file results.sqlite"):
                read()
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path: Path, spec: Specs) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with Store(folder) as store, pytest.raises(FedGAError, match=r"the output folder '.*' is a file: give another"):
            register(store, spec())


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_without_the_right_to_write(
    open_folder: Path, unprivileged: Callable, spec: Specs, exists: bool
) -> None:
    folder = open_folder / "out"
    if exists:
        with Store(folder) as store:
            register(store, spec())
    open_folder.chmod(0o555)
    (folder if exists else open_folder).chmod(0o555)
    with unprivileged(), Store(folder) as store:
        with pytest.raises(FedGAError, match=r"the output folder '.*' is not writable: change its permissions or give"):
            register(store, spec(seed=1))
        if exists:
            assert [run.spec for run in store.runs()] == [spec()]  # but what is there can be read
    open_folder.chmod(0o755)
    if exists:
        folder.chmod(0o755)


def test_a_full_disk_loses_nothing(store: Store, spec: Specs) -> None:
    group = claimed(store, spec())
    store.commit(group.id, 1, [RoundMetrics(spec().run_id, 1, accuracy=0.1)], checkpoint=save("one"))
    connection = store._opened()
    connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
    big = ClientRound(spec().run_id, 2, {"noise": np.random.default_rng(0).random(100_000)})
    message = r"the disk that holds '.*' is full: make room and repeat the command, what was finished is kept"
    with pytest.raises(FedGAError, match=message):
        store.commit(group.id, 2, [RoundMetrics(spec().run_id, 2, accuracy=0.2)], [big], save("two"))
    assert files(store) == ["one"]
    assert store.summaries()[0].last_round == 1
    connection.execute("PRAGMA max_page_count = 1000000")
    store.commit(group.id, 2, [RoundMetrics(spec().run_id, 2, accuracy=0.2)], [big], save("two"))
    assert files(store) == ["two"]


def _not_sqlite(path: Path) -> None:
    path.write_bytes(b"this is no database, " * 100)


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()


def _newer(path: Path) -> None:
    _known(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def _damaged(path: Path) -> None:
    _known(path)
    with path.open("rb+") as file:
        file.seek(100)
        file.write(b"\xff" * (path.stat().st_size - 100))


def _known(path: Path) -> None:
    with Store(path.parent) as store:
        register(store, RunSpec(alpha=0.1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            _not_sqlite,
            r"results.sqlite' is damaged or is not a results file \(file is not a database\): give another --out",
        ),
        (_damaged, r"results.sqlite' is damaged \(.*malformed.*\): 'fedga repair .*' keeps every run that is whole"),
        (_foreign, r"results.sqlite' is a database of another program, or is damaged: give another --out"),
        (_newer, r"was written by a newer fedga \(format 99, this one reads 2\): upgrade fedga or give another --out"),
    ],
)
def test_files_that_are_not_ours(tmp_path: Path, spec: Specs, make: Callable, message: str) -> None:
    make(tmp_path / "results.sqlite")
    before = (tmp_path / "results.sqlite").read_bytes()
    with Store(tmp_path) as store:
        with pytest.raises(FedGAError, match=message):
            store.runs()
        with pytest.raises(FedGAError, match=message):
            register(store, spec())
    assert (tmp_path / "results.sqlite").read_bytes() == before


def test_an_empty_file_is_a_store_to_be(tmp_path: Path, spec: Specs) -> None:
    (tmp_path / "results.sqlite").touch()  # what a kill right after the start leaves
    with Store(tmp_path) as store:
        with pytest.raises(FedGAError, match=r"no results in '.*': its results.sqlite is empty"):
            store.runs()
        register(store, spec())
        assert len(store.runs()) == 1


def test_a_lock_that_stays_is_reported(store: Store, spec: Specs, monkeypatch: pytest.MonkeyPatch) -> None:
    register(store, spec())
    store.close()
    monkeypatch.setattr(database, "BUSY_S", 0.1)
    blocker = sqlite3.connect(store.folder / "results.sqlite", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(
        FedGAError, match=r"another process has kept '.*results.sqlite' locked for 0.1 s: try again later"
    ):
        register(store, spec(seed=1))
    assert len(store.runs()) == 1  # readers do not wait
    blocker.close()
    register(store, spec(seed=1))


def journal(store: Store) -> str:
    return store._opened().execute("PRAGMA journal_mode").fetchone()[0]


def test_the_log_is_used_where_it_can_be(store: Store, tmp_path: Path, spec: Specs, monkeypatch) -> None:
    register(store, spec())
    assert journal(store) == "wal"
    assert store._opened().execute("PRAGMA synchronous").fetchone()[0] == 2
    monkeypatch.setattr(database, "is_network_folder", lambda folder: True)
    with Store(tmp_path / "nfs") as other:
        group = claimed(other, spec())
        assert journal(other) == "delete"
        other.commit(group.id, 1, [RoundMetrics(spec().run_id, 1, accuracy=0.5)], checkpoint=save("one"))
        assert other.summaries()[0].last_round == 1


def test_a_file_system_that_fails_the_log_gets_a_journal(tmp_path: Path, spec: Specs, monkeypatch) -> None:
    class NoSharedMemory(sqlite3.Connection):
        def execute(self, sql: str, *rest: object) -> sqlite3.Cursor:  # type: ignore[override]
            if "journal_mode = wal" in sql:
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *rest)  # type: ignore[arg-type]

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=NoSharedMemory))
    with Store(tmp_path) as store:
        register(store, spec())
        assert journal(store) == "delete"


def test_network_folders_are_told_by_their_mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = (
        f"/dev/sda / ext4 rw 0 0\nhost:/x {tmp_path}/a\\040b nfs4 rw 0 0\n/dev/sdb {tmp_path}/a\\040b/c ext4 rw 0 0\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda self: mounts)
    assert database.is_network_folder(tmp_path / "a b" / "out")
    assert not database.is_network_folder(tmp_path / "a b" / "c" / "out")
    assert not database.is_network_folder(tmp_path / "a")


# Damage


def filled(folder: Path, spec: Specs) -> Path:
    """Three runs: two finished, one half-way; looks at clients, a partition, a metric of the user's own."""
    runs = [spec(seed=seed) for seed in range(3)]
    with Store(folder) as store:
        register(store, *runs)
        store.keep_partitions(
            [PartitionRecord("mnist", "dirichlet", 0.1, 2, 0, ("a", "b"), np.array([[1, 2], [3, 4]]))]
        )
        groups = store.create_groups([[run.run_id] for run in runs])
        for number, (group, run) in enumerate(zip(groups, runs, strict=True)):
            store.claim(group.id)
            rows = [RoundMetrics(run.run_id, at, accuracy=at / 7 + number, mine=at / 3) for at in range(1, 6)]
            looks = [ClientRound(run.run_id, 5, {"client": np.arange(2), "accuracy": np.array([0.25, np.nan])})]
            end = {run.run_id: "done"} if number < 2 else {}
            store.commit(group.id, 5, rows, looks, save("state"), end)
            store.release(group.id)
    return folder


def contents(folder: Path) -> str:
    """Everything that readers get from a folder, as text."""
    stream = io.StringIO()
    with Store(folder) as store:
        store.write_results(stream)
        runs = [
            (run.run_id, run.spec, run.fingerprint, run.finished, run.rounds_done, run.note) for run in store.runs()
        ]
        looks = [[(one.round, str(one.arrays)) for one in store.client_rounds(run_id)] for run_id, *_ in runs]
        return f"{stream.getvalue()}{runs}{looks}{store.summaries()}{store.partitions()}{store.check()}"


def test_every_flipped_bit_of_the_results_file_is_told_or_changes_nothing(tmp_path: Path, spec: Specs) -> None:
    """Bits are taken all over the file, densely where rows are; a reader gets the same, or one sentence."""
    path = filled(tmp_path, spec) / "results.sqlite"
    whole, expected = path.read_bytes(), contents(tmp_path)
    used = [at for at, byte in enumerate(whole) if byte]
    told = 0
    for place in range(0, len(used), 41):
        damaged = bytearray(whole)
        damaged[used[place]] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = contents(tmp_path)
        except FedGAError:
            told += 1
        else:
            assert found == expected, used[place]
    assert told > 40


def test_damage_in_one_run_leaves_the_others_to_a_repair(tmp_path: Path, spec: Specs) -> None:
    path = filled(tmp_path, spec) / "results.sqlite"
    before = contents(tmp_path)
    assert repair_results(tmp_path) == (3, 0, None)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE metrics SET accuracy = accuracy + 1e-12 WHERE run = 2 AND round = 3")
    connection.close()
    with pytest.raises(FedGAError, match=rf"is damaged \(a result of run {spec(seed=1).run_id}\): 'fedga repair"):
        contents(tmp_path)
    kept, lost, aside = repair_results(tmp_path)
    assert (kept, lost) == (2, 1)
    assert aside == tmp_path / "results.sqlite.damaged"
    with Store(tmp_path) as store:
        assert [run.spec.seed for run in store.runs()] == [0, 2]
        [group] = store.pending_groups()
        assert group.round == 5
        assert group.checkpoint is not None
        assert group.checkpoint.read_text() == "state"
        again = spec(seed=1)
        register(store, again)
        [group] = store.create_groups([[again.run_id]])
        store.claim(group.id)
        rows = [RoundMetrics(again.run_id, at, accuracy=at / 7 + 1, mine=at / 3) for at in range(1, 6)]
        looks = [ClientRound(again.run_id, 5, {"client": np.arange(2), "accuracy": np.array([0.25, np.nan])})]
        store.commit(group.id, 5, rows, looks, finished={again.run_id: "done"})
    assert contents(tmp_path).partition("Summary")[0] == before.partition("Summary")[0]


def test_a_file_of_version_0_1_is_read_and_gets_digests_when_it_is_written(tmp_path: Path, spec: Specs) -> None:
    path = filled(tmp_path, spec) / "results.sqlite"
    before = contents(tmp_path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE digests")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    assert contents(tmp_path) == before
    with Store(tmp_path) as store:
        register(store, *(spec(seed=seed) for seed in range(3)))
    assert contents(tmp_path) == before
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE client_rounds SET arrays = x'00' WHERE run = 1")
    connection.close()
    with pytest.raises(FedGAError, match="an evaluation of the clients of run"):
        contents(tmp_path)


@pytest.mark.parametrize("name", ["../../victim", "/tmp/victim", "lost", "", ".", b"blob", "x" * 6000, "a\0b"])
def test_a_checkpoint_leads_nowhere_else(name: object, tmp_path: Path, spec: Specs) -> None:
    """What stands in a results file of somebody else neither opens nor removes a file."""
    folder = filled(tmp_path / "a" / "results", spec)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with sqlite3.connect(folder / "results.sqlite") as connection:
        connection.execute("UPDATE groups SET checkpoint = ?", (str(victim) if name == "/tmp/victim" else name,))
    connection.close()
    with Store(folder) as store:
        [group] = store.pending_groups()
        assert group.checkpoint is None or group.checkpoint == folder / "checkpoints" / "lost"
        store.claim(group.id)
        unfinished = spec(seed=2).run_id
        store.commit(group.id, 6, [RoundMetrics(unfinished, 6, accuracy=0.5)], checkpoint=save("next"))
        store.commit(group.id, 7, [RoundMetrics(unfinished, 7, accuracy=0.5)], finished={unfinished: "done"})
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("owner", ["x", "a.b.c", b"blob", "host-1.99999999999999999999999.5", 7])
@pytest.mark.parametrize("heartbeat", [0.0, "text", None])
def test_whatever_a_claim_says_it_ends(owner: object, heartbeat: object, tmp_path: Path, spec: Specs) -> None:
    folder = filled(tmp_path / "results", spec)
    with sqlite3.connect(folder / "results.sqlite") as connection:
        connection.execute("UPDATE groups SET owner = ?, heartbeat = coalesce(?, 0)", (owner, heartbeat))
    connection.close()
    write_archive(folder, tmp_path / "archive")
    with Store(folder) as store:
        [group] = store.pending_groups()
        assert store.claim(group.id)


def test_a_run_whose_group_is_gone_is_told(tmp_path: Path, spec: Specs) -> None:
    folder = filled(tmp_path / "results", spec)
    with sqlite3.connect(folder / "results.sqlite") as connection:
        connection.execute("DELETE FROM groups")
    connection.close()
    with Store(folder) as store, pytest.raises(FedGAError, match=r"is damaged .the entry of group 3."):
        store.pending_groups()


def test_a_repair_keeps_its_hands_off_what_is_not_damaged(tmp_path: Path, spec: Specs) -> None:
    folder = filled(tmp_path / "results", spec)

    def execute(statement: str) -> None:
        with sqlite3.connect(folder / "results.sqlite") as connection:
            connection.execute(statement)
        connection.close()

    def refused(words: str) -> None:
        before = (folder / "results.sqlite").read_bytes()
        with pytest.raises(FedGAError, match=words):
            repair_results(folder)
        assert (folder / "results.sqlite").read_bytes() == before

    execute("PRAGMA user_version = 3")
    refused("written by a newer fedga")
    execute("PRAGMA user_version = 2")
    execute("PRAGMA application_id = 7")
    refused("of another program")
    execute(f"PRAGMA application_id = {0x66646761}")
    execute("UPDATE metrics SET accuracy = 0.75 WHERE run = 2 AND round = 2")
    execute(f"UPDATE groups SET owner = '{Owner.this_process()}', heartbeat = 1e18 WHERE id = 3")
    refused("is being trained in")
    execute("UPDATE groups SET owner = NULL")
    assert repair_results(folder)[:2] == (2, 1)


def test_a_file_that_was_replaced_is_not_written_to(tmp_path: Path, spec: Specs) -> None:
    """As by a repair, or by whoever removes the folder and begins anew: the rows would be lost."""
    folder = filled(tmp_path / "results", spec)
    with Store(folder) as store:
        [group] = store.pending_groups()
        store.claim(group.id)
        (folder / "results.sqlite").replace(folder / "aside")
        (folder / "results.sqlite").write_bytes((folder / "aside").read_bytes())
        with pytest.raises(FedGAError, match="was replaced or removed meanwhile"):
            store.commit(group.id, 6, [RoundMetrics(spec(seed=2).run_id, 6, accuracy=0.5)])


def test_a_format_that_does_not_fit_its_digests_is_damage(tmp_path: Path, spec: Specs) -> None:
    folder = filled(tmp_path, spec)
    with sqlite3.connect(folder / "results.sqlite") as connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(FedGAError, match="which does not fit its digests"):
        contents(folder)
