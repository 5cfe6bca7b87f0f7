from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedga.errors import FedGAError
from fedga.spec.kinds import Switch
from fedga.spec.settings import _LATER, PARTITIONS, READ_ALPHA, SETTINGS, RunSpec, parse_algorithm

positive = st.floats(min_value=1e-9, max_value=1e9)
names = st.text(
    st.characters(codec="utf-8", exclude_characters=":,=", exclude_categories=["Cc", "Cs"]), min_size=1
).filter(lambda t: t.strip())


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    partition = draw(st.sampled_from(PARTITIONS))
    clients = draw(st.integers(1, 10**6))
    options = draw(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), positive, max_size=3))
    return RunSpec(
        dataset=draw(names),
        partition=partition,
        alpha=draw(positive) if partition in READ_ALPHA else None,
        clients=clients,
        active=draw(st.integers(1, clients)),
        algorithm=":".join(["fedx", *(f"{name}={value}" for name, value in options.items())]),
        rounds=draw(st.integers(1, 10**6)),
        lr=draw(positive),
        momentum=draw(st.floats(0, 1, exclude_max=True)),
        clip=draw(st.none() | st.just("none") | st.just(0) | positive),
        server_rate=draw(st.none() | positive),
        server_average=draw(st.just(0) | st.floats(1e-4, 1)),
        standardize=draw(st.booleans()),
        preset=draw(st.sampled_from(["", "paper", "strong"])),
        seed=draw(st.integers(0, 2**63 - 1)),
    )


@given(specs())
@settings(deadline=None)
def test_a_spec_survives_json(spec: RunSpec) -> None:
    back = RunSpec.from_json(spec.to_json())
    assert back == spec
    assert back.run_id == spec.run_id
    assert back.to_json() == spec.to_json()


def test_the_id_depends_on_content_alone() -> None:
    spec = RunSpec(alpha=1)
    assert spec.run_id == RunSpec(alpha=1.0).run_id == RunSpec(alpha=np.float64(1)).run_id
    assert RunSpec(alpha=1, clip=0).run_id == RunSpec(alpha=1, clip=None).run_id == RunSpec(alpha=1, clip="none").run_id
    assert RunSpec(alpha=1, momentum=-0.0).run_id == spec.run_id
    assert len(spec.run_id) == 16
    assert int(spec.run_id, 16) >= 0


def test_every_field_changes_the_id() -> None:
    base = RunSpec(alpha=0.1)
    other = {
        "partition": "even",
        "norm": "group",
        "optimizer": "adam",
        "lr_schedule": "cosine",
        "server": "yogi",
        "precision": "tf32",
        "aggregation": "uniform",
        "algorithm_options": (("x", 1.0),),
        "standardize": True,
        "centralize": True,
        "augment": "shift:2",
        "resize": "8x8",
        "stragglers": 0.5,
        "validate": 0.1,
        "select": "in-turn",
        "availability": "0.5",
        "clip": None,
        "server_rate": 0.5,
        "server_average": 0.5,
        "momentum": 0.5,
        "algorithm": "fedavg",
    }
    for field in dataclasses.fields(RunSpec):
        old = getattr(base, field.name)
        new = other[field.name] if field.name in other else old + 1 if isinstance(old, (int, float)) else f"{old}x"
        assert dataclasses.replace(base, **{field.name: new}).run_id != base.run_id, field.name


