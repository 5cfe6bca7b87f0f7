"""A tournament: who goes on, what it costs, and that its runs are those that each candidate would be alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedga.data import load_dataset
from fedga.errors import FedGAError
from fedga.report.curves import read_curves
from fedga.spec.grid import build_sweep
from fedga.store.store import Store
from fedga.study import tournament
from fedga.study.candidates import (
    Limits,
    fitting,
    fitting_network,
    make_candidates,
    on_all_samples,
    recipes,
)
from fedga.study.prepare import Preparation, fitting_model
from fedga.study.sweep import Interrupted, Observer, run_sweep
from fedga.study.tournament import SHARE, Candidate, Outcome, Rung, Standing, make_rungs, planned, run_tournament

CPU = torch.device("cpu")
COMMON: dict[str, list[Any]] = {
    **{"dataset": ["digits"], "alpha": [0.5], "clients": [6], "active": [3], "rounds": [6], "seed": [1, 0]},
    **{"validate": [0.2], "evaluate_every": [1], "diagnose_every": [0]},
}
RUNGS = (Rung(1, 4), Rung(3, 2), Rung(6, 0))
AXES = ("algorithm", "preset", "centralize", "select", "seed")


@pytest.fixture(scope="module")
def candidates() -> list[Candidate]:
    """One method is hopeless."""
    settings: list[Any] = [{"preset": ["strong"]}, {"preset": ["strong"], "select": ["in-turn"]}, {"preset": ["paper"]}]
    made = make_candidates(["fedavg", "fedga", "fedprox:mu=1e6", "scaffold"], settings, COMMON)
    assert [each.spec.algorithm for each in made[::3]] == ["fedavg", "fedga", "fedprox:mu=1e6", "scaffold"]
    return made


def play(candidates: list[Candidate], folder: Path, **more: Any) -> Outcome:
    preparation = Preparation([spec for each in candidates for spec in each.specs])
    with Store(folder) as store:
        return run_tournament(candidates, RUNGS, store, CPU, preparation, axes=AXES, **more)


@pytest.fixture(scope="module")
def played(candidates: list[Candidate], tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    folder = tmp_path_factory.mktemp("tournament") / "out"
    return play(candidates, folder), folder


def rows(folder: Path) -> dict[str, dict[int, dict[str, float]]]:
    """Every run's numbers by round."""
    return {
        curve.run_id: {
            number: {name: values[at] for name, values in curve.values.items()}
            for at, number in enumerate(curve.rounds.tolist())
        }
        for curve in read_curves(folder)
    }


def test_every_run_is_the_one_that_its_candidate_would_be_alone(
    candidates: list[Candidate], played: tuple[Outcome, Path], tmp_path: Path
) -> None:
    outcome, folder = played
    specs = [spec for each in candidates for spec in each.specs]
    with Store(tmp_path / "grid") as store:
        run_sweep(specs, store, CPU, axes=AXES)
    whole, part = rows(tmp_path / "grid"), rows(folder)
    assert whole.keys() == part.keys()
    for key, of_run in part.items():
        assert repr(of_run) == repr({number: whole[key][number] for number in of_run})
    with Store(folder) as store:
        done = {run.run_id: run.rounds_done for run in store.runs() if run.status != "diverged"}
        notes = {run.run_id: run.note for run in store.runs()}
        assert store.pending_groups() == []
    for each in outcome.standings:
        for spec in each.candidate.specs:
            assert done.get(spec.run_id, each.round) == each.round
            assert ("other candidates were better" in notes[spec.run_id]) == (each.round < 6 and spec.run_id in done)
    assert list((folder / "checkpoints").glob("*")) == []
    assert sum(done.values()) < sum(spec.rounds for spec in specs) / 2
    assert outcome.share == pytest.approx(planned(len(candidates), RUNGS) / (len(candidates) * 6))


def test_the_best_go_on_with_the_same_seeds_and_the_best_fedavg_among_them(
    candidates: list[Candidate], played: tuple[Outcome, Path]
) -> None:
    outcome, folder = played
    assert {tuple(spec.seed for spec in each.specs) for each in candidates} == {(0, 1)}
    assert [len([each for each in outcome.standings if each.round == rung.round]) for rung in RUNGS] == [8, 2, 2]
    assert any(each.candidate.is_reference for each in outcome.finalists)
    found = rows(folder)
    left = list(candidates)
    for rung in RUNGS[:-1]:
        score = {each: score_at(each, rung.round, found) for each in left}
        stay = [each.candidate for each in outcome.standings if each.candidate in left and each.round > rung.round]
        gone = [each for each in left if each not in stay and np.isfinite(score[each])]
        references = [each for each in left if each.is_reference]
        saved = max(references, key=lambda each: score[each])
        assert saved in stay
        assert min(score[each] for each in stay if each is not saved) >= max(score[each] for each in gone)
        left = stay
    assert not any(each.candidate.spec.algorithm.startswith("fedprox") for each in outcome.finalists)


def score_at(candidate: Candidate, number: int, found: dict[str, dict[int, dict[str, float]]]) -> float:
    name = "averaged_accuracy" if candidate.spec.server_average else "accuracy"
    return float(np.mean([found[spec.run_id].get(number, {name: np.nan})[name] for spec in candidate.specs]))


class Killed(BaseException):
    pass


