"""Every algorithm's own lines against its formula, written out slowly."""

from __future__ import annotations

from itertools import product
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedga.algorithms import Batch, RoundResult, Server, Setup, make_algorithm
from fedga.algorithms.fedrl import class_ratios
from fedga.algorithms.parameters import Parameters
from fedga.data.federation import Federation
from fedga.engine.device_data import DeviceData
from fedga.engine.stack.stacked import StackedModel
from fedga.losses.calibration import ga_loss
from fedga.models import build_model
from tests.engine.runs import make_engine, make_lane, make_uneven_federation

pytestmark = pytest.mark.usefixtures("float64")
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_batch(samples: int = 12, classes: int = 5, **more: Any) -> Batch:
    targets = torch.arange(samples) % classes
    given = {"mask": torch.ones(samples), "class_counts": torch.tensor([5.0, 4.0, 0.0, 9.0, 1.0])}
    return Batch(2 * random(samples, classes), targets, **given | more)


# --- FedProx ---------------------------------------------------------------------------------------------------------


def test_fedprox_penalty() -> None:
    params, received = random(9), random(9, seed=1)
    params.requires_grad_()
    penalty = make_algorithm("fedprox", mu=0.3).penalty(params, received)
    assert penalty is not None
    squares = [(a - b) ** 2 for a, b in zip(params.tolist(), received.tolist(), strict=True)]
    assert penalty.item() == pytest.approx(0.15 * sum(squares))
    (gradient,) = torch.autograd.grad(penalty, params)
    torch.testing.assert_close(gradient, 0.3 * (params.detach() - received), **EXACT)


# --- FedNTD ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.3, 2.0), (2.0, 0.5)])
def test_fedntd_equals_the_formula_with_the_true_class_left_out(beta: float, tau: float, classes: int) -> None:
    """Value and gradient; the other classes are taken by their indices."""
    samples = 12
    global_logits = 3 * random(samples, classes, seed=2)
    batch = make_batch(samples, classes, global_logits=global_logits)
    logits, targets = batch.logits, batch.targets
    logits.requires_grad_()
    expected = []
    for z, teacher, y in zip(logits, global_logits, targets.tolist(), strict=True):
        others = [c for c in range(classes) if c != y]
        q = torch.softmax(teacher[others] / tau, 0)
        log_p = torch.log_softmax(z[others] / tau, 0)
        divergence = sum(q[i] * (q[i].log() - log_p[i]) for i in range(classes - 1))
        expected.append(-torch.log_softmax(z, 0)[y] + beta * tau**2 * divergence)
    (wanted,) = torch.autograd.grad(torch.stack(expected).sum(), logits)
    actual = make_algorithm("fedntd", beta=beta, tau=tau).local_loss(batch)
    torch.testing.assert_close(actual, torch.stack(expected), **EXACT)
    (found,) = torch.autograd.grad(actual.sum(), logits)
    torch.testing.assert_close(found, wanted, **EXACT)


def test_fedntd_is_cross_entropy_where_both_models_agree_on_the_others() -> None:
    """The true class's own logit may differ: it is not distilled."""
    batch = make_batch()
    global_logits = batch.logits.clone()
    global_logits[torch.arange(12), batch.targets] += random(12, seed=3)
    batch = make_batch(global_logits=global_logits)
    expected = F.cross_entropy(batch.logits, batch.targets, reduction="none")
    torch.testing.assert_close(make_algorithm("fedntd").local_loss(batch), expected, **EXACT)


def test_fedntd_stays_finite_for_extreme_logits() -> None:
    batch = make_batch(global_logits=1e4 * random(12, 5, seed=4))
    logits = (1e4 * batch.logits).float().requires_grad_()
    extreme = Batch(logits, batch.targets, batch.mask, batch.class_counts, batch.global_logits.float())  # type: ignore[union-attr]
    loss = make_algorithm("fedntd").local_loss(extreme)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


# --- FedGA -----------------------------------------------------------------------------------------------------------


def test_fedga_takes_the_clients_counts_and_fedga_batch_those_of_the_real_samples() -> None:
    mask = (torch.arange(12) < 8).double()
    batch = make_batch(mask=mask)
    expected = ga_loss(batch.logits, batch.targets, batch.class_counts, reduction="none")
    torch.testing.assert_close(make_algorithm("fedga").local_loss(batch), expected, **EXACT)
    counts = torch.bincount(batch.targets[:8], minlength=5).double()
    assert counts.tolist() == [2, 2, 2, 1, 1]
    expected = ga_loss(batch.logits, batch.targets, counts, reduction="none")
    torch.testing.assert_close(make_algorithm("fedga-batch").local_loss(batch), expected, **EXACT)


