"""Who trains, and on which samples in which order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedga.common import streams
from fedga.engine import schedule
from fedga.engine.device_data import DeviceData
from fedga.selection import Choice, Selection
from tests.engine.runs import TELLING, TOGETHER, make_engine, make_lane

CPU = torch.device("cpu")


@given(
    st.lists(st.integers(1, 23), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(0, 9),
    st.integers(0, 2**31),
)
@settings(max_examples=100, deadline=None)
def test_plan_batches(sizes: list[int], epochs: int, batch_size: int, more: int, seed: int) -> None:
    """Every sample once per epoch, in batches of the right size, in the order of the samples' keys."""
    keys = [streams.key(seed, "batches", 1, client) for client in range(len(sizes))]
    plan = schedule.plan_batches(
        torch.tensor(keys), torch.tensor(sizes), epochs=epochs, batch_size=batch_size, largest=max(sizes) + more
    )
    for client, size in enumerate(sizes):
        expected = []
        for epoch in range(epochs):
            order = sorted(range(size), key=lambda i: streams.key(seed, "batches", 1, client, epoch, i))
            assert sorted(order) == list(range(size))
            expected += [order[start : start + batch_size] for start in range(0, size, batch_size)]
        assert plan.steps[client] == len(expected)
        for step in range(plan.mask.shape[1]):
            real = plan.mask[client, step] == 1
            want = expected[step] if step < len(expected) else []
            assert plan.positions[client, step][real].tolist() == want
            assert plan.mask[client, step].sum() == len(want)
            assert real[: len(want)].all()
        assert 0 <= plan.positions[client].min() <= plan.positions[client].max() < size


def test_padding_changes_no_batch() -> None:
    """A client alone and beside a far larger one."""
    keys, sizes = torch.tensor([5, 6]), torch.tensor([7, 40])
    alone = schedule.plan_batches(keys[:1], sizes[:1], epochs=2, batch_size=4, largest=7)
    beside = schedule.plan_batches(keys, sizes, epochs=2, batch_size=4, largest=40)
    assert alone.steps[0] == beside.steps[0] == alone.positions.shape[1] == 4
    assert torch.equal(beside.positions[0, :4], alone.positions[0])
    assert torch.equal(beside.mask[0, :4], alone.mask[0])
    assert beside.mask[0, 4:].sum() == 0


def test_epochs_and_rounds_shuffle_anew() -> None:
    clients = torch.arange(3)[None]
    orders = set()
    for round_number in (1, 2):
        keys = schedule.client_keys([0], "batches", round_number, clients).flatten()
        plan = schedule.plan_batches(keys, torch.tensor([20] * 3), epochs=2, batch_size=20, largest=20)
        orders |= {tuple(row) for row in plan.positions.flatten(0, 1).tolist()}
    assert len(orders) == 2 * 3 * 2


def test_keys_are_those_of_the_streams() -> None:
    clients = torch.tensor([[4, 0], [7, 2]])
    keys = schedule.client_keys([3, 8], "dropout", 5, clients)
    assert keys.tolist() == [
        [streams.key(seed, "dropout", 5, client) for client in row]
        for seed, row in zip([3, 8], clients.tolist(), strict=True)
    ]
    draws = schedule.client_draws([3, 8], 5, 6, CPU)
    words = torch.tensor([[streams.key(seed, "clients", 5, client) for client in range(6)] for seed in (3, 8)])
    assert torch.equal(draws, streams.uniform(words))


def test_every_algorithm_of_a_seed_sees_the_same_clients(pictures_data: DeviceData) -> None:
    """Algorithms are compared on the same draw; seeds and rounds are not alike."""
    lanes = [
        make_lane(pictures_data.dataset, algorithm=TELLING[name], seed=seed, diagnose_every=1)
        for name in TOGETHER
        for seed in range(3)
    ]
    engine = make_engine(lanes, pictures_data)
    drawn: dict[int, list[tuple[int, ...]]] = {seed: [] for seed in range(3)}
    for _ in range(4):
        by_seed: dict[int, set[tuple[int, ...]]] = {seed: set() for seed in range(3)}
        for lane, result in zip(lanes, engine.run_round(), strict=True):
            by_seed[lane.spec.seed].add(tuple(record.client for record in result.clients))
        for seed, found in by_seed.items():
            (clients,) = found
            assert len(set(clients)) == 3
            drawn[seed].append(clients)
    assert len({tuple(rounds) for rounds in drawn.values()}) == 3
    assert len(set(drawn[0])) > 1


def _uniform(draws: torch.Tensor, active: int) -> torch.Tensor:
    return Selection().select(Choice(1, {}, draws, torch.ones_like(draws, dtype=torch.bool), active))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_selection_is_uniform(seed: int) -> None:
    """How often each of 100 clients is among the ten of a round, over 1,000 rounds, against chi-square."""
    clients, active, rounds = 100, 10, 1000
    draws = torch.cat([schedule.client_draws([seed], number, clients, CPU) for number in range(1, rounds + 1)])
    chosen = torch.stack([_uniform(row, active) for row in draws])
    assert all(len(set(row)) == active for row in chosen.tolist())
    counts = torch.bincount(chosen.flatten(), minlength=clients).double()
    share = active / clients
    statistic = ((counts - rounds * share).square() / (rounds * share * (1 - share))).sum()
    freedom = clients - 1
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5
    first = torch.bincount(chosen[:, 0], minlength=clients).double()  # the order within a round is uniform too
    assert abs(((first - 10).square() / 10).sum() - freedom) < 5 * (2 * freedom) ** 0.5


def test_selection_takes_the_smallest_draws_in_order() -> None:
    draws = torch.tensor([0.5, 0.1, 0.9, 0.2, 0.3])
    assert _uniform(draws, 3).tolist() == [1, 3, 4]
