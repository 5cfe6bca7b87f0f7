"""Every usual mistake of an algorithm is found, and told in a sentence that says what to do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedga.testing
from fedga.algorithms import (
    ALGORITHMS,
    Algorithm,
    Batch,
    Client,
    RoundResult,
    Sent,
    Server,
    Setup,
    Trained,
    make_algorithm,
)
from fedga.algorithms.checking.battery import check_hooks
from fedga.algorithms.checking.made_up import REAL, SAMPLES
from fedga.errors import FedGAError
from fedga.losses.calibration import ga_loss
from fedga.models import MODELS
from fedga.testing import check_algorithm, check_model


@pytest.mark.parametrize("name", ALGORITHMS)
def test_ours_pass(name: str) -> None:
    done = check_algorithm(name)
    assert "Flower's messages give the same model" in done
    assert ("note: it trains exactly as fedavg does" in done) == (name == "fedavg")
    assert torch.get_default_dtype() == torch.float32


def cross_entropy(batch: Batch) -> Tensor:
    return F.cross_entropy(batch.logits, batch.targets, reduction="none")


def own(**members: Any) -> Algorithm:
    """An algorithm of somebody's own that has these hooks and declarations."""
    return dataclass(frozen=True)(type("Mine", (Algorithm,), members))()


def loss(function: Callable[[Batch], Any]) -> Algorithm:
    return own(local_loss=lambda self, batch: function(batch))


def one_hot_without_classes(batch: Batch) -> Tensor:
    return -(F.one_hot(batch.targets) * F.log_softmax(batch.logits, -1)).sum(-1)


def branches(batch: Batch) -> Tensor:
    return cross_entropy(batch) if batch.logits.max() > 100 else 2 * cross_entropy(batch)


def adds_up(batch: Batch) -> Tensor:
    total = torch.zeros(batch.logits.shape[-1], dtype=batch.logits.dtype)
    total += batch.logits.sum(0)
    return cross_entropy(batch) * total.sum()


def puts(batch: Batch) -> Tensor:
    target = torch.zeros_like(batch.class_counts).repeat(len(batch.targets), 1)
    target = torch.zeros(target.shape, dtype=target.dtype)
    target[torch.arange(len(batch.targets)), batch.targets] = 1
    return -(target * F.log_softmax(batch.logits, -1)).sum(-1)


def writes_into_its_input(batch: Batch) -> Tensor:
    batch.logits.mul_(2)
    return cross_entropy(batch)


CALLS: list[int] = []


def counts_its_calls(batch: Batch) -> Tensor:
    CALLS.append(1)
    return cross_entropy(batch) * len(CALLS)


