"""Heads that are made anew after the last round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn

from fedga.algorithms import Batch, Server, make_algorithm
from fedga.algorithms.ccvr import CCVR
from fedga.algorithms.fedga import FedGA
from fedga.algorithms.fedprox import FedProx
from fedga.algorithms.ldahead import LDAHead
from fedga.algorithms.parameters import Parameters
from fedga.algorithms.refit import over_base
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.errors import FedGAError
from fedga.models import build_model
from fedga.testing import check_algorithm
from tests.engine.runs import make_engine, make_lane, make_uneven_federation

pytestmark = pytest.mark.usefixtures("float64")
CLASSES, FEATURES = 4, 3


def trained(algorithm: str, data: DeviceData) -> Engine:
    federation = make_uneven_federation(data.dataset)
    engine = make_engine([make_lane(data.dataset, federation, algorithm=algorithm, rounds=3)], data)
    for _ in range(3):
        engine.run_round()
    return engine


@pytest.mark.parametrize("shrinkage", [0.05, 0.3])
def test_lda_head_is_scikit_learns_on_the_pooled_features(shrinkage: float, exact_data: DeviceData) -> None:
    """The body is that of its base; the head, made from sums over clients, is what all samples together give."""
    engine, base = trained(f"lda-head:base=fedga:shrinkage={shrinkage}", exact_data), trained("fedga", exact_data)
    found, body = (each.model.params.views(each.stack.params[0]) for each in (engine, base))
    assert all(torch.equal(found[name], body[name]) for name in ("hidden.weight", "hidden.bias"))
    held = torch.from_numpy(make_uneven_federation(exact_data.dataset).indices)
    inputs = exact_data.pixels(False).apply(exact_data.train_inputs[held]).flatten(1)
    features = F.linear(inputs, found["hidden.weight"], found["hidden.bias"]).relu()
    expected = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    expected.fit(features.numpy(), exact_data.train_targets[held].numpy())
    logits = F.linear(features, found["output.weight"], found["output.bias"])
    np.testing.assert_allclose(
        logits.log_softmax(1), expected.predict_log_proba(features.numpy()), rtol=1e-6, atol=1e-8
    )


def made_up(absent: int | None = None, apart: float = 2) -> tuple[Tensor, Tensor]:
    """Features of every class, ``[classes, samples, features]``, and how many there are."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(CLASSES, FEATURES, FEATURES, generator=generator)
    features = torch.randn(CLASSES, 400, FEATURES, generator=generator) @ spread
    features = features + apart * torch.randn(CLASSES, 1, FEATURES, generator=generator)
    counts = torch.tensor([0.0 if c == absent else 400.0 for c in range(CLASSES)])
    return features * (counts > 0)[:, None, None], counts