def test_the_id_is_stable_across_versions() -> None:
    """A folder of an earlier version is continued only while this holds; a change needs a migration."""
    assert RunSpec(dataset="mnist", alpha=0.1).run_id == "ac0988db28ce0bc9"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha": 0}, "--alpha must be a number above 0 (or none), not 0"),
        ({"alpha": -0.1}, "--alpha must be a number above 0 (or none), not -0.1"),
        ({"alpha": math.nan}, "--alpha must be a number above 0 (or none), not nan"),
        ({"alpha": math.inf}, "--alpha must be a number above 0 (or none), not inf"),
        ({"alpha": "much"}, "--alpha must be a number above 0 (or none), not 'much'"),
        ({"alpha": True}, "--alpha must be a number above 0 (or none), not True"),
        ({"alpha": None}, "--partition dirichlet needs --alpha, for example --alpha 0.1"),
        ({"partition": "iid"}, "--alpha 0.1 means nothing with --partition iid: leave it out, or choose --partition "),
        ({"active": 30, "clients": 20}, "--active 30 is more than --clients 20: give --active 20 or fewer"),
        ({"clients": None}, "--partition dirichlet needs a number of --clients"),
        ({"clients": 0}, "--clients must be a whole number of at least 1 (or none), not 0"),
        ({"active": 0}, "--active must be a whole number of at least 1, not 0"),
        ({"rounds": 0}, "--rounds must be a whole number of at least 1, not 0"),
        ({"rounds": 1.5}, "--rounds must be a whole number of at least 1, not 1.5"),
        ({"rounds": 10**30}, "--rounds must be a whole number of at least 1, not 1000"),
        ({"local_epochs": -1}, "--local-epochs must be a whole number of at least 1, not -1"),
        ({"batch_size": 0}, "--batch-size must be a whole number of at least 1, not 0"),
        ({"classes_per_client": 0}, "--classes-per-client must be a whole number of at least 1, not 0"),
        ({"evaluate_every": 0}, "--evaluate-every must be a whole number of at least 1, not 0"),
        ({"diagnose_every": -1}, "--diagnose-every must be a whole number of at least 0, not -1"),
        ({"lr": 0}, "--lr must be a number above 0, not 0"),
        ({"lr": 10**400}, "--lr must be a number above 0, not 1000"),
        ({"lr": math.nan}, "--lr must be a number above 0, not nan"),
        ({"server_rate": 0}, "--server-rate must be a number above 0 (or none), not 0"),
        ({"weight_decay": -1}, "--weight-decay must be a number of at least 0, not -1"),
        ({"momentum": 1}, "--momentum must be a number of at least 0 and below 1, not 1"),
        ({"momentum": -0.1}, "--momentum must be a number of at least 0 and below 1, not -0.1"),
        ({"clip": -5}, "--clip must be a number of at least 0 (or none), not -5"),
        ({"lr": 1e308}, "--lr must be a number above 0 and at most 1e+30, not 1e+308"),
        ({"lr": 1e-300}, "--lr must be a number of at least 1e-30, not 1e-300"),
        ({"server_rate": 1e39}, "--server-rate must be a number above 0 and at most 1e+30 (or none), not 1e+39"),
        ({"weight_decay": 1e300}, "--weight-decay must be a number of at least 0 and at most 1e+30, not 1e+300"),
        ({"weight_decay": 1e-300}, "--weight-decay must be 0, or a number of at least 1e-30, not 1e-300"),
        ({"clip": 1e300}, "--clip must be a number of at least 0 and at most 1e+30 (or none), not 1e+300"),
        ({"alpha": 1e300}, "--alpha must be a number above 0 and at most 1e+12 (or none), not 1e+300"),
        ({"alpha": 1e-300}, "--alpha must be a number of at least 1e-12 (or none), not 1e-300"),
        (
            {"server_average": 1e-8},
            "--server-average must be 0, or a number of at least 0.0001 and at most 1, not 1e-08",
        ),
        (
            {"rounds": 10**10},
            "--rounds must be a whole number of at least 1 and at most 1,000,000,000, not 10000000000",
        ),
        ({"local_epochs": 10**5}, "--local-epochs must be a whole number of at least 1 and at most 10,000, not 100000"),
        ({"rounds": 10**5000}, "--rounds must be a whole number of at least 1, not an int of 16610 bits"),
        ({"dataset": "a\0b"}, "--dataset 'a\\x00b' is not text that can be stored"),
        ({"dataset": "a\ud800"}, "--dataset 'a\\ud800' is not text that can be stored"),
        ({"algorithm_options": (("mu", 10**400),)}, "the option 'mu' must be a finite number, not 1000"),
        ({"server_average": 1.5}, "--server-average must be a number of at least 0 and at most 1, not 1.5"),
        ({"standardize": "yes"}, "--standardize must be true or false, not 'yes'"),
        ({"seed": -1}, "--seeds must be a whole number of at least 0, not -1"),
        ({"partition": "dirichle"}, "unknown --partition 'dirichle': did you mean 'dirichlet'?"),
        ({"lr_schedule": "cosin"}, "unknown --lr-schedule 'cosin': did you mean 'cosine'?"),
        ({"optimizer": "adm"}, "unknown --optimizer 'adm': did you mean 'adam'?"),
        ({"server": "yoghi"}, "unknown --server 'yoghi': did you mean 'yogi'?"),
        ({"norm": "grup"}, "unknown --norm 'grup': did you mean 'group'?"),
        ({"aggregation": "sample"}, "unknown --aggregation 'sample': did you mean 'samples'?"),
        ({"server": 3}, "--server must be one of sgd, momentum, adam, yogi, adagrad, not 3"),
        ({"dataset": " "}, "--dataset is empty: give a name"),
        ({"model": 3}, "--model must be a text, not 3"),
        ({"algorithm": ":mu=1"}, "--algorithm ':mu=1' has a bad option 'mu=1': write name:option=value"),
        ({"algorithm": ":"}, "--algorithm ':' has a bad option ''"),
        ({"algorithm": "fedprox:mu"}, "--algorithm 'fedprox:mu' has a bad option 'mu': write name:option=value"),
        ({"algorithm": "fedprox:mu="}, "--algorithm 'fedprox:mu=' has a bad option 'mu='"),
        ({"algorithm": "fedprox:1=2"}, "--algorithm 'fedprox:1=2' has a bad option '1=2'"),
        ({"algorithm": "fedprox:mu=1:mu=2"}, "--algorithm 'fedprox:mu=1:mu=2' gives the option 'mu' twice"),
        ({"algorithm": "fedprox:mu=nan"}, "the option 'mu' must be a finite number, not 'nan'"),
        ({"algorithm_options": 3}, "algorithm_options must be pairs of name and value, not 3"),
        ({"algorithm_options": ((1, 2),)}, "algorithm_options must be pairs of name and value, not (1, 2)"),
        ({"algorithm_options": (("mu", None),)}, "the option 'mu' must be a number or a text, not None"),
    ],
)
def test_bad_values_are_refused_in_the_words_of_the_flag(values: dict, message: str) -> None:
    with pytest.raises(FedGAError) as caught:
        RunSpec(**{"alpha": 0.1, **values})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_natural_partition_brings_its_clients() -> None:
    assert RunSpec(partition="natural").clients is None
    assert RunSpec(partition="shards", clients=30).clients == 30


