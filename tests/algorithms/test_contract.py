"""What the contract allows beyond FedAvg: algorithms of the field's kinds, equal on engine, plain loop and Flower."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedga import simulate
from fedga.algorithms import (
    Algorithm,
    Batch,
    Client,
    RoundResult,
    Sent,
    Server,
    Setup,
    Trained,
    make_algorithm,
    option,
)
from fedga.algorithms.base import Tensors, cross_entropy
from fedga.algorithms.parameters import Parameters, centralize
from fedga.algorithms.scaffold import SCAFFOLD
from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.reference import Reference
from fedga.engine.stack.lanes import stacking_key
from fedga.errors import FedGAError
from fedga.testing import check_algorithm, make_federation
from tests.engine.runs import EXACT, assert_same_state, make_lane, reference_state, train


@dataclass(frozen=True)
class OwnHead(Algorithm):
    """FedPer: every client keeps its head."""

    def travels(self, parameters: Parameters) -> Collection[str]:
        return [name for name in parameters.shapes if name not in parameters.head]


@dataclass(frozen=True)
class FixedHead(Algorithm):
    """FedBABU: the head stands still."""

    def moves(self, parameters: Parameters) -> Collection[str]:
        return [name for name in parameters.shapes if name not in parameters.head]


@dataclass(frozen=True)
class Decorrelated(Algorithm):
    """A penalty on features, and a pull towards those of the received model."""

    beta: float = 0.1
    needs_features: ClassVar[bool] = True
    needs_global_logits: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        assert batch.features is not None
        assert batch.global_features is not None
        assert batch.round is not None
        strength = self.beta / batch.round
        distance = (batch.features - batch.global_features).square().sum(-1)
        return cross_entropy(batch.logits, batch.targets) + strength * distance


@dataclass(frozen=True)
class Lookahead(Algorithm):
    """FedACG: clients start from the model moved on by the server's momentum, which is the server's own step."""

    momentum: float = option(0.5, least=0, below=1)
    downloads: ClassVar[tuple[Sent, ...]] = (Sent("velocity", "parameters"),)

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"velocity": torch.zeros_like(setup.params)}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"velocity": server.state["velocity"]}

    def start(self, client: Client) -> Tensor:
        return client.global_params + self.momentum * client.received["velocity"]

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        return {"velocity": result.update}

    def aggregate(self, server: Server, result: RoundResult, step: Callable[[Tensor], Tensor]) -> Tensor:
        return server.params + server.state["velocity"]


@dataclass(frozen=True)
class Trimmed(Algorithm):
    """A look at single models: clients far from the others count less in the next round."""

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"trust": torch.ones(setup.num_clients, dtype=setup.params.dtype)}

    def inspect(self, server: Server, client_params: Tensor) -> dict[str, Tensor]:
        return {"distance": (client_params - client_params.mean(0)).norm(dim=1)}

    def weights(self, state: Tensors, clients: Tensor, shares: Tensor) -> Tensor:
        return shares * state["trust"][clients]

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        seen = F.one_hot(result.clients, len(state["trust"])).to(result.update.dtype)
        near = 1 / (1 + result.reports["distance"])
        return {"trust": torch.where(seen.sum(0) > 0, near @ seen, state["trust"])}


@dataclass(frozen=True)
class InPairs(Algorithm):
    """Astraea's mediators: two clients after one another, the second from the first one's model."""

    size: int = option(2, least=1)

    def groups(self, server: Server, clients: Tensor, class_counts: Tensor) -> Tensor:
        return torch.arange(len(clients)) // self.size


@dataclass(frozen=True)
class RefittedHead(Algorithm):
    """A head in closed form after the last round, from sums over clients: ridge regression on the features."""

    needs_class_features: ClassVar[bool] = True
    needs_second_moment: ClassVar[bool] = True
    finishes: ClassVar[bool] = True
    final_uploads: ClassVar[tuple[Sent, ...]] = (
        Sent("sums", "classes×features", "class means", summed=True),
        Sent("moment", "features×features", "the features' second moment", summed=True),
    )

    def final_report(self, client: Trained) -> dict[str, Tensor]:
        assert client.class_features is not None
        assert client.second_moment is not None
        return {"sums": client.class_features, "moment": client.second_moment}

    def finish(self, server: Server, reports: Tensors) -> Tensor:
        moment = reports["moment"].sum(0)
        weight = torch.linalg.solve(moment + torch.eye(len(moment), dtype=moment.dtype), reports["sums"].sum(0).T).T
        layers = server.parameters
        return layers.map(lambda name, part: weight if name == layers.head[0] else part, server.params)


@dataclass(frozen=True)
class AsOneWouldWriteIt(Algorithm):
    """Products of what hooks are given, a gradient divided by its norm: nothing a newcomer must know."""

    needs_features: ClassVar[bool] = True
    needs_class_features: ClassVar[bool] = True
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("sums", "features×classes", "class means", summed=True),)

    def class_rates(self, class_counts: Tensor) -> Tensor:
        return torch.where(class_counts > 0, 1.0, 0.0)

    def local_loss(self, batch: Batch) -> Tensor:
        assert batch.features is not None
        mean = batch.mask @ batch.features / batch.mask.sum().clamp(min=1)
        spread = (batch.features - mean).square().sum(-1)
        frequent = batch.logits.softmax(-1) @ batch.class_counts
        return cross_entropy(batch.logits, batch.targets) + 0.01 * (spread + frequent)

    def gradient(self, at: Callable[[Tensor], Tensor], params: Tensor, client: Client) -> Tensor:
        gradient = at(params)
        return at(params + 0.05 * gradient / gradient.norm())

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        assert trained.class_features is not None
        return {"sums": trained.class_features.T}, {}


@dataclass(frozen=True)
class Decayed(Algorithm):
    """No sample is looked at; the longer a client trained, the more it decays the next time."""

    client_state_spec: ClassVar[tuple[Sent, ...]] = (Sent("pace", "1"),)
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("moved", "parameters"),)

    def client_state(self, params: Tensor) -> dict[str, Tensor]:
        return {"pace": params.new_zeros(())}

    def gradient(self, at: Callable[[Tensor], Tensor], params: Tensor, client: Client) -> Tensor:
        return (0.01 + client.client_state["pace"]) * params

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"moved": trained.params - trained.global_params}, {"pace": trained.steps.sqrt()}

    def aggregate(self, server: Server, result: RoundResult, step: Callable[[Tensor], Tensor]) -> Tensor:
        return step(result.reports["moved"].sum(0))


OTHERS = [OwnHead, FixedHead, Decorrelated, Lookahead, Trimmed, InPairs, RefittedHead, AsOneWouldWriteIt]


@pytest.mark.parametrize("kind", [*OTHERS, Decayed])
def test_an_algorithm_of_another_kind_is_the_same_everywhere(kind: type[Algorithm]) -> None:
    done = check_algorithm(kind)
    alone = "it trains alone: runs whose clients train in groups are not stacked"
    assert done[-2] == (alone if kind is InPairs else "other runs beside it change nothing")
    assert done[-1] == "Flower's messages give the same model"


def final_params(dataset: Dataset, algorithm: Algorithm, **settings: Any) -> Tensor:
    lane = make_lane(dataset, **{"diagnose_every": 0, "rounds": 3} | settings)
    data = DeviceData(dataset, torch.device("cpu"), torch.get_default_dtype())
    return train([replace(lane, algorithm=algorithm)], data, 3).stack.params[0]


@dataclass(frozen=True)
class Clamped(Algorithm):
    """Rates of classes that a client lacks mean nothing."""

    power: float = 1.0

    def class_rates(self, class_counts: Tensor) -> Tensor:
        return class_counts.clamp(min=1) ** self.power


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "same",
    [
        make_algorithm("fedsam", rho=0),
        make_algorithm("feddyn", alpha=0),
        make_algorithm("resample", power=1),
        Clamped(),
        make_algorithm("fedinit", beta=0),
        make_algorithm("fedlesam", rho=0),
        make_algorithm("fedacg", momentum=0, mu=0),
        make_algorithm("fedexp", epsilon=1e9),
        make_algorithm("astraea", members=1, rebalance=0),
        Lookahead(momentum=0.0),
        InPairs(size=1),
    ],
)
def test_is_fedavg_where_its_option_says_so(pictures: Dataset, same: Algorithm) -> None:
    plain = final_params(pictures, make_algorithm("fedavg"))
    assert torch.allclose(final_params(pictures, same), plain, **EXACT)
    options = [name for name in ("rho", "alpha", "beta", "momentum", "power", "size", "members") if hasattr(same, name)]
    for name in options:  # and is not where it says otherwise
        other = replace(same, **{name: type(getattr(same, name))(2 if name in ("size", "members") else 0.3)})
        assert not torch.allclose(final_params(pictures, other), plain, atol=1e-6)


@pytest.mark.usefixtures("float64")
def test_fednh_with_fixed_prototypes_trains_on_a_fixed_head(pictures: Dataset) -> None:
    """ρ = 1: nobody moves the prototypes, and the body is that of a network with them as its normalised head."""

    @dataclass(frozen=True)
    class Fixed(FixedHead):
        prototypes: ClassVar[Tensor]

        def head(self, features: Tensor, params: Tensors, received: Tensors) -> Tensor:
            return 10 * F.normalize(features, dim=-1) @ self.prototypes.mT

    fednh = make_algorithm("fednh", rho=1)
    lane = make_lane(pictures)
    parameters = Parameters(lane.model)
    setup = Setup(torch.zeros(1), 6, pictures.num_classes, parameters)
    Fixed.prototypes = fednh.server_state(setup)["prototypes"]
    rows = Fixed.prototypes @ Fixed.prototypes.T
    assert torch.allclose(rows, torch.eye(len(rows)), atol=1e-9)
    assert torch.allclose(final_params(pictures, fednh), final_params(pictures, Fixed()), **EXACT)
    moved = final_params(pictures, make_algorithm("fednh", rho=0.5))
    assert not torch.allclose(moved, final_params(pictures, fednh), atol=1e-6)


@pytest.mark.usefixtures("float64")
def test_resampling_draws_classes_at_their_rates_and_is_reweighting_on_average(pictures: Dataset) -> None:
    lane = make_lane(pictures, algorithm="resample", local_epochs=400, active=1, diagnose_every=0, batch_size=1000)
    data = DeviceData(pictures, torch.device("cpu"), torch.get_default_dtype())
    engine = train([lane], data, 0)
    engine.round = 1
    chosen = engine.server.select(1)
    slots = engine._slots(slice(0, 1), chosen, [{}])
    labels = data.train_targets[slots.samples[0]][slots.plan.mask[0] > 0]
    counts = lane.federation.class_counts[int(chosen.clients[0, 0])]
    drawn = torch.bincount(labels, minlength=pictures.num_classes).double() / len(labels)
    present = torch.from_numpy(counts > 0)
    assert torch.equal(drawn > 0, present)
    expected = present.double() / present.sum()
    assert (drawn - expected).abs().max() < 4 * (0.25 / len(labels)) ** 0.5


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("epoch", ["over", "under"])
def test_longer_and_shorter_epochs(pictures: Dataset, epoch: str) -> None:
    lane = make_lane(pictures, algorithm=f"resample:epoch={epoch}", diagnose_every=0)
    data = DeviceData(pictures, torch.device("cpu"), torch.get_default_dtype())
    engine, reference = train([lane], data, 2), Reference(lane, data)
    for _ in range(2):
        reference.run_round()
    assert_same_state(engine.stack.states()[0], reference_state(reference, engine), **EXACT)
    counts = torch.from_numpy(lane.federation.class_counts).double()
    edge = [row[row > 0].max() if epoch == "over" else row[row > 0].min() for row in counts]
    expected = torch.stack([(row > 0).sum() * value for row, value in zip(counts, edge, strict=True)])
    assert torch.equal(engine.planner.lengths[0].double(), expected)


def test_a_client_with_its_own_head_is_scored_on_its_own_label_mix(pictures: Dataset) -> None:
    lane = replace(make_lane(pictures, rounds=4, diagnose_every=0), algorithm=OwnHead())
    data = DeviceData(pictures, torch.device("cpu"))
    engine = train([lane], data, 3)
    [result] = engine.run_round()
    assert result.metrics is not None
    assert set(result.metrics) == {"client_accuracy"}  # there is no global head to test
    counts, scores = torch.from_numpy(lane.federation.class_counts).double(), []
    segment = engine.segments[0]
    assert segment.own is not None
    for client, row in enumerate(counts):
        params = engine.stack.params[0].clone()
        params[segment.own.params] = segment.client_state["own params"][0, client]
        found = engine.evaluator.evaluate(params[None], engine.stack.buffers, [0], 4).confusion[0].double()
        recall = found.diagonal() / found.sum(1)
        scores.append((recall * row).sum() / row.sum())
    assert result.metrics["client_accuracy"] == pytest.approx(torch.stack(scores).mean().item())


def test_centralising_a_gradient_takes_the_mean_over_inputs_from_matrices(pictures: Dataset) -> None:
    parameters = Parameters(make_lane(pictures).model)
    gradient = torch.randn(parameters.total, generator=torch.Generator().manual_seed(0))
    before, after = parameters.views(gradient), parameters.views(centralize(parameters, gradient))
    for name, part in after.items():
        if part.dim() > 1:
            assert part.flatten(1).mean(1).abs().max() < 1e-6
            assert torch.allclose(before[name] - part, (before[name] - part)[:, :1].expand_as(part), atol=1e-6)
        else:
            assert torch.equal(part, before[name])


# --- algorithms of version 0.1 ---------------------------------------------------------------------------------------


def test_an_algorithm_of_version_0_1_runs_with_a_warning_that_names_the_new_hook() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")

        @dataclass(frozen=True)
        class Old(Algorithm):
            keeps: ClassVar[tuple[Sent, ...]] = (Sent("seen", "parameters"),)
            surveys: ClassVar[bool] = True
            uploads: ClassVar[tuple[Sent, ...]] = (Sent("survey", "1", "a loss"),)

            def client_state(self, params: Tensor) -> dict[str, Tensor]:
                return {"seen": torch.zeros_like(params)}

            def correct(self, gradient: Tensor, client_state: Tensors, received: Tensors) -> Tensor:  # type: ignore
                return gradient - 0.1 * client_state["seen"]

            def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
                return {}, {"seen": trained.params - trained.global_params}

            def server_state(self, params: Tensor, num_clients: int, num_classes: int) -> dict[str, Tensor]:  # type: ignore
                return {"loss": torch.zeros(num_clients, device=params.device)}

            def select(self, state: Tensors, draws: Tensor, active: int) -> Tensor:
                return torch.topk(draws - 1e-9 * state["loss"], active, largest=False).indices

            def update_server(  # type: ignore
                self, state: Tensors, clients: Tensor, reports: Tensors, survey: Tensor | None
            ) -> dict[str, Tensor]:
                assert survey is not None
                return {"loss": survey}

    said = " ".join(str(one.message) for one in found)
    assert all(one.category is FutureWarning for one in found)
    for new in (
        "client_state_spec",
        "evaluates_all_clients",
        "correct(self, gradient, client)",
        "server_state(self, setup)",
        "update_server(self, state, result)",
        "--select",
    ):
        assert new in said
    assert check_algorithm(Old)[-1] == "Flower's messages give the same model"


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_algorithm_of_version_0_1_calls_the_one_it_extends_as_it_did(pictures: Dataset) -> None:
    @dataclass(frozen=True)
    class Old(SCAFFOLD):
        def correct(self, gradient: Tensor, client_state: Tensors, received: Tensors) -> Tensor:  # type: ignore
            return 0.5 * super().correct(gradient, client_state, received)  # type: ignore

        def server_state(self, params: Tensor, num_clients: int, num_classes: int) -> dict[str, Tensor]:  # type: ignore
            return super().server_state(params, num_clients, num_classes)  # type: ignore

        def update_server(self, state, clients, reports, survey):  # type: ignore
            return super().update_server(state, clients, reports, survey)

    @dataclass(frozen=True)
    class Older(Old):
        def correct(self, gradient: Tensor, client_state: Tensors, received: Tensors) -> Tensor:  # type: ignore
            return 2 * super().correct(gradient, client_state, received)  # type: ignore

    lane = make_lane(pictures, rounds=2, diagnose_every=0)
    data = DeviceData(pictures, torch.device("cpu"))
    models = [train([replace(lane, algorithm=algorithm)], data, 2) for algorithm in (Older(), SCAFFOLD())]
    assert torch.equal(models[0].stack.params, models[1].stack.params)


HEAD_OF_PARAMETERS_ALONE = """
from dataclasses import dataclass
from fedga.algorithms import Algorithm