def refitted(algorithm: LDAHead | CCVR, features: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The head from the reports of two clients."""
    network = Parameters(nn.Linear(FEATURES, CLASSES))
    halves = [
        {
            "class_counts": counts / 2,
            "class_sums": half.sum(1),
            "second_moment": torch.einsum("cnd,cne->de", half, half),
            "class_moments": half.mT @ half,
        }
        for half in features.split(200, 1)
    ]
    names = [sent.name for sent in algorithm.final_uploads]
    reports = {name: torch.stack([half[name] for half in halves]) for name in names}
    server = Server(torch.zeros(network.total), {}, CLASSES, lambda params, inputs: inputs, network)
    made = network.views(algorithm.finish(server, reports))
    return made["weight"], made["bias"]


@pytest.mark.parametrize("algorithm", [LDAHead(), CCVR()], ids=str)
def test_a_class_that_nobody_holds_is_never_predicted_and_changes_nothing(algorithm: LDAHead | CCVR) -> None:
    features, counts = made_up(absent=2, apart=4)
    weight, bias = refitted(algorithm, features, counts)
    shares = (features @ weight.mT + bias).softmax(-1)
    assert weight.isfinite().all()
    assert bias.isfinite().all()
    assert shares[..., 2].max() < 1e-100
    held = counts > 0
    right = shares.argmax(-1)[held] == torch.arange(CLASSES)[held][:, None]
    assert right.double().mean() > 0.8


@pytest.mark.parametrize("algorithm", [LDAHead(), CCVR()], ids=str)
def test_the_head_of_a_run_that_diverged_is_no_number(algorithm: LDAHead | CCVR) -> None:
    features, counts = made_up()
    features[1, 5] = torch.inf
    assert all(part.isnan().all() for part in refitted(algorithm, features, counts))


def test_a_uniform_prior_moves_the_biases_by_the_shares_of_classes() -> None:
    features, counts = made_up()
    counts = counts * torch.tensor([1.0, 0.5, 1.0, 0.25])
    features = features * (torch.arange(400)[None, :, None] % 4 < 4 * counts[:, None, None] / 400)
    (weight, bias), (same, even) = (refitted(LDAHead(prior=prior), features, counts) for prior in ("data", "uniform"))
    assert torch.equal(weight, same)
    torch.testing.assert_close(bias - even, (counts / counts.sum() * CLASSES).log())


def test_ccvr_draws_what_has_each_classs_mean_and_covariance() -> None:
    features, counts = made_up()
    sums = {"class_counts": counts, "class_sums": features.sum(1), "class_moments": features.mT @ features}
    drawn = CCVR(samples=10_000)._drawn(sums)
    assert drawn.shape == (CLASSES, 10_000, FEATURES)
    for mine, theirs in zip(drawn, features, strict=True):
        scale = theirs.std()
        torch.testing.assert_close(mine.mean(0) / scale, theirs.mean(0) / scale, rtol=0, atol=0.05)
        torch.testing.assert_close(mine.T.cov() / scale**2, theirs.T.cov() / scale**2, rtol=0, atol=0.1)


def test_ccvrs_head_is_where_the_loss_on_what_it_drew_is_least() -> None:
    features, counts = made_up()
    algorithm = CCVR(samples=50, steps=2000)
    weight, bias = (part.requires_grad_() for part in refitted(algorithm, features, counts))
    sums = {"class_counts": counts, "class_sums": features.sum(1), "class_moments": features.mT @ features}
    logits = algorithm._drawn(sums) @ weight.mT + bias
    loss = F.cross_entropy(logits.flatten(0, 1), torch.arange(CLASSES).repeat_interleave(50))
    for gradient in torch.autograd.grad(loss, [weight, bias]):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-6)


# --- the algorithm that trains the network ---------------------------------------------------------------------------


def test_a_base_brings_its_options_its_hooks_and_what_it_sends() -> None:
    made = make_algorithm("ccvr", base="fedga", power="0.5", samples="7")
    assert isinstance(made, FedGA)
    assert isinstance(made, CCVR)
    assert (made.base, made.power, made.samples) == ("fedga", 0.5, 7)
    assert made == CCVR(base="fedga", power=0.5, samples=7)  # type: ignore[call-arg]
    scaffold = make_algorithm("lda-head", base="scaffold")
    assert scaffold.client_state_spec == make_algorithm("scaffold").client_state_spec
    assert over_base(LDAHead, {"base": "fedavg"}) is LDAHead
    with pytest.raises(FedGAError, match="LDAHead trains as scaffold already: make it anew, by its name"):
        make_algorithm(scaffold, base="fedprox")
    with pytest.raises(FedGAError, match="unknown option of lda-head 'power'"):
        make_algorithm("lda-head", power=1)


@pytest.mark.parametrize("base", ["fednh", "fedbabu", "ccvr"])
def test_a_base_without_the_networks_own_head_is_refused(base: str) -> None:
    with pytest.raises(FedGAError, match=f"base {base} does not train the network's own head: choose one of .*fedavg"):
        make_algorithm("lda-head", base=base)


@dataclass(frozen=True)
class Own(LDAHead, FedProx):
    """One of the user's own, with two parents."""

    def local_loss(self, batch: Batch) -> Tensor:
        return 2 * super().local_loss(batch)


def test_an_algorithm_of_ones_own_inherits_the_head() -> None:
    assert len(check_algorithm(Own)) == 6


def test_a_head_without_a_bias_is_refused_before_the_run(exact_data: DeviceData) -> None:
    def network(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), build_model("mlp", shape, classes), nn.Linear(classes, classes, bias=False))

    with pytest.raises(FedGAError, match=r"LDAHead makes a head with a bias: end the model with torch\.nn\.Linear"):
        make_engine([make_lane(exact_data.dataset, model=network, algorithm="lda-head")], exact_data)
