"""What single rules of selection choose, against their formulas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms import RoundResult
from fedga.algorithms.checking.made_up import CLASSES, FEATURES, NETWORK, PARAMETERS, server_of
from fedga.common import streams
from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData, auxiliary_samples
from fedga.engine.reference import Reference
from fedga.errors import FedGAError
from fedga.flower import AlgorithmStrategy
from fedga.models import build_model
from fedga.selection import Choice, Selection, make_selection
from fedga.selection.bandit import gradient_sizes
from fedga.selection.swap_balanced import uneven
from tests.algorithms.test_contract import OwnHead
from tests.engine.runs import make_lane, train

CLIENTS, ACTIVE = 12, 3


def choice_of(**given: Any) -> Choice:
    clients = given.pop("clients", CLIENTS)
    number = given.pop("round", 1)
    draws = streams.uniform(streams.fold(torch.tensor(number), torch.arange(clients)))
    everybody = torch.ones(clients, dtype=torch.bool)
    return Choice(**{"round": number, "state": {}, "draws": draws, "available": everybody, "active": ACTIVE} | given)


def two_classes_each(clients: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.zeros(clients, 6)
    for client in range(clients):
        counts[client, torch.randperm(6, generator=generator)[:2]] = torch.tensor([30.0, 10.0])
    return counts


# --- swap-balanced ---------------------------------------------------------------------------------------------------


def rounds_of(rule: Selection, counts: Tensor, active: int, number: int, key: int = 5) -> list[list[int]]:
    state, found = {"turns": torch.zeros(len(counts))}, []
    for at in range(1, number + 1):
        given = {"round": at, "state": state, "active": active, "class_counts": counts, "key": torch.tensor(key)}
        chosen = rule.select(choice_of(clients=len(counts), **given))
        found.append(chosen.tolist())
        state = rule.update(state, RoundResult(at, chosen, torch.ones(active) / active, torch.zeros(1), {}))
    return found


@pytest.mark.parametrize(("clients", "active"), [(12, 3), (12, 12), (11, 3), (10, 4)])
def test_swapped_rounds_hold_every_client_once_per_turn_and_are_no_less_even(clients: int, active: int) -> None:
    for seed in range(3):
        counts = two_classes_each(clients, seed)
        turns = 2 * active  # a whole number of turns and of rounds
        swapped, plain = (
            rounds_of(make_selection("swap-balanced", sweeps=sweeps), counts, active, turns * clients // active, seed)
            for sweeps in (2, 0)
        )
        for rounds in (swapped, plain):
            order = [client for clients_of_round in rounds for client in clients_of_round]
            for turn in range(turns):
                assert sorted(order[turn * clients : (turn + 1) * clients]) == list(range(clients))
        if clients % active == 0:
            for turn in range(turns):
                of_turn = slice(turn * clients // active, (turn + 1) * clients // active)
                after, before = (
                    sum(uneven(counts[rounds].sum(0)).item() for rounds in order[of_turn]) for order in (swapped, plain)
                )
                assert after <= before + 1e-9
                assert after < before or active == clients


def test_swapping_finds_rounds_that_are_even_where_there_are_some() -> None:
    """Four kinds of clients, three of each, and rounds of four."""
    counts = torch.eye(4).repeat_interleave(3, 0) * 7
    even = [sorted(row) for row in rounds_of(make_selection("swap-balanced"), counts, 4, 3)]
    assert all(uneven(counts[row].sum(0)).item() < 1e-12 for row in even)
    others = [sorted(row) for row in rounds_of(make_selection("swap-balanced"), counts, 4, 3, key=6)]
    assert even != others  # by the key of the seed
    assert even == [sorted(row) for row in rounds_of(make_selection("swap-balanced"), counts, 4, 3)]


def test_clients_that_were_away_are_first_when_they_are_back() -> None:
    rule, counts = make_selection("swap-balanced"), two_classes_each(CLIENTS, 0)
    state = {"turns": torch.ones(CLIENTS)}
    state["turns"][[4, 7]] = 0
    away = torch.ones(CLIENTS, dtype=torch.bool)
    away[4] = False
    chosen = rule.select(choice_of(state=state, class_counts=counts, available=away)).tolist()
    assert chosen[0] == 7
    assert 4 not in chosen


# --- power-of-choice -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidates", [0, 3, 5, 12, 50])
def test_power_of_choice_takes_the_largest_losses_among_its_candidates(candidates: int) -> None:
    rule = make_selection("power-of-choice", candidates=candidates)
    for number in range(1, 6):
        choice = choice_of(round=number, losses=torch.rand(CLIENTS, generator=torch.Generator().manual_seed(number)))
        away = choice.available.clone()
        away[choice.draws.argmin()] = False
        for given in (choice, replace(choice, available=away)):
            there = [client for client in choice.draws.argsort().tolist() if given.available[client]]
            sampled = there[: candidates or 2 * ACTIVE]
            expected = sorted(sampled, key=lambda client: -choice.losses[client])[:ACTIVE]  # type: ignore[index]
            assert rule.select(given).tolist() == expected


def test_few_candidates_are_made_up_for_and_as_many_as_take_part_are_uniform_sampling() -> None:
    choice = choice_of(losses=torch.linspace(0, 1, CLIENTS))
    uniform = set(make_selection("uniform").select(choice).tolist())
    for candidates in (1, ACTIVE):
        assert set(make_selection("power-of-choice", candidates=candidates).select(choice).tolist()) == uniform


def test_a_rule_is_told_every_clients_loss_of_the_global_model(pictures: Dataset, exact_data: DeviceData) -> None:
    """Whatever loss clients train with."""
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Noting(Selection):
        needs_losses: ClassVar[bool] = True

        def select(self, choice: Choice) -> Tensor:
            assert choice.losses is not None
            seen.append(choice.losses)
            return choice.smallest(choice.draws)

    lane = replace(make_lane(pictures, algorithm="fedga"), rule=Noting())
    reference = Reference(lane, exact_data)
    for number in range(2):
        expected = []
        for client in range(6):
            places = torch.from_numpy(lane.federation.client(client))
            inputs = exact_data.pixels(False).apply(exact_data.train_inputs[places])
            expected.append(F.cross_entropy(reference.model(inputs), exact_data.train_targets[places]).detach())
        reference.run_round()
        torch.testing.assert_close(seen[number], torch.stack(expected))


def test_losses_need_a_model_that_travels_whole(pictures: Dataset, exact_data: DeviceData) -> None:
    lane = replace(make_lane(pictures, select="power-of-choice"), algorithm=OwnHead())
    with pytest.raises(FedGAError, match=r"power-of-choice asks for losses of the global model.*choose another rule"):
        train([lane], exact_data, 1)


# --- bandit ----------------------------------------------------------------------------------------------------------


def test_auxiliary_samples_of_a_rule_come_from_the_training_split(pictures: Dataset, exact_data: DeviceData) -> None:
    lane = make_lane(pictures, select="bandit:estimate=auxiliary", algorithm="fedrl", seed=3)
    engine = train([lane], exact_data, 0)
    [segment] = engine.segments
    assert segment.select_auxiliary is not None
    [places] = segment.select_auxiliary
    assert torch.equal(places, torch.from_numpy(auxiliary_samples(pictures, 3, 32)))
    assert torch.equal(exact_data.train_targets[places], torch.arange(4)[:, None].expand(-1, 32))
    [held] = engine.server._auxiliary(segment, rule=True)
    expected = exact_data.pixels(False).apply(exact_data.train_inputs[places.flatten()]).view(held[0].shape)
    assert torch.equal(held[0], expected)


@pytest.mark.usefixtures("float64")
def test_the_papers_estimate_is_one_over_the_size_of_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    auxiliary = torch.randn(CLASSES, 5, FEATURES, generator=generator)
    models = torch.randn(2, PARAMETERS, generator=generator)
    server = server_of(models[0], {}, auxiliary)
    expected = []
    for params in models:
        sizes = []
        for label, samples in enumerate(auxiliary):
            leaf = params.clone().requires_grad_()
            loss = F.cross_entropy(server.forward(leaf, samples), torch.full((5,), label))
            (gradient,) = torch.autograd.grad(loss, leaf)
            sizes.append(sum(part.square().mean().item() for part in NETWORK.views(gradient).values()))
        expected.append([1 / size / sum(1 / each for each in sizes) for size in sizes])
        torch.testing.assert_close(gradient_sizes(server, params), torch.tensor(sizes))
    found = make_selection("bandit", estimate="auxiliary").inspect(server, models)
    torch.testing.assert_close(found["mix"], torch.tensor(expected))
    by_hand = [1 / (-sum(map(log, mix)) / CLASSES) for mix in expected]
    torch.testing.assert_close(found["reward"], torch.tensor(by_hand))


def test_a_greedy_bandit_composes_an_even_round() -> None:
    """The first by its own value, then those that fill what is missing, by the mean of their estimates."""
    mixes = torch.tensor([[0.4, 0.4, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4], [0.1, 0.7, 0.1, 0.1]])
    turns = torch.tensor([1.0, 2.0, 4.0, 1.0])
    rewards = turns * torch.tensor([0.5, 0.9, 0.3, 0.6])
    state = {"turns": turns, "rewards": rewards, "mixes": turns[:, None] * mixes}
    greedy = make_selection("bandit", explore=0, compose="greedy")
    given = {"clients": 4, "round": 9, "active": 3}
    assert greedy.select(choice_of(state=state, **given)).tolist() == [1, 2, 3]
    assert make_selection("bandit", explore=0).select(choice_of(state=state, **given)).tolist() == [1, 3, 0]
    untried = state | {"turns": torch.tensor([1.0, 2.0, 0.0, 0.0])}
    assert set(greedy.select(choice_of(state=untried, **given)).tolist()[:2]) == {2, 3}


def test_a_bandit_that_knows_the_counts_needs_no_estimate() -> None:
    counts = torch.tensor([[9.0, 1, 1, 1], [3, 3, 3, 3], [1, 1, 9, 9], [0, 0, 5, 5]])
    rule = make_selection("bandit", explore=0, estimate="counts")
    assert rule.needs_class_counts
    state = {"turns": torch.ones(4), "rewards": torch.zeros(4)}
    assert rule.select(choice_of(clients=4, state=state, class_counts=counts, active=2)).tolist() == [1, 2]
    assert not make_selection("bandit").needs_class_counts


@pytest.mark.parametrize("option", ["estimate", "compose"])
def test_an_unknown_kind_of_bandit_is_refused(option: str) -> None:
    with pytest.raises(FedGAError, match=f"unknown {option} of bandit 'gready'"):
        make_selection("bandit", **{option: "gready"})


def test_a_strategy_without_samples_refuses_a_rule_that_needs_some() -> None:
    model = build_model("mlp", (1, 8, 8), 4)
    with pytest.raises(FedGAError, match="bandit:estimate=auxiliary needs samples on the server"):
        AlgorithmStrategy(model, "fedavg", clients=3, select="bandit:estimate=auxiliary")
