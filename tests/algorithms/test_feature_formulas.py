"""Losses and heads on features, each against its formula written out plainly."""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedga.algorithms import Batch, make_algorithm
from fedga.algorithms.frames import orthonormal_rows, simplex_frame
from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData
from fedga.engine.stack.lanes import Lane
from tests.engine.runs import EXACT, make_engine, make_lane, make_uneven_federation

pytestmark = pytest.mark.usefixtures("float64")
SAMPLES, REAL, CLASSES, FEATURES = 12, 9, 4, 5


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_batch(**more: Any) -> Batch:
    counts, mask = torch.tensor([0.0, 7.0, 1.0, 4.0]), (torch.arange(SAMPLES) < REAL).double()
    return Batch(random(SAMPLES, CLASSES), torch.arange(SAMPLES) % 3 + 1, mask, counts, **more)


def test_decorrelation_is_the_mean_square_of_the_batchs_correlations() -> None:
    batch = make_batch(features=random(SAMPLES, FEATURES, seed=1) @ random(FEATURES, FEATURES, seed=2) + 3)
    assert batch.features is not None
    correlations = np.corrcoef(batch.features[:REAL].numpy(), rowvar=False)
    expected = 0.3 * (correlations**2).sum() / FEATURES**2
    plain = F.cross_entropy(batch.logits, batch.targets, reduction="none")
    losses = make_algorithm("feddecorr", beta=0.3).local_loss(batch)
    assert (losses[:REAL].mean() - plain[:REAL].mean()).item() == pytest.approx(expected, rel=1e-6)


def test_features_that_say_the_same_cost_most_and_constant_ones_nothing() -> None:
    def term(features: Tensor) -> float:
        batch = make_batch(features=features)
        plain = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        return (make_algorithm("feddecorr", beta=1).local_loss(batch) - plain)[0].item()

    assert term(random(SAMPLES, 1).expand(-1, FEATURES)) == pytest.approx(1)
    assert term(torch.ones(SAMPLES, FEATURES)) == 0


def test_moon_contrasts_the_received_model_with_the_last_one() -> None:
    own, received, last = random(3, SAMPLES, FEATURES)
    batch = make_batch(features=own, global_features=received, earlier_features=last)
    found = make_algorithm("moon", mu=2, tau=0.4).local_loss(batch)
    for i in range(SAMPLES):
        towards, away = (
            exp((own[i] @ other[i]).item() / (own[i].norm() * other[i].norm()).item() / 0.4)
            for other in (received, last)
        )
        plain = F.cross_entropy(batch.logits[i], batch.targets[i]).item()
        assert found[i].item() == pytest.approx(plain - 2 * log(towards / (towards + away)))


def test_moon_begins_as_fedavg_until_a_client_has_a_last_model(exact_data: DeviceData) -> None:
    plain, moon = (
        make_engine([make_lane(exact_data.dataset, algorithm=name, active=6, model="mlp")], exact_data)
        for name in ("fedavg", "moon:mu=3")
    )
    for equal in (True, False):
        for engine in (plain, moon):
            engine.run_round()
        assert torch.allclose(plain.stack.params, moon.stack.params, **EXACT) == equal


@pytest.mark.parametrize(("classes", "features"), [(2, 1), (4, 3), (10, 9), (10, 10), (10, 84)])
def test_a_simplex_frame_is_as_wide_apart_as_can_be(classes: int, features: int) -> None:
    frame = simplex_frame(classes, features)
    gram = (classes * torch.eye(classes) - 1) / (classes - 1)
    torch.testing.assert_close(frame @ frame.T, gram, rtol=0, atol=1e-12)
    torch.testing.assert_close(frame.sum(0), torch.zeros(features), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("classes", "features"), [(10, 5), (100, 84)])
def test_without_room_for_a_simplex_rows_are_unit_directions(classes: int, features: int) -> None:
    for frame in (simplex_frame(classes, features), orthonormal_rows(classes, features)):
        torch.testing.assert_close(frame.norm(dim=1), torch.ones(classes), rtol=0, atol=1e-12)
        assert torch.linalg.matrix_rank(frame) == features


def test_fednhs_first_prototypes_are_orthonormal_or_as_near_as_can_be() -> None:
    rows = orthonormal_rows(4, 6)
    torch.testing.assert_close(rows @ rows.T, torch.eye(4), rtol=0, atol=1e-12)
    torch.testing.assert_close(orthonormal_rows(4, 3), simplex_frame(4, 3))


def test_fedetf_weighs_classes_by_their_counts_and_leaves_missing_ones_out() -> None:
    batch, counts = make_batch(), [0.0, 7.0, 1.0, 4.0]
    found = make_algorithm("fedetf").local_loss(batch)
    for logits, target, loss in zip(batch.logits.tolist(), batch.targets.tolist(), found.tolist(), strict=True):
        weighed = [count * exp(logit) for count, logit in zip(counts, logits, strict=True)]
        assert loss == pytest.approx(-log(weighed[target] / sum(weighed)))


@pytest.mark.parametrize(("name", "directions"), [("fedetf", "frame"), ("fednh", "prototypes")])
def test_logits_are_scaled_cosines(name: str, directions: str) -> None:
    algorithm, features, rows = make_algorithm(name), 9 * random(SAMPLES, FEATURES), simplex_frame(CLASSES, FEATURES)
    expected = 10 * F.cosine_similarity(features[:, None], rows, dim=-1)
    torch.testing.assert_close(algorithm.head(features, {}, {directions: rows}), expected)


def test_fednh_moves_a_tenth_towards_the_normalised_sum_of_normalised_means() -> None:
    """ρ = 0.9, and everything normalised on the client and on the server: what other programs have got wrong."""
    nh = make_algorithm("fednh")
    features, labels = 5 * random(SAMPLES, FEATURES).abs(), torch.arange(SAMPLES) % 2
    sums = torch.stack([F.normalize(features, dim=1)[labels == c].sum(0) for c in range(2)])
    counts, given = torch.tensor([6.0, 6.0]), {"class_features": sums}
    trained: Any = type("Trained", (), {**given, "class_counts": counts})
    sent = nh.report(trained)[0]["class_sums"]
    before = F.normalize(random(2, FEATURES, seed=4), dim=1)
    result: Any = type("Result", (), {"reports": {"class_sums": torch.stack([sent, 2 * sent.flip(1)])}})
    after = nh.update_server({"prototypes": before}, result)["prototypes"]
    for c in range(2):
        unit = [row / row.norm() for row in features[labels == c]]
        mean = torch.stack(unit).mean(0)
        mine = 6 * mean / mean.norm()
        towards = mine + 2 * mine.flip(0)
        moved = 0.9 * before[c] + 0.1 * towards / towards.norm()
        torch.testing.assert_close(after[c], moved / moved.norm())


def test_fedbabu_is_fedavg_of_a_network_with_a_frozen_head(pictures: Dataset, exact_data: DeviceData) -> None:
    federation = make_uneven_federation(exact_data.dataset)
    babu = make_lane(exact_data.dataset, federation, algorithm="fedbabu")
    plain = make_lane(exact_data.dataset, federation)
    output: Any = plain.model.output
    output.requires_grad_(False)
    ends = []
    for lane in (babu, Lane(plain.spec, federation, plain.algorithm, plain.model)):
        engine = make_engine([lane], exact_data)
        for _ in range(3):
            engine.run_round()
        ends.append((engine.stack.params, engine.stack.buffers))
        assert torch.equal(engine.stack.buffers[0], nn.utils.parameters_to_vector(output.parameters()))
    torch.testing.assert_close(ends[0], ends[1], **EXACT)
