from __future__ import annotations

from pathlib import Path

import pytest

from fedga.errors import FedGAError
from fedga.spec.grid import Sweep, build_sweep, parse_list, read_config
from fedga.spec.settings import SETTINGS


def sources(sweep: Sweep, setting: str) -> list[tuple[tuple, str]]:
    return [(line.values, line.source) for line in sweep.provenance if line.setting == setting]


@pytest.fixture
def config(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "study.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# Texts of flags


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("alpha", "0.05,0.1,10", [0.05, 0.1, 10.0]),
        ("alpha", "none", [None]),
        ("clip", "5, none, 0", [5.0, None, None]),
        ("rounds", "10", [10]),
        ("seed", "0-4", [0, 1, 2, 3, 4]),
        ("seed", "3,0-1", [3, 0, 1]),
        ("standardize", "true,false", [True, False]),
        ("algorithm", "fedprox:mu=0.01, fedga", ["fedprox:mu=0.01", "fedga"]),
        ("lr", "1e-2", [0.01]),
        ("preset", "", [""]),
        ("partition", "iid,dirichlet", ["iid", "dirichlet"]),
    ],
)
def test_lists_are_read_by_the_kind_of_setting(name: str, text: str, values: list) -> None:
    assert parse_list(name, text) == values


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("alpha", "0.1,,1", "--alpha '0.1,,1' has an empty entry"),
        ("alpha", "0.1,-1", "--alpha must be a number above 0 (or none), not -1.0"),
        ("alpha", "nan", "--alpha must be a number above 0 (or none), not nan"),
        ("lr", "fast", "--lr must be a number above 0, not 'fast'"),
        ("rounds", "1.5", "--rounds must be a whole number of at least 1, not '1.5'"),
        ("seed", "4-0", "--seeds '4-0' is a range that ends before it begins: write it as 0-4"),
        ("seed", "0-99999999999", "is a range of more than 10,000 values"),
        ("seed", "a-b", "--seeds must be a whole number of at least 0, not 'a-b'"),
        ("augment", "none,mirror", "--augment 'none,mirror' is not one value: give one"),
        ("standardize", "maybe", "--standardize must be true or false, not 'maybe'"),
        ("server", "adm", "unknown --server 'adm': did you mean 'adam'?"),
    ],
)
def test_bad_texts_are_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(FedGAError) as caught:
        parse_list(name, text)
    assert message in str(caught.value)


def test_seeds() -> None:
    assert parse_list("seed", "0-2,7") == [0, 1, 2, 7]


# Files