@dataclass(frozen=True)
class Backwards(Algorithm):
    def head(self, features, params, received):
        [*_, weight] = [value for value in params.values() if value.dim() == 2]
        return (features @ weight.mT).flip(-1)
"""


@pytest.mark.parametrize("name", ["fednh", "backwards"])
def test_a_model_with_a_head_of_its_own_is_returned_and_saved_with_it(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedga import data
    from fedga.spec.settings import RunSpec
    from fedga.store.store import Store
    from fedga.study.model_files import load_model, model_path
    from fedga.study.sweep import run_sweep

    (tmp_path / "backwards.py").write_text(HEAD_OF_PARAMETERS_ALONE)
    (tmp_path / "fedga.toml").write_text('[algorithms]\nbackwards = "backwards.py:Backwards"\n')
    monkeypatch.setenv("FEDGA_PROJECT", str(tmp_path / "fedga.toml"))
    federation = data.make_federation(data.load_dataset("digits"), clients=10, seed=0, alpha=0.5)
    settings = {"rounds": 3, "active": 5, "batch_size": 16}
    result = simulate(federation, "mlp", name, **settings)
    test = torch.from_numpy(federation.dataset.test_inputs) / federation.dataset.input_scale
    targets = torch.from_numpy(federation.dataset.test_targets)
    accuracy = (result.model(test).argmax(-1) == targets).double().mean().item()
    assert accuracy == pytest.approx(result.rounds[-1]["accuracy"])

    spec = RunSpec(dataset="digits", alpha=0.5, clients=10, algorithm=name, **settings)
    with Store(tmp_path) as store:
        run_sweep([spec], store, torch.device("cpu"))
    saved = load_model(model_path(tmp_path, spec))
    assert torch.allclose(saved.model(test), result.model(test), atol=1e-5)


# --- what combinations of hooks once got wrong -----------------------------------------------------------------------


@dataclass(frozen=True)
class LongerEpochs(Algorithm):
    """Half as many samples again as a client holds, classes as they occur."""

    def epoch_length(self, class_counts: Tensor) -> Tensor:
        return 1.5 * class_counts.sum()


@dataclass(frozen=True)
class PairsWithOwnHeads(OwnHead, InPairs):
    """Members of a pair share all but their heads."""


@dataclass(frozen=True)
class NoticedHeads(OwnHead, Trimmed):
    """A look at single models, of which the server has no heads."""


@dataclass(frozen=True)
class TwoPasses(Algorithm):
    """A gradient a step away."""

    def gradient(self, at: Callable[[Tensor], Tensor], params: Tensor, client: Client) -> Tensor:
        return at(params - 0.1 * at(params))


@dataclass(frozen=True)
class AtTheEnd(OwnHead):
    """What clients know after the last round, own heads included, moves the model."""

    finishes: ClassVar[bool] = True
    auxiliary_samples: ClassVar[int] = 2
    final_uploads: ClassVar[tuple[Sent, ...]] = (Sent("model", "parameters", "its model"),)

    def final_report(self, client: Trained) -> dict[str, Tensor]:
        return {"model": client.params * client.lr}

    def finish(self, server: Server, reports: Tensors) -> Tensor:
        assert server.auxiliary is not None
        return server.params + reports["model"].mean(0) + server.auxiliary.mean()


@dataclass(frozen=True)
class AskedWithPrototypes(type(make_algorithm("fednh"))):  # type: ignore[misc]
    """Every client is asked about the received model, which needs the head that the server sends."""

    evaluates_all_clients: ClassVar[bool] = True
    uploads: ClassVar[tuple[Sent, ...]] = (
        *type(make_algorithm("fednh")).uploads,
        Sent("survey", "1", "a client's loss"),
    )

    def weights(self, state: Tensors, clients: Tensor, shares: Tensor) -> Tensor:
        return shares * state["asked"][clients]

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return super().server_state(setup) | {"asked": setup.params.new_ones(setup.num_clients)}

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        assert result.survey is not None
        return super().update_server(state, result) | {"asked": result.survey}


COMBINED: list[tuple[Algorithm, dict[str, Any]]] = [
    (LongerEpochs(), {}),
    (InPairs(), {"active": 4, "availability": "0.4"}),
    (InPairs(), {"active": 4, "select": "bandit"}),
    (Trimmed(), {"active": 4, "availability": "0.4"}),
    (PairsWithOwnHeads(), {"active": 4, "model": "tests.engine.runs:Mixing"}),
    (NoticedHeads(), {"active": 4}),
    (FixedHead(), {"model": "tests.engine.runs:Mixing"}),
    (TwoPasses(), {"model": "tests.engine.test_moving_buffers:Assigned", "stragglers": 0.9}),
    (AtTheEnd(), {"rounds": 3, "lr_schedule": "cosine"}),
    (AskedWithPrototypes(), {}),
]


@pytest.mark.parametrize(("algorithm", "settings"), COMBINED, ids=lambda given: type(given).__name__)
def test_combinations_train_as_the_plain_loop_does(
    pictures: Dataset, exact_data: DeviceData, algorithm: Algorithm, settings: dict[str, Any]
) -> None:
    lane = replace(make_lane(pictures, diagnose_every=0, **settings), algorithm=algorithm)
    engine, reference = train([lane], exact_data, 3), Reference(lane, exact_data)
    for _ in range(3):
        reference.run_round()
    assert_same_state(engine.stack.states()[0], reference_state(reference, engine), **EXACT)


@dataclass(frozen=True)
class HeadAlone(Algorithm):
    def moves(self, parameters: Parameters) -> Collection[str]:
        return parameters.head


@pytest.mark.parametrize("affine", [True, False])
def test_statistics_of_a_frozen_backbone_stand_still(pictures: Dataset, affine: bool) -> None:
    federation = make_federation(pictures, (20, 20, 20))
    body = (nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, affine=affine))
    network = nn.Sequential(*body, nn.Linear(8, 4), nn.BatchNorm1d(4, affine=False))
    network[1].requires_grad_(False)
    result = simulate(federation, network, HeadAlone(), rounds=2, active=2)
    before, after = network.state_dict(), result.model.state_dict()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved - {"4.num_batches_tracked"} == {"3.weight", "3.bias", "4.running_mean", "4.running_var"}


def test_a_returned_model_can_be_trained_further_by_another_algorithm(pictures: Dataset) -> None:
    federation = make_federation(pictures, (20, 20, 20))
    result = simulate(federation, "mlp", FixedHead(), rounds=1, active=2)
    assert all(parameter.requires_grad for parameter in result.model.parameters())
    further = simulate(federation, result.model, HeadAlone(), rounds=1, active=2).model.state_dict()
    moved = {name for name, value in result.model.state_dict().items() if not torch.equal(value, further[name])}
    assert moved == {"output.weight", "output.bias"}


def test_a_client_with_no_class_to_draw_is_refused(pictures: Dataset) -> None:
    @dataclass(frozen=True)
    class FirstClassAlone(Algorithm):
        def class_rates(self, class_counts: Tensor) -> Tensor:
            return torch.where(torch.arange(len(class_counts)) > 1, class_counts, 0.0)

    with pytest.raises(FedGAError, match="draws none of the classes that client 0 holds: give one of them a rate"):
        simulate(make_federation(pictures, (20, 20, 20)), "mlp", FirstClassAlone(), rounds=1, active=2)


def test_rules_that_read_a_head_which_stands_still_are_refused_before_training(pictures: Dataset) -> None:
    with pytest.raises(FedGAError, match="select bandit reads how training moves the bias"):
        simulate(make_federation(pictures, (20, 20, 20)), "mlp", FixedHead(), rounds=1, active=2, select="bandit")


def test_statistics_of_frozen_layers_stand_still(pictures: Dataset, exact_data: DeviceData) -> None:
    lane = replace(make_lane(pictures, model="tests.engine.runs:Mixing", diagnose_every=0), algorithm=HeadAlone())
    engine = train([lane], exact_data, 0)
    before = engine.stack.buffers.clone()
    engine.run_round()
    assert torch.equal(engine.stack.buffers, before)
    assert {name for name in engine.model.stands_still if "running" in name} == {
        "layers.2.running_mean",
        "layers.2.running_var",
    }


def test_a_head_of_ones_own_goes_with_two_rules_in_one_engine(pictures: Dataset, pictures_data: DeviceData) -> None:
    rules = enumerate(("uniform", "in-turn"))
    lanes = [make_lane(pictures, algorithm="fednh", select=rule, seed=seed) for seed, rule in rules]
    engine = train(lanes, pictures_data, 1)
    together = [result.metrics for result in engine.run_round()]
    for lane, metrics in zip(lanes, together, strict=True):
        [alone] = train([lane], pictures_data, 1).run_round()
        assert metrics == pytest.approx(alone.metrics, rel=1e-4)


def test_what_stands_still_is_not_stacked_with_what_was_frozen_before(
    pictures: Dataset, exact_data: DeviceData
) -> None:
    class Backbone(nn.Module):
        def __init__(self, shape: tuple[int, ...], classes: int) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)).requires_grad_(False)
            self.head = nn.Linear(8, classes)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.body(inputs))

    lane = make_lane(pictures, model=Backbone, diagnose_every=0)
    assert stacking_key(lane) != stacking_key(replace(lane, algorithm=HeadAlone()))


def test_a_rule_that_reads_the_head_needs_one_that_travels(pictures: Dataset) -> None:
    federation = make_federation(pictures, (20, 20, 20))
    with pytest.raises(FedGAError, match="bandit reads the head, which stays at the clients"):
        simulate(federation, "mlp", OwnHead(), rounds=1, active=2, select="bandit")


@dataclass(frozen=True)
class HeadByCount(FixedHead):
    """Logits that depend on how many parameters the head is given."""

    def head(self, features: Tensor, params: Tensors, received: Tensors) -> Tensor:
        return features.roll(len(params), -1)[:, :4] * next(iter(params.values())).mean().exp()


def test_a_returned_models_head_is_given_what_was_trained(pictures: Dataset) -> None:
    result = simulate(make_federation(pictures, (20, 20, 20)), "mlp", HeadByCount(), rounds=2, active=2)
    outputs = result.model(torch.from_numpy(pictures.test_inputs) / pictures.input_scale)
    accuracy = (outputs.argmax(-1) == torch.from_numpy(pictures.test_targets)).double().mean().item()
    assert accuracy == pytest.approx(result.rounds[-1]["accuracy"])


@dataclass(frozen=True)
class Idle(Algorithm):
    """As one trains adapters, of which few networks have any."""

    def moves(self, parameters: Parameters) -> Collection[str]:
        return [name for name in parameters.shapes if name.startswith("idle")]


def test_parameters_that_move_must_be_there_and_reach_the_loss(pictures: Dataset) -> None:
    idle = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(FedGAError, match="no trainable parameters"):
        simulate(make_federation(pictures, (20, 20, 20)), idle, Idle(), rounds=1, active=2)
    idle.register_parameter("idle", nn.Parameter(torch.ones(3)))
    with pytest.raises(FedGAError, match="nothing that is trained reaches the loss: let `moves` name"):
        simulate(make_federation(pictures, (20, 20, 20)), idle, Idle(), rounds=1, active=2)


def test_runs_that_need_features_are_not_stacked_with_others(pictures: Dataset) -> None:
    """A network that has none to give would fail them all."""
    plain, asking = make_lane(pictures), replace(make_lane(pictures), algorithm=Decorrelated())
    assert stacking_key(plain) != stacking_key(asking)


def test_features_are_those_of_the_layer_that_gives_the_output(pictures: Dataset) -> None:
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(8, 4), nn.Linear(64, 8)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.body(inputs.flatten(1)).relu())

    federation = make_federation(pictures, (20, 20, 20))
    assert simulate(federation, HeadFirst(), "fedavg", rounds=1, active=2).rounds
    with pytest.raises(FedGAError, match=r"does not return the output of body.*make its output layer the last one"):
        simulate(federation, HeadFirst(), "fednh", rounds=1, active=2)


def test_prototypes_of_classes_that_nobody_holds_stay(pictures: Dataset) -> None:
    nh = make_algorithm("fednh", rho=0)
    before = torch.eye(3)
    result = RoundResult(1, torch.tensor([0]), torch.ones(1), torch.zeros(1), {"class_sums": torch.zeros(1, 3, 3)})
    result.reports["class_sums"][0, 1] = torch.tensor([3.0, 0.0, 4.0])
    after = nh.update_server({"prototypes": before}, result)["prototypes"]
    assert torch.allclose(after, torch.tensor([[1.0, 0, 0], [0.6, 0, 0.8], [0, 0, 1]]))


def test_no_client_is_diagnosed_by_a_model_that_it_did_not_receive(
    pictures: Dataset, pictures_data: DeviceData
) -> None:
    @dataclass(frozen=True)
    class OwnNormalization(Algorithm):
        def travels(self, parameters: Parameters) -> Collection[str]:
            return [name for name in parameters.shapes if name not in parameters.normalization]

    lane = make_lane(pictures, model="tests.engine.runs:Mixing", diagnose_every=1)
    engine = Engine([replace(lane, algorithm=OwnNormalization())], pictures_data)
    [result] = engine.run_round()
    assert result.metrics is not None
    assert not result.clients
    assert "client_accuracy" in result.metrics