LOSSES: dict[str, tuple[Callable[[Batch], Any], str]] = {
    "mean": (lambda b: F.cross_entropy(b.logits, b.targets), 'one number for the whole batch.*reduction="none"'),
    "per class": (lambda b: -F.log_softmax(b.logits, -1), r"a number per sample and class: add up .*\.sum\(-1\)"),
    "per client": (lambda b: cross_entropy(b)[:3], rf"gave shape \[3\] for {SAMPLES} samples"),
    "number": (lambda b: 0.5, "gave a float: return a tensor with one number per sample"),
    "batch mean": (lambda b: cross_entropy(b) - cross_entropy(b).mean(), "reads padding.*multiply by batch.mask"),
    "batch ranks": (
        lambda b: cross_entropy(b) * (cross_entropy(b).argsort().argsort() < 8),
        "reads padding.*multiply by batch.mask",
    ),
    "batch maximum": (lambda b: cross_entropy(b) / cross_entropy(b).max(), "reads padding.*multiply by batch.mask"),
    "batch counts": (
        lambda b: cross_entropy(b) * F.one_hot(b.targets, b.logits.shape[-1]).sum(0)[b.targets],
        "reads padding.*multiply by batch.mask",
    ),
    "length": (
        lambda b: cross_entropy(b) * (cross_entropy(b) * b.mask).sum() / len(b.mask),
        "reads padding.*divide by batch.mask.sum",
    ),
    "no sample left": (
        lambda b: cross_entropy(b) - 0.1 * (cross_entropy(b) * b.mask).sum() / b.mask.sum(),
        r"batch of padding alone.*divide by batch.mask.sum\(\).clamp\(min=1\)",
    ),
    "item": (lambda b: cross_entropy(b) * b.logits.max().item(), r"takes a number out of a tensor.*line \d+ of test_"),
    "int": (lambda b: cross_entropy(b) * float(b.class_counts.sum()), "takes a number out of a tensor"),
    "if": (branches, "branches on the value of a tensor.*use torch.where"),
    "mask": (
        lambda b: F.pad(cross_entropy(b)[b.mask > 0], (0, SAMPLES - REAL)),
        "indexes with a mask.*multiply by the mask",
    ),
    "nonzero": (lambda b: cross_entropy(b) * len(b.mask.nonzero()), "size depends on values"),
    "unique": (lambda b: cross_entropy(b) * len(b.targets.unique()), "size depends on values"),
    "in place": (adds_up, r"writes into a tensor it made itself: write x = x \+ y"),
    "index put": (puts, "writes into a tensor it made itself: use torch.where or F.one_hot"),
    "its input": (writes_into_its_input, r"writes into what it was given: .*x = x \+ y \(line \d+ of test_check.py\)"),
    "numpy": (lambda b: cross_entropy(b) * len(b.targets.tolist()), "numbers of Python or NumPy"),
    "one_hot": (one_hot_without_classes, r"F.one_hot\(targets, logits.shape\[-1\]\)"),
    "torch.rand": (lambda b: cross_entropy(b) * torch.rand(1), r"at random.*\(line \d+ of test_check.py\)"),
    "dropout": (lambda b: F.cross_entropy(F.dropout(b.logits), b.targets, reduction="none"), "draws at random"),
    "numpy.random": (lambda b: cross_entropy(b) * random.random(), "something else every time"),
    "remembers": (counts_its_calls, "something else every time|other numbers when it is mapped"),
    "detached": (lambda b: cross_entropy(b).detach(), "does not depend on batch.logits: leave out detach"),
    "log of softmax": (
        lambda b: F.nll_loss(b.logits.softmax(-1).log(), b.targets, reduction="none"),
        "no finite numbers with logits of ±200.*log_softmax",
    ),
    "log of counts": (
        lambda b: F.cross_entropy(b.logits + 0 * b.class_counts.log(), b.targets, reduction="none"),
        "no finite numbers for a client that lacks a class.*class_counts",
    ),
    "teacher": (
        lambda b: cross_entropy(b) + (b.logits - b.global_logits).square().sum(-1),  # type: ignore[operator]
        r"batch.global_logits, which it is not given: declare needs_global_logits: ClassVar\[bool\] = True",
    ),
    "earlier model": (
        lambda b: cross_entropy(b) + (b.logits - b.earlier_logits).square().sum(-1),  # type: ignore[operator]
        "reads batch.earlier_logits, which it is not given: name that model with the hook earlier",
    ),
    "received": (
        lambda b: cross_entropy(b) * b.received["weights"][b.targets],
        "reads 'weights', which it is not given: return it from broadcast, and declare it in downloads",
    ),
    "mask of classes": (
        lambda b: F.cross_entropy(b.logits[:, b.class_counts > 2], b.targets, reduction="none"),
        r"indexes with a mask.*use torch.where \(line \d+ of test_check.py\)",
    ),
    "ten classes": (
        lambda b: F.cross_entropy(b.logits - torch.ones(10), b.targets, reduction="none"),
        r"size of tensor a \(4\).*the check has 4 classes, take their number from batch.logits.shape\[-1\]",
    ),
    "nan": (lambda b: cross_entropy(b) * float("nan"), "no finite numbers for any client: avoid 0/0"),
    "misspelt": (lambda b: b.logit, r"failed, line \d+ of test_check.py raised AttributeError.*no attribute 'logit'"),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("mistake", LOSSES)
def test_mistakes_of_a_loss(mistake: str) -> None:
    function, words = LOSSES[mistake]
    with pytest.raises(FedGAError, match=f"^algorithm Mine: local_loss .*({words})"):
        check_hooks(loss(function))


def stacked_wrongly(self: Any, batch: Batch) -> Tensor:
    return cross_entropy(batch)


SENT = (Sent("share", "classes", "a"),)
ZEROS = {"share": torch.zeros(4, dtype=torch.float64)}

HOOKS: dict[str, tuple[dict[str, Any], str]] = {
    "stack": ({"stacks": True, "local_loss": stacked_wrongly}, "fails.*leave `stacks` out"),
    "stack of counts": (
        {"stacks": True, "local_loss": lambda self, b: F.log_softmax(b.logits, 0)[..., 0]},
        "reads padding|other values for a stack",
    ),
    "stack of the first client's counts": (
        {
            "stacks": True,
            "local_loss": lambda self, b: ga_loss(
                b.logits, b.targets, b.class_counts[0] if b.logits.ndim == 3 else b.class_counts, reduction="none"
            ),
        },
        "other values for a stack",
    ),
    "root of 0": (
        {"penalty": lambda self, params, start: (params - start).square().sum().sqrt()},
        "penalty has no finite gradient where params equal global_params",
    ),
    "misspelt hook": ({"local_los": stacked_wrongly}, "local_los is not a hook: did you mean local_loss"),
    "foreign hook": (
        {"merge": lambda self, updates: updates},
        "merge is not a hook: begin a helper with _; hooks are class_rates, epoch_length",
    ),
    "one upload without a comma": ({"uploads": SENT[0]}, r"uploads is a Sent and not a tuple: write \(Sent.* a comma"),
    "kept without a name": (
        {"report": lambda self, t: ({}, {"drift": t.steps})},
        r"report keeps 'drift', which client_state_spec does not declare: add Sent\(\"drift\", \"1\"\)",
    ),
    "upload of ten classes": (
        {"report": lambda self, t: ({"share": t.class_counts / torch.ones(10)}, {}), "uploads": SENT},
        r"the check has 4 .* from len\(trained.class_counts\)",
    ),
    "size": ({"downloads": (Sent("share", "10"),)}, r'write Sent\("name", SIZE\)'),
    "undeclared download": (
        {"broadcast": lambda self, server: {"share": server.params[:4]}},
        r"broadcast returns 'share', which downloads does not declare: add Sent\(\"share\", \"classes\"",
    ),
    "download of another size": (
        {"broadcast": lambda self, server: {"share": server.params}, "downloads": SENT},
        '"parameters", which downloads declares as "classes"',
    ),
    "download of no size": (
        {"broadcast": lambda self, server: {"share": server.params[:3]}, "downloads": SENT},
        r"of shape \[3\] .*such as \[\], \[classes\] or \[parameters\].*the check has 4 .* from server.num_classes",
    ),
    "download that is not sent": ({"downloads": SENT}, "downloads declares 'share', which broadcast does not return"),
    "undeclared upload": (
        {"report": lambda self, trained: ({"drift": (trained.params - trained.global_params).norm()}, {})},
        r"report returns 'drift', which uploads does not declare: add Sent\(\"drift\", \"1\"",
    ),
    "upload of whole numbers": (
        {"report": lambda self, t: ({"share": torch.zeros(4).long()}, {}), "uploads": SENT},
        "type torch.int64: make it a float tensor",
    ),
    "upload that is not sent": ({"uploads": SENT}, "uploads declares 'share', which report does not return"),
    "report of one": ({"report": lambda self, trained: {}}, "report must return two dictionaries"),
    "kept and not declared": (
        {"client_state": lambda self, params: {"memory": torch.zeros_like(params)}},
        r"client_state returns 'memory', which client_state_spec does not declare: add Sent\(\"memory\", \"para",
    ),
    "kept from the first model": (
        {
            "client_state": lambda self, params: {"memory": params.clone()},
            "client_state_spec": (Sent("memory", "parameters"),),
        },
        "client_state depends on the values of params.*zeros_like",
    ),
    "kept once": (
        {
            "client_state": lambda self, params: {"memory": torch.zeros_like(params)},
            "client_state_spec": (Sent("memory", "parameters"),),
            "report": lambda self, trained: ({}, {}),
        },
        "client_state_spec declares 'memory', which report does not keep: keep it, or declare less",
    ),
    "state that nobody has": (
        {"correct": lambda self, gradient, client: gradient - client.client_state["memory"]},
        "correct reads 'memory', which it is not given: return it from client_state",
    ),
    "report that nobody sends": (
        {"update_server": lambda self, state, result: {"x": result.reports["drift"].mean()}},
        "update_server reads 'drift', which it is not given: return it from report",
    ),
    "survey that is not declared": (
        {"evaluates_all_clients": True},
        r"evaluates_all_clients needs an upload: add Sent\(\"survey\", \"1\"",
    ),
    "survey of a part": (
        {"evaluates_all_clients": True, "travels": lambda self, parameters: []},
        "of which travels leaves a part at the clients: leave out one",
    ),
    "survey that nobody makes": ({"uploads": (Sent("survey", "1"),)}, "evaluates_all_clients is not True"),
    "finish that nobody calls": (
        {"finish": lambda self, server, reports: server.params},
        "has finish without finishes",
    ),
    "final report": ({"final_report": lambda self, client: {}}, "has final_report without finishes"),
    "survey alone": ({"survey": lambda self, batch: batch.mask}, "has survey without evaluates_all_clients"),
    "embed alone": ({"embed": lambda self, features: features}, "has embed without needs_class_features"),
    "moments alone": ({"needs_second_moment": True}, "has needs_second_moment without needs_class_features"),
    "moments by class alone": ({"needs_class_moments": True}, "has needs_class_moments without needs_class_features"),
    "earlier model of another size": (
        {"earlier": lambda self, client: client.global_params[1:]},
        r"earlier gave shape \[27\]: return a vector as long as the one it is given",
    ),
    "survey that is not asked for": (
        {"update_server": lambda self, state, result: {"x": result.survey.mean()}},
        r"update_server reads result.survey, which it is not given: declare evaluates_all_clients",
    ),
    "samples on the server": (
        {"broadcast": lambda self, server: {"share": server.auxiliary.mean()}},
        "broadcast reads server.auxiliary, which it is not given: declare auxiliary_samples",
    ),
    "state that grows": (
        {
            "server_state": lambda self, setup: {"seen": torch.zeros(1)},
            "update_server": lambda self, state, result: {"seen": torch.zeros(2) + result.clients.sum()},
        },
        "update_server makes 'seen' of shape",
    ),
    "state that is dropped": (
        {
            "server_state": lambda self, setup: {"seen": torch.zeros(1)},
            "update_server": lambda self, state, result: {},
        },
        "update_server drops 'seen'",
    ),
    "state of numbers": (
        {"server_state": lambda self, setup: {"seen": 0}},
        "a dictionary of tensors",
    ),
    "state drawn at random": (
        {"server_state": lambda self, setup: {"seen": torch.rand(setup.num_clients)}},
        "server_state draws at random.*fedga.common.streams",
    ),
    "rates per sample": ({"class_rates": lambda self, counts: counts.sum()}, "one finite number from 0 on per class"),
    "an epoch of nothing": ({"epoch_length": lambda self, counts: counts.amin()}, "one finite number of at least 1"),
    "parameters that do not exist": ({"travels": lambda self, parameters: ["body"]}, "travels names 'body'"),
    "a head of another shape": (
        {"head": lambda self, features, params, received: features},
        r"head gave shape .*: return \[samples, classes\]",
    ),
    "groups of a kind": ({"groups": lambda self, server, clients, counts: clients / 2}, "a whole number per active"),
    "a step of another length": (
        {"aggregate": lambda self, server, result, step: result.update[:2]},
        "aggregate gave shape",
    ),
    "weights for all": ({"weights": lambda self, state, clients, shares: shares.sum()}, "one finite number per active"),
    "penalty per parameter": ({"penalty": lambda self, params, start: (params - start) ** 2}, r"as with \.sum\(\)"),
    "penalty of none": ({"penalty": lambda self, params, start: None}, r"penalty gave None \(is a return"),
    "gradient of another length": (
        {"correct": lambda self, g, client: g[:3]},
        "as long as the one it is given",
    ),
}


@pytest.mark.parametrize("mistake", HOOKS)
def test_mistakes_of_other_hooks(mistake: str) -> None:
    members, words = HOOKS[mistake]
    with pytest.raises(FedGAError, match=f"^algorithm Mine: .*({words})"):
        check_hooks(own(**members))


@dataclass(frozen=True)
class AllHooks(Algorithm):
    """Everything at once: clients pull back towards what they kept, as strongly as the server says."""

    pull: float = 0.1

    evaluates_all_clients: ClassVar[bool] = True
    needs_global_logits: ClassVar[bool] = True
    downloads: ClassVar[tuple[Sent, ...]] = (Sent("strength", "1"), Sent("rare", "classes"))
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("survey", "1", "a loss"), Sent("drift", "1", "how far it moved"))
    client_state_spec: ClassVar[tuple[Sent, ...]] = (Sent("before", "parameters"), Sent("rounds", "1"))

    def local_loss(self, batch: Batch) -> Tensor:
        assert batch.global_logits is not None
        drift = (batch.logits - batch.global_logits).square().mean(-1)
        return batch.received["rare"][batch.targets] * cross_entropy(batch) + batch.received["strength"] * drift

    def client_state(self, params: Tensor) -> dict[str, Tensor]:
        return {"before": torch.zeros_like(params), "rounds": torch.zeros((), dtype=params.dtype)}

    def correct(self, gradient: Tensor, client: Client) -> Tensor:
        return gradient + self.pull * client.client_state["before"] / (1 + client.client_state["rounds"])

    def report(self, trained: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        kept = {"before": trained.params, "rounds": trained.client_state["rounds"] + 1}
        return {"drift": (trained.params - trained.global_params).norm()}, kept

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        ones = torch.ones(setup.num_clients, dtype=setup.params.dtype)
        return {"drift": ones, "loss": ones[:1].clone()}

    def broadcast(self, server: Any) -> dict[str, Tensor]:
        drift, loss = server.state["drift"].mean(), server.state["loss"]
        return {"strength": 0.1 * drift, "rare": loss.expand(4)}

    def weights(self, state: Any, clients: Tensor, shares: Tensor) -> Tensor:
        return shares / state["drift"][clients]

    def update_server(self, state: Any, result: RoundResult) -> dict[str, Tensor]:
        assert result.survey is not None
        seen = F.one_hot(result.clients, len(state["drift"])).to(result.survey.dtype)
        drift = state["drift"] * (1 - seen.sum(0)) + result.reports["drift"] @ seen
        return {"drift": drift, "loss": result.survey.mean().reshape(1)}


def test_an_algorithm_with_every_hook_passes() -> None:
    assert "Flower's messages give the same model" in check_algorithm(AllHooks)
    assert len(check_algorithm(AllHooks(pull=0.0))) == len(check_algorithm(AllHooks))


def test_without_flower_the_rest_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedga.testing, "find_spec", lambda name: None)
    assert check_algorithm("fedga")[-1] == "not checked: Flower, which is not installed (pip install 'fedga[flower]')"