def test_a_file_holds_values_arrays_and_texts(config) -> None:
    path = config('dataset = "mnist"\nalpha = [0.1, 1]\nweight-decay = 0\nseeds = "0-2"\nclip = "none"\nout = "here"\n')
    settings, program = read_config(path)
    assert settings == {
        "dataset": ["mnist"],
        "alpha": [0.1, 1.0],
        "weight_decay": [0.0],
        "seed": [0, 1, 2],
        "clip": [None],
    }
    assert program == {"out": "here"}
    assert build_sweep({}, path).program == {"out": "here"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rouns = 3", "unknown key in study.toml 'rouns': did you mean 'rounds'?"),
        ("weight-decy = 3", "unknown key in study.toml 'weight-decy': did you mean 'weight_decay'?"),
        ("algorithm_options = 3", "unknown key in study.toml 'algorithm_options'"),
        ("lr = true", "lr in study.toml must be a number above 0, not True"),
        ("lr = [0.1, 'fast']", "lr in study.toml must be a number above 0, not 'fast'"),
        ("lr = 'fast'", "lr in study.toml must be a number above 0, not 'fast'"),
        ("rounds = 10.0", "rounds in study.toml must be a whole number of at least 1, not 10.0"),
        ("alpha = nan", "alpha in study.toml must be a number above 0 (or none), not nan"),
        ("alpha = []", "alpha in study.toml is empty"),
        ("standardize = 1", "standardize in study.toml must be true or false, not 1"),
        ("server = 'adm'", "unknown server in study.toml 'adm': did you mean 'adam'?"),
        ("[lr]\nx = 1", "lr in study.toml must be a number above 0, not {'x': 1}"),
        (
            "[algorithms]\nmine = 'mine.py:Mine'",
            "study.toml has a table [algorithms], as a project file (fedga.toml) has",
        ),
        ("dataset = 3", "dataset in study.toml must be a text, not 3"),
        ("out = 3", "out in study.toml must be a text, not 3"),
        ("lr-schedule = 'cosine'\nlr_schedule = 'cosine'", "lr_schedule in study.toml is given twice"),
        ("lr = 0.1\nrounds = \n", "study.toml is not valid TOML: Invalid value (at line 2"),
        ("lr = 0.1\nlr = 0.2\n", "study.toml is not valid TOML: Cannot overwrite a value (at line 2"),
        ("lr = 1e308", "lr in study.toml must be a number above 0 and at most 1e+30, not 1e+308"),
        ("rounds = " + "9" * 5000, "study.toml is not valid TOML"),
        (
            "rounds = 0x" + "f" * 5000,
            "rounds in study.toml must be a whole number of at least 1, not an int of 20000 bits",
        ),
        ("lr = " + "[" * 5000, "study.toml is not valid TOML"),
        ("out = ''", "out in study.toml is empty: give a value, or leave the key out"),
        ("seeds = '0-" + "9" * 5000 + "'", "seeds in study.toml must be a whole number of at least 0, not '999"),
        ("preset = 'papr'", "unknown preset 'papr': did you mean 'paper'?"),
    ],
)
def test_bad_files_are_refused(config, text: str, message: str) -> None:
    with pytest.raises(FedGAError) as caught:
        build_sweep({}, config(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedGAError, match=r"file of --config does not exist: .*nowhere\.toml"):
        build_sweep({}, tmp_path / "nowhere.toml")
    with pytest.raises(FedGAError, match="is a folder, where a plain file is expected"):
        build_sweep({}, tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'dataset = "\xe9"')
    with pytest.raises(FedGAError, match=r"latin\.toml is not valid TOML"):
        build_sweep({}, tmp_path / "latin.toml")


# Layers


def test_flags_win_over_file_over_preset_over_default(config) -> None:
    path = config('dataset = "mnist"\npreset = "strong"\nlr = 0.5\nrounds = 7\nmomentum = 0.9\n')
    sweep = build_sweep({"lr": [0.05], "alpha": [0.1], "algorithm": None}, path)
    run = sweep.runs[0]
    assert (run.lr, run.rounds, run.momentum) == (0.05, 7, 0.9)
    assert (run.lr_schedule, run.batch_size, run.norm, run.model) == ("cosine", 64, "batch", "mlp")
    assert sources(sweep, "lr") == [((0.05,), "--lr")]
    assert sources(sweep, "rounds") == [((7,), "study.toml")]
    assert sources(sweep, "lr_schedule") == [(("cosine",), "preset strong")]
    assert sources(sweep, "model") == [(("mlp",), "preset strong (mnist, α=0.1)")]
    assert sources(sweep, "norm") == [(("batch",), "default")]
    assert sources(sweep, "algorithm") == [(("fedavg", "fedga"), "default")]
    assert sources(sweep, "seed") == [((0,), "default")]


def test_every_setting_has_a_line() -> None:
    sweep = build_sweep({"dataset": ["svhn"], "alpha": [0.05, 10]})
    assert {line.setting for line in sweep.provenance} == set(SETTINGS)
    assert sources(sweep, "lr") == [((0.1,), "default (svhn, α=0.05)"), ((0.3,), "default (svhn, α=10)")]
    assert sources(sweep, "alpha") == [((0.05, 10.0), "--alpha")]


def test_presets_that_agree_share_a_line() -> None:
    sweep = build_sweep({"dataset": ["mnist"], "preset": ["paper", "strong"], "alpha": [0.1, 0.3]})
    assert sources(sweep, "rounds") == [((100,), "preset paper, preset strong (mnist, α=0.1, α=0.5 row)")]
    assert sources(sweep, "lr") == [((0.1,), "preset paper (mnist, α=0.1, α=0.5 row)"), ((0.1,), "preset strong")]
    assert sources(sweep, "server") == [(("sgd",), "preset paper"), (("momentum",), "preset strong")]


def test_nothing_given_is_the_embedded_default() -> None:
    sweep = build_sweep({})
    assert len(sweep.runs) == 12
    assert {run.dataset for run in sweep.runs} == {"digits"}
    assert {run.alpha for run in sweep.runs} == {0.1}
    assert {(run.algorithm, run.preset, run.seed) for run in sweep.runs} == {
        (algorithm, preset, seed)
        for algorithm in ("fedavg", "fedga")
        for preset in ("paper", "strong")
        for seed in range(3)
    }
    assert {run.rounds for run in build_sweep({"rounds": [5]}).runs} == {5}
    assert len(build_sweep({"rounds": [5]}).runs) == 12


def test_without_a_preset_the_values_are_the_papers() -> None:
    [plain] = build_sweep({"dataset": ["svhn"], "algorithm": ["fedga"], "alpha": [0.05]}).runs
    [paper] = build_sweep({"dataset": ["svhn"], "algorithm": ["fedga"], "alpha": [0.05], "preset": ["paper"]}).runs
    assert (plain.preset, paper.preset) == ("", "paper")
    assert {name: getattr(plain, name) for name in SETTINGS if name != "preset"} == {
        name: getattr(paper, name) for name in SETTINGS if name != "preset"
    }


def test_explicit_flags_win_over_both_presets() -> None:
    sweep = build_sweep(
        {"dataset": ["mnist"], "preset": ["paper", "strong"], "server": ["adam"], "weight_decay": [0.5]}
    )
    assert {(run.server, run.server_rate, run.weight_decay) for run in sweep.runs} == {("adam", None, 0.5)}
    assert sources(sweep, "server_rate") == [((None,), "default")]
    kept = build_sweep({"dataset": ["mnist"], "preset": ["paper"], "server": ["sgd"]})
    assert {run.server_rate for run in kept.runs} == {1.0}
    both = build_sweep({"dataset": ["mnist"], "preset": ["paper"], "server": ["adam"], "server_rate": [0.01]})
    assert {run.server_rate for run in both.runs} == {0.01}


def test_climb_takes_its_options_from_the_data_set() -> None:
    flags = {"dataset": ["mnist", "svhn"], "algorithm": ["climb", "climb:epsilon=0.7", "fedga"], "preset": ["paper"]}
    sweep = build_sweep(flags)
    options = {(run.dataset, run.algorithm): dict(run.algorithm_options) for run in sweep.runs}
    assert options["mnist", "climb"] == {"epsilon": 0.01, "dual_rate": 2.0}
    assert options["mnist", "climb:epsilon=0.7"] == {"epsilon": 0.7, "dual_rate": 2.0}
    assert options["svhn", "climb"] == {"epsilon": 0.1, "dual_rate": 0.5}
    assert options["svhn", "fedga"] == {}
    assert sources(sweep, "climb epsilon") == [((0.01,), "preset paper (mnist)"), ((0.1,), "preset paper (svhn)")]


# Combinations


def test_all_combinations_in_a_fixed_order_without_repeats() -> None:
    flags = {"seeds": [0, 1], "algorithm": ["fedga", "fedavg"], "dataset": ["mnist"], "lr": [0.1, 0.2, 0.1]}
    sweep = build_sweep(flags)
    assert [(run.algorithm, run.lr, run.seed) for run in sweep.runs] == [
        (algorithm, lr, seed) for algorithm in ("fedga", "fedavg") for lr in (0.1, 0.2) for seed in (0, 1)
    ]
    assert build_sweep(dict(reversed(flags.items()))).runs == sweep.runs
    assert sweep.axes == ("algorithm", "lr", "seed")


def test_a_partition_reads_only_what_it_needs() -> None:
    flags = {"dataset": ["mnist"], "algorithm": ["fedga"], "partition": ["dirichlet", "iid", "shards"]}
    runs = build_sweep({**flags, "alpha": [0.1, 1.0], "classes_per_client": [1, 3]}).runs
    assert [(run.partition, run.alpha, run.classes_per_client) for run in runs] == [
        ("dirichlet", 0.1, 2),
        ("dirichlet", 1.0, 2),
        ("iid", None, 2),
        ("shards", None, 1),
        ("shards", None, 3),
    ]
    assert [run.alpha for run in build_sweep({**flags, "partition": ["iid"]}).runs] == [None]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"partition": ["iid"], "alpha": [0.1]}, "--alpha is not read by --partition iid: leave it out"),
        (
            {"classes_per_client": [3]},
            "--classes-per-client is not read by --partition dirichlet",
        ),
        ({"client_column": ["site"], "clients": [3]}, "--clients is not read by --partition natural"),
        ({"clients": [5], "active": [10]}, "--active 10 is more than --clients 5: give --active 5 or fewer"),
        ({"alpa": [5]}, "unknown setting 'alpa': did you mean 'alpha'?"),
        ({"preset": ["stong"]}, "unknown preset 'stong': did you mean 'strong'?"),
        ({"algorithm": ["fedprox:mu"]}, "--algorithm 'fedprox:mu' has a bad option"),
        ({"lr": [-1.0]}, "--lr must be a number above 0, not -1.0"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(flags: dict, message: str) -> None:
    with pytest.raises(FedGAError) as caught:
        build_sweep({"dataset": ["mnist"], **flags})
    assert message in str(caught.value)


def test_a_client_column_makes_the_partition_natural() -> None:
    sweep = build_sweep({"dataset": ["patients.csv"], "algorithm": ["fedga"], "client_column": ["site"]})
    [run] = sweep.runs
    assert (run.partition, run.clients, run.alpha) == ("natural", None, None)
    assert sources(sweep, "partition") == [(("natural",), "--client-column")]


def test_fewer_clients_than_the_default_takes_part_are_all_active() -> None:
    assert [run.active for run in build_sweep({"dataset": ["mnist"], "clients": [3, 50]}).runs] == [3, 3, 10, 10]


def test_a_data_set_has_one_name_however_it_is_spelt(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('dataset = "CIFAR-10"\n')
    for sweep in (build_sweep({"dataset": ["CIFAR-10"]}), build_sweep({}, file)):
        assert {(run.dataset, run.model) for run in sweep.runs} == {("cifar10", "lenet")}


def test_more_runs_than_anyone_can_train_are_refused() -> None:
    with pytest.raises(FedGAError, match="these lists make 100,000,000 runs, and 1,000,000 are the most"):
        build_sweep({"dataset": ["digits"], "seed": range(10_000), "rounds": range(1, 10_001), "algorithm": ["fedavg"]})
