from __future__ import annotations

import csv
from importlib import resources

import pytest

from fedga.errors import FedGAError
from fedga.spec.presets import CLIMB, PAPER, STRONG, algorithm_defaults, preset_settings
from fedga.spec.settings import SETTINGS, RunSpec

TABLE = list(
    csv.DictReader(
        resources.files("fedga.spec").joinpath("paper_settings.csv").read_text(encoding="utf-8").splitlines()
    )
)


def test_the_table_is_the_papers() -> None:
    assert len(TABLE) == 25
    models = {(row["dataset"], row["model"]) for row in TABLE}
    assert models == {
        ("mnist", "mlp"),
        ("cifar10", "lenet"),
        ("cifar100", "resnet20"),
        ("svhn", "lenet"),
        ("tiny-imagenet", "resnet20"),
    }
    assert {row["alpha"] for row in TABLE} == {"10", "1", "0.5", "0.1", "0.05"}
    assert sum(int(row["rounds"]) for row in TABLE) == 11_200
    assert [row["dataset"] for row in TABLE if row["lr"] == "0.3"] == ["svhn"] * 3 + ["tiny-imagenet"] * 5


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['dataset']}-{row['alpha']}")
@pytest.mark.parametrize("name", ["paper", "strong", ""])
def test_a_preset_gives_exactly_the_tables_values(row: dict[str, str], name: str) -> None:
    preset = preset_settings(name, row["dataset"], float(row["alpha"]))
    expected = {
        **PAPER,
        "model": row["model"],
        "rounds": int(row["rounds"]),
        "lr": float(row["lr"]),
        **(STRONG if name == "strong" else {}),
    }
    assert preset.values == expected
    assert preset.row == f"{row['dataset']}, α={row['alpha']}"
    RunSpec(dataset=row["dataset"], alpha=float(row["alpha"]), **preset.values)


def test_paper_and_strong_are_what_the_method_says() -> None:
    paper = preset_settings("paper", "mnist", 0.1).values
    assert (paper["clients"], paper["active"], paper["local_epochs"], paper["batch_size"]) == (100, 10, 2, 64)
    assert (paper["optimizer"], paper["momentum"], paper["weight_decay"], paper["clip"]) == ("sgd", 0, 0, 5)
    assert (paper["lr_schedule"], paper["server"], paper["server_rate"]) == ("constant", "sgd", 1)
    assert (paper["server_average"], paper["standardize"]) == (0, False)
    strong = preset_settings("strong", "mnist", 0.1).values
    changed = {name: value for name, value in strong.items() if paper[name] != value}
    assert changed == {
        "standardize": True,
        "lr_schedule": "cosine",
        "weight_decay": 0.001,
        "server": "momentum",
        "server_average": 0.05,
    }
    assert strong["server_rate"] == 1
    assert preset_settings("strong", "svhn", 10).values["lr"] == 0.1  # one rate everywhere, where the paper has 0.3


@pytest.mark.parametrize(
    ("alpha", "row"),
    [
        (0.3, "svhn, α=0.5 row"),
        (0.2, "svhn, α=0.1 row"),
        (1e-6, "svhn, α=0.05 row"),
        (3.0, "svhn, α=1 row"),
        (4.0, "svhn, α=10 row"),
        (1e6, "svhn, α=10 row"),
        (None, "svhn, α=10 row"),
        (0.1, "svhn, α=0.1"),
    ],
)
def test_an_alpha_between_takes_the_nearest_row_and_says_so(alpha: float | None, row: str) -> None:
    assert preset_settings("paper", "svhn", alpha).row == row


def test_other_data_sets_have_settings_of_their_own() -> None:
    assert preset_settings("paper", "fashion-mnist", 0.1) == preset_settings("paper", "mnist", 0.1)
    digits = preset_settings("strong", "digits", 0.1)
    assert (digits.values["model"], digits.values["standardize"], digits.row) == ("mlp", True, "digits")
    own = preset_settings("", "my/table.csv", None)
    assert (own.values["model"], own.values["clients"], own.row) == ("mlp", 100, "my/table.csv")


def test_presets_name_real_settings() -> None:
    assert set(preset_settings("strong", "digits", 0.1).values) <= set(SETTINGS)


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(FedGAError, match="unknown preset 'papr': did you mean 'paper'"):
        preset_settings("papr", "mnist", 0.1)


@pytest.mark.parametrize("dataset", CLIMB)
def test_climb_has_options_per_data_set(dataset: str) -> None:
    epsilon, dual_rate = CLIMB[dataset]
    assert algorithm_defaults(dataset, "climb") == (("dual_rate", dual_rate), ("epsilon", epsilon))
    assert algorithm_defaults(dataset, "fedavg") == ()
    assert dataset in {row["dataset"] for row in TABLE}


def test_climb_elsewhere() -> None:
    assert algorithm_defaults("fashion-mnist", "climb") == algorithm_defaults("mnist", "climb")
    assert algorithm_defaults("digits", "climb") == ()
