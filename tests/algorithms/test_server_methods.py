"""Methods of the server and of where clients start, against their formulas."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedga.algorithms import Client, RoundResult, Server, make_algorithm
from fedga.algorithms.parameters import Parameters
from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData
from fedga.engine.reference import Reference
from fedga.engine.stack.stacked import StackedModel
from tests.algorithms.test_formulas import make_batch
from tests.engine.runs import make_engine, make_lane, make_uneven_federation

pytestmark = pytest.mark.usefixtures("float64")
TINY = {"rtol": 0.0, "atol": 1e-12}
NETWORK = Parameters(nn.Linear(1, 1))


def server_of(params: Tensor, state: dict[str, Tensor], classes: int = 3) -> Server:
    return Server(params, state, classes, lambda params, inputs: inputs, NETWORK)


def result_of(update: Tensor, reports: dict[str, Tensor], clients: tuple[int, ...] = (0, 1)) -> RoundResult:
    shares = torch.ones(len(clients)) / len(clients)
    return RoundResult(1, torch.tensor(clients), shares, update, reports)


# --- FedACG ----------------------------------------------------------------------------------------------------------


def test_fedacg_by_hand(exact_data: DeviceData) -> None:
    """One full-batch step of every client: it starts at w + λ m, where its proximal term is still 0."""
    dataset, lr, momentum = exact_data.dataset, 0.1, 0.6
    federation = make_uneven_federation(dataset)
    settings = {"active": 6, "local_epochs": 1, "batch_size": 200, "clip": None, "lr": lr, "server": "momentum"}
    lane = make_lane(dataset, federation, algorithm=f"fedacg:momentum={momentum}:mu=5", **settings)
    engine = make_engine([lane], exact_data)
    model = StackedModel(lane.model)
    params, kept = model.flatten(lane.model)[0], 0.0
    inputs = exact_data.pixels(False).apply(exact_data.train_inputs[federation.indices])
    targets = exact_data.train_targets[federation.indices]
    for _ in range(3):
        ahead = (params + momentum * kept).requires_grad_()
        loss = F.cross_entropy(model.forward_one(ahead, torch.zeros(0), inputs), targets)
        mean_update = -lr * torch.autograd.grad(loss, ahead)[0]  # Δ, against where the clients started
        kept = momentum * kept + mean_update
        params = params + kept
        engine.run_round()
        torch.testing.assert_close(engine.stack.params[0], params, **TINY)
        torch.testing.assert_close(engine.segments[0].state["momentum"][0], kept, **TINY)


def test_fedacg_pulls_clients_to_where_they_started() -> None:
    """Not to the model that they received."""
    client = Client(
        torch.zeros(2), {}, {"momentum": torch.tensor([1.0, -2.0])}, torch.ones(3), *[torch.ones(())] * 2, NETWORK
    )
    acg = make_algorithm("fedacg", momentum=0.5, mu=0.1)
    found = acg.gradient(torch.zeros_like, torch.tensor([1.5, 0.0]), client)
    torch.testing.assert_close(found, torch.tensor([0.1 * (1.5 - 0.5), 0.1 * (0.0 + 1.0)]))


# --- FedLESAM --------------------------------------------------------------------------------------------------------


def test_fedlesam_takes_the_gradient_towards_the_model_it_received_before() -> None:
    lesam = make_algorithm("fedlesam", rho=0.5)
    received, params = torch.tensor([1.0, 2.0]), torch.tensor([7.0, 7.0])

    def at(turns: float) -> Tensor:
        state = {"received": torch.tensor([4.0, -2.0]), "turns": torch.tensor(turns)}
        return lesam.gradient(
            lambda at: at, params, Client(received, state, {}, torch.ones(3), *[torch.ones(())] * 2, NETWORK)
        )

    torch.testing.assert_close(at(1), params + 0.5 * torch.tensor([3.0, -4.0]) / 5)
    assert torch.equal(at(0), params)


def test_clients_of_fedlesam_keep_what_they_received(exact_data: DeviceData) -> None:
    engine = make_engine([make_lane(exact_data.dataset, algorithm="fedlesam", active=6)], exact_data)
    for _ in range(2):
        before = engine.stack.params[0].clone()
        engine.run_round()
        assert torch.equal(engine.segments[0].client_state["received"][0], before.expand(6, -1))


# --- FedExP ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agree", [False, True])
def test_fedexp_steps_further_where_clients_disagree(agree: bool) -> None:
    updates = torch.tensor([[4.0, 0.0, 1.0], [4.0, 0.0, 1.0] if agree else [-3.0, 0.0, 1.0], [0.0, 2.0, 1.0]])
    mean = updates.mean(0)
    squares = [sum(x * x for x in row) for row in updates.tolist()]
    rate = max(1.0, sum(squares) / (2 * 3 * (sum(x * x for x in mean.tolist()) + 0.25)))
    assert (rate > 1) != agree
    exp = make_algorithm("fedexp", epsilon=0.25)
    result = result_of(mean, {"square": torch.tensor(squares)}, (0, 1, 2))
    found = exp.aggregate(server_of(torch.ones(3), {}), result, lambda update: 1 + 2 * update)  # a step of any kind
    torch.testing.assert_close(found, 1 + 2 * rate * mean)


def test_fedexp_reports_how_far_a_client_moved(exact_data: DeviceData) -> None:
    lane = make_lane(exact_data.dataset, algorithm="fedexp", active=1)
    reference = Reference(lane, exact_data)
    _, report = reference._train_client(2, {}, reference.model)
    after, _ = reference._train_client(2, {}, reference.model)
    pairs = zip(after.parameters(), reference.model.parameters(), strict=True)
    assert report["square"].item() == pytest.approx(sum((a - b).square().sum().item() for a, b in pairs))


# --- FedInit ---------------------------------------------------------------------------------------------------------


def test_fedinit_starts_away_from_where_the_client_ended() -> None:
    init = make_algorithm("fedinit", beta=0.5)
    for turns, expected in ((0.0, [1.0, 2.0]), (3.0, [1.0 - 0.5 * 3, 2.0 + 0.5 * 4])):
        state = {"last": torch.tensor([4.0, -2.0]), "turns": torch.tensor(turns)}
        client = Client(torch.tensor([1.0, 2.0]), state, {}, torch.ones(3), *[torch.ones(())] * 2, NETWORK)
        assert init.start(client).tolist() == expected


# --- Astraea ---------------------------------------------------------------------------------------------------------


def groups_by_hand(counts: list[list[float]], members: int) -> list[int]:
    """Greedily, the client that brings its mediator's labels nearest to uniform; of equals the first."""
    free, found = list(range(len(counts))), [-1] * len(counts)
    pool, size, group = [0.0] * len(counts[0]), 0, 0

    def uneven(client: int) -> float:
        mix = [a + b for a, b in zip(pool, counts[client], strict=True)]
        return float(sum(x / sum(mix) * torch.tensor(x / sum(mix) * len(mix)).log() for x in mix if x))

    while free:
        best = min(free, key=lambda client: (round(uneven(client), 7), client))
        free.remove(best)
        found[best] = group
        pool, size = [a + b for a, b in zip(pool, counts[best], strict=True)], size + 1
        if size == members:
            pool, size, group = [0.0] * len(pool), 0, group + 1
    return found


