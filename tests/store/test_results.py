from __future__ import annotations

import csv
import io
import json
import random
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedga.errors import FedGAError
from fedga.spec.settings import RunSpec
from fedga.store.database import seal_everything
from fedga.store.store import RoundMetrics, Store

Specs = Callable[..., RunSpec]
COLUMNS = "dataset,alpha,algorithm,preset,server,seed,round,accuracy,macro_f1,balanced_accuracy,ea_ratio,loss"


def fill(folder: Path, specs: Sequence[RunSpec], rounds: int = 3, axes: tuple[str, ...] = ()) -> Store:
    """Each run's numbers depend on the run and the round alone, as real ones do."""
    store = Store(folder)
    store.register(specs, {spec.run_id: "data" for spec in specs}, axes)
    for group in store.create_groups([[spec.run_id] for spec in specs]):
        assert store.claim(group.id)
        [run_id] = group.run_ids
        draw = random.Random(run_id)
        rows = [RoundMetrics(run_id, at, *(draw.random() for _ in range(10))) for at in range(1, rounds + 1)]
        store.commit(group.id, rounds, rows, finished={run_id: "done"})
    store.close()
    return store


def table(store: Store, format: str = "csv") -> str:  # noqa: A002
    stream = io.StringIO()
    store.write_results(stream, format)
    return stream.getvalue()


def test_the_columns_are_exactly_the_promised_ones(tmp_path: Path, spec: Specs) -> None:
    store = fill(tmp_path, [spec(seed=seed) for seed in (1, 0)])
    lines = table(store).splitlines()
    assert lines[0] == COLUMNS
    assert len(lines) == 7
    assert lines[1].startswith("mnist,0.1,fedga,,sgd,0,1,0.")
    with store.results() as streamed:
        assert streamed.columns == tuple(COLUMNS.split(","))
        rows = list(streamed.rows)
    assert [(row[5], row[6]) for row in rows] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


def test_averages_have_columns_where_there_are_any(tmp_path: Path, spec: Specs) -> None:
    store = fill(
        tmp_path, [spec(preset="paper"), spec(preset="strong", server_average=0.05, lr=0.3, server="momentum")]
    )
    header = table(store).splitlines()[0]
    averaged = "averaged_accuracy,averaged_macro_f1,averaged_balanced_accuracy,averaged_ea_ratio,averaged_loss"
    assert header == f"{COLUMNS},{averaged}"  # the rate differs too, but the preset tells the runs apart already


def test_settings_that_alone_tell_runs_apart_get_columns(tmp_path: Path, spec: Specs) -> None:
    specs = [spec(lr=0.1), spec(lr=0.05, clip=None), spec(lr=0.05, standardize=True, algorithm_options=(("mu", 2.0),))]
    store = fill(tmp_path, specs, rounds=1, axes=("lr", "clip", "standardize", "algorithm_options"))
    rows = list(csv.DictReader(io.StringIO(table(store))))
    further = [(row["algorithm_options"], row["lr"], row["clip"], row["standardize"]) for row in rows]
    assert further == [("", "0.05", "", "False"), ("", "0.1", "5.0", "False"), ("mu=2.0", "0.05", "5.0", "True")]
    assert ",".join(rows[0]) == f"{COLUMNS},algorithm_options,lr,clip,standardize"


def test_bytes_do_not_depend_on_the_order_of_work(tmp_path: Path, spec: Specs) -> None:
    specs = [
        spec(seed=seed, alpha=alpha, algorithm=algorithm, lr=lr)
        for seed in range(2)
        for alpha in (10, 0.05)
        for algorithm in ("fedga", "fedavg")
        for lr in (0.1, 0.01)
    ] + [spec(partition=partition, alpha=None, dataset="a,b") for partition in ("iid", "shards")]
    outcomes = set()
    for seed in range(4):
        random.Random(seed).shuffle(specs)
        store = fill(tmp_path / str(seed), specs, axes=("lr", "partition"))
        outcomes.add((table(store, "csv"), table(store, "json")))
    assert len(outcomes) == 1


def test_numbers_are_exact_and_gaps_are_empty(tmp_path: Path, spec: Specs) -> None:
    with Store(tmp_path) as store:
        one = spec()
        store.register([one], {one.run_id: "data"})
        [group] = store.create_groups([[one.run_id]])
        store.claim(group.id)
        store.commit(group.id, 1, [RoundMetrics(one.run_id, 1, 0.1 + 0.2, float("nan"), None, float("inf"), 1e-7)])
        assert table(store).splitlines()[1] == "mnist,0.1,fedga,,sgd,0,1,0.30000000000000004,,,inf,1e-07"
        [row] = json.loads(table(store, "json"), parse_constant=pytest.fail)
        assert row["accuracy"] == 0.1 + 0.2
        assert (row["macro_f1"], row["ea_ratio"], row["preset"]) == (None, None, "")


