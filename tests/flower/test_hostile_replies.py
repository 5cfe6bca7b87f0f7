"""A site with a valid key may send whatever it likes: the server lives, names it, and goes on with the others."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from torch import nn

from fedga.data import load_dataset
from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData
from fedga.flower import AlgorithmStrategy, introduce, wire
from fedga.flower.server.exchange import Exchange
from fedga.flower.server.remote import RemoteEngine, TimeoutPolicy
from fedga.flower.server.roster import Form, Identity, Roster
from fedga.flower.server.sites import Sites
from fedga.spec.settings import RunSpec
from fedga.store.store import Store
from tests.flower import malformed
from tests.flower.conftest import Clock
from tests.flower.loopback import Loopback
from tests.flower.malformed import Malformed, Spoil
from tests.flower.runs import partitions
from tests.flower.three_sites import CLASSES, SITES, Federation

pytestmark = pytest.mark.usefixtures("no_waiting")

TRAINING = [
    *(each for key in ("hidden.weight", "output.bias") for each in malformed.arrays(wire.ARRAYS, key)),
    *malformed.arrays(wire.REPORT, "control_change"),
    *malformed.names(wire.ARRAYS, "hidden.weight"),
    *malformed.names(wire.REPORT, "control_change"),
    *malformed.numbers(),
    Malformed("num-examples: 0", lambda content: content[wire.METRICS].__setitem__(wire.EXAMPLES, 0)),
    Malformed(
        "arrays: finite, and beyond all bounds",
        lambda content: content[wire.ARRAYS].__setitem__("output.bias", Array(np.full(10, 1e38, np.float32))),
    ),
]
SURVEY = [*malformed.arrays(wire.REPORT, "survey"), *malformed.names(wire.REPORT, "survey")]
SCORES, INTRODUCTIONS = malformed.scores(), malformed.introductions()


def test_there_are_enough_of_them() -> None:
    assert len(TRAINING) + len(SURVEY) + len(SCORES) + len(INTRODUCTIONS) >= 300


class Trio:
    """Three sites that answer at once, without training, and the server's engine; what the first sends is spoilt."""

    def __init__(self, algorithm: str, *, evaluates_at_sites: bool = False) -> None:
        self.spoil: Spoil = lambda content: None
        self.kind = ""
        self.said: list[str] = []
        self.grid = Loopback(self.answer, [{"site": name} for name in SITES])  # type: ignore[arg-type]
        self.exchange = Exchange(self.grid)
        self.roster = Roster(3, SITES, CLASSES, self.said.append)
        for client in range(3):
            self.roster.nodes[client], self.roster.identities[client] = self.grid.node(client), Identity()
        self.roster.began = True
        dataset = _untested(load_dataset("digits")) if evaluates_at_sites else load_dataset("digits")
        spec = RunSpec(
            dataset="sites/three", partition="natural", algorithm=algorithm, active=3, rounds=9, diagnose_every=0
        )
        lane = Sites(dataset, self.roster).lane(spec)
        data = DeviceData(dataset, torch.device("cpu"))
        timeouts = TimeoutPolicy(strict=False, reply_within_s=100.0)
        self.engine = RemoteEngine(lane, data, self.roster, self.exchange, timeouts=timeouts)

    def answer(self, message: Message, context: Context) -> Message:
        client = SITES.index(str(context.node_config["site"]))
        kind = message.metadata.message_type
        content = self._honest(message, kind, client)
        if client == 0 and kind == self.kind:
            self.spoil(content)
        return Message(content, reply_to=message)

    def _honest(self, message: Message, kind: str, client: int) -> RecordDict:
        if kind == wire.SURVEY:
            return RecordDict({wire.REPORT: wire.to_record({"survey": torch.tensor(1.0 + client)})})
        if kind == wire.EVALUATE:
            scores = {wire.EXAMPLES: 10 + client, "accuracy": 0.1 * (1 + client), "loss": 1.0 + client}
            return RecordDict({wire.METRICS: MetricRecord(scores)})
        model = message.content.array_records[wire.ARRAYS].to_torch_state_dict()
        trained = {name: tensor + 0.01 * (1 + client) for name, tensor in model.items()}
        content = RecordDict(
            {wire.ARRAYS: wire.to_record(trained), wire.METRICS: MetricRecord({wire.EXAMPLES: 10 + client})}
        )
        if self.engine.lane.spec.algorithm == "scaffold":
            content[wire.REPORT] = wire.to_record({"control_change": torch.ones(self.engine.model.params.total)})
        return content

    def round(self, kind: str, spoil: Spoil) -> dict[str, float] | None:
        """A round in which what the first site answers to questions of a kind is spoilt; the metrics of the round."""
        self.kind, self.spoil = kind, spoil
        [result] = self.engine.run_round()
        assert not result.diverged
        assert result.round == self.engine.round == 1
        return result.metrics

    @property
    def model(self) -> torch.Tensor:
        return self.engine.stack.params[0]


