"""What an algorithm declares about itself is what it does: names, sizes, passes. For every registered one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedga.algorithms import ALGORITHMS, Algorithm, Batch, Sent
from fedga.algorithms.checking.hooks import Hooks
from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData
from fedga.engine.reference import Reference
from tests.engine.runs import TELLING, make_lane

ROUNDS = 2


@dataclass
class Seen:
    """What the hooks of an algorithm were given and returned, call by call."""

    broadcasts: list[Mapping[str, Tensor]] = field(default_factory=list)
    reports: list[Mapping[str, Tensor]] = field(default_factory=list)
    kept: list[Mapping[str, Tensor]] = field(default_factory=list)
    surveys: list[Tensor] = field(default_factory=list)
    losses: list[tuple[Batch, Tensor]] = field(default_factory=list)
    auxiliary: list[Tensor | None] = field(default_factory=list)


@pytest.fixture(params=ALGORITHMS)
def watched(
    request: pytest.FixtureRequest, pictures: Dataset, pictures_data: DeviceData, monkeypatch: pytest.MonkeyPatch
) -> tuple[Reference, Seen]:
    """A plain run of two rounds on the MLP, with every hook watched."""
    lane, seen = make_lane(pictures, algorithm=TELLING[request.param]), Seen()
    kind = type(lane.algorithm)
    broadcast, report, survey, local_loss = kind.broadcast, kind.report, kind.survey, kind.local_loss

    def watch_broadcast(self: Algorithm, server: Any) -> Any:
        seen.auxiliary.append(server.auxiliary)
        seen.broadcasts.append(broadcast(self, server))
        return seen.broadcasts[-1]

    def watch_report(self: Algorithm, trained: Any) -> Any:
        sent, kept = report(self, trained)
        seen.reports.append(sent)
        seen.kept.append(kept)
        return sent, kept

    def watch_survey(self: Algorithm, batch: Batch) -> Tensor:
        seen.surveys.append(survey(self, batch))
        assert seen.surveys[-1].shape == batch.targets.shape
        return seen.surveys[-1]

    def watch_loss(self: Algorithm, batch: Batch) -> Tensor:
        seen.losses.append((batch, local_loss(self, batch)))
        return seen.losses[-1][1]

    for name, hook in (
        ("broadcast", watch_broadcast),
        ("report", watch_report),
        ("survey", watch_survey),
        ("local_loss", watch_loss),
    ):
        monkeypatch.setattr(kind, name, hook)
    reference = Reference(lane, pictures_data)
    for _ in range(ROUNDS):
        reference.run_round()
    return reference, seen


def assert_declared(
    hook: str, what: str, declared: tuple[Sent, ...], actual: Mapping[str, Tensor], reference: Reference
) -> None:
    classes = reference.federation.dataset.num_classes
    features = reference.parameters.features or 0
    shapes = {
        "1": (),
        "classes": (classes,),
        "parameters": (reference.parameters.total,),
        "features": (features,),
        "classes×features": (classes, features),
    }
    Hooks(reference.algorithm, type(reference.algorithm).__name__, shapes).as_declared(hook, what, actual)
    for sent in declared:
        assert sent.bytes(classes, reference.parameters.total, features) == actual[sent.name].nbytes, sent.name


def test_downloads(watched: tuple[Reference, Seen]) -> None:
    reference, seen = watched
    assert len(seen.broadcasts) >= ROUNDS
    for sent in seen.broadcasts:
        assert_declared("broadcast", "downloads", reference.algorithm.downloads, sent, reference)


def test_uploads(watched: tuple[Reference, Seen]) -> None:
    """What a client reports, and, under the name "survey", the one number every client sends before a round."""
    reference, seen = watched
    surveyed = [sent for sent in reference.algorithm.uploads if sent.name == "survey"]
    reported = tuple(sent for sent in reference.algorithm.uploads if sent.name != "survey")
    assert len(seen.reports) == ROUNDS * reference.spec.active
    for sent in seen.reports:
        assert_declared("report", "uploads", reported, sent, reference)
    assert bool(surveyed) == reference.algorithm.evaluates_all_clients
    assert len(seen.surveys) == (ROUNDS * reference.federation.num_clients if surveyed else 0)
    assert all(sent.size == "1" for sent in surveyed)


def test_what_a_client_keeps(watched: tuple[Reference, Seen]) -> None:
    reference, seen = watched
    params = torch.zeros(reference.parameters.total)
    for kept in (reference.algorithm.client_state(params), *seen.kept):
        assert_declared("report", "client_state_spec", reference.algorithm.client_state_spec, kept, reference)


def test_extra_forward_passes_and_samples_on_the_server(watched: tuple[Reference, Seen]) -> None:
    reference, seen = watched
    algorithm = reference.algorithm
    for batch, loss in seen.losses:
        assert loss.shape == batch.targets.shape
        assert (batch.global_logits is not None) == algorithm.needs_global_logits
        if batch.global_logits is not None:
            assert not batch.global_logits.requires_grad
    for auxiliary in seen.auxiliary:
        assert (auxiliary is not None) == bool(algorithm.auxiliary_samples)
        if auxiliary is not None:
            assert auxiliary.shape[:2] == (reference.federation.dataset.num_classes, algorithm.auxiliary_samples)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_says_where_it_is_from(name: str) -> None:
    kind = ALGORITHMS[name]
    assert kind.citation
    assert all(sent.reveals for sent in (*kind.downloads, *kind.uploads, *kind.client_state_spec))
    assert is_dataclass(kind)
    assert kind() == kind()
    assert hash(kind()) == hash(kind())
    for option in fields(kind):
        assert isinstance(option.default, float | int | str)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_hooks_leave_what_they_are_given_alone(name: str, pictures: Dataset, pictures_data: DeviceData) -> None:
    """Pure functions: the state a server or a client holds is replaced, never written to."""
    reference = Reference(make_lane(pictures, algorithm=TELLING[name]), pictures_data)
    reference.run_round()
    held = [dict(reference.state), *map(dict, reference.kept.values())]
    before = [{key: value.clone() for key, value in state.items()} for state in held]
    reference.run_round()
    for state, copies in zip(held, before, strict=True):
        for key, value in state.items():
            assert torch.equal(value, copies[key]), key


def test_bytes() -> None:
    sizes = {"1": 4, "classes": 40, "parameters": 400_000}
    assert {size: Sent("x", size).bytes(10, 100_000) for size in sizes} == sizes
