"""A federation of sites that read their own files, through messages: what is told, who may be away, how it goes on."""

from __future__ import annotations

import ast
import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from safetensors.torch import save_file

from fedga.data import load_dataset, make_federation
from fedga.data.site import load_site
from fedga.errors import FedGAError
from fedga.flower import client_app, wire
from fedga.flower.client import site_log
from fedga.flower.client.state_store import ClientStateStore
from fedga.report.page.payload import pack
from fedga.report.page.repeat import repeat
from fedga.report.page.study import read_study
from fedga.spec.settings import RunSpec
from fedga.store.store import Store
from fedga.study.model_files import model_path
from tests.cli.program import done
from tests.flower.loopback import Loopback
from tests.flower.malformed import npy
from tests.flower.runs import assert_equal_models, on_engine
from tests.flower.three_sites import CLASSES, SITES, Federation

pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.mark.parametrize("algorithm", ["fedavg", "fedga", "scaffold", "climb"])
def test_sites_give_the_model_of_the_engine_on_the_same_partition(
    algorithm: str, federation: Federation, files: Path, tmp_path: Path
) -> None:
    federation.run(algorithm=algorithm)
    [spec] = _specs(federation.folder / "results")
    whole = {"dataset": str(files / "whole.csv"), "client_column": "client"}
    same = RunSpec(**{**_settings(spec), **whole})
    on_engine([same], tmp_path / "engine")
    assert_equal_models(model_path(tmp_path / "engine", same), model_path(federation.folder / "results", spec))


def _settings(spec: RunSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in RunSpec.__dataclass_fields__}


def _specs(folder: Path) -> list[RunSpec]:
    with Store(folder) as store:
        return [run.spec for run in store.runs()]


def test_class_counts_stay_at_the_site_unless_its_owner_says_so(federation: Federation) -> None:
    federation.run()
    identities = [
        answer.content for asked, answer in federation.grid.seen if "introduce" in asked.metadata.message_type
    ]
    assert [set(identity[wire.IDENTITY]) for identity in identities] == [
        {"site", "input-shape", "pictures", "columns"}
    ] * 3
    with Store(federation.folder / "results") as store:
        assert store.partitions() == []
        assert store.client_rounds(_specs(federation.folder / "results")[0].run_id) == []
    last = federation.last()
    assert (last["client_ea_ratio"] or 0) > 1
    assert last["forgetting_missing"] is None


def test_class_counts_that_are_told_reach_the_report(federation: Federation) -> None:
    for place in range(3):
        federation.tell(place, report_class_counts=True)
    federation.run()
    with Store(federation.folder / "results") as store:
        [partition] = store.partitions()
        dataset = load_dataset("digits")
        expected = make_federation(dataset, clients=3, seed=0, alpha=1.0).class_counts
        np.testing.assert_array_equal(partition.class_counts, expected)
        assert partition.client_names == SITES
        assert len(store.client_rounds(store.runs()[0].run_id)) == 3
    assert federation.last()["forgetting_rare"] is not None


def test_the_owner_of_a_site_sees_her_classes(federation: Federation, capfd: pytest.CaptureFixture[str]) -> None:
    federation.run()
    rows = site_log.read(federation.folder / "north")
    assert {row.round for row in rows} == {1, 2, 3}
    assert {row.name for row in rows} == set(CLASSES)
    assert "site north, round 3" in capfd.readouterr().out


def test_no_message_chooses_what_a_site_reads(federation: Federation) -> None:
    federation.run()
    for asked, _ in federation.grid.seen:
        for record in asked.content.config_records.values():
            assert {"data", "data-dir", "state"}.isdisjoint(record)


def test_without_samples_on_the_server_the_sites_evaluate(federation: Federation, files: Path, tmp_path: Path) -> None:
    for place, name in enumerate(SITES):  # without a split column every fifth sample is held out
        lines = (files / f"{name}.csv").read_text().splitlines()
        own = tmp_path / f"{name}-unsplit.csv"
        own.write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
        federation.tell(place, data=str(own))
    federation.run(server_data=None, rounds=4)
    rows = federation.results()
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["accuracy"] > 0.5
    assert rows[-1]["macro_f1"] is None