def test_whatever_its_bits_nan_is_nothing(tmp_path: Path, spec: Specs) -> None:
    """Libraries give NaN with a sign or a payload; the file keeps none of them, so a digest must not."""
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    with Store(tmp_path) as store:
        store.register([spec()], {spec().run_id: "data"})
        [group] = store.create_groups([[spec().run_id]])
        store.claim(group.id)
        store.commit(group.id, 1, [RoundMetrics(spec().run_id, 1, 0.5, odd, mine=odd)])
        store.check()
        assert table(store).splitlines()[1] == "mnist,0.1,fedga,,sgd,0,1,0.5,,,,,"


def test_a_plugin_never_replaces_a_built_in_metric(tmp_path: Path, spec: Specs) -> None:
    """Not even in a file of somebody else, whose table of plugins' metrics may hold any name."""
    store = fill(tmp_path, [spec()])
    before = table(store)
    connection = store._opened()
    connection.execute("INSERT INTO own_metrics VALUES (1, 1, 'accuracy', 7.0)")
    seal_everything(connection)
    assert table(store) == before
    store.close()


def test_a_store_without_rows(tmp_path: Path, spec: Specs) -> None:
    with Store(tmp_path) as store:
        store.register([spec()], {spec().run_id: "data"})
        assert table(store) == COLUMNS + "\n"
        assert json.loads(table(store, "json")) == []
        [summary] = store.summaries()
        assert (summary.last_round, summary.last["accuracy"], summary.best_round) == (None, None, None)
        with pytest.raises(FedGAError, match="unknown format 'cvs': did you mean 'csv'"):
            table(store, "cvs")


def test_trouble_of_the_printing_side_is_not_the_folders(tmp_path: Path, spec: Specs) -> None:
    store = fill(tmp_path, [spec()])
    with pytest.raises(BrokenPipeError), store.results():
        raise BrokenPipeError(32, "Broken pipe")


def test_summaries_tell_last_mean_and_best_apart(tmp_path: Path, spec: Specs) -> None:
    with Store(tmp_path) as store:
        one = spec()
        store.register([one], {one.run_id: "data"})
        [group] = store.create_groups([[one.run_id]])
        store.claim(group.id)
        accuracies = {0: 0.1, 1: 0.2, 2: 0.9, 3: 0.4}
        rows = [RoundMetrics(one.run_id, at, accuracy=value) for at, value in accuracies.items()]
        rows[2] = RoundMetrics(one.run_id, 2, accuracy=0.9, forgetting_rare=0.25)
        store.commit(group.id, 3, rows, finished={one.run_id: "done"})
        [summary] = store.summaries()
    assert (summary.run.status, summary.run.rounds_done, summary.last_round) == ("done", 3, 3)
    assert summary.last["accuracy"] == 0.4
    assert summary.mean["accuracy"] == pytest.approx(0.5)  # the untrained model of round 0 is not of the curve
    assert (summary.best_accuracy, summary.best_round) == (0.9, 2)
    assert (summary.last["forgetting_rare"], summary.mean["forgetting_rare"]) == (None, 0.25)


@pytest.mark.long
def test_a_thousand_runs_of_500_rounds(tmp_path: Path, spec: Specs) -> None:
    """The time is printed (pytest -s), not asserted: the machine is shared."""
    specs = [spec(seed=seed, algorithm=name) for seed in range(500) for name in ("fedavg", "fedga")]
    with Store(tmp_path) as store:
        store.register(specs, {one.run_id: "data" for one in specs})
        [group] = store.create_groups([[one.run_id for one in specs]])
        assert store.claim(group.id)
        keys = {run.run_id: run.key for run in store.runs()}
        rows = ((keys[one.run_id], at, *[0.5 + at / 1e4] * 14) for one in specs for at in range(1, 501))
        connection = store._opened()
        connection.execute("BEGIN")
        connection.executemany(f"INSERT INTO metrics VALUES ({', '.join('?' * 16)})", rows)
        seal_everything(connection)
        connection.execute("COMMIT")
        began = time.perf_counter()
        with store.results() as streamed:
            assert sum(1 for _ in streamed.rows) == 500_000
        middle = time.perf_counter()
        assert len(store.summaries()) == 1000
        print(f"\n500,000 rows in {middle - began:.2f} s, 1,000 summaries in {time.perf_counter() - middle:.2f} s")