@pytest.mark.parametrize("options", [{"strength": 0.5}, {"power": 2.0}, {"variant": "clamped"}])
def test_fedga_hands_its_options_on(options: dict[str, Any]) -> None:
    batch = make_batch()
    expected = ga_loss(batch.logits, batch.targets, batch.class_counts, reduction="none", **options)
    torch.testing.assert_close(make_algorithm("fedga", **options).local_loss(batch), expected, **EXACT)
    assert not torch.allclose(make_algorithm("fedga").local_loss(batch), expected)


# --- CLIMB -----------------------------------------------------------------------------------------------------------


def _round(clients: Tensor, survey: Tensor) -> RoundResult:
    return RoundResult(1, clients, torch.ones(len(clients)) / len(clients), torch.zeros(3), {}, survey)


def test_climb_dual_by_hand() -> None:
    """λ_k <- clip(λ_k + η (f_k - mean f - ε) / K, 0, 100) with η = 2, ε = 0.1, K = 4 and mean f = 1."""
    climb = make_algorithm("climb", epsilon=0.1, dual_rate=2.0)
    survey = torch.tensor([0.2, 1.0, 1.3, 1.5])
    state = climb.server_state(Setup(torch.zeros(3), 4, 10, Parameters(nn.Linear(1, 1))))
    assert state["dual"].tolist() == [0, 0, 0, 0]
    state = climb.update_server(state, _round(torch.tensor([0, 3]), survey))
    torch.testing.assert_close(state["dual"], torch.tensor([0.0, 0.0, 0.1, 0.2]))
    state = climb.update_server(state, _round(torch.tensor([1]), survey))
    torch.testing.assert_close(state["dual"], torch.tensor([0.0, 0.0, 0.2, 0.4]))
    state = climb.update_server({"dual": torch.tensor([0.3, 99.9, 50.0, 0.0])}, _round(torch.tensor([1]), survey))
    torch.testing.assert_close(state["dual"], torch.tensor([0.0, 99.85, 50.1, 0.2]))


def test_climb_dual_ends_at_a_hundred() -> None:
    climb = make_algorithm("climb", epsilon=0.0, dual_rate=1e6)
    state = climb.update_server({"dual": torch.zeros(2)}, _round(torch.tensor([0]), torch.tensor([1.0, 2.0])))
    assert state["dual"].tolist() == [0, 100]