def _untested(dataset: Dataset) -> Dataset:
    return replace(dataset, test_inputs=dataset.test_inputs[:0], test_targets=dataset.test_targets[:0])


def _fail(content: RecordDict) -> None:
    raise OSError("disk on fire")


def assert_named(said: list[str]) -> None:
    """The first site is told of in words that fit on a few lines, and nobody else."""
    told = " ".join(said)
    assert "site north" in told
    assert "site south" not in told
    assert "site west" not in told
    assert all(sentence.isprintable() and len(sentence) < 600 for sentence in said)


@pytest.fixture(scope="module")
def honest_models() -> dict[str, torch.Tensor]:
    """After a round without the first site, by algorithm."""
    found = {}
    for algorithm, kind in (("scaffold", wire.TRAIN), ("climb", wire.SURVEY)):
        trio = Trio(algorithm)
        trio.round(kind, _fail)
        found[algorithm] = trio.model
    return found


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", TRAINING, ids=str)
def test_a_reply_to_training(case: Malformed, honest_models: dict[str, torch.Tensor]) -> None:
    trio = Trio("scaffold")
    trio.round(wire.TRAIN, case.spoil)
    assert torch.equal(trio.model, honest_models["scaffold"])
    assert_named(trio.said)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", SURVEY, ids=str)
def test_a_reply_to_a_survey(case: Malformed, honest_models: dict[str, torch.Tensor]) -> None:
    trio = Trio("climb")
    trio.round(wire.SURVEY, case.spoil)
    assert torch.equal(trio.model, honest_models["climb"])
    assert_named(trio.said)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", SCORES, ids=str)
def test_a_reply_to_an_evaluation(case: Malformed) -> None:
    trio = Trio("fedavg", evaluates_at_sites=True)
    metrics = trio.round(wire.EVALUATE, case.spoil)
    assert metrics == {"accuracy": pytest.approx((11 * 0.2 + 12 * 0.3) / 23), "loss": pytest.approx((22 + 36) / 23)}
    assert_named(trio.said)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", INTRODUCTIONS, ids=str)
def test_an_introduction(case: Malformed) -> None:
    def introduce(message: Message, context: Context) -> Message:
        content = RecordDict({wire.IDENTITY: ConfigRecord({"site": context.node_config["site"], "input-shape": [64]})})
        if context.node_config["site"] == "north":
            case.spoil(content)
        return Message(content, reply_to=message)

    said: list[str] = []
    grid = Loopback(introduce, [{"site": name} for name in SITES])  # type: ignore[arg-type]
    grid.names = {grid.node(place): name for place, name in enumerate(SITES)}
    roster = Roster(3, SITES, CLASSES, said.append)
    roster.form = Form((64,), pictures=True)
    roster.refresh(Exchange(grid))
    assert set(roster.nodes) == {1, 2}
    [sentence] = said
    assert sentence.startswith(("the node of site north ", "site north "))
    assert sentence.isprintable()
    assert len(sentence) < 600


