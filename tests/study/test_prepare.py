"""From specs to lanes: everything checked and made once, before anything runs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedga.errors import FedGAError
from fedga.spec.settings import RunSpec
from fedga.study import prepare
from fedga.study.prepare import Preparation, choose_device, fitting_model
from tests.data.data_makers import pictures, write_picture_classes


def make_spec(**values: Any) -> RunSpec:
    return RunSpec(**{"dataset": "digits", "alpha": 0.1, "clients": 10, "active": 2, **values})


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(FedGAError, match="give --device cpu"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(FedGAError, match="there are only 2 CUDA devices"):
        choose_device("cuda:2")


def test_data_are_read_and_partitioned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = prepare.load_dataset

    def counted(name: str, **options: Any) -> Any:
        loaded.append(name)
        return load(name, **options)

    monkeypatch.setattr(prepare, "load_dataset", counted)
    grid = itertools.product(("fedavg", "fedga"), (0.1, 1), (0, 1))
    specs = [make_spec(algorithm=name, lr=lr, seed=seed) for name, lr, seed in grid]
    preparation = Preparation(specs)
    lanes = [preparation.lane(spec) for spec in specs]
    assert loaded == ["digits"]
    assert len({id(lane.federation) for lane in lanes}) == 2  # one per seed
    assert len(set(preparation.fingerprints(specs).values())) == 1
    assert lanes[0].algorithm == lanes[2].algorithm != lanes[4].algorithm


def test_weights_depend_on_the_seed_alone() -> None:
    specs = [make_spec(algorithm="fedavg"), make_spec(algorithm="fedga", alpha=1), make_spec(seed=1)]
    preparation = Preparation(specs)
    first, same, other = (next(preparation.lane(spec).model.parameters()) for spec in specs)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_no_more_active_clients_than_there_are(tmp_path: Any) -> None:
    path = tmp_path / "table.csv"
    path.write_text("x,label,client\n" + "".join(f"{i},{i % 2},{i % 3}\n" for i in range(60)), encoding="utf-8")
    spec = RunSpec(dataset=str(path), partition="natural", active=10)
    preparation = Preparation([spec])
    assert [fitted.active for fitted in preparation.fit_active([spec], chosen=False)] == [3]
    with pytest.raises(FedGAError, match="--active 10 is more than the 3 clients"):
        preparation.fit_active([spec], chosen=True)


def table_spec(folder: Path, rows: list[tuple[float, float, str, str]], **values: Any) -> RunSpec:
    text = "\n".join(["a,b,label,split", *(",".join(map(str, row)) for row in rows)])
    (folder / "table.csv").write_text(text, encoding="utf-8")
    return RunSpec(dataset=str(folder / "table.csv"), partition="iid", clients=2, active=2, **values)


@pytest.mark.parametrize(
    ("factor", "said"),
    [(1, False), (5, False), (4000, True), (0.001, True), (-4000, True)],
)
def test_columns_of_unlike_scale_are_pointed_out(factor: float, said: bool, tmp_path: Path) -> None:
    """A weight in grams beside a share, and nobody asked for standardisation."""
    rows = [(at / 19, factor * (1 + at / 20), "xy"[at % 2], "test" if at < 4 else "train") for at in range(20)]
    as_they_are = table_spec(tmp_path, rows)
    hints = Preparation([as_they_are]).hints([as_they_are, replace(as_they_are, seed=1)])
    assert len(hints) == said  # once, however many runs
    least, most = sorted((1.0, abs(factor) * 1.95))
    said_of = f"the columns of table.csv lie between {least:,.4g} and {most:,.4g}, "
    assert all(said_of in hint and hint.endswith("give --standardize true") for hint in hints)
    standardized = replace(as_they_are, standardize=True)
    assert Preparation([standardized]).hints([standardized]) == []


def test_standardised_columns_with_a_long_tail_need_no_hint(tmp_path: Path) -> None:
    rows = [(12.0 if at == 9 else 0.1, at / 199, "xy"[at % 2], "test" if at < 4 else "train") for at in range(200)]
    spec = table_spec(tmp_path, rows)
    assert Preparation([spec]).hints([spec]) == []


def test_clients_that_are_named_and_not_used_and_very_small_ones_are_pointed_out(tmp_path: Path) -> None:
    rows = [f"{at / 99},{'xy'[at % 2]},hospital {at % 3}" for at in range(100)]
    (tmp_path / "table.csv").write_text("\n".join(["a,label,client", *rows]), encoding="utf-8")
    dealt = RunSpec(dataset=str(tmp_path / "table.csv"), partition="iid", clients=40, active=2)
    [named], [held] = Preparation([dealt]).hints([dealt]), Preparation([]).holdings([dealt])
    assert named.startswith("table.csv says whose sample each one is, and --partition iid ignores that")
    small = "a client with fewer than 5 learns little: give fewer --clients"
    assert held == f"40 clients hold 80 of the 80 training samples of table.csv: 2 each; {small}"
    natural = replace(dealt, partition="natural", clients=None)
    assert Preparation([natural]).hints([natural]) == []
    assert Preparation([]).holdings([natural]) == [
        "3 clients hold 80 of the 80 training samples of table.csv: 26 to 27 each, median 27"
    ]


def test_a_partition_that_leaves_samples_aside_names_the_one_that_does_not() -> None:
    preparation = Preparation([])
    spec = make_spec(partition="dirichlet", alpha=0.1, clients=20, active=2)
    federations = [preparation.federation(each) for each in (spec, replace(spec, seed=1))]
    used = sorted(int(each.sizes.sum()) for each in federations)
    sizes = np.concatenate([each.sizes for each in federations])
    [said] = preparation.holdings([spec, replace(spec, seed=1)])  # once, however many runs
    assert said.startswith(f"20 clients hold {used[0]} to {used[1]} of the 1,438 training samples of digits: ")
    assert f": {sizes.min()} to {sizes.max()} each, median {np.median(sizes):.0f}; " in said
    assert "--partition dirichlet leaves the others aside, --partition dirichlet-class uses all" in said
    all_used = replace(spec, partition="dirichlet-class", alpha=1.0)
    assert "aside" not in preparation.holdings([all_used])[0]
    assert preparation.federation(all_used).sizes.sum() == 1438
    held_out = replace(spec, partition="iid", alpha=None, validate=0.5)  # to score on, which is a use
    assert "aside" not in preparation.holdings([held_out])[0]


def test_how_folders_in_folders_are_read_is_said(tmp_path: Path) -> None:
    labels = ["north/ill", "north/well", "south/ill", "south/well"] * 5
    write_picture_classes(tmp_path / "chest", pictures(20, (1, 4, 4)), labels)
    spec = RunSpec(dataset=str(tmp_path / "chest"), partition="natural", active=2)
    [hint] = Preparation([spec]).hints([spec])
    assert hint.startswith("folders of chest are taken as clients (north, south), with classes in them (ill, well): ")
    asked = replace(spec, client_column="outer")
    assert Preparation([asked]).hints([asked]) == []


def test_pictures_need_no_hint() -> None:
    assert Preparation([make_spec()]).hints([make_spec()]) == []


def test_a_column_of_zeros_asks_for_nothing(tmp_path: Path) -> None:
    spec = table_spec(tmp_path, [(at / 19, 0, "xy"[at % 2], "test" if at < 4 else "train") for at in range(20)])
    assert Preparation([spec]).hints([spec]) == []


def test_a_class_that_is_never_tested_is_named(tmp_path: Path) -> None:
    rows = [(at / 19, 1, "rare" if at == 9 else "xy"[at % 2], "test" if at < 4 else "train") for at in range(20)]
    spec = table_spec(tmp_path, rows)
    [hint] = Preparation([spec]).hints([spec])
    assert hint.startswith("the test split of table.csv has no sample of class rare, ")


def test_names_are_checked_before_data_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, **_: Any) -> None:
        raise AssertionError("a misspelt algorithm is known without the data")

    monkeypatch.setattr(prepare, "load_dataset", load)
    with pytest.raises(FedGAError, match="did you mean 'fedga'"):
        Preparation([make_spec(), make_spec(algorithm="fedgaa")])


class Answers(nn.Module):
    """A network of the user's own that gives back what it is told to."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, inputs: Tensor) -> Any:
        return self.answer(inputs) if callable(self.answer) else self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (torch.zeros(2, 9), r"gives outputs of shape \(9,\) where 10 classes are to be told apart"),
        ((torch.zeros(2, 10), None), "gives outputs of type tuple where 10 classes"),
        (lambda inputs: inputs.view(2, 65), r"cannot read samples of shape 1×8×8 \(RuntimeError"),
        (lambda inputs: inputs["image"], r"cannot read samples of shape 1×8×8 \(IndexError"),
    ],
)
def test_network_that_does_not_fit(answer: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "build_model", lambda *_, **__: Answers(answer))
    with pytest.raises(FedGAError, match=said):
        fitting_model("mine:Net", (1, 8, 8), 10)


