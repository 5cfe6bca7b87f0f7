"""The paper's printed numbers, as they ship."""

from __future__ import annotations

import csv
from importlib import resources

import pytest

from fedga.errors import FedGAError
from fedga.paper.printed import SCORE_TABLES, STAND_IN, printed_rounds, printed_score, stand_in_text
from fedga.spec.catalog import dataset_name, dataset_rank


def rows(name: str) -> list[dict[str, str]]:
    text = resources.files("fedga.paper").joinpath("printed_tables", f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize(("which", "number"), [("main", 300), ("at_80", 150)])
def test_every_printed_score_is_found_by_its_place(which: str, number: int) -> None:
    assert len(rows(which)) == number
    for row in rows(which):
        metric = "macro_f1" if row["metric"] == "f1" else "accuracy"
        score = printed_score(which, row["dataset"], float(row["alpha"]), row["algorithm"], metric)
        assert score is not None
        assert (f"{score.mean:.3f}", f"{score.deviation:.3f}") == (row["mean"], row["std"])
        assert score.bold == (row["bold"] == "1")


def test_every_speed_up_is_the_ratio_of_the_printed_rounds() -> None:
    assert len(rows("rounds")) == 75
    for row in rows("rounds"):
        found = printed_rounds(row["dataset"], float(row["alpha"]), row["algorithm"])
        fedavg = printed_rounds(row["dataset"], float(row["alpha"]), "fedavg")
        assert found is not None
        assert fedavg is not None
        assert found.speedup == pytest.approx(fedavg.rounds / found.rounds, abs=0.0051)


def test_the_bold_score_of_every_printed_row_is_its_best() -> None:
    for which in SCORE_TABLES:
        places = {(row["dataset"], row["alpha"], row["metric"]) for row in rows(which)}
        for place in places:
            of_place = [row for row in rows(which) if (row["dataset"], row["alpha"], row["metric"]) == place]
            best = max(row["mean"] for row in of_place)
            assert {row["mean"] for row in of_place if row["bold"] == "1"} == {best}, place


def test_both_ways_to_count_classes_are_the_printed_fedga_and_stand_ins_have_the_cells_of_the_other() -> None:
    assert printed_score("main", "svhn", 0.5, "fedga-batch") == printed_score("main", "svhn", 0.5, "fedga")
    assert printed_rounds("digits", 0.05, "fedga-batch") == printed_rounds("mnist", 0.05, "fedga")
    assert stand_in_text(["svhn", "mnist"]) == ""
    assert "digits stand in for MNIST" in stand_in_text(["svhn", *STAND_IN])


def test_what_is_not_printed_is_none_and_an_unknown_table_is_refused() -> None:
    assert printed_score("at_80", "cifar100", 0.1, "fedavg") is None
    assert printed_score("main", "mnist", None, "fedavg") is None
    assert printed_score("main", "mnist", 0.3, "fedavg") is None
    assert printed_score("main", "mnist", 0.1, "fedprox:mu=1") is None
    assert printed_rounds("mnist", 0.1, "fedrl") is None
    with pytest.raises(FedGAError, match="unknown printed table 'at80': did you mean 'at_80'"):
        printed_score("at80", "mnist", 0.1, "fedavg")


def test_data_sets_have_the_papers_names_and_order() -> None:
    names = ["zebra", "tiny-imagenet", "digits", "svhn", "cifar100", "cifar10", "mnist"]
    shown = [dataset_name(name) for name in sorted(names, key=dataset_rank)]
    assert shown == ["MNIST", "CIFAR-10", "CIFAR-100", "SVHN", "Tiny-ImageNet", "digits", "zebra"]