def test_options_written_in_the_text_win_over_given_ones() -> None:
    spec = RunSpec(alpha=1, algorithm="climb:epsilon=0.5", algorithm_options=(("epsilon", 0.1), ("dual_rate", 2)))
    assert spec.algorithm == "climb:epsilon=0.5"
    assert spec.algorithm_name == "climb"
    assert spec.algorithm_options == (("dual_rate", 2.0), ("epsilon", 0.5))
    assert parse_algorithm("a:two-words=x") == ("a", (("two_words", "x"),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not the description of a run"),
        ("[]", "is a JSON object, not []"),
        ('{"rouns": 3}', "unknown setting 'rouns': did you mean 'rounds'?"),
        ('{"alpha": 1, "lr": "NaN"}', "--lr must be a number"),
        ('{"alpha": 1, "lr": Infinity}', "--lr must be a number above 0, not inf"),
        ('{"alpha": 1, "rounds": ' + "9" * 5000 + "}", "not the description of a run"),
        ("[" * 100_000, "not the description of a run"),
        ('{"lr": ' + "[" * 500 + "]" * 500 + "}", "--lr must be a number above 0, not [[[[[[[...]]]]]]]"),
        ('{"' + "a" * 10**6 + '": 1}', "unknown setting 'aaa"),
        ('"' + "a" * 10**6 + '"', "is a JSON object, not 'aaa"),
        ('{"algorithm_options": {"mu": 1}}', "algorithm_options must be pairs of name and value"),
    ],
    ids=lambda text: text[:30],
)
def test_bad_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(FedGAError) as caught:
        RunSpec.from_json(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 800


def test_the_ends_of_every_range_are_inside() -> None:
    ends = {"lr": 1e30, "server_rate": 1e-30, "weight_decay": 1e-30, "clip": 1e30, "alpha": 1e12, "rounds": 10**9}
    assert dataclasses.asdict(RunSpec(**ends)).items() >= ends.items()


def test_json_is_plain() -> None:
    """All settings, but for those that came later and have the value that runs before them had."""
    values = json.loads(RunSpec(alpha=0.1).to_json())
    assert set(values) == {f.name for f in dataclasses.fields(RunSpec)} - set(_LATER)
    assert list(values) == sorted(values)
    assert json.loads(RunSpec(alpha=0.1, precision="tf32").to_json())["precision"] == "tf32"


def test_every_setting_has_a_flag_a_help_and_a_valid_default() -> None:
    assert [f.name for f in dataclasses.fields(RunSpec) if f.name not in SETTINGS] == ["algorithm_options"]
    for name, setting in SETTINGS.items():
        assert setting.flag == ("--seeds" if name == "seed" else "--" + name.replace("_", "-"))
        assert setting.help
        assert "\n" not in setting.help
        assert setting.kind.check(setting.flag, setting.default) == setting.default


def test_partitions_are_those_of_the_data_package() -> None:
    from fedga.data import partitions

    assert set(PARTITIONS) == set(partitions.PARTITIONS)


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("On", True), ("1", True), ("false", False), ("0", False)])
def test_switches_are_read_from_words(text: str, value: bool) -> None:
    assert Switch().parse("--standardize", text) is value