@pytest.mark.parametrize("members", [1, 2, 3, 5, 9])
def test_mediators_are_built_greedily(members: int) -> None:
    generator = torch.Generator().manual_seed(members)
    for _ in range(5):
        counts = torch.randint(0, 4, (7, 4), generator=generator).double()
        counts[:, 0] += 1
        counts[3] = counts[2]  # two alike
        found = make_algorithm("astraea", members=members).groups(
            server_of(torch.zeros(1), {}), torch.arange(7), counts
        )
        assert found.tolist() == groups_by_hand(counts.tolist(), members)
        assert torch.bincount(found).max() <= members


def test_astraea_weighs_rare_classes_up_and_abundant_ones_down() -> None:
    astraea = make_algorithm("astraea", threshold=1.5)
    totals = [100.0, 90.0, 110.0, 20.0, 500.0, 0.0]
    mean = sum(totals) / 6
    deviation = sqrt(sum((x - mean) ** 2 for x in totals) / 6)
    expected = []
    for total in totals:
        z = (total - mean) / deviation
        if not total:
            expected.append(1.0)
        elif z < -1 / 1.5:
            expected.append((mean - deviation * sqrt(z * (-1 / 1.5))) / total)
        elif z > 1.5:
            expected.append((mean + deviation * sqrt(z * 1.5)) / total)
        else:
            expected.append(1.0)
    assert expected[3] > 1 > expected[4] > 0
    per_client = torch.tensor([totals]) * torch.tensor([[0.3], [0.7]])
    weights = astraea.broadcast(server_of(torch.zeros(1), {"class_counts": per_client}))["class_weights"]
    torch.testing.assert_close(weights, torch.tensor(expected))
    half = torch.cat([per_client, torch.zeros(2, 6)])  # two of four clients seen
    weights = astraea.broadcast(server_of(torch.zeros(1), {"class_counts": half}))["class_weights"]
    torch.testing.assert_close(weights, torch.tensor(expected).sqrt())
    even = astraea.broadcast(server_of(torch.zeros(1), {"class_counts": torch.full((2, 6), 7.0)}))["class_weights"]
    assert torch.equal(even, torch.ones(6))


def test_a_sample_of_weight_two_counts_as_two() -> None:
    """The gradient of an epoch is the one of copied samples, up to the length of its batches."""
    weights = torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0])
    batch = make_batch(received={"class_weights": weights})
    expected = weights[batch.targets] * F.cross_entropy(batch.logits, batch.targets, reduction="none")
    torch.testing.assert_close(make_algorithm("astraea").local_loss(batch), expected)


def test_astraea_learns_each_clients_counts_once(exact_data: DeviceData) -> None:
    lane = make_lane(exact_data.dataset, algorithm="astraea:members=2", select="in-turn", rounds=4)
    engine = make_engine([lane], exact_data)
    for _ in range(4):
        engine.run_round()
    found = engine.segments[0].state["class_counts"][0]
    assert torch.equal(found, torch.from_numpy(lane.federation.class_counts).double())


def test_members_of_a_group_train_in_an_order_of_their_own(pictures: Dataset, exact_data: DeviceData) -> None:
    """That of the round's draws, and not the one in which a rule ranks clients."""
    lane = make_lane(pictures, algorithm="astraea:members=6", select="balanced", active=6, rounds=30)
    engine = make_engine([lane], exact_data)
    orders = []
    for number in range(1, 21):
        chosen = engine.server.select(number)
        order = engine.server.training_order(number, chosen)
        orders.append(tuple(chosen.clients[0, order].tolist()))
        assert sorted(orders[-1]) == list(range(6))
    assert len(set(orders)) > 15
