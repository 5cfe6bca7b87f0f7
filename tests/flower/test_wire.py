"""What crosses the wire is what the algorithm declares, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import ArrayRecord, Message

from fedga.algorithms import ALGORITHMS, make_algorithm
from fedga.algorithms.base import Sent
from fedga.algorithms.parameters import Parameters
from fedga.flower import wire
from fedga.models import build_model
from fedga.spec.settings import RunSpec
from tests.flower.loopback import Loopback
from tests.flower.runs import CLIENTS, by_messages, make_spec

CLASSES = 10
MODEL = build_model("mlp", (1, 8, 8), CLASSES)
PARAMETERS = sum(parameter.numel() for parameter in MODEL.parameters())
FEATURES = MODEL.output.in_features


def sent_bytes(record: ArrayRecord) -> dict[str, int]:
    """The size of every array as it travels, by name."""
    return {name: array.numpy().nbytes for name, array in record.items()}


def declared_bytes(declared: tuple[Sent, ...]) -> dict[str, int]:
    return {one.name: one.bytes(CLASSES, PARAMETERS, FEATURES) for one in declared}


def of_kind(grid: Loopback, kind: str) -> list[tuple[Message, Message]]:
    return [pair for pair in grid.seen if pair[0].metadata.message_type == kind]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_messages_hold_what_is_declared(name: str, tmp_path: Path) -> None:
    spec, algorithm = make_spec(algorithm=name), make_algorithm(name)
    grid = by_messages([spec], tmp_path)
    parameters = Parameters(MODEL)
    travels = set(algorithm.moves(parameters)) & set(algorithm.travels(parameters))
    model = {key: tensor.numpy().nbytes for key, tensor in MODEL.state_dict().items() if key in travels}
    down, up = declared_bytes(algorithm.downloads), declared_bytes(algorithm.uploads)
    survey = {"survey": up.pop("survey")} if algorithm.evaluates_all_clients else {}
    trained = of_kind(grid, wire.TRAIN)
    assert len(trained) == spec.rounds * spec.active
    for asked, answered in trained:
        assert sent_bytes(asked.content.array_records[wire.ARRAYS]) == model
        assert sent_bytes(asked.content.array_records.get(wire.RECEIVED, ArrayRecord())) == down
        assert set(asked.content) == {wire.ARRAYS, wire.CONFIG} | ({wire.RECEIVED} if down else set())
        assert sent_bytes(answered.content.array_records[wire.ARRAYS]) == model
        assert sent_bytes(answered.content.array_records.get(wire.REPORT, ArrayRecord())) == up
        assert set(answered.content) == {wire.ARRAYS, wire.METRICS} | ({wire.REPORT} if up else set())
        assert set(answered.content.metric_records[wire.METRICS]) == {wire.EXAMPLES}
    surveyed = of_kind(grid, wire.SURVEY)
    assert len(surveyed) == (spec.rounds * CLIENTS if survey else 0)
    for _, answered in surveyed:
        assert sent_bytes(answered.content.array_records[wire.REPORT]) == survey
        assert set(answered.content) == {wire.REPORT}
    finished, final = of_kind(grid, wire.FINISH), declared_bytes(algorithm.final_uploads)
    assert len(finished) == (CLIENTS if final else 0)
    for _, answered in finished:
        assert sent_bytes(answered.content.array_records[wire.REPORT]) == final
        assert set(answered.content) == {wire.REPORT}
    introduced = of_kind(grid, wire.INTRODUCE)
    assert len(introduced) == CLIENTS
    for _, answered in introduced:
        assert {key: set(record) for key, record in answered.content.items()} == {wire.IDENTITY: {"partition-id"}}
    assert len(grid.seen) == len(trained) + len(surveyed) + len(finished) + len(introduced)


def test_a_rule_that_asks_for_losses_gets_one_number_of_every_client(tmp_path: Path) -> None:
    spec = make_spec(algorithm="fedavg", select="power-of-choice", active=2)
    grid = by_messages([spec], tmp_path)
    asked = of_kind(grid, wire.LOSSES)
    assert len(asked) == spec.rounds * CLIENTS
    for question, answer in asked:
        assert set(question.content) == {wire.ARRAYS, wire.CONFIG}
        assert sent_bytes(answer.content.array_records[wire.REPORT]) == {"loss": 4}
        assert set(answer.content) == {wire.REPORT}
    assert len(grid.seen) == len(asked) + spec.rounds * spec.active + CLIENTS


def test_a_client_is_told_its_settings_and_nothing_about_others(tmp_path: Path) -> None:
    spec = make_spec(algorithm="fedga")
    [(asked, _), *_] = of_kind(by_messages([spec], tmp_path), wire.TRAIN)
    config = asked.content.config_records[wire.CONFIG]
    assert set(config) == {"client", "counted", "data-dir", "device", "server-round", "spec", "state"}
    assert RunSpec.from_json(str(config["spec"])) == spec


def test_equal_weights_do_not_tell_how_many_samples_a_client_has(tmp_path: Path) -> None:
    grid = by_messages([make_spec(aggregation="uniform")], tmp_path)
    told = [answer.content.metric_records[wire.METRICS][wire.EXAMPLES] for _, answer in of_kind(grid, wire.TRAIN)]
    assert set(told) == {1}
