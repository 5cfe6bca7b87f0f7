"""What a service has at the end is what the results file says, however often tracking and training were cut short."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

from fedga.engine.engine import Engine
from fedga.engine.server import LaneRound
from fedga.study.sweep import Interrupted
from fedga.tracking import follower
from fedga.tracking.follower import Ledger, follow, run_names
from fedga.tracking.service import Service, TrackedRound, TrackedRun
from tests.tracking.readers import READERS, check_equal, in_mlflow
from tests.tracking.sweeps import ROUNDS, SPECS, deliver, make_spec, train


def test_trained_sweep(service: str, study: Path) -> None:
    """Also what was trained without tracking: a sweep, or part of one."""
    deliver(service, study)
    check_equal(service, study)


def test_run_is_told_by_name_and_settings(service: str, study: Path) -> None:
    deliver(service, study)
    found = READERS[service](study)
    names = run_names(SPECS)
    for spec in SPECS:
        seen = found[spec.run_id]
        assert seen.name.replace(":", "_") == names[spec.run_id].replace(":", "_")  # not in the name of a folder
        assert str(seen.config["lr"]) == str(spec.lr)
        assert str(seen.config["seed"]).removesuffix(".0") == str(spec.seed)
        assert str(seen.config["standardize"]).lower() == "false"
        if service != "tensorboard":  # which has none
            assert seen.tags >= {"digits", spec.algorithm_name, *([spec.preset] if spec.preset else [])}
            assert ("diverged" in seen.tags) == (seen.status == "diverged")
        assert "mu" in str(seen.config["algorithm_options"]) or "prox" not in spec.algorithm
    assert len({seen.name for seen in found.values()}) == len(SPECS)


def test_names_say_what_tells_runs_apart() -> None:
    names = run_names(SPECS)
    assert [names[spec.run_id] for spec in SPECS] == [
        "digits α=0.1 fedavg seed 0, lr 0.1",
        "digits α=0.1 fedavg seed 1",
        "digits α=0.1 fedprox:mu=0.01 seed 0",
        "digits α=0.1 fedprox:mu=0.01 seed 1",
        "digits α=0.1 fedavg seed 0, lr 1e+30",
        "digits α=0.1 fedavg paper seed 0",
        "digits α=0.1 fedga seed 0",
    ]
    own = make_spec(dataset="/data/patients.csv", partition="iid", alpha=None)
    assert list(run_names([own]).values()) == ["patients fedga seed 0"]


@pytest.mark.parametrize("limit", [1, 3])
def test_continued(limit: int, service: str, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    with pytest.raises(Interrupted):
        train(folder, limit)
    deliver(service, folder)
    partly = READERS[service](folder)
    left = {"mlflow": "interrupted", "wandb": "interrupted", "tensorboard": "running"}[service]
    assert {seen.status for seen in partly.values()} == {"diverged", left, *(["done"] if limit >= 2 else [])}
    train(folder)
    deliver(service, folder)
    check_equal(service, folder)


def test_rounds_trained_again_after_a_crash(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, run_round = tmp_path / "study", Engine.run_round

    def failing(self: Engine) -> list[LaneRound]:
        if self.round + 1 == ROUNDS:
            raise ZeroDivisionError
        return run_round(self)

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "run_round", failing)
        with pytest.raises(ZeroDivisionError):
            train(folder)
    deliver(service, folder)
    train(folder)
    deliver(service, folder)
    check_equal(service, folder)


def failing_log(tracker: type[Service], after: int) -> Callable[[Service, TrackedRun, Sequence[TrackedRound]], None]:
    """A log that, in the run after the first few, gets a round and a half across and then fails."""
    log, calls = tracker.log, []

    def failing(self: Service, run: TrackedRun, rows: Sequence[TrackedRound]) -> None:
        calls.append(run)
        if len(calls) <= after:
            log(self, run, rows)
            return
        half = [TrackedRound(row.round, dict(list(row.metrics.items())[:2])) for row in rows[1:2]]
        log(self, run, [*rows[:1], *half])
        raise OSError("No space left\non device")

    return failing


def test_service_fails_and_gets_the_rest_later(service: str, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = import_module(f"fedga.tracking.{service}").Tracker
    with monkeypatch.context() as patched:
        patched.setattr(tracker, "log", failing_log(tracker, after=3))
        notices = deliver(service, study)
    assert notices[-1] == (
        f"tracking with {service} stopped (No space left on device): the results are safe in {study}, and the same "
        f"command delivers to {service} what it lacks"
    )
    deliver(service, study)
    check_equal(service, study)


def test_failure_while_leaving_is_told_too(service: str, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = import_module(f"fedga.tracking.{service}").Tracker

    def failing(self: Service) -> None:
        raise TimeoutError

    monkeypatch.setattr(tracker, "close", failing)
    assert f"tracking with {service} stopped (TimeoutError)" in deliver(service, study)[-1]
    check_equal(service, study)


def test_nothing_is_delivered_twice(service: str, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(service, study)
    tracker = import_module(f"fedga.tracking.{service}").Tracker

    def refuse(self: Service, run: TrackedRun) -> None:
        raise AssertionError

    monkeypatch.setattr(tracker, "begin", refuse)
    assert not any("stopped" in notice for notice in deliver(service, study))
    check_equal(service, study)


def test_follows_while_training_goes_on(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "LOOK_EVERY_S", 0.05)
    folder, stop, notices = tmp_path / "study", threading.Event(), []
    with pytest.raises(Interrupted):
        train(folder, 1)
    thread = threading.Thread(target=follow, args=(service, folder, stop, notices.append))
    thread.start()
    train(folder)
    stop.set()
    thread.join()
    check_equal(service, folder)


def test_one_process_tracks_at_a_time(service: str, study: Path) -> None:
    with closing(Ledger(study / service)) as ledger:
        assert ledger.take()
        assert deliver(service, study) == [f"another process tracks {study} with {service}, and these runs too"]
    deliver(service, study)
    check_equal(service, study)


def test_whoever_deletes_its_folder_starts_over(service: str, study: Path) -> None:
    deliver(service, study)
    shutil.rmtree(study / service)
    again = study.rename(study.with_name("again"))  # mlflow remembers the place for as long as a process lives
    deliver(service, again)
    check_equal(service, again)


def test_folder_without_results(service: str, tmp_path: Path) -> None:
    assert "there are no results in" in deliver(service, tmp_path)[-1]


def test_mlflow_server_of_the_user(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder deleted and trained anew is another one, though the server knows runs of that name and settings."""
    uri = (tmp_path / "server").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert deliver("mlflow", study) == []
    assert in_mlflow(study, uri).keys() == {spec.run_id for spec in SPECS}
    shutil.rmtree(study / "mlflow")
    deliver("mlflow", study)
    with pytest.raises(AssertionError):  # each run is there twice now
        in_mlflow(study, uri)


def test_wandb_turned_off_by_the_user(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert deliver("wandb", study) == []
    assert not list((study / "wandb").glob("*run*"))
