"""Settings that combine with any algorithm: who is selected, who is there, how pictures and gradients are changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedga.algorithms import make_algorithm
from fedga.common import streams
from fedga.data.federation import Dataset
from fedga.engine.augment import PaddedPictures, draw_moves, move_of
from fedga.engine.device_data import DeviceData
from fedga.engine.gpu.graphs import _clone, _tensors
from fedga.engine.reference import Reference, _moved
from fedga.errors import FedGAError
from fedga.selection import SELECTIONS, Choice, make_selection
from fedga.selection.availability import Availability, read_availability, trace_digest, work_shares
from fedga.selection.check import check_selection
from fedga.spec.augmentation import Augmentation
from fedga.spec.settings import RunSpec
from tests.engine.runs import EXACT, assert_same_state, make_lane, reference_state, train

AXES: list[dict[str, Any]] = [
    *({"select": name} for name in SELECTIONS),
    {"select": "bandit:estimate=auxiliary:compose=greedy", "algorithm": "fedrl"},
    {"select": "bandit:estimate=counts:compose=greedy", "availability": "0.7"},
    {"select": "power-of-choice:candidates=5", "algorithm": "climb", "availability": "0.8"},
    {"augment": "mirror,shift:2"},
    {"augment": "shift:3"},
    {"centralize": True, "weight_decay": 0.01, "momentum": 0.5},
    {"centralize": True, "optimizer": "adam"},
    {"availability": "0.4"},
    {"availability": "0.4", "select": "in-turn", "algorithm": "scaffold"},
    {"availability": "0.4", "algorithm": "climb", "aggregation": "uniform"},
    {"stragglers": 0.6, "algorithm": "scaffold"},
    {"stragglers": 0.5, "availability": "0.5", "augment": "mirror,shift:1", "centralize": True, "algorithm": "fedga"},
    {"stragglers": 0.5, "model": "tests.engine.runs:Mixing"},
]


def texts(axes: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in axes.items())


@pytest.mark.parametrize("axes", AXES, ids=texts)
def test_every_axis_trains_as_the_plain_loop_does(
    pictures: Dataset, exact_data: DeviceData, axes: dict[str, Any]
) -> None:
    lane = make_lane(pictures, diagnose_every=0, active=4, **axes)
    engine, reference = train([lane], exact_data, 4, slots=3), Reference(lane, exact_data)
    for _ in range(4):
        reference.run_round()
    assert_same_state(engine.stack.states()[0], reference_state(reference, engine), **EXACT)


@pytest.mark.parametrize("axes", [axes for axes in AXES if axes != {"select": "uniform"}], ids=texts)
def test_every_axis_changes_something(pictures: Dataset, pictures_data: DeviceData, axes: dict[str, Any]) -> None:
    settings = {name: axes[name] for name in ("algorithm", "model", "momentum", "optimizer") if name in axes}
    plain, other = (
        train([make_lane(pictures, diagnose_every=0, active=4, **some)], pictures_data, 4).stack.params
        for some in (settings, axes)
    )
    assert not torch.allclose(plain, other, atol=1e-5)


def test_lanes_with_other_axes_beside_it_change_nothing(pictures: Dataset, exact_data: DeviceData) -> None:
    rules = ("in-turn", "swap-balanced", "power-of-choice", "bandit:estimate=auxiliary")
    settings: list[dict[str, Any]] = [*({"select": rule} for rule in rules), {"availability": "0.4"}, {}]
    settings += [{"select": "swap-balanced"}, {"centralize": True}]
    every = [make_lane(pictures, diagnose_every=0, seed=seed, **axes) for seed, axes in enumerate(settings)]
    from fedga.engine.stack.lanes import in_engine_order

    together = train(in_engine_order(every), exact_data, 3)
    for lane, state in zip(in_engine_order(every), together.stack.states(), strict=True):
        assert_same_state(state, train([lane], exact_data, 3).stack.states()[0], **EXACT)


# --- selection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SELECTIONS)
def test_every_rule_passes_the_check(name: str) -> None:
    check_selection(make_selection(name), name)


def test_in_turn_takes_every_client_once_before_any_twice(pictures: Dataset, pictures_data: DeviceData) -> None:
    lane = make_lane(pictures, select="in-turn", active=2, diagnose_every=0)
    engine = train([lane], pictures_data, 3)
    assert engine.segments[0].select_state["turns"].tolist() == [[1.0] * 6]


def test_balanced_selection_pools_more_even_classes_than_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(40, 10)
    for client in range(40):  # two classes each
        counts[client, torch.randperm(10, generator=generator)[:2]] = 30
    rule, uniform = make_selection("balanced", patience=0), make_selection("uniform")
    state = {"turns": torch.zeros(40)}

    def spread(chosen: Tensor) -> float:
        mix = counts[chosen].sum(0)
        return float((mix / mix.sum() - 0.1).square().sum())

    better = 0
    for number in range(20):
        draws = torch.rand(40, generator=generator, dtype=torch.float64)
        choice = Choice(number, state, draws, torch.ones(40, dtype=torch.bool), 5, counts)
        better += spread(rule.select(choice)) < spread(uniform.select(choice))
    assert better >= 18


def test_a_bandit_tries_everybody_and_then_prefers_even_clients() -> None:
    rule = make_selection("bandit", explore=0)
    state = {"turns": torch.tensor([1.0, 1.0, 0.0, 1.0]), "rewards": torch.tensor([0.2, 0.4, 0.0, 0.1])}
    draws, there = torch.rand(4, dtype=torch.float64), torch.ones(4, dtype=torch.bool)
    assert rule.select(Choice(3, state, draws, there, 2)).tolist() == [2, 1]
    assert rule.select(Choice(3, state, draws, torch.tensor([True, False, False, True]), 2)).tolist() == [0, 3]


def made(select: Callable[[Any, Choice], Any], **more: Any) -> Any:
    """A rule with this `select`."""
    return dataclass(frozen=True)(type("Mine", (type(make_selection("uniform")),), {"select": select, **more}))()


def assigns(self: Any, choice: Choice) -> Tensor:
    self.last = choice.round
    return choice.smallest(choice.draws)


@pytest.mark.parametrize(
    ("select", "words"),
    [
        (lambda self, choice: torch.topk(choice.draws, choice.active).indices, r"only \[.*\] are there: use choice\."),
        (lambda self, choice: choice.smallest(choice.draws * 0)[:1].expand(choice.active), "return different ones"),
        (lambda self, choice: choice.draws, r"select gave shape \[7\] of float64: return the whole numbers"),
        (lambda self, choice: None, r"select gave None \(is a return missing\?\) where a tensor belongs"),
        (lambda self, choice: choice.smallest(choice.class_counts[:, 0]), "declare needs_class_counts"),
        (lambda self, choice: choice.smallest(torch.rand(7)), "a selection rule has choice.draws"),
        (lambda self, choice: choice.smallest(choice.draws if choice.available[0] else 0), "branches on the value"),
        (
            lambda self, choice: choice.smallest(choice.draws[choice.available.nonzero()][:, 0]),
            "size depends on values",
        ),
        (lambda self, choice: choice.smallest(choice.draws.tolist()), r"numbers of Python or NumPy.*line \d+"),
        (lambda self, choice: choice.smallest(choice.losses), "declare needs_losses: "),
        (assigns, "goes into state"),
    ],
)
def test_mistakes_of_a_rule(select: Callable[[Any, Choice], Any], words: str) -> None:
    with pytest.raises(FedGAError, match=f"^selection rule mine.*{words}"):
        check_selection(made(select), "mine")


def test_scores_that_are_no_numbers_come_before_absent_clients() -> None:
    check_selection(made(lambda self, choice: choice.smallest(choice.draws / 0)))
    check_selection(made(lambda self, choice: choice.smallest(0 * choice.draws / 0)))


def test_a_rule_keeps_the_kind_of_its_state() -> None:
    drifts = made(
        lambda self, choice: choice.smallest(choice.draws),
        state=lambda self, setup: {"rounds": torch.tensor(0)},
        update=lambda self, state, result: {"rounds": state["rounds"] + 0.5},
    )
    with pytest.raises(FedGAError, match=r"update makes 'rounds' torch.float32 and state torch.int64"):
        check_selection(drifts)


def test_what_a_rule_chooses_is_checked_in_every_round(pictures: Dataset, exact_data: DeviceData) -> None:
    late = made(lambda self, choice: choice.smallest(choice.draws) * (choice.round < 9))
    check_selection(late)
    lane = replace(make_lane(pictures, active=3, diagnose_every=0), rule=late)
    with pytest.raises(FedGAError, match=r"selection rule Mine chose \[0, 0, 0\] of 6 clients"):
        train([lane], exact_data, 12)


def test_a_misspelt_hook_of_a_rule_is_refused() -> None:
    class Misspelt(type(make_selection("uniform"))):  # type: ignore[misc]
        def selct(self, choice: Choice) -> Tensor:
            return choice.smallest(-choice.draws)

    with pytest.raises(FedGAError, match=r"misspelt: selct is not a hook: did you mean select\?"):
        check_selection(Misspelt(), "misspelt")


# --- who is there ----------------------------------------------------------------------------------------------------


def test_availability_is_a_rate_or_a_trace(tmp_path: Path) -> None:
    some = Availability(0.3)
    share = np.mean([some.present(0, number, 1000).double().mean() for number in range(1, 21)])
    assert share == pytest.approx(0.3, abs=0.01)
    trace = tmp_path / "trace.csv"
    trace.write_text("round,client\n1,0\n1,2\n3,1\n")
    read = read_availability(str(trace))
    assert read.present(0, 1, 4).tolist() == [True, False, True, False]
    assert int(read.present(0, 2, 4).sum()) == 1  # nobody is named: the round waits for one
    assert read.present(0, 3, 4).tolist() == [False, True, False, False]
    assert read.present(0, 4, 4).tolist() == read.present(0, 1, 4).tolist()  # it begins again


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2", "is not a share of clients"),
        ("nowhere.csv", r"nor a file \(looked for /.*/nowhere\.csv; paths start from the folder one works in\)"),
        ("bad.csv", r"lacks the columns 'round' and 'client' \(it has 'when', 'who'\)"),
        ("empty.csv", r"lacks the columns 'round' and 'client' \(it has none\)"),
        ("worse.csv", "line 2: round and client must be whole numbers"),
    ],
)
def test_a_bad_availability_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("when,who\n1,2\n")
    Path("worse.csv").write_text("round,client\none,2\n")
    Path("empty.csv").touch()
    with pytest.raises(FedGAError, match=words):
        read_availability(text)


@pytest.mark.parametrize(
    "text", ["\ufeffround,client\r\n1,2\r\n", "round;client;note\n1;2;a,b\n", 'round, "client"\n1, "2"\n']
)
def test_a_trace_is_read_as_spreadsheets_write_it(tmp_path: Path, text: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text, encoding="utf-8", newline="")
    assert read_availability(str(trace)) == Availability(trace=((2,),))


def test_a_trace_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study file may name one, as it may name data, and no shell writes the folder out there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "trace.csv").write_text("round,client\n1,2\n")
    assert read_availability("~/trace.csv") == Availability(trace=((2,),))
    assert trace_digest("~/trace.csv") == trace_digest(str(tmp_path / "trace.csv")) != ""


def test_a_trace_of_more_clients_than_there_are_is_refused(
    pictures: Dataset, pictures_data: DeviceData, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("round,client\n1,6\n")
    lane = make_lane(pictures, availability=str(trace), diagnose_every=0)
    with pytest.raises(FedGAError, match="names client 6, and there are 6: clients count from 0"):
        train([lane], pictures_data, 1)


def test_absent_clients_neither_train_nor_lose_what_they_keep(pictures: Dataset, pictures_data: DeviceData) -> None:
    lane = make_lane(pictures, algorithm="scaffold", active=5, availability="0.3", diagnose_every=0)
    engine = train([lane], pictures_data, 1)
    there = lane.availability.present(lane.spec.seed, 1, 6)
    moved = engine.segments[0].client_state["control"][0].abs().sum(1) > 0
    assert 0 < int(there.sum()) < 5
    assert torch.equal(moved, there)


def test_stragglers_take_a_part_of_their_steps() -> None:
    keys = streams.fold(torch.tensor(streams.key(0, "stragglers")), torch.arange(20_000))
    shares = work_shares(keys, torch.full((20_000,), 0.25, dtype=torch.float64))
    slow = shares < 1
    assert slow.double().mean() == pytest.approx(0.25, abs=0.01)
    assert shares[slow].mean() == pytest.approx(0.5, abs=0.02)


# --- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("shift", [0, 2])
def test_moved_pictures_are_those_of_the_plain_loop(mirror: bool, shift: int) -> None:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(1, 256, (5, 3, 8, 9), dtype=torch.uint8, generator=generator)
    augmentation, span = Augmentation(mirror=mirror, shift=shift), 2 * shift + 1
    moves = draw_moves(torch.tensor([7, 8]), (30, 4), augmentation)
    places = torch.randint(0, 5, moves.shape, generator=generator)
    found = PaddedPictures(pictures, augmentation).gather(places, moves)
    for at in np.ndindex(*moves.shape):
        code = int(moves[at])
        move = (code % 2 == 1, code // 2 // span - shift, code // 2 % span - shift)
        assert np.array_equal(found[at].numpy(), _moved(pictures[places[at]].numpy(), *move))


def test_moves_are_uniform() -> None:
    words = streams.fold(torch.tensor(streams.key(0, "augment")), torch.arange(90_000))
    counts = torch.bincount(move_of(words, Augmentation(mirror=True, shift=4)), minlength=162)
    assert len(counts) == 162
    assert (counts - 90_000 / 162).abs().max() < 6 * (90_000 / 162) ** 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("turn", "is not an augmentation"),
        ("shift:0", "from 1 to 64"),
        ("shift", "give the pixels to move by"),
        ("none,shift:1", "write alternatives as 'none;mirror,shift:4'"),
        ("shift:1,shift:2", "write alternatives as"),
    ],
)
def test_a_bad_augmentation_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(FedGAError, match=words):
        RunSpec(alpha=1, augment=text)


def test_digits_are_never_mirrored() -> None:
    with pytest.raises(FedGAError, match="leave mirror out"):
        RunSpec(dataset="svhn", alpha=1, augment="mirror,shift:4")
    assert RunSpec(dataset="cifar10", alpha=1, augment="shift:4 , mirror").augment == "mirror,shift:4"


def test_new_settings_leave_the_ids_of_old_runs_as_they_were() -> None:
    spec = RunSpec(dataset="mnist", alpha=0.05, algorithm="fedga", seed=3)
    assert "augment" not in spec.to_json()
    assert replace(spec, centralize=True).run_id != spec.run_id
    assert RunSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("name", ["fedprox", "fedntd", "fedsam", "fednh"])
def test_axes_combine_with_any_algorithm(pictures: Dataset, exact_data: DeviceData, name: str) -> None:
    axes = {"select": "in-turn", "augment": "mirror,shift:1", "centralize": True, "stragglers": 0.4, "server": "yogi"}
    lane = make_lane(pictures, diagnose_every=0, algorithm=name, availability="0.7", server_average=0.3, **axes)
    assert lane.algorithm == make_algorithm(name)
    engine, reference = train([lane], exact_data, 3), Reference(lane, exact_data)
    for _ in range(3):
        reference.run_round()
    assert_same_state(engine.stack.states()[0], reference_state(reference, engine), **EXACT)


def test_a_recorded_graph_gets_every_tensor_of_a_round(pictures: Dataset, pictures_data: DeviceData) -> None:
    """Whatever a recording reads it must have a copy of, into which the values of later rounds go."""
    lane = make_lane(pictures, algorithm="fednh", augment="shift:1", diagnose_every=0)
    engine = train([lane], pictures_data, 1)
    slots = engine._slots(slice(0, 1), engine.server.select(1), engine.server.broadcast(1))
    copied = _clone(slots)
    own, others = ([id(tensor) for tensor in _tensors(each)] for each in (copied, slots))
    assert not set(own) & set(others)
    assert copied.held is not None
    assert copied.moves is not None
    for tensor in (*copied.held, copied.moves, copied.round, copied.samples, copied.segments[0].received["prototypes"]):
        assert id(tensor) in own