def test_a_site_that_is_away_is_passed_over_and_comes_back(federation: Federation) -> None:
    away = federation.grid.node(1)

    def leave_for_round_two(message: Message) -> str | None:
        number = message.content.config_records[wire.CONFIG].get("server-round")
        if message.metadata.message_type == wire.TRAIN:
            federation.grid.away = {away} if number == 1 else set()
        return None

    federation.grid.failing = leave_for_round_two
    federation.run(rounds=4, min_replies=1)
    by_round: dict[int, set[int]] = {}
    for asked, _ in federation.trained():
        config = asked.content.config_records[wire.CONFIG]
        by_round.setdefault(int(config["server-round"]), set()).add(int(config["client"]))
    assert by_round[4] == {0, 1, 2}
    assert any(clients == {0, 2} for clients in by_round.values())
    assert federation.results()[-1]["round"] == 4


def test_a_site_that_fails_does_not_stop_the_run(federation: Federation, capfd: pytest.CaptureFixture[str]) -> None:
    broken = federation.grid.node(2)
    federation.grid.failing = lambda message: (
        "disk on fire" if message.metadata.dst_node_id == broken and wire.ARRAYS in message.content else None
    )
    federation.run()
    assert federation.results()[-1]["round"] == 3
    said = capfd.readouterr().out
    assert "site west failed in round 1: 'disk on fire'" in said
    assert "round 1 goes on without site west" in said


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda arrays: {name: tensor * float("nan") for name, tensor in arrays.items()}, "not finite"),
        (lambda arrays: {name: tensor[:1] for name, tensor in arrays.items()}, "use the same model"),
        (lambda arrays: {}, "no entry for"),
    ],
)
def test_a_spoilt_reply_is_left_out(
    spoil: Any, why: str, federation: Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    deliver, bad = federation.grid._deliver, federation.grid.node(0)

    def spoiling(message: Message) -> Message | None:
        reply = deliver(message)
        if reply is not None and reply.metadata.src_node_id == bad and wire.ARRAYS in reply.content:
            reply.content[wire.ARRAYS] = wire.to_record(
                spoil(reply.content.array_records[wire.ARRAYS].to_torch_state_dict())
            )
        return reply

    federation.grid._deliver = spoiling  # type: ignore[method-assign]
    federation.run(rounds=2)
    said = capfd.readouterr().out
    assert "site north" in said
    assert why in said
    assert "round 2 goes on without site north" in said
    assert 0 < federation.results()[-1]["accuracy"] <= 1


@pytest.mark.parametrize("algorithm", ["fedga", "scaffold"])
def test_a_killed_server_goes_on_after_its_last_round(algorithm: str, files: Path, tmp_path: Path) -> None:
    undisturbed = Federation(files, tmp_path / "undisturbed")
    undisturbed.run(algorithm=algorithm, rounds=4, server="momentum", server_average=0.5)
    killed = Federation(files, tmp_path / "killed")

    class Killed(BaseException):
        pass

    def kill_in_round_three(message: Message) -> str | None:
        number = message.content.config_records[wire.CONFIG].get("server-round")
        if number == 3 and message.metadata.dst_node_id == killed.grid.node(2):
            raise Killed  # two sites have trained already
        return None

    killed.grid.failing = kill_in_round_three
    with pytest.raises(Killed):
        killed.run(algorithm=algorithm, rounds=4, server="momentum", server_average=0.5)
    before = len(killed.trained())
    killed.grid.failing = lambda message: None
    killed.run(algorithm=algorithm, rounds=4, server="momentum", server_average=0.5)
    again = [asked.content.config_records[wire.CONFIG]["server-round"] for asked, _ in killed.trained()[before:]]
    assert again == [3, 3, 3, 4, 4, 4]
    for row, same in zip(undisturbed.results(), killed.results(), strict=True):
        assert row == same


def test_a_stranger_is_left_out(files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    federation = Federation(files, tmp_path)
    nodes = [context.node_config for context in federation.grid.contexts.values()]
    federation.grid = Loopback(client_app, [*nodes, {**nodes[0], "site": "east"}, {**nodes[0]}])
    federation.run(rounds=1)
    said = capfd.readouterr().out
    assert "a node says it is site 'east', which is none of this federation's" in said
    assert "two nodes say they are site north" in said
    assert len(federation.trained()) == 3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sites": "north,south,west,east"}, "3 of 4 clients came within 0.2 seconds, site east did not"),
        ({"sites": "north,,west"}, "sites = 'north,,west' has an empty name"),
        ({"classes": "0,1,1"}, "classes = '0,1,1' has '1' twice"),
        ({"classes": "0"}, "classes = '0' is a single name"),
        ({"active": 5}, "active = 5 is more than the 3 sites"),
        ({"min_sites": 5}, "min-sites = 5 is more than the 3 sites"),
        ({"min_sites": "two"}, "min-sites must be a whole number"),
        ({"round_timeout": "1h"}, "round-timeout must be a number"),
        ({"algoritm": "fedga"}, "unknown setting of the app 'algoritm'"),
        ({"server_data": "", "standardize": True}, "standardize needs samples on the server"),
        ({"algorithm": "fedg"}, "unknown algorithm 'fedg'"),
        ({"model": "lenet"}, "model lenet"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str, federation: Federation) -> None:
    with pytest.raises(FedGAError, match=sentence.replace("(", r"\(")):
        federation.run(**settings)


def test_sites_of_different_shape_are_refused(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("a,b,label\n" + "1,2,3\n" * 10)
    federation.tell(1, data=str(tmp_path / "odd.csv"))
    with pytest.raises(FedGAError, match="site south has samples of shape 2 and not 64, which the server has"):
        federation.run()


def test_standardised_inputs_come_from_the_server(federation: Federation) -> None:
    federation.run(standardize=True, rounds=1)
    [(asked, _), *_] = federation.trained()
    pixels: ArrayRecord = asked.content.array_records[wire.PIXELS]
    assert {name: array.shape for name, array in pixels.items()} == {"scale": (64,), "shift": (64,)}


def test_the_report_calls_sites_by_their_names(federation: Federation) -> None:
    for place in range(3):
        federation.tell(place, report_class_counts=True)
    federation.run(algorithm="fedavg,fedga")
    folder = federation.folder / "results"
    study = read_study(folder)
    assert study.labels == {"sites/three": "three"}
    assert study.client_names("sites/three") == SITES
    assert repeat(study).commands == (
        "fedga flower serve DIR  # the folder of the federation's server, while its sites take part",
    )
    told = json.loads(gzip.decompress(base64.b64decode(pack(study)["charts"])))
    assert [shown["names"] for shown in told["maps"]] == [list(SITES)]
    assert {name for one in told["evaluations"] for name in one["clients"]} == set(SITES)
    done("report", folder)


def test_a_site_is_known_by_its_key_and_not_by_what_it_says(
    federation: Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    federation.grid.names = {federation.grid.node(place): name for place, name in enumerate(SITES)}
    federation.tell(1, site="north")
    with pytest.raises(FedGAError, match="2 of 3 clients came"):
        federation.run()
    assert "the node of site south says it is site 'north': it is left out, since its key" in capfd.readouterr().out


def test_a_run_that_diverges_everywhere_ends(federation: Federation) -> None:
    federation.run(lr=1e30, clip="none", rounds=5)
    with Store(federation.folder / "results") as store:
        [run] = store.runs()
    assert run.status == "diverged"
    assert len(federation.trained()) <= 6


def test_a_failure_of_everybody_ends_the_run_in_a_sentence(federation: Federation) -> None:
    federation.grid.failing = lambda message: "no room left" if wire.ARRAYS in message.content else None
    with pytest.raises(FedGAError, match="everybody failed 3 times in a row in round 1"):
        federation.run()
    assert len(federation.trained()) == 9


def test_what_a_client_keeps_waits_for_the_server_to_count_it(files: Path, tmp_path: Path) -> None:
    """SCAFFOLD's server variate is the mean of the clients' ones, also after an answer that came too late."""
    federation = Federation(files, tmp_path)
    slow = federation.grid.node(1)

    def late_in_round_two(message: Message) -> bool:
        number = message.content.config_records[wire.CONFIG].get("server-round")
        return message.metadata.message_type == wire.TRAIN and number == 2 and message.metadata.dst_node_id == slow

    federation.grid.late = late_in_round_two
    federation.run(algorithm="scaffold", rounds=4)
    [spec] = _specs(federation.folder / "results")
    kept = [ClientStateStore(federation.folder / name, spec.run_id, client) for client, name in enumerate(SITES)]
    controls = torch.stack([each.read(4)["control"] for each in kept])
    [last] = [
        asked.content.array_records[wire.RECEIVED].to_torch_state_dict()["control"]
        for asked, _ in federation.trained()
        if asked.content.config_records[wire.CONFIG]["server-round"] == 4 and asked.metadata.dst_node_id == slow
    ]
    reports = [
        answer.content.array_records[wire.REPORT].to_torch_state_dict()["control_change"]
        for asked, answer in federation.trained()
        if asked.content.config_records[wire.CONFIG]["server-round"] == 4
    ]
    torch.testing.assert_close(last + torch.stack(reports).mean(0), controls.mean(0), rtol=1e-4, atol=1e-5)


def test_a_client_that_lost_what_it_kept_says_so(federation: Federation, tmp_path: Path) -> None:
    kept = ClientStateStore(tmp_path, "run", 0)
    kept.write(3, {"control": torch.ones(2)}, counted=0)
    with pytest.raises(FedGAError, match="what was kept here after round 2 is not in"):
        kept.read(2)
    kept.write(4, {"control": torch.zeros(2)}, counted=3)
    kept.write(5, {"control": torch.zeros(2)}, counted=4)
    assert sorted(path.name for path in kept.folder.iterdir()) == [
        "round-000004.safetensors",
        "round-000005.safetensors",
    ]


@pytest.mark.parametrize("place", [0, 8, 20, 60, -1])
def test_a_damaged_file_of_a_client_is_told(place: int, tmp_path: Path) -> None:
    kept = ClientStateStore(tmp_path, "run", 0)
    kept.write(3, {"control": torch.ones(5)}, counted=0)
    [path] = kept.folder.iterdir()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(FedGAError, match=r"round-000003\.safetensors .*: bring round-000003\.safetensors back"):
        kept.read(3)


def test_what_version_0_1_kept_is_still_read(tmp_path: Path) -> None:
    kept = ClientStateStore(tmp_path, "run", 0)
    kept.folder.mkdir(parents=True)
    save_file({"control": torch.ones(5)}, kept.folder / "round-000003.safetensors")
    assert kept.read(3)["control"].tolist() == [1.0] * 5


# --- a site, and a server that is not what it seems ------------------------------------------------------------------


def ask_site(federation: Federation, change: Callable[[RecordDict], Any]) -> str:
    """Why a site refuses a message for training, after it was changed on the way."""
    federation.run(rounds=1)
    [(asked, _), *_] = federation.trained()
    change(asked.content)
    reply = federation.grid._deliver(asked)
    assert reply is not None
    return wire.reason(reply)


def other_spec(**settings: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        config = content.config_records[wire.CONFIG]
        config["spec"] = json.dumps({**json.loads(str(config["spec"])), **settings})

    return change


def set_config(**values: Any) -> Callable[[RecordDict], None]:
    return lambda content: content.config_records[wire.CONFIG].update(
        {name.replace("_", "-"): value for name, value in values.items()}
    )


def without_model(content: RecordDict) -> None:
    content.array_records[wire.ARRAYS].clear()


def pickled_model(content: RecordDict) -> None:
    array = content.array_records[wire.ARRAYS]["output.bias"]
    data = npy(np.array([None] * 10, dtype=object), pickled=True)
    content.array_records[wire.ARRAYS]["output.bias"] = Array("object", array.shape, array.stype, data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_spec(model="subprocess:call"), "the server's message names the model 'subprocess:call', which is none"),
        (other_spec(model="torch.nn:Linear"), "name it in this site's fedga.toml"),
        (other_spec(model="nope"), "name it in this site's fedga.toml"),
        (other_spec(algorithm="nope"), "names the algorithm 'nope'"),
        (other_spec(algorithm="os.system"), "names the algorithm 'os.system'"),
        (other_spec(lr="fast"), "--lr must be a number"),
        (other_spec(surprise=1), "unknown setting 'surprise'"),
        (set_config(spec="[" * 50_000), "this is not the description of a run: maximum recursion depth"),
        (set_config(spec="x" * 200_000), "in 200,000 letters"),
        (set_config(spec="no JSON"), "this is not the description of a run"),
        (set_config(spec=7), "is a JSON object, not 7"),
        (set_config(client="one"), "client = 'one', where a whole number"),
        (set_config(counted=-1), "counted = '-1', where a whole number"),
        (set_config(server_round=[1]), "server-round = '[1]', where a whole number"),
        (set_config(classes="yes"), "the server names no classes"),
        (without_model, "has no entry for 'hidden.weight'"),
        (pickled_model, "is of type 'object', where float32 is declared"),
    ],
)
def test_a_site_refuses_a_message(change: Callable[[RecordDict], Any], words: str, federation: Federation) -> None:
    said = ask_site(federation, change)
    assert words in ast.literal_eval(said)


def test_a_message_imports_nothing_at_a_site(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "surprise.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "surprise:Net" in ask_site(federation, other_spec(model="surprise:Net"))
    assert not (tmp_path / "was_run").exists()


def test_a_late_introduction_still_counts(federation: Federation) -> None:
    grid, slow = federation.grid, federation.grid.node(2)
    waiting: list[Message] = []

    def busy(message: Message) -> bool:
        first = message.metadata.dst_node_id == slow and not waiting
        waiting.extend([message] if first else [])
        return first

    grid.late = busy
    federation.run(wait_for_sites=5.0, rounds=1)
    assert len(federation.trained()) == 3


def test_a_second_run_goes_on_without_a_site_that_has_left(federation: Federation) -> None:
    def leave(message: Message) -> str | None:
        number = message.content.config_records[wire.CONFIG].get("server-round")
        if number == 2 and message.metadata.message_type == wire.TRAIN:
            federation.grid.away = {federation.grid.node(1)}
        return None

    federation.grid.failing = leave
    federation.run(algorithm="fedavg,fedga", rounds=3)
    assert [spec.algorithm for spec in _specs(federation.folder / "results")] == ["fedavg", "fedga"]
    with Store(federation.folder / "results") as store:
        assert {run.status for run in store.runs()} == {"done"}


def test_columns_in_another_order_are_refused(federation: Federation, files: Path, tmp_path: Path) -> None:
    table = [line.split(",") for line in (files / "south.csv").read_text().splitlines()]
    (tmp_path / "turned.csv").write_text("\n".join(",".join([row[1], row[0], *row[2:]]) for row in table) + "\n")
    federation.tell(1, data=str(tmp_path / "turned.csv"))
    with pytest.raises(FedGAError, match="site south has a table whose columns have other names or another order"):
        federation.run()


def test_sites_may_call_their_labels_as_they_like(federation: Federation, files: Path, tmp_path: Path) -> None:
    for place, name in enumerate(("diagnosis", "befund")):
        text = (files / f"{SITES[place]}.csv").read_text()
        (tmp_path / f"{name}.csv").write_text(text.replace(",label,", f",{name},", 1))
        federation.tell(place, data=str(tmp_path / f"{name}.csv"), label_column=name)
    federation.run(rounds=1)
    assert len(federation.trained()) == 3


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda content: content.pop(wire.REPORT), "its record report has no entry for 'control_change'"),
        (
            lambda content: content.__setitem__(wire.REPORT, wire.to_record({"control_change": torch.ones(3)})),
            "has shape '(3,)'",
        ),
        (lambda content: content.pop(wire.METRICS), "it has no number num-examples"),
    ],
)
def test_an_odd_report_is_left_out(
    spoil: Any, why: str, federation: Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    deliver, bad = federation.grid._deliver, federation.grid.node(0)

    def spoiling(message: Message) -> Message | None:
        reply = deliver(message)
        if reply is not None and reply.metadata.src_node_id == bad and wire.REPORT in reply.content:
            spoil(reply.content)
        return reply

    federation.grid._deliver = spoiling  # type: ignore[method-assign]
    federation.run(algorithm="scaffold", rounds=1)
    assert why in capfd.readouterr().out


def test_the_cache_of_a_site_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGA_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "own.npz", x=np.zeros((10, 1, 4, 4), np.uint8), y=np.arange(10) % 2)
    load_site(tmp_path / "own.npz", ("0", "1"))
    made = list((tmp_path / "cache").rglob("meta.json"))
    assert made
    assert all(path.parent.stat().st_mode & 0o077 == 0 for path in made)