def test_climb_weights_by_hand() -> None:
    """1 + λ_k - mean λ, times the share; mean λ is over all clients, not over the active ones."""
    state = {"dual": torch.tensor([0.0, 1.0, 2.0, 5.0])}
    weights = make_algorithm("climb").weights(state, torch.tensor([3, 0]), torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(weights, torch.tensor([0.25 * (1 + 5 - 2), 0.75 * (1 + 0 - 2)]))


def test_climb_surveys_every_client_about_the_received_model(exact_data: DeviceData) -> None:
    """The duals after a round follow from the mean loss of the initial model on each client's samples."""
    dataset = exact_data.dataset
    lane = make_lane(dataset, algorithm="climb:epsilon=0:dual_rate=3")
    engine = make_engine([lane], exact_data)
    losses = []
    for k in range(lane.federation.num_clients):
        total = 0.0
        for place in lane.federation.client(k):
            logits = lane.model(exact_data.pixels(False).apply(exact_data.train_inputs[place][None]))[0]
            target = dataset.train_targets[place]
            total += log(sum(exp(z) for z in logits.tolist())) - logits[target].item()
        losses.append(total / len(lane.federation.client(k)))
    excess = np.array(losses) - np.mean(losses)
    engine.run_round()
    found = engine.segments[0].state["dual"][0].numpy()
    np.testing.assert_allclose(found, (3 * excess / len(losses)).clip(min=0), rtol=0, atol=1e-12)
    assert (found > 0).any()
    assert (found == 0).any()


# --- FedRL -----------------------------------------------------------------------------------------------------------


class Bent(nn.Module):
    """Features of either sign, a few of them always 0."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.hidden, self.output = kind, nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.hidden(inputs)
        return self.output(features.relu() if self.kind == "relu" else features)


def server_of(network: nn.Module, auxiliary: Tensor) -> Server:
    model = StackedModel(network)
    params, buffers = model.flatten(network)

    def forward(params: Tensor, inputs: Tensor) -> Tensor:
        return model.forward_one(params, buffers, inputs)

    return Server(params, {}, len(auxiliary), forward, model.params, auxiliary)


def slow_ratios(network: Any, auxiliary: Tensor) -> list[float]:
    """Ra_c as method.md defines it, entry by entry. An entry whose largest ΔW is not above 0 belongs to no class:
    nothing there speaks for one."""
    classes = len(auxiliary)
    steps = []
    for c in range(classes):
        network.zero_grad()
        F.cross_entropy(network(auxiliary[c]), torch.full((len(auxiliary[c]),), c)).backward()
        steps.append((-network.output.weight.grad).tolist())
    rows, columns = len(steps[0]), len(steps[0][0])
    owned: dict[int, list[tuple[int, int]]] = {c: [] for c in range(classes)}
    for row, column in product(range(rows), range(columns)):
        values = [steps[c][row][column] for c in range(classes)]
        best = max(range(classes), key=lambda c: values[c])
        if values[best] <= 0:
            continue
        if any(values[c] >= 0.8 * values[best] for c in range(classes) if c != best):
            continue
        owned[best].append((row, column))
    ratios = []
    for c in range(classes):
        sums = [sum(steps[other][row][column] for row, column in owned[c]) for other in range(classes)]
        others = sum(sums[other] for other in range(classes) if other != c) / (classes - 1)
        if not owned[c] or others == 0:
            ratios.append(10.0)
        else:
            ratios.append(min(abs(sums[c]) / abs(others), 5000.0))
    return ratios


@pytest.mark.parametrize("kind", ["relu", "linear"])
@pytest.mark.parametrize("seed", range(6))
def test_fedrl_ratios_equal_the_slow_definition(seed: int, kind: str) -> None:
    torch.manual_seed(seed)
    network = Bent(kind)
    with torch.no_grad():
        network.hidden.bias[:2] = -100  # features that never fire
    auxiliary = random(4, 5, 6, seed=seed) + 2 * random(4, 1, 6, seed=seed + 100)
    expected = slow_ratios(network, auxiliary)
    torch.testing.assert_close(class_ratios(server_of(network, auxiliary)), torch.tensor(expected), rtol=1e-10, atol=0)
    assert len(set(expected)) > 1


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_fedrl_ratios_of_our_networks(model: str) -> None:
    """The output layer is found where it is."""
    network = build_model(model, (1, 16, 16), 4, seed=1)
    network.output = list(network.children())[-1]  # under one name for the slow loop
    auxiliary = random(4, 3, 1, 16, 16).abs()
    plain = build_model(model, (1, 16, 16), 4, seed=1)
    expected = torch.tensor(slow_ratios(network, auxiliary))
    torch.testing.assert_close(class_ratios(server_of(plain, auxiliary)), expected, rtol=1e-9, atol=0)


def test_fedrl_ratios_where_they_are_undefined_or_huge() -> None:
    """Output weights whose gradient is made by hand: p is uniform, so ΔW[j] = (1{j = c} - 1/2) times the feature."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.output = nn.Linear(2, 2, bias=False)
            nn.init.zeros_(self.output.weight)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.output(inputs)

    def ratios(first: list[float], second: list[float]) -> list[float]:
        network = Made()
        auxiliary = torch.tensor([[first], [second]])
        found = class_ratios(server_of(network, auxiliary)).tolist()
        assert found == pytest.approx(slow_ratios(network, auxiliary))
        return found

    assert ratios([1.0, 1.0], [2.0, 2.0]) == pytest.approx([1 / 2, 2])
    assert ratios([1.0, 0.0], [0.0, 1.0]) == [10, 10]  # what a class owns, the other does not touch
    assert ratios([1.0, 0.0], [1e-5, 0.0]) == pytest.approx([5000, 1e-5])
    assert ratios([0.0, 0.0], [0.0, 0.0]) == [10, 10]


def test_fedrl_weights_the_loss_by_class() -> None:
    algorithm = make_algorithm("fedrl", alpha=0.5, beta=0.2)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    batch = make_batch(received={"class_weights": weights})
    expected = weights[batch.targets] * F.cross_entropy(batch.logits, batch.targets, reduction="none")
    torch.testing.assert_close(algorithm.local_loss(batch), expected, **EXACT)
    torch.manual_seed(3)
    network, auxiliary = Bent("relu"), random(4, 5, 6)
    sent = algorithm.broadcast(server_of(network, auxiliary))["class_weights"]
    torch.testing.assert_close(sent, 0.5 + 0.2 * torch.tensor(slow_ratios(network, auxiliary)), rtol=1e-10, atol=0)


# --- SCAFFOLD --------------------------------------------------------------------------------------------------------


def gradient_of(network: nn.Module, params: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    leaf = params.clone().requires_grad_()
    model = StackedModel(network)
    logits = model.forward_one(leaf, torch.zeros(0), inputs)
    return torch.autograd.grad(F.cross_entropy(logits, targets), leaf)[0]


def test_scaffold_by_hand_for_one_client_and_one_step(exact_data: DeviceData) -> None:
    """Three clients, one of them active, the whole of its samples in one batch, no clipping: three rounds."""
    dataset, lr, clients = exact_data.dataset, 0.1, 3
    federation = make_uneven_federation(dataset, clients=clients)
    lane = make_lane(
        dataset,
        federation,
        algorithm="scaffold",
        active=1,
        local_epochs=1,
        batch_size=len(dataset.train_targets),
        clip=None,
        lr=lr,
        diagnose_every=1,
    )
    engine = make_engine([lane], exact_data)
    params = engine.model.flatten(lane.model)[0]
    control, kept = torch.zeros_like(params), [torch.zeros_like(params) for _ in range(clients)]
    active = []
    for _ in range(6):
        (result,) = engine.run_round()
        k = result.clients[0].client
        active.append(k)
        places = torch.from_numpy(federation.client(k))
        inputs = exact_data.pixels(False).apply(exact_data.train_inputs[places])
        gradient = gradient_of(lane.model, params, inputs, exact_data.train_targets[places])
        moved = params - lr * (gradient - kept[k] + control)
        new = kept[k] - control + (params - moved) / lr  # option II: one step of rate lr
        torch.testing.assert_close(new, gradient, rtol=0, atol=1e-12)  # with one step, the gradient itself
        control = control + (new - kept[k]) / clients
        kept[k], params = new, moved
        torch.testing.assert_close(engine.stack.params[0], params, rtol=0, atol=1e-12)
        torch.testing.assert_close(engine.segments[0].state["control"][0], control, rtol=0, atol=1e-12)
        torch.testing.assert_close(engine.segments[0].client_state["control"][0], torch.stack(kept), rtol=0, atol=1e-12)
    assert len(set(active)) > 1
    assert len(active) > len(set(active))  # a client came back and used what it kept


def test_scaffold_controls_add_up(exact_data: DeviceData) -> None:
    """With equal weights for all the server's variate is the mean of the clients' at all times."""
    lane = make_lane(exact_data.dataset, algorithm="scaffold", aggregation="uniform")
    engine = make_engine([lane], exact_data)
    for _ in range(3):
        engine.run_round()
        (segment,) = engine.segments
        kept = segment.client_state["control"][0]
        torch.testing.assert_close(segment.state["control"][0], kept.mean(0), rtol=0, atol=1e-12)
    assert kept.abs().max() > 1e-3


def test_clients_that_take_no_part_keep_what_they_kept(exact_data: DeviceData) -> None:
    lane = make_lane(exact_data.dataset, algorithm="scaffold", diagnose_every=1)
    engine = make_engine([lane], exact_data)
    for _ in range(3):
        before = engine.segments[0].client_state["control"][0].clone()
        (result,) = engine.run_round()
        after = engine.segments[0].client_state["control"][0]
        active = {record.client for record in result.clients}
        for k in range(6):
            assert torch.equal(after[k], before[k]) == (k not in active)


# --- FedAvg ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["samples", "uniform"])
def test_fedavg_by_hand_for_one_step(aggregation: str, exact_data: DeviceData) -> None:
    """All clients active with one full-batch step each: by samples, it is a gradient step on the union of them."""
    dataset, lr = exact_data.dataset, 0.1
    federation: Federation = make_uneven_federation(dataset)
    lane = make_lane(
        dataset, federation, active=6, local_epochs=1, batch_size=200, clip=None, lr=lr, aggregation=aggregation
    )
    engine = make_engine([lane], exact_data)
    params = engine.model.flatten(lane.model)[0]

    def gradient(places: np.ndarray) -> Tensor:
        inputs = exact_data.pixels(False).apply(exact_data.train_inputs[places])
        return gradient_of(lane.model, params, inputs, exact_data.train_targets[places])

    if aggregation == "samples":
        expected = params - lr * gradient(federation.indices)
    else:
        expected = params - lr * torch.stack([gradient(federation.client(k)) for k in range(6)]).mean(0)
    engine.run_round()
    torch.testing.assert_close(engine.stack.params[0], expected, rtol=0, atol=1e-12)