@pytest.mark.parametrize(("place", "deaths"), [("take_out", (0, 2)), ("commit", (1, 3)), ("advanced", (3, 9))])
def test_a_tournament_that_is_killed_anywhere_ends_as_if_it_had_not_been(
    place: str,
    deaths: tuple[int, int],
    candidates: list[Candidate],
    played: tuple[Outcome, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before runs leave their group, before a commit, or in a round; then it is stopped by its user once more."""
    calls = iter(range(10_000))

    def deadly(call: Any) -> Any:
        def called(*args: Any, **more: Any) -> Any:
            if next(calls) in deaths:
                raise Killed
            return call(*args, **more)

        return called

    observer = Observer(advanced=deadly(lambda specs, rounds: None)) if place == "advanced" else Observer()
    if place != "advanced":
        monkeypatch.setattr(Store, place, deadly(getattr(Store, place)))
    for _ in range(2):
        with pytest.raises(Killed):
            play(candidates, tmp_path / "out", observer=observer)
    stops = iter([False] * 7 + [True] * 1000)
    with pytest.raises(Interrupted):
        play(candidates, tmp_path / "out", observer=Observer(should_stop=lambda: next(stops)))
    outcome, expected = play(candidates, tmp_path / "out"), played[0]
    assert [each.candidate.spec for each in outcome.standings] == [each.candidate.spec for each in expected.standings]
    for one, other in zip(outcome.standings, expected.standings, strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.curve, other.curve)
    assert repr(rows(tmp_path / "out")) == repr(rows(played[1]))


@pytest.mark.parametrize("number", [12, 17, 24, 60, 131, 1000])
@pytest.mark.parametrize(("rounds", "every"), [(60, 1), (100, 5), (600, 10)])
def test_a_quarter_of_the_grid_is_enough(number: int, rounds: int, every: int) -> None:
    rungs = make_rungs(number, rounds, every)
    assert planned(number, rungs) <= SHARE * number * rounds
    assert rungs[-1] == Rung(rounds, 0)
    ends, kept = [rung.round for rung in rungs], [number, *(rung.keep for rung in rungs)]
    assert ends == sorted(set(ends))
    assert all(end % every == 0 for end in ends)
    assert kept == sorted(set(kept), reverse=True)
    assert kept[-2] in (2, 3, 4)


def test_equally_good_candidates_go_on_in_their_order(candidates: list[Candidate]) -> None:
    def standing(place: int, score: float) -> Standing:
        return Standing(candidates[place], 1, np.array([score, score]), np.zeros(0), np.zeros(0))

    equal = [standing(place, 0.5) for place in (3, 4, 0, 5)]
    best = tournament._Tournament._best(equal, 2)
    assert best == [equal[0], equal[2]]  # the best FedAvg in place of the last
    assert tournament._Tournament._best([standing(3, 0.5), standing(6, -np.inf)], 2)[1:] == []


def test_limits_leave_out_what_does_not_fit() -> None:
    everything, _ = fitting([], Limits())
    nothing, left_out = fitting([], Limits(sends_nothing=True))
    assert {"scaffold", "climb", "fednh"} & set(everything)
    assert left_out["scaffold"] == "sends more than the model"
    assert {"fedavg", "fedprox", "fedga", "fedntd"} <= set(nothing)
    assert "fedntd" not in fitting([], Limits(no_extra_pass=True))[0]
    secure, refused = fitting([], Limits(secure_aggregation=True))
    assert "fednh" in secure
    assert refused["climb"] == "needs more than sums over clients"
    assert fitting(["fedprox:mu=0.1"], Limits())[0] == ["fedavg", "fedprox:mu=0.1"]
    with pytest.raises(FedGAError, match="--algorithm scaffold sends more than the model: leave it out, or relax"):
        fitting(["scaffold"], Limits(sends_nothing=True))


class Headless(nn.Module):
    """Its last layer is no linear one, so that nothing can read what goes into it."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, num_classes, 8), nn.Flatten())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


def test_algorithms_that_do_not_suit_the_network_stay_out() -> None:
    dataset = load_dataset("digits")
    algorithms = ["fedavg", "fednh", "scaffold"]
    network = fitting_model("tests.study.test_tournament:Headless", dataset.input_shape, 10)
    kept, left_out = fitting_network(algorithms, network, dataset)
    assert kept == ["fedavg", "scaffold"]
    assert "end it with torch.nn.Linear" in left_out["fednh"]
    assert fitting_network(algorithms, fitting_model("mlp", dataset.input_shape, 10), dataset) == (algorithms, {})


@pytest.mark.parametrize(
    ("model", "active", "axes"),
    [
        ("mlp", 3, [{"centralize"}, {"select"}, {"augment"}, {"centralize", "select", "augment"}]),
        ("tests.engine.runs:Mixing", 6, [{"augment"}]),  # batch statistics, and everybody active
    ],
)
def test_axes_are_tried_where_they_make_sense(model: str, active: int, axes: list[set[str]]) -> None:
    base = build_sweep({**COMMON, "model": [model], "active": [active], "algorithm": ["fedavg"]}).runs[0]
    dataset = Preparation([base]).dataset(base)
    found = recipes(base, dataset, 6, fitting_model(model, dataset.input_shape, dataset.num_classes), [])
    varied = [set(one) - {"preset"} for one in found if one["preset"] == ["strong"]]
    assert varied == [set(), *axes]
    assert [set(one) for one in found if one["preset"] == ["paper"]] == [{"preset"}]
    assert all(one.get("augment", ["shift:1"]) == ["shift:1"] for one in found)  # digits are not to be mirrored


def test_the_choice_is_trained_on_all_samples_as_fedga_run_would(candidates: list[Candidate]) -> None:
    common = {name: COMMON[name] for name in ("dataset", "alpha", "clients", "active", "rounds", "seed")}
    asked = {**common, "preset": ["strong"], "select": ["in-turn"], "algorithm": ["fedga"]}
    wanted = {spec.run_id for spec in build_sweep(asked).runs}
    [chosen] = [each for each in candidates if (each.spec.algorithm, each.spec.select) == ("fedga", "in-turn")]
    assert {spec.run_id for spec in on_all_samples(chosen, common)} == wanted
