"""An algorithm of the user's own on Flower: found where its project is, and refused where it is not the server's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedga.errors import FedGAError
from fedga.flower import wire
from fedga.flower.client import site_log
from fedga.flower.client.app import _check_code
from fedga.store.code import code_digest, own_code
from fedga.store.records import METRICS
from tests.flower.loopback import Loopback
from tests.flower.runs import assert_equal_results, by_messages, make_spec, on_engine
from tests.flower.three_sites import SITES, Federation
from tests.plugins.test_plugins import FOCAL

HELPER = "POWER = 1\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "focal.py").write_text(FOCAL)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "fedga.toml").write_text('[algorithms]\nmy-focal = "focal.py:Focal"\n')
    monkeypatch.setenv("FEDGA_PROJECT", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    return tmp_path


def test_it_trains_as_on_the_engine(project: Path) -> None:
    specs = [make_spec(algorithm="my-focal:gamma=1")]
    grid = by_messages(specs, project / "messages")
    assert_equal_results(on_engine(specs, project / "engine"), project / "messages", specs)
    asked = [message for message, _ in grid.seen if message.metadata.message_type == wire.TRAIN]
    assert {message.content.config_records[wire.CONFIG]["code"] for message in asked} == {code_digest(own_code(specs))}


RARE = """
from dataclasses import dataclass
from typing import ClassVar

from fedga.algorithms import Algorithm, Sent
from fedga.algorithms.base import cross_entropy


@dataclass(frozen=True)
class Rare(Algorithm):
    downloads: ClassVar = (Sent("class_weights", "classes", "how rare each class is overall"),)
    uploads: ClassVar = (Sent("class_counts", "classes", "its samples of every class"),)

    def server_state(self, setup):
        return {"counts": setup.params.new_ones(setup.num_classes)}

    def broadcast(self, server):
        counts = server.state["counts"]
        return {"class_weights": counts.sum() / (server.num_classes * counts)}

    def local_loss(self, batch):
        return batch.received["class_weights"][batch.targets] * cross_entropy(batch.logits, batch.targets)

    def report(self, trained):
        return {"class_counts": trained.class_counts}, {}

    def update_server(self, state, result):
        return {"counts": state["counts"] + result.reports["class_counts"].sum(0)}


@dataclass(frozen=True)
class Number(Algorithm):
    uploads: ClassVar = (Sent("classes_held", "1", "how many classes it holds"),)

    def report(self, trained):
        return {"classes_held": (trained.class_counts > 0).sum().float()}, {}
"""


@pytest.fixture
def counting(project: Path) -> Path:
    (project / "rare.py").write_text(RARE)
    (project / "fedga.toml").write_text('[algorithms]\nrare = "rare.py:Rare"\nnumber = "rare.py:Number"\n')
    return project


def crossed(grid: Loopback) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """What goes to a client and comes from it besides the model, of every message to train."""
    pairs = [pair for pair in grid.seen if pair[0].metadata.message_type == wire.TRAIN]
    records = [
        (asked.content.array_records.get(wire.RECEIVED, {}), answered.content.array_records.get(wire.REPORT, {}))
        for asked, answered in pairs
    ]
    return [
        ({name: array.numpy() for name, array in down.items()}, {name: array.numpy() for name, array in up.items()})
        for down, up in records
    ]


def test_class_counts_reach_the_server_where_a_report_has_them(counting: Path) -> None:
    specs = [make_spec(algorithm="rare", rounds=3)]
    found = crossed(by_messages(specs, counting / "messages"))
    assert_equal_results(on_engine(specs, counting / "engine"), counting / "messages", specs)
    assert {(*down, *up) for down, up in found} == {("class_weights", "class_counts")}
    assert all(down["class_weights"].shape == up["class_counts"].shape == (10,) for down, up in found)
    assert any((up["class_counts"] == 0).any() and up["class_counts"].sum() > 0 for _, up in found)
    weights = [down["class_weights"] for down, _ in found]
    assert weights[0].tolist() == [1.0] * 10
    assert (weights[-1] != 1).any()


def test_class_counts_stay_where_a_report_does_not_have_them(counting: Path) -> None:
    found = crossed(by_messages([make_spec(algorithm="number")], counting / "messages"))
    assert {(*down, *up) for down, up in found} == {("classes_held",)}
    assert all(up["classes_held"].shape == () and 1 <= up["classes_held"] <= 10 for _, up in found)


def test_a_site_without_the_code_says_what_to_install(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(algorithm="my-focal")
    code = code_digest(own_code([spec]))
    _check_code(spec, code)
    (project / "helper.py").write_text("POWER = 2\n")
    _check_code.cache_clear()
    with pytest.raises(FedGAError, match=r"focal.py is not the server's: copy its version here, and start this node"):
        _check_code(spec, code)
    monkeypatch.delenv("FEDGA_PROJECT")
    monkeypatch.chdir(project.parent)
    with pytest.raises(
        FedGAError, match=r"my-focal on mlp is code of the server's own, which is not here: install .*copy"
    ):
        _check_code(spec, code)
    _check_code(make_spec(), "")  # ours need nothing


OWN_HEAD = """
from dataclasses import dataclass

from fedga.algorithms import Algorithm


@dataclass(frozen=True)
class OwnHead(Algorithm):
    def travels(self, parameters):
        return [name for name in parameters.shapes if name not in parameters.head]
"""


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("held_out", [True, False])
def test_sites_with_their_own_head_score_that(held_out: bool, project: Path, federation: Federation) -> None:
    (project / "own.py").write_text(OWN_HEAD)
    (project / "fedga.toml").write_text('[algorithms]\nown = "own.py:OwnHead"\n')
    for place, name in enumerate(SITES if held_out else ()):  # without a split column every fifth sample is held out
        lines = (federation.files / f"{name}.csv").read_text().splitlines()
        (project / f"{name}.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
        federation.tell(place, data=str(project / f"{name}.csv"))
    federation.run(algorithm="own", local_epochs=5, **({"server_data": None} if held_out else {}))
    scores = [
        reply.content.metric_records[wire.METRICS].get("accuracy")
        for asked, reply in federation.grid.seen
        if asked.metadata.message_type == wire.EVALUATE
    ][-3:]
    last = federation.results()[-1] if held_out else dict(federation.last())
    assert all(last.get(name) is None for name in METRICS)  # there is no global head to test
    assert last.get("client_accuracy") == (pytest.approx(sum(scores) / 3) if held_out else None)
    log = [row for row in site_log.read(federation.folder / "north") if row.round == 3 and row.kind == "frequent"]
    assert sum(row.before for row in log) > 0.5 * len(log)  # the received model is that with its own head