# --- what Flower cannot unpack ---------------------------------------------------------------------------------------

UNPACKING = [
    KeyError("arraychunk_ids"),
    TypeError("'int' object is not iterable"),
    ValueError("Unexpected set of `children`"),
    json.JSONDecodeError("Expecting value", "", 0),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    IndexError("list index out of range"),
    httpx.HTTPStatusError("chokes", request=httpx.Request("POST", "http://x"), response=httpx.Response(500)),
    AssertionError("\x1b[2J" + "x" * 10_000),
]


@pytest.mark.parametrize("error", UNPACKING, ids=lambda error: type(error).__name__)
def test_a_reply_that_cannot_be_unpacked(error: Exception, honest_models: dict[str, torch.Tensor]) -> None:
    trio = Trio("scaffold")
    pull = trio.grid.pull_messages

    def pulling(numbers: Any) -> list[Message]:
        found = list(pull(numbers))
        if any(reply.metadata.src_node_id == trio.grid.node(0) for reply in found):
            raise error
        return found

    trio.grid.pull_messages = pulling  # type: ignore[method-assign, assignment]
    trio.round(wire.TRAIN, lambda content: None)
    assert torch.equal(trio.model, honest_models["scaffold"])
    assert_named(trio.said)


def test_a_reply_whose_content_is_of_another_kind(honest_models: dict[str, torch.Tensor]) -> None:
    """Flower does not look what a message holds."""
    trio = Trio("scaffold")
    pull = trio.grid.pull_messages

    def pulling(numbers: Any) -> list[Message]:
        found = list(pull(numbers))
        for reply in found:
            if reply.metadata.src_node_id == trio.grid.node(0):
                reply.__dict__["_content"] = ArrayRecord()
        return found

    trio.grid.pull_messages = pulling  # type: ignore[method-assign, assignment]
    trio.round(wire.TRAIN, lambda content: None)
    assert torch.equal(trio.model, honest_models["scaffold"])
    assert_named(trio.said)


def test_an_array_that_names_its_only_piece_a_million_times(honest_models: dict[str, torch.Tensor]) -> None:
    """Five terabytes out of five megabytes: Flower would put them together."""
    trio = Trio("scaffold")
    pull = trio.grid.pull_messages

    def pulling(numbers: Any) -> list[Message]:
        return [
            repacked(reply) if reply.metadata.src_node_id == trio.grid.node(0) else reply for reply in pull(numbers)
        ]

    def repacked(reply: Message) -> Message:
        reply.content[wire.ARRAYS] = ArrayRecord({"output.bias": Array(np.zeros(1_250_000, np.float32))})
        contents = {number: each.deflate() for number, each in get_all_nested_objects(reply).items()}
        for number, content in contents.items():
            contents[number] = content.replace(
                b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b"0, " * 10**6 + b"0]"
            )
        found = inflate_object_from_contents(reply.object_id, contents)
        assert isinstance(found, Message)
        return found

    trio.grid.pull_messages = pulling  # type: ignore[method-assign, assignment]
    trio.round(wire.TRAIN, lambda content: None)
    assert torch.equal(trio.model, honest_models["scaffold"])
    assert_named(trio.said)
    assert "longer than the model" in " ".join(trio.said)


