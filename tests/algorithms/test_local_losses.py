"""Methods that are a loss of a client's own against their formulas, written out slowly, and what others got wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedga.algorithms import Batch, Setup, make_algorithm
from fedga.algorithms.balancefl import BalanceFL
from fedga.algorithms.parameters import Parameters
from fedga.engine.device_data import DeviceData
from fedga.engine.reference import Reference
from fedga.losses.imbalance import balanced_softmax_loss, class_weights, focal_loss
from tests.engine.runs import Mixing, make_engine, make_lane

pytestmark = pytest.mark.usefixtures("float64")
EXACT = {"rtol": 1e-12, "atol": 1e-12}
COUNTS = [5.0, 4.0, 0.0, 9.0, 1.0, 0.0]  # of a client that lacks two classes
PRESENT, MISSING = [0, 1, 3, 4], [2, 5]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_batch(**more: Any) -> Batch:
    """Twelve samples of the classes that are there, of which the last three are padding."""
    logits, targets = (2 * random(12, 6)).requires_grad_(), torch.tensor(PRESENT * 3)
    mask = (torch.arange(12) < 9).double()
    return Batch(logits, targets, mask, torch.tensor(COUNTS), 3 * random(12, 6, seed=2), **more)


def assert_loss(algorithm: str, expected: Callable[[Tensor, Tensor, int], Tensor], **options: Any) -> None:
    """Value and gradient of every real sample; ``expected(z, z_global, y)`` is the loss of one."""
    batch = make_batch()
    assert batch.global_logits is not None
    rows = zip(batch.logits, batch.global_logits, batch.targets.tolist(), strict=True)
    wanted = torch.stack([expected(*row) for row in rows])[:9]
    found = make_algorithm(algorithm, **options).local_loss(batch)[:9]
    torch.testing.assert_close(found, wanted, **EXACT)
    slopes = [torch.autograd.grad(loss.sum(), batch.logits, retain_graph=True)[0] for loss in (found, wanted)]
    torch.testing.assert_close(*slopes, **EXACT)


# --- re-weighting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "options", "kind"),
    [
        ("reweight", {"power": 0.5}, {"power": 0.5}),
        ("class-balanced", {"beta": 0.9}, {"beta": 0.9}),
        ("focal", {"gamma": 0.0, "weighting": "inverse"}, {}),
        ("focal", {"gamma": 0.0, "weighting": "effective"}, {"beta": 0.99}),
    ],
)
def test_weights_are_of_the_clients_counts(algorithm: str, options: dict[str, Any], kind: dict[str, Any]) -> None:
    weights = class_weights(COUNTS, **kind)
    assert_loss(algorithm, lambda z, _, y: -weights[y] * F.log_softmax(z, -1)[y], **options)


def test_focal_and_balanced_softmax_are_the_losses_of_their_names() -> None:
    batch = make_batch()
    expected = focal_loss(batch.logits, batch.targets, gamma=0.7, reduction="none")
    torch.testing.assert_close(make_algorithm("focal", gamma=0.7).local_loss(batch), expected, **EXACT)
    expected = balanced_softmax_loss(batch.logits, batch.targets, COUNTS, tau=0.5, reduction="none")
    torch.testing.assert_close(make_algorithm("balanced-softmax").local_loss(batch), expected, **EXACT)


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
def test_resampling_is_reweighting_in_the_mean(power: float) -> None:
    """Drawing class c in proportion to ``n_c^power`` has the expected gradient of weights ``n_c^(power - 1)``."""
    counts = torch.tensor(COUNTS)
    targets = torch.repeat_interleave(torch.arange(6), counts.long())
    logits = random(len(targets), 6).requires_grad_()
    batch = Batch(logits, targets, torch.ones(len(targets)), counts)
    rates = make_algorithm("resample", power=power).class_rates(counts)
    drawn = (rates / rates.sum() / counts)[targets]  # probability of every sample
    of_samples = make_algorithm("fedavg").local_loss(batch)
    weighed = make_algorithm("reweight", power=1 - power).local_loss(batch)
    resampled, reweighted = (
        torch.autograd.grad(loss, logits)[0] for loss in ((drawn * of_samples).sum(), weighed.mean())
    )
    torch.testing.assert_close(resampled, reweighted, **EXACT)


def test_global_counts_are_those_of_all_clients_that_took_part(exact_data: DeviceData) -> None:
    lane = make_lane(exact_data.dataset, algorithm="reweight-global", active=2, diagnose_every=1)
    engine, sums = make_engine([lane], exact_data), torch.zeros(exact_data.dataset.num_classes)
    for _ in range(3):
        (result,) = engine.run_round()
        sums += torch.from_numpy(lane.federation.class_counts[[record.client for record in result.clients]]).sum(0)
        torch.testing.assert_close(engine.segments[0].state["class_sums"][0], sums, **EXACT)
    batch = make_batch(received={"class_sums": torch.tensor([10.0, 0.0, 3.0, 200.0, 0.0, 0.0])})
    weights = class_weights([15.0, 4.0, 3.0, 209.0, 1.0, 0.0])  # with the client's own
    expected = weights[batch.targets] * F.cross_entropy(batch.logits, batch.targets, reduction="none")
    torch.testing.assert_close(make_algorithm("reweight-global").local_loss(batch), expected, **EXACT)


# --- Fed-Focal -------------------------------------------------------------------------------------------------------


def test_fed_focal_weights_by_hand() -> None:
    algorithm = make_algorithm("fed-focal", kappa=2.0)
    state = algorithm.server_state(Setup(torch.zeros(3), 4, 10, Parameters(nn.Linear(1, 1))))
    clients, shares = torch.tensor([3, 0]), torch.tensor([0.25, 0.75])
    torch.testing.assert_close(algorithm.weights(state, clients, shares), shares)  # nobody has said anything
    state = {"losses": torch.tensor([1.0, 9.0, 9.0, 3.0])}
    torch.testing.assert_close(algorithm.weights(state, clients, shares), torch.tensor([0.75, 0.25]))
    for losses in (torch.zeros(4), torch.tensor([1e-30, 0.0, 0.0, 1e3])):
        found = algorithm.weights({"losses": losses.float()}, clients, shares.float())
        assert found.sum().item() == pytest.approx(1)


def test_fed_focal_asks_for_the_focal_loss_of_the_received_model(exact_data: DeviceData) -> None:
    lane = make_lane(exact_data.dataset, algorithm="fed-focal:gamma=1.5")
    engine, losses = make_engine([lane], exact_data), []
    for k in range(lane.federation.num_clients):
        places = lane.federation.client(k)
        logits = lane.model(exact_data.pixels(False).apply(exact_data.train_inputs[places]))
        losses.append(focal_loss(logits, exact_data.train_targets[places], gamma=1.5).item())
    engine.run_round()
    found = engine.segments[0].state["losses"][0].numpy()
    np.testing.assert_allclose(found, losses, rtol=0, atol=1e-12)


# --- FedLC -----------------------------------------------------------------------------------------------------------


def test_fedlc_is_cross_entropy_over_the_classes_that_are_there() -> None:
    margin = torch.tensor([0.7 * max(n, 1) ** -0.25 for n in COUNTS])
    where = {label: place for place, label in enumerate(PRESENT)}
    assert_loss("fedlc", lambda z, _, y: -F.log_softmax((z - margin)[PRESENT], -1)[where[y]], tau=0.7)
    assert_loss("fedlc", lambda z, _, y: -F.log_softmax(z - margin, -1)[y], tau=0.7, missing="kept")


@pytest.mark.parametrize("missing", ["masked", "kept"])
def test_fedlc_has_the_true_class_in_its_denominator(missing: str) -> None:
    """As printed, without it, the loss falls without end: its slope is -1 however certain the model is."""
    algorithm, batch = make_algorithm("fedlc", missing=missing), make_batch()
    for step in (0.0, 10.0, 100.0):
        logits = (batch.logits + step * F.one_hot(batch.targets, 6)).detach().requires_grad_()
        loss = algorithm.local_loss(replace(batch, logits=logits))
        slope = torch.autograd.grad(loss.sum(), logits)[0].gather(-1, batch.targets[:, None])
        assert (loss >= 0).all()
        assert (slope > -1).all()
    assert slope.abs().max() < 1e-12


# --- FedRS -----------------------------------------------------------------------------------------------------------


def test_fedrs_scales_the_logits_of_missing_classes() -> None:
    hard = torch.tensor([1.0 if n else 0.6 for n in COUNTS])
    soft = torch.tensor([0.6 + 0.4 * n / max(COUNTS) for n in COUNTS])
    assert_loss("fedrs", lambda z, _, y: -F.log_softmax(hard * z, -1)[y], alpha=0.6)
    assert_loss("fedrs", lambda z, _, y: -F.log_softmax(soft * z, -1)[y], alpha=0.6, form="soft")


# --- FedVLS ----------------------------------------------------------------------------------------------------------


def divergence(teacher: Tensor, student: Tensor, classes: list[int], temperature: float = 1.0) -> Tensor:
    q, log_p = (teacher[classes] / temperature).softmax(-1), F.log_softmax(student[classes] / temperature, -1)
    return (q * (q.log() - log_p)).sum()


def test_fedvls_by_hand() -> None:
    shares = torch.tensor(COUNTS) / sum(COUNTS)
    adjust = torch.log(shares + 1e-9)
    batch = make_batch()
    penalty = torch.tensor(0.0)
    for c in PRESENT:
        terms = [
            torch.ones(()) if y == c else torch.exp(z[c]) / (6 * (shares[c] + 1e-9))
            for z, y in list(zip(batch.logits, batch.targets.tolist(), strict=True))[:9]
        ]
        penalty = penalty + shares[c] * torch.log(torch.stack(terms).mean())

    def expected(z: Tensor, teacher: Tensor, y: int) -> Tensor:
        return -F.log_softmax(z + adjust, -1)[y] + 0.3 * divergence(teacher, z, MISSING)

    assert_loss("fedvls", expected, distil=0.3, suppress=0.0)
    options = {"distil": 0.3, "suppress": 0.2}
    with_it = make_algorithm("fedvls", **options).local_loss(batch)
    without = make_algorithm("fedvls", **options | {"suppress": 0.0}).local_loss(batch)
    torch.testing.assert_close(with_it - without, (0.2 * penalty).expand(12), **EXACT)
    slopes = [torch.autograd.grad(x, batch.logits, retain_graph=True)[0] for x in ((with_it - without)[0], penalty)]
    torch.testing.assert_close(slopes[0], 0.2 * slopes[1], **EXACT)


# --- FedLMD ----------------------------------------------------------------------------------------------------------


def test_fedlmd_by_hand() -> None:
    """The mean class has 19 / 6 samples: 0, 1 and 3 are the majority."""

    def expected(z: Tensor, teacher: Tensor, y: int) -> Tensor:
        taught = [c for c in (2, 4, 5) if c != y]
        others = [c for c in range(6) if c != y]
        q, log_p = (teacher[taught] / 2).softmax(-1), F.log_softmax(z[others] / 2, -1)
        distance = sum(q[i] * (q[i].log() - log_p[others.index(c)]) for i, c in enumerate(taught))
        return -F.log_softmax(z, -1)[y] + 0.3 * 4 * distance

    assert_loss("fedlmd", expected, beta=0.3, tau=2.0)


def test_fedlmd_where_nothing_is_left_to_teach() -> None:
    """Of two classes the rarer one is the true one."""
    logits, counts = random(2, 2).float(), torch.tensor([9.0, 1.0])
    batch = Batch(logits, torch.tensor([1, 0]), torch.ones(2), counts, random(2, 2, seed=1).float())
    plain = F.cross_entropy(logits, batch.targets, reduction="none")
    torch.testing.assert_close(make_algorithm("fedlmd").local_loss(batch), plain)


# --- BalanceFL -------------------------------------------------------------------------------------------------------


def test_balancefl_by_hand() -> None:
    where = {label: place for place, label in enumerate(PRESENT)}

    def expected(z: Tensor, teacher: Tensor, y: int) -> Tensor:
        log_p = F.log_softmax(z[PRESENT], -1)
        entropy = -(log_p.exp() * log_p).sum()
        return -log_p[where[y]] + 0.4 * divergence(teacher, z, MISSING, 3.0) - 0.25 * entropy

    assert_loss("balancefl", expected, inherit=0.4, temperature=3.0, entropy=0.25)


def test_balancefl_finds_present_classes_where_it_is_told() -> None:
    """In a batch of samples of classes 0 and 1 alone; padding, of another class, is not in it."""
    batch = make_batch()
    batch = replace(batch, targets=torch.tensor([0, 1] * 4 + [0, 4, 4, 4]))
    for present, counts in (("batch", [5.0, 4, 0, 0, 0, 0]), ("all", [1.0] * 6)):
        found = make_algorithm("balancefl", present=present).local_loss(batch)[:9]
        told = replace(batch, class_counts=torch.tensor(counts))
        torch.testing.assert_close(found, make_algorithm("balancefl").local_loss(told)[:9], **EXACT)


def test_the_teacher_is_in_evaluation_mode_and_stays_as_it_was_received(
    exact_data: DeviceData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout and batch statistics, a sample has the same teacher in every epoch, whatever batch it is in."""
    seen: list[Tensor] = []
    local_loss = BalanceFL.local_loss

    def watched(self: BalanceFL, batch: Batch) -> Tensor:
        assert batch.global_logits is not None
        seen.append(batch.global_logits)
        return local_loss(self, batch)

    monkeypatch.setattr(BalanceFL, "local_loss", watched)
    lane = make_lane(exact_data.dataset, model=Mixing, algorithm="balancefl:power=1", active=1, batch_size=4)
    Reference(lane, exact_data).run_round()
    epochs = torch.cat(seen).chunk(2)
    assert len(seen) >= 4
    assert not torch.equal(*epochs)
    torch.testing.assert_close(*(epoch.sort(0).values for epoch in epochs), **EXACT)