MEMORY: dict[str, Tensor] = {}


@dataclass(frozen=True)
class Remembers(Algorithm):
    """Keeps its state where a resumed run, or one beside another, does not find it."""

    def weights(self, state: Any, clients: Tensor, shares: Tensor) -> Tensor:
        return shares

    def correct(self, gradient: Tensor, client: Client) -> Tensor:
        return gradient * _counted()


def _counted() -> float:
    MEMORY.setdefault("calls", torch.zeros(()))
    if torch.get_default_dtype() == torch.float64:  # in training, not while hooks are checked
        MEMORY["calls"] += 1
    return 1 + 0.01 * float(MEMORY["calls"])


def test_state_kept_outside_the_hooks_is_found() -> None:
    with pytest.raises(FedGAError, match=r"params comes out differently .*server_state, client_state"):
        check_algorithm(Remembers)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MODELS)
def test_our_networks_pass(name: str) -> None:
    shape = (3, 8, 8) if name == "resnet20" else (1, 16, 16)
    assert check_model(name, shape)[0] == "the engine gives the model of the plain loop"


class Forgetful(nn.Module):
    """A network whose output depends on how often it was called."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.calls = 0
        self.output = nn.Linear(input_shape[1] * input_shape[2], num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.output(inputs.flatten(1)) * self.calls


def test_a_network_that_keeps_something_outside_its_buffers() -> None:
    with pytest.raises(FedGAError, match=r"model .*Forgetful: .*comes out differently"):
        check_model(Forgetful)


@dataclass(frozen=True)
class Switches(Algorithm):
    steps: int = 3
    fast: bool = False
    LARGEST = 100.0

    def local_loss(self, batch: Batch) -> Tensor:
        return cross_entropy(batch)


@dataclass(frozen=True)
class Helped(Switches):
    """A public method that a hook calls is nobody's mistake."""

    def local_loss(self, batch: Batch) -> Tensor:
        return (lambda: self.sharper(batch))()

    def sharper(self, batch: Batch) -> Tensor:
        return 2 * cross_entropy(batch)