@pytest.mark.parametrize("reply", [{"num-examples": float("inf")}, {"num-examples": 10**18}, {"loss": 1.0}])
def test_metrics_of_other_peoples_clients_are_means_of_what_can_be_one(reply: dict[str, Any]) -> None:
    app = ClientApp()
    app.query("introduce")(introduce)

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        client = context.node_config["partition-id"]
        arrays = {
            name: tensor + 1.0
            for name, tensor in message.content.array_records[wire.ARRAYS].to_torch_state_dict().items()
        }
        honest = {"num-examples": 2, "loss": 3.0, "note": float("nan") if client == 1 else 5.0}
        metrics = MetricRecord(reply if client == 0 else honest)
        return Message(RecordDict({"arrays": wire.to_record(arrays), "metrics": metrics}), reply_to=message)

    strategy = AlgorithmStrategy(nn.Linear(3, 2), "fedavg", clients=3, evaluate_clients=False)
    arrays = ArrayRecord({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
    result = strategy.start(grid=Loopback(app, partitions(3)), initial_arrays=arrays, num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 3.0, "note": 5.0}
    assert result.arrays.to_torch_state_dict()["bias"].tolist() == [1.0, 1.0]


def test_nobody_answers_in_the_name_of_another(honest_models: dict[str, torch.Tensor]) -> None:
    trio = Trio("scaffold")
    deliver = trio.grid._deliver

    def posing(message: Message) -> Message | None:
        reply = deliver(message)
        assert reply is not None
        if reply.metadata.src_node_id == trio.grid.node(0):
            reply.metadata.__dict__["_src_node_id"] = trio.grid.node(1)
        return reply

    trio.grid._deliver = posing  # type: ignore[method-assign]
    trio.round(wire.TRAIN, lambda content: None)
    assert torch.equal(trio.model, honest_models["scaffold"])
    assert_named(trio.said)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", range(60))
def test_flipped_bits_change_nothing_or_are_refused(seed: int, honest_models: dict[str, torch.Tensor]) -> None:
    """In the header of an array: what is read there is what was written, or nothing is."""
    draw = random.Random(seed)

    def flip(content: RecordDict) -> None:
        array = content.array_records[wire.ARRAYS]["output.bias"]
        data = bytearray(array.data)
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(128)] ^= 1 << draw.randrange(8)
        content.array_records[wire.ARRAYS]["output.bias"] = Array(array.dtype, array.shape, array.stype, bytes(data))

    everybody, trio = Trio("scaffold"), Trio("scaffold")
    everybody.round(wire.TRAIN, lambda content: None)
    trio.round(wire.TRAIN, flip)
    assert torch.equal(trio.model, honest_models["scaffold"] if trio.said else everybody.model)


# --- whole runs ------------------------------------------------------------------------------------------------------

WHOLE = {
    "inf samples": lambda content: content[wire.METRICS].__setitem__(wire.EXAMPLES, float("inf")),
    "nan samples": lambda content: content[wire.METRICS].__setitem__(wire.EXAMPLES, float("nan")),
    "1e18 samples": lambda content: content[wire.METRICS].__setitem__(wire.EXAMPLES, 10**18),
    "no metrics": lambda content: content.pop(wire.METRICS),
    "nothing": lambda content: content.clear(),
    **{case.name: case.spoil for case in TRAINING if case.name.startswith("arrays/output.bias: terabytes")},
    **{
        f"arrays/hidden.weight: {name}": case.spoil
        for name in ("garbage", "empty", "a byte less", "pickled objects", "complex64", "int64", "nan")
        for case in TRAINING
        if case.name == f"arrays/hidden.weight: {name}"
    },
}


def spoilt(federation: Federation, spoil: Callable[[Message], Message]) -> None:
    """What the first site answers to training."""
    deliver = federation.grid._deliver

    def spoiling(message: Message) -> Message | None:
        reply = deliver(message)
        is_it = message.metadata.dst_node_id == federation.grid.node(0)
        return spoil(reply) if reply is not None and is_it and wire.ARRAYS in message.content else reply

    federation.grid._deliver = spoiling  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def honest_rows(files: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    federation = Federation(files, tmp_path_factory.mktemp("honest"))
    bad = federation.grid.node(0)
    federation.grid.failing = lambda message: (
        "disk on fire" if message.metadata.dst_node_id == bad and wire.ARRAYS in message.content else None
    )
    federation.run(rounds=2)
    return federation.results()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_run(
    name: str, federation: Federation, honest_rows: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    def spoil(reply: Message) -> Message:
        WHOLE[name](reply.content)
        return reply

    spoilt(federation, spoil)
    federation.run(rounds=2)
    assert federation.results() == honest_rows
    with Store(federation.folder / "results") as store:
        assert [run.status for run in store.runs()] == ["done"]
    said = capfd.readouterr().out
    assert "round 1 goes on without site north" in said
    assert "round 2 goes on without site north" in said


def test_one_site_that_fails_does_not_end_a_run_in_which_it_is_drawn_alone(federation: Federation) -> None:
    bad = federation.grid.node(0)
    federation.grid.failing = lambda message: (
        "disk on fire" if message.metadata.dst_node_id == bad and wire.ARRAYS in message.content else None
    )
    federation.run(rounds=6, active=1)
    with Store(federation.folder / "results") as store:
        assert [(run.status, run.rounds_done) for run in store.runs()] == [("done", 6)]


# --- silence ---------------------------------------------------------------------------------------------------------


def is_training(message: Message, node: int) -> bool:
    return message.metadata.message_type == wire.TRAIN and message.metadata.dst_node_id == node


def rounds_asked(federation: Federation, node: int) -> list[int]:
    asked = [asked for asked, _ in federation.trained() if asked.metadata.dst_node_id == node]
    return [int(each.content.config_records[wire.CONFIG]["server-round"]) for each in asked]  # type: ignore[arg-type]


def test_a_silent_site_costs_one_timeout(
    federation: Federation, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    silent = federation.grid.node(2)
    federation.grid.late = lambda message: is_training(message, silent)
    federation.run(rounds=20, round_timeout=1000)
    asked = rounds_asked(federation, silent)
    assert asked == [1, 3, 6, 11, 20]
    assert 1000 <= clock.seconds < 1100
    said = capfd.readouterr().out
    assert said.count("site west did not answer in round 1: it is asked again in round 3") == 1
    assert said.count("did not answer") == 1
    assert federation.results()[-1]["round"] == 20


def test_a_site_that_answers_late_is_asked_and_waited_for_again(
    federation: Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    silent = federation.grid.node(2)

    def late(message: Message) -> bool:
        number = message.content.config_records[wire.CONFIG].get("server-round")
        if number == 4:
            federation.grid.release()
        return is_training(message, silent) and number == 3

    def later(message: Message) -> bool:
        number = message.content.config_records[wire.CONFIG].get("server-round")
        return late(message) or (is_training(message, silent) and number == 1)

    federation.grid.late = later
    federation.run(rounds=7, round_timeout=1000)
    assert rounds_asked(federation, silent) == [1, 3, 5, 6, 7]
    assert capfd.readouterr().out.count("site west answers again") == 1


def test_a_site_that_leaves_and_comes_again_is_asked_at_once(federation: Federation) -> None:
    silent = federation.grid.node(2)

    def leave(message: Message) -> str | None:
        number = message.content.config_records[wire.CONFIG].get("server-round")
        if message.metadata.message_type == wire.TRAIN and number in (6, 7):
            federation.grid.away = {silent} if number == 6 else set()
        return None

    federation.grid.failing = leave
    federation.grid.late = lambda message: (
        is_training(message, silent) and message.content.config_records[wire.CONFIG]["server-round"] < 7  # type: ignore[operator]
    )
    federation.run(rounds=10, round_timeout=1000)
    assert rounds_asked(federation, silent) == [1, 3, 8, 9, 10]  # away in round 6, and without that not before 11


def test_if_all_are_silent_all_are_asked_again(federation: Federation) -> None:
    silenced: list[int] = []

    def all_silent_twice(message: Message) -> bool:
        silenced.extend([1] * (message.metadata.message_type == wire.TRAIN))
        return message.metadata.message_type == wire.TRAIN and len(silenced) <= 6

    federation.grid.late = all_silent_twice
    federation.run(rounds=2, round_timeout=10)
    assert len(federation.trained()) == 3 * 4
    assert federation.results()[-1]["round"] == 2
