"""What an algorithm asks for beyond FedAvg, and that those for which sums suffice compute with sums alone."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms import ALGORITHMS, Algorithm, RoundResult, Sent, Server, Setup, Trained
from fedga.algorithms.base import Tensors
from fedga.algorithms.checking.made_up import ACTIVE, CLASSES, CLIENTS, NETWORK, Round, client_of, server_of
from fedga.algorithms.limits import more_than_sums, sends_extra
from fedga.selection import make_selection


class Weighs(Algorithm):
    def weights(self, state: Tensors, clients: Tensor, shares: Tensor) -> Tensor:
        return shares


class Groups(Algorithm):
    def groups(self, server: Server, clients: Tensor, class_counts: Tensor) -> Tensor:
        return clients


class Looks(Algorithm):
    def inspect(self, server: Server, client_params: Tensor) -> dict[str, Tensor]:
        return {}


class Surveys(Algorithm):
    evaluates_all_clients: ClassVar[bool] = True


class Sums(Algorithm):
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("class_counts", "classes", "its class counts", summed=True),)


class Singles(Sums):
    final_uploads: ClassVar[tuple[Sent, ...]] = (Sent("class_counts", "classes", "its class counts"),)


@pytest.mark.parametrize(
    ("algorithm", "needed"),
    [
        (Algorithm(), []),
        (Sums(), []),
        (Weighs(), ["a weight for each client"]),
        (Groups(), ["who trains after whom"]),
        (Looks(), ["single updates"]),
        (Surveys(), ["survey"]),
        (Singles(), ["class counts"]),
        (make_selection("uniform"), []),
        (make_selection("in-turn"), []),
        (make_selection("balanced"), ["class counts"]),
        (make_selection("bandit"), ["single updates"]),
    ],
)
def test_what_is_needed_of_single_clients_follows_from_what_is_declared(algorithm: object, needed: list[str]) -> None:
    assert more_than_sums(algorithm) == needed


def test_what_sends_no_more_than_the_model() -> None:
    assert not any(sends_extra(kind()) for kind in (Algorithm, Weighs, Looks))
    assert all(sends_extra(kind()) for kind in (Sums, Singles, Surveys))


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if not more_than_sums(kind())])
def test_where_sums_suffice_the_server_computes_the_same_from_their_means(name: str) -> None:
    """Every client's report replaced by the mean of all has the same sum: nothing may change."""
    assert _server_step(ALGORITHMS[name](), lambda reports: reports) == pytest.approx(
        _server_step(ALGORITHMS[name](), _evened), rel=1e-9, abs=1e-12
    )


def test_a_report_that_is_said_to_be_summed_and_is_not_would_be_found() -> None:
    @dataclass(frozen=True)
    class Cheats(Sums):
        def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            return {"class_counts": trained.class_counts}, {}

        def aggregate(self, server: Server, result: RoundResult, step: object) -> Tensor:
            return server.params + result.reports["class_counts"].amax()

    assert more_than_sums(Cheats()) == []
    assert _server_step(Cheats(), lambda reports: reports) != pytest.approx(_server_step(Cheats(), _evened))


def _evened(reports: Tensors) -> Tensors:
    return {name: values.mean(0, keepdim=True).expand_as(values) for name, values in reports.items()}


def _server_step(algorithm: Algorithm, changed: object) -> list[float]:
    """Model and state after a round, and the final model, from what made-up clients report."""
    assert callable(changed)
    made = Round.make_up(algorithm)
    params, update = made.params
    auxiliary = made.auxiliary if algorithm.auxiliary_samples else None
    state = algorithm.server_state(Setup(params, CLIENTS, CLASSES, NETWORK))
    received = algorithm.broadcast(server_of(params, state, auxiliary))
    clients = [_trained(algorithm, made, client, received) for client in range(ACTIVE)]
    reports, final = (
        changed({name: torch.stack([of[name] for of in each]) for name in each[0]})
        for each in ([algorithm.report(of)[0] for of in clients], [algorithm.final_report(of) for of in clients])
    )
    shares = torch.full((ACTIVE,), 1 / ACTIVE, dtype=torch.float64)
    result = RoundResult(1, torch.arange(ACTIVE), shares, update, reports)
    after = algorithm.update_server(state, result)
    server = server_of(params, after, auxiliary)
    model = algorithm.aggregate(server, result, lambda step: params + step)
    ended = algorithm.finish(server, final) if algorithm.finishes else model
    return torch.cat([model, ended, *(value.double().flatten() for value in after.values())]).tolist()


def _trained(algorithm: Algorithm, made: Round, client: int, received: Tensors) -> Trained:
    labels = F.one_hot(made.targets[client], CLASSES).double()
    embedded = algorithm.embed(made.features[client])
    sums = {"class_features": labels.T @ embedded, "second_moment": embedded.T @ embedded}
    sums["class_moments"] = torch.einsum("sc,sf,sg->cfg", labels, embedded, embedded)
    known = {field.name for field in fields(Trained)}
    start = made.params[0]
    given = vars(client_of(start, algorithm.client_state(start), received, made.class_counts[client]))
    moved = start + (client + 1) * made.params[1]
    steps = torch.tensor(3.0 + client, dtype=torch.float64)
    return Trained(**given, params=moved, steps=steps, **{name: of for name, of in sums.items() if name in known})