def test_helpers_may_be_public() -> None:
    assert make_algorithm(Helped).local_loss is not None


def written_wrongly(**members: Any) -> type[Algorithm]:
    return dataclass(frozen=True)(type("Mine", (Switches,), members))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            {"beta": 2.0},
            r"^beta of Mine has no type, .*: write beta: float = 2.0, or beta: ClassVar\[float\] = 2.0 for",
        ),
        ({"steps": 5}, r"^steps of Mine has no type, .*: write steps: int = 5"),
        (
            {"citation": "me", "__annotations__": {"citation": str}},
            r"^citation of Mine is written as an option: write citation: ClassVar\[str\]",
        ),
        ({"uploads": SENT[0]}, r"^Mine: uploads is a Sent and not a tuple"),
        ({"uploads": list(SENT)}, r"^Mine: uploads is a list and not a tuple: write \(Sent\(...\),\)$"),
    ],
)
def test_mistakes_of_a_class(members: dict[str, Any], words: str) -> None:
    with pytest.raises(FedGAError, match=words):
        make_algorithm(written_wrongly(**members))


def test_a_class_without_hooks_is_refused() -> None:
    with pytest.raises(FedGAError, match=r"Mine has none of the hooks .*, and would train as fedavg does"):
        make_algorithm(own())


