"""A profile counts every second once, and changes no number."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedga.engine import profile as module
from fedga.engine.engine import Engine
from fedga.engine.evaluation.evaluate import Evaluation
from fedga.engine.evaluation.evaluator import ClientEvaluator
from fedga.engine.profile import (
    DATA,
    DIAGNOSIS,
    EVALUATION,
    LOCAL_TRAINING,
    NO_PROFILE,
    OTHER,
    PHASES,
    Profile,
    Stage,
    Stopwatch,
)
from fedga.engine.server import LaneRound
from tests.engine.runs import make_data, make_dataset, make_engine, make_lane

CPU = torch.device("cpu")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@contextmanager
def own_time() -> Iterator[Clock]:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        yield clock


def stopped(watch: Stopwatch) -> Stopwatch:
    """With all seconds until now added to its stages."""
    assert watch.shown
    return watch


def nonzero(stage: Stage) -> dict[str, float]:
    return {phase: seconds for phase, seconds in stage.seconds.items() if seconds}


# Whole seconds, so that sums are exact: a number passes that time, a pair is a span with more inside.
WORK = st.recursive(
    st.integers(0, 5),
    lambda inner: st.tuples(st.sampled_from(list(PHASES)), st.lists(inner, max_size=4)),
    max_leaves=20,
)


def perform(profile: Profile, clock: Clock, work: Any, inside: str, expected: Counter[str]) -> None:
    if isinstance(work, int):
        clock.now += work
        expected[inside] += work
        return
    phase, parts = work
    with profile.span(phase):
        for part in parts:
            perform(profile, clock, part, phase, expected)


@given(before=st.lists(WORK, max_size=3), rounds=st.lists(st.lists(WORK, max_size=4), max_size=4))
def test_every_second_is_counted_once_for_the_innermost_span(before: list[Any], rounds: list[list[Any]]) -> None:
    with own_time() as clock:
        watch = Stopwatch(CPU)
        outside: Counter[str] = Counter()
        steady: Counter[str] = Counter()
        for work in before:
            perform(watch, clock, work, OTHER, outside)
        for one in rounds:
            with watch.round(3):
                for work in one:
                    perform(watch, clock, work, OTHER, steady)
        found = stopped(watch)
    assert found.outside.seconds == {phase: outside[phase] for phase in PHASES}
    assert found.steady.seconds == {phase: steady[phase] for phase in PHASES}
    assert found.outside.wall + found.steady.wall == clock.now
    assert (found.steady.rounds, found.steady.run_rounds) == (len(rounds), 3 * len(rounds))
    shares = sum(found.steady.share(phase) for phase in PHASES)
    assert shares == (pytest.approx(1) if found.steady.wall else 0)


def test_time_of_an_error_is_counted_and_spans_are_left() -> None:
    with own_time() as clock:
        watch = Stopwatch(CPU)
        with suppress(KeyboardInterrupt), watch.round(1), watch.span(LOCAL_TRAINING), watch.span(DIAGNOSIS):
            clock.now += 2
            raise KeyboardInterrupt
        clock.now += 1
        found = stopped(watch)
    assert nonzero(found.steady) == {DIAGNOSIS: 2}
    assert nonzero(found.outside) == {OTHER: 1}


def in_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_waiting_is_divided_by_what_workers_did() -> None:
    with own_time() as clock:
        watch = Stopwatch(CPU)

        def train() -> None:
            with watch.span(DATA):
                clock.now += 1
            clock.now += 3

        def look() -> None:
            clock.now += 4

        with watch.round(1):
            with watch.span(LOCAL_TRAINING):
                ahead = watch.carried(train)
                in_thread(ahead)
                with watch.span(DIAGNOSIS):
                    in_thread(watch.carried(look))
                    in_thread(ahead)  # begun while the caller waits for something else
                with watch.span(EVALUATION):
                    clock.now += 5  # the caller's own work
            with watch.span(LOCAL_TRAINING):
                clock.now += 7  # workers rest
        found = stopped(watch)
    assert nonzero(found.steady) == {DATA: 2, LOCAL_TRAINING: 6 + 7, DIAGNOSIS: 4, EVALUATION: 5}


def test_first_rounds_of_every_engine_are_told_apart() -> None:
    with own_time() as clock:
        watch = Stopwatch(CPU)
        for place in range(5):
            if place in (0, 3):
                watch.built()
            with watch.round(1):
                clock.now += 1
        with watch.round(1):
            watch.built()  # some runs ended with this round
        with watch.round(1):
            clock.now += 10
        found = stopped(watch)
    assert (found.warm_up.rounds, found.warm_up.wall) == (3, 12)
    assert (found.steady.rounds, found.steady.wall) == (4, 3)
    assert found.shown is found.steady


def test_without_a_steady_round_the_first_is_told() -> None:
    watch = Stopwatch(CPU)
    watch.built()
    with watch.round(2):
        pass
    found = stopped(watch)
    assert found.shown is found.warm_up
    assert found.shown.rounds == 1


def test_no_profile_is_nothing() -> None:
    assert NO_PROFILE.span(DATA) is NO_PROFILE.span(EVALUATION) is NO_PROFILE.round(3)
    assert NO_PROFILE.carried(len) is len
    dataset = make_dataset()
    assert make_engine([make_lane(dataset)], make_data(dataset)).profile is NO_PROFILE


# In the engine


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def run(profile: Profile, slots: int) -> tuple[Engine, list[LaneRound]]:
    dataset = make_dataset()
    names = ("fedavg", "fedrl", "climb", "scaffold")
    lanes = [make_lane(dataset, algorithm=name, rounds=4, server_average=0.2) for name in names]
    engine: Engine | None = make_engine(lanes, make_data(dataset), slots, profile=profile)
    results: list[LaneRound] = []
    for number in range(1, 5):
        assert engine is not None
        with profile.round(len(engine.lanes)):
            results += engine.run_round()
            engine = engine.without({0}) if number == 2 else engine
    assert engine is not None
    return engine, results


def measure(slots: int) -> tuple[Stopwatch, list[LaneRound], Engine]:
    watch = Stopwatch(CPU)
    engine, results = run(watch, slots)
    return watch, results, engine


@pytest.mark.parametrize("slots", [2, 1000])
def test_numbers_are_the_same_to_the_bit(threads: int, slots: int) -> None:
    plain, expected = run(NO_PROFILE, slots)
    _, found, watched = measure(slots)
    assert repr(found) == repr(expected)
    for one, other in zip(plain.stack.states(), watched.stack.states(), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("slots", [2, 1000])
def test_engine_fills_every_phase_of_its_own(threads: int, slots: int) -> None:
    found, _, engine = measure(slots)
    assert engine.workers.count == threads
    assert (found.warm_up.rounds, found.warm_up.run_rounds) == (2, 4 + 3)  # each engine's first
    assert (found.steady.rounds, found.steady.run_rounds) == (2, 4 + 3)
    both = {phase: found.warm_up.seconds[phase] + found.steady.seconds[phase] for phase in PHASES}
    assert {phase for phase, seconds in both.items() if not seconds} <= {"store"}


@pytest.mark.parametrize("slots", [2, 1000])
def test_examined_clients_are_not_local_training(threads: int, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch(CPU)
    seen: Counter[str] = Counter()
    evaluate = ClientEvaluator.evaluate

    def noted(self: ClientEvaluator, *args: Any) -> Evaluation:
        seen[watch._main.phases[-1]] += 1
        return evaluate(self, *args)

    monkeypatch.setattr(ClientEvaluator, "evaluate", noted)
    run(watch, slots)
    assert seen.keys() == {DIAGNOSIS, EVALUATION}
    assert seen[EVALUATION] == 2 * 4  # the global models and the averaged ones of four rounds


@pytest.mark.parametrize("slots", [2, 1000])
def test_local_steps_are_counted(threads: int, slots: int) -> None:
    dataset = make_dataset()
    lane = make_lane(dataset, active=6, local_epochs=2)
    watch = Stopwatch(CPU)
    engine = make_engine([lane], make_data(dataset), slots, profile=watch)
    for _ in range(3):
        with watch.round(1):
            engine.run_round()
    found = stopped(watch)
    a_round = sum(2 * -(-int(size) // 8) for size in lane.federation.sizes)
    assert (found.warm_up.client_steps, found.steady.client_steps) == (a_round, 2 * a_round)
