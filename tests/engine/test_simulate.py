from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedga import FedGAError, simulate
from fedga.algorithms import Algorithm, Sent, Server
from fedga.algorithms.base import Tensors
from fedga.data import load_dataset, make_federation
from fedga.data.federation import Dataset, Federation
from fedga.selection import make_selection
from fedga.selection.in_turn import InTurn
from tests.engine.runs import make_dataset, make_uneven_federation


def network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))


def test_own_module_and_own_algorithm_object(pictures: Dataset) -> None:
    torch.manual_seed(0)
    start = network(4)
    before = start[1].weight.detach().clone()
    seen = []
    result = simulate(
        make_uneven_federation(pictures),
        start,
        Algorithm(),
        rounds=3,
        active=2,
        server_average=0.5,
        on_round=seen.append,
    )
    assert [row["round"] for row in result.rounds] == [1, 2, 3]
    assert len(seen) == 3
    assert torch.equal(start[1].weight, before)  # what the caller gave is left alone
    assert not torch.equal(result.model[1].weight, before)
    assert result.averaged_model is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rate": 0.1}, "unknown setting 'learning_rate'"),
        ({"alpha": 0.1}, "alpha is part of the federation"),
        ({"clients": 3}, "clients is part of the federation"),
        ({"preset": "strong"}, "unknown setting 'preset'"),
        ({"rounds": 0}, "^rounds must be"),
        ({"active": 7}, "^active 7 is more than the 6 clients"),
        ({"model": network(3)}, "one output per class"),
        ({"augment": "shift:9"}, "^augment shift:9 moves 8×8 pixels out of sight"),
        (
            {"augment": "shift:1;none"},
            "^augment 'shift:1;none' is not one value: give one; for a grid on the command line",
        ),
        ({"availability": "no.csv"}, "^availability 'no.csv' is neither"),
        ({"select": "bandit:explore=x"}, "^select bandit: explore must be a number"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str, pictures: Dataset) -> None:
    with pytest.raises(FedGAError, match=words):
        simulate(make_uneven_federation(pictures), **settings)


def test_a_client_without_samples_is_named(pictures: Dataset) -> None:
    with pytest.raises(FedGAError, match="client 1 of the federation has no samples"):
        simulate(Federation(pictures, np.arange(10), np.array([0, 5, 5, 10])))


def test_a_run_that_diverges_says_so(pictures: Dataset) -> None:
    result = simulate(make_uneven_federation(pictures), algorithm="fedavg", rounds=5, active=2, lr=1e30, clip=None)
    assert result.diverged
    assert len(result.rounds) < 5


def test_a_network_in_double_precision(pictures: Dataset) -> None:
    """Under torch's default dtype, which is not the network's."""
    result = simulate(
        make_uneven_federation(pictures), network(4).double(), "scaffold", rounds=2, active=2, server_average=0.5
    )
    assert result.model[1].weight.dtype == torch.float64
    assert len(result.rounds) == 2


@dataclass(frozen=True)
class Asks(Algorithm):
    """Sends something, which may come from the output layer."""

    output: bool = False

    downloads: ClassVar[tuple[Sent, ...]] = (Sent("mean", "1"),)

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        start = server.last_layer[0] if self.output else server.num_classes
        return {"mean": server.params[start:].mean()}


def test_only_an_algorithm_that_reads_the_output_layer_needs_one(pictures: Dataset) -> None:
    convolution = nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten())
    federation = make_uneven_federation(pictures)
    assert not simulate(federation, convolution, Asks(), rounds=1, active=2).diverged
    with pytest.raises(FedGAError, match=r"the model has no output layer with weights \[4, features\].*nn.Linear"):
        simulate(federation, convolution, Asks(output=True), rounds=1, active=2)
    assert not simulate(federation, network(4), Asks(output=True), rounds=1, active=2).diverged


def test_a_mirrored_digit_is_refused_in_the_words_of_python() -> None:
    federation = make_federation(load_dataset("digits"), clients=8, seed=0, alpha=0.5)
    with pytest.raises(FedGAError, match=r"^augment mirror would turn digits into other symbols"):
        simulate(federation, augment="mirror")


def test_a_rule_and_a_share_may_be_given_as_values() -> None:
    federation = make_federation(load_dataset("digits"), clients=8, seed=0, alpha=0.5)
    settings = {"rounds": 2, "active": 3, "batch_size": 16, "diagnose_every": 1}
    given = simulate(federation, "mlp", "fedavg", select=make_selection("in-turn"), availability=0.5, **settings)
    named = simulate(federation, "mlp", "fedavg", select="in-turn", availability="0.5", **settings)
    assert given.rounds == named.rounds
    assert simulate(federation, "mlp", "fedavg", select=InTurn, availability=0.5, **settings).rounds == named.rounds
    assert given.rounds != simulate(federation, "mlp", "fedavg", **settings).rounds


@dataclass(frozen=True)
class Directions(Algorithm):
    """A head that divides by a length, which rows of zeros do not have."""

    def head(self, features: Tensor, params: Tensors, received: Tensors) -> Tensor:
        *_, weight, _ = params.values()
        return (features / features.norm(dim=-1, keepdim=True)) @ weight.mT


@pytest.mark.parametrize("algorithm", [Directions(), "fedrl", "bandit"], ids=str)
def test_convolutions_whose_batches_have_padding_and_whose_server_takes_gradients(algorithm: Any) -> None:
    federation = make_uneven_federation(make_dataset((1, 16, 16)))
    rule = {"select": "bandit:estimate=auxiliary"} if algorithm == "bandit" else {}
    used = "fedavg" if algorithm == "bandit" else algorithm
    result = simulate(federation, "lenet", used, rounds=2, active=3, batch_size=8, **rule)
    assert all(value.isfinite().all() for value in result.model.state_dict().values())


def test_scaffold_is_refused_a_local_momentum(pictures: Dataset) -> None:
    with pytest.raises(FedGAError, match=r"^momentum 0.9 does not go with SCAFFOLD.*\(server momentum\)"):
        simulate(make_uneven_federation(pictures), "mlp", "scaffold", rounds=1, momentum=0.9)


@pytest.mark.parametrize("shape", [(2,), (1, 2, 2)])
def test_inputs_far_from_1_are_warned_about(shape: tuple[int, ...]) -> None:
    """Grams, or pictures of 0 to 255 that are not uint8; neither where standardisation is asked for."""
    generator = np.random.default_rng(0)
    inputs, targets = generator.uniform(0, 255, (40, *shape)).astype(np.float32), np.arange(40) % 2
    dataset = Dataset("mine", inputs, targets, inputs, targets, ("a", "b"))
    federation = make_federation(dataset, "iid", clients=2, seed=0)
    with pytest.warns(UserWarning, match=r"the largest values in the .* of mine lie between .*: give standardize=True"):
        simulate(federation, "mlp", rounds=1)
    simulate(federation, "mlp", rounds=1, standardize=True)  # a warning would be an error