def test_network_that_fits_is_ready_to_be_evaluated() -> None:
    model = fitting_model("mlp", (1, 8, 8), 10)
    assert not model.training
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"momentum": 0.9}, "--momentum 0.9 does not go with SCAFFOLD.*leave one of the two out.*--server momentum"),
        ({"optimizer": "adam"}, "--optimizer adam does not go with SCAFFOLD"),
        ({"algorithm": "lda-head:base=scaffold", "momentum": 0.9}, "--momentum 0.9 does not go with LDAHead"),
    ],
)
def test_what_is_not_plain_sgd_is_refused_before_a_sweep(settings: dict[str, Any], said: str) -> None:
    plain = RunSpec(**{"dataset": "digits", "algorithm": "scaffold", "alpha": 0.1})
    Preparation([plain, replace(plain, algorithm="feddyn", momentum=0.9)])
    with pytest.raises(FedGAError, match=said):
        Preparation([plain, replace(plain, **settings)])


def test_fedntd_on_two_classes_is_said_to_be_fedavg(tmp_path: Path) -> None:
    rows = "\n".join(f"{i % 7 - 3},{i % 5 - 2},{'ab'[i % 2]}" for i in range(200))
    (tmp_path / "two.csv").write_text(f"x,y,label\n{rows}\n")
    spec = make_spec(dataset=str(tmp_path / "two.csv"), clients=4, algorithm="fedntd", standardize=True)
    others = [replace(spec, algorithm="fedavg"), make_spec(algorithm="fedntd")]
    preparation = Preparation([spec, *others])
    assert any("two classes it is fedavg" in hint for hint in preparation.hints([spec]))
    assert not any("two classes" in hint for hint in preparation.hints(others))