@dataclass(frozen=True)
class Old(Algorithm):
    def server_state(self, params: Tensor, num_clients: int) -> dict[str, Tensor]:  # type: ignore[override]
        return {}


@dataclass(frozen=True)
class Assigns(Algorithm):
    def local_loss(self, batch: Batch) -> Tensor:
        self.seen = batch.logits  # type: ignore[misc]
        return cross_entropy(batch)


def test_signatures_and_assignments() -> None:
    with pytest.raises(FedGAError, match=r"server_state is called .*: write def server_state\(self, setup"):
        check_hooks(Old())
    with pytest.raises(
        FedGAError, match=r"local_loss assigns to self.*client_state or server_state \(line \d+ of test_"
    ):
        check_hooks(Assigns())


@dataclass(frozen=True)
class RareClasses(Algorithm):
    """Clients tell how many samples of each class they have; the server weights classes by what it has heard."""

    downloads: ClassVar[tuple[Sent, ...]] = (Sent("class_weights", "classes", "how rare each class is overall"),)
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("class_counts", "classes", "its samples of every class"),)

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"counts": setup.params.new_ones(setup.num_classes)}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        counts = server.state["counts"]
        assert server.auxiliary is None
        assert server.last_layer[1][0] == server.num_classes == len(counts)
        return {"class_weights": counts.sum() / (server.num_classes * counts)}

    def local_loss(self, batch: Batch) -> Tensor:
        return batch.received["class_weights"][batch.targets] * cross_entropy(batch)

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"class_counts": trained.class_counts}, {}

    def update_server(self, state: Any, result: RoundResult) -> dict[str, Tensor]:
        return {"counts": state["counts"] + result.reports["class_counts"].sum(0)}


def test_class_weights_from_reported_counts_train_alike_everywhere() -> None:
    done = check_algorithm(RareClasses)
    assert "Flower's messages give the same model" in done
    assert "note: it trains exactly as fedavg does" not in done


class Normed(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


def test_a_network_with_batch_normalisation_passes() -> None:
    assert check_model(Normed)[0] == "the engine gives the model of the plain loop"


class Branching(Normed):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs) if inputs.sum() > 0 else self.layers(-inputs)


def test_a_network_that_branches_is_told_its_line() -> None:
    with pytest.raises(
        FedGAError, match=r"it branches on the value .*: use torch.where instead \(line \d+ of test_check"
    ):
        check_model(Branching)


def test_options_by_class_and_by_type() -> None:
    assert make_algorithm(Switches, steps="4", fast="TRUE") == Switches(4, True)
    assert make_algorithm(Switches(7)) == Switches(7)
    assert make_algorithm(Switches, fast=False) == Switches()
    for options, words in (
        ({"steps": 2.5}, "--algorithm Switches: steps must be a whole number, not 2.5"),
        ({"fast": "perhaps"}, "--algorithm Switches: fast must be true or false"),
        ({"LARGEST": 1}, "unknown option of Switches 'LARGEST'"),
    ):
        with pytest.raises(FedGAError, match=words):
            make_algorithm(Switches, **options)


def test_harmless_names_are_let_alone() -> None:
    """An option, or a helper of the class's own, may be called nearly as a hook is."""

    @dataclass(frozen=True)
    class Weighted(Algorithm):
        weight: float = 0.5

        def local_loss(self, batch: Batch) -> Tensor:
            return self._local_loss(batch) * self.weight

        def _local_loss(self, batch: Batch) -> Tensor:
            kept = (cross_entropy(batch) * batch.mask).sum() / batch.mask.sum().clamp(min=1)
            return cross_entropy(batch) - 0.1 * kept

    assert "Flower's messages give the same model" in check_algorithm(Weighted)
