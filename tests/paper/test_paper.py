"""The paper's experiments as runs: as published, shared between tables and figures, and narrowed by a scope."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path

import pytest

from fedga.errors import FedGAError
from fedga.paper.runs import (
    ALGORITHMS,
    ALPHAS,
    AXES,
    COLUMNS,
    DATASETS,
    EXPERIMENTS,
    FILE_NAME,
    SEEDS,
    Scope,
    all_runs,
    asked,
    experiments_in,
    remember,
)
from fedga.spec.presets import preset_settings
from fedga.spec.settings import RunSpec

FULL, QUICK = Scope("full"), Scope("quick")


def ids(name: str, scope: Scope = FULL) -> set[str]:
    return {spec.run_id for spec in EXPERIMENTS[name].runs(scope)}


def axes_of(spec: RunSpec) -> frozenset[str]:
    return frozenset(
        name for name, changes in AXES.items() if all(getattr(spec, key) == value for key, value in changes.items())
    )


def test_the_main_table_is_the_paper_s_grid_and_the_authors_own_counting() -> None:
    runs = EXPERIMENTS["table-main"].runs(FULL)
    cells = Counter((spec.dataset, spec.alpha, spec.algorithm) for spec in runs)
    assert set(cells) == {(d, a, g) for d in DATASETS for a in ALPHAS for g in COLUMNS}
    assert set(cells.values()) == {len(SEEDS)}
    for spec in runs:
        published = preset_settings("paper", spec.dataset, spec.alpha).values
        looked_at = {"evaluate_every", "diagnose_every", "server_average"}  # none of them changes the last model
        assert all(getattr(spec, name) == value for name, value in published.items() if name not in looked_at)


SHARING = ("table-80", "table-speed", "figure-clients", "figure-alphas", "figure-ea", "figure-curves", "figure-zoom")


@pytest.mark.parametrize("name", [*SHARING, "figure-labels"])
def test_figures_of_the_main_table_s_runs_train_nothing(name: str) -> None:
    assert ids(name) <= ids("table-main")
    assert ids(name, QUICK) <= ids("table-main", QUICK)


def test_80_percent_of_the_rounds_is_an_evaluated_round() -> None:
    assert all(spec.rounds * 4 % (5 * spec.evaluate_every) == 0 for spec in EXPERIMENTS["table-main"].runs(FULL))


def test_more_local_epochs_are_fewer_rounds_at_equal_work() -> None:
    runs = EXPERIMENTS["figure-epochs"].runs(FULL)
    assert {spec.local_epochs: spec.rounds for spec in runs} == {2: 400, 5: 160, 10: 80}
    assert {spec.algorithm for spec in runs} == set(ALGORITHMS)


def test_beyond_has_no_axis_each_alone_all_but_each_and_all() -> None:
    runs = [spec for spec in EXPERIMENTS["beyond"].runs(FULL) if spec.dataset == "svhn"]
    skewed = [spec for spec in runs if spec.partition == "dirichlet" and spec.algorithm == "fedga" and spec.seed == 0]
    sizes = Counter(len(axes_of(spec)) for spec in skewed)
    assert sizes == {0: 1, 1: 4, 3: 4, 4: 1}
    assert len({axes_of(spec) for spec in skewed}) == len(skewed)
    even = Counter((spec.preset, spec.algorithm) for spec in runs if spec.partition == "even")
    assert set(even) == {("paper", "fedavg"), ("strong", "fedavg"), ("strong", "fedga")}


def test_beyond_shares_its_ends_with_the_main_table_and_the_strong_setting() -> None:
    runs = EXPERIMENTS["beyond"].runs(FULL)
    none = {spec.run_id for spec in runs if not axes_of(spec) and spec.partition == "dirichlet"}
    every = {spec.run_id for spec in runs if len(axes_of(spec)) == len(AXES)}
    assert none <= ids("table-main")
    assert every <= ids("strong")


def test_quick_needs_no_data_but_the_embedded_ones() -> None:
    runs = all_runs(EXPERIMENTS.values(), QUICK)
    assert {spec.dataset for spec in runs} == {"digits"}
    assert sum(spec.rounds for spec in all_runs(experiments_in("all", QUICK), QUICK)) < 25_000
    assert EXPERIMENTS["related"] not in experiments_in("all", FULL)
    assert all(each.runs(QUICK) for each in EXPERIMENTS.values() if each.parts)


def test_quick_on_a_named_data_set_is_a_small_part_of_it() -> None:
    quick, full = (EXPERIMENTS["table-main"].runs(Scope(scale, ("cifar10",))) for scale in ("quick", "full"))
    assert sum(spec.rounds for spec in quick) < 0.02 * sum(spec.rounds for spec in full)
    assert {spec.algorithm for spec in quick} == set(COLUMNS)


def test_a_scope_narrows_every_list() -> None:
    scope = Scope("full", ("mnist",), (0.3,), (7,), ("fedga", "fedprox:mu=0.1"))
    runs = EXPERIMENTS["table-main"].runs(scope)
    assert [(s.dataset, s.alpha, s.seed, s.algorithm) for s in runs] == [
        ("mnist", 0.3, 7, "fedga"),
        ("mnist", 0.3, 7, "fedprox:mu=0.1"),
    ]


def test_all_leaves_out_what_has_none_of_the_data_sets() -> None:
    scope = Scope("full", ("mnist", "svhn"))
    names = {each.name for each in experiments_in("all", scope)}
    assert "figure-adam" not in names  # CIFAR-100
    assert {"table-main", "figure-curves", "beyond"} <= names
    assert {spec.dataset for spec in all_runs(experiments_in("all", scope), scope)} == {"mnist", "svhn"}


def test_an_experiment_that_is_named_takes_any_data_set() -> None:
    [adam] = experiments_in("figure-adam", Scope("full", ("mnist",)))
    assert {spec.dataset for spec in adam.runs(Scope("full", ("mnist",)))} == {"mnist"}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(FedGAError, match="did you mean 'table-main'"):
        experiments_in("table-mian", FULL)
    with pytest.raises(FedGAError, match="did you mean 'quick'"):
        Scope("quik")


def test_a_folder_remembers_what_was_asked_of_it(tmp_path: Path) -> None:
    assert asked(tmp_path) == {}
    narrow = Scope("quick", ("mnist",), (0.1,), (0, 1), ("fedga",))
    remember(tmp_path, [EXPERIMENTS["table-main"]], FULL)
    remember(tmp_path, [EXPERIMENTS["beyond"]], narrow)
    remember(tmp_path, [EXPERIMENTS["beyond"]], FULL)
    remember(tmp_path, [EXPERIMENTS["beyond"]], narrow)
    assert asked(tmp_path) == {"table-main": (FULL,), "beyond": (narrow, FULL)}
    assert {s.run_id for s in all_runs([EXPERIMENTS["beyond"]], narrow, FULL)} == ids("beyond") | ids("beyond", narrow)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"experiment": "beyond"}', '{"experiment": "beyond", "scale": "full"}', "3", "null"]
)
def test_a_damaged_note_is_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(FedGAError, match=r"paper\.jsonl cannot be read .* delete it"):
        asked(tmp_path)


def test_two_processes_note_what_was_asked_without_losing_either(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    scopes = [Scope("full", seeds=(seed,)) for seed in range(2)]
    others = [context.Process(target=_remember_often, args=(tmp_path, scope)) for scope in scopes]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert [other.exitcode for other in others] == [0, 0]
    assert set(asked(tmp_path)["beyond"]) == {*scopes}
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def _remember_often(folder: Path, scope: Scope) -> None:
    for name in (*EXPERIMENTS, "beyond"):
        remember(folder, [EXPERIMENTS[name]], scope)


def test_a_folder_that_is_a_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert asked(tmp_path / "file") == {}
    with pytest.raises(FedGAError, match="cannot be written to"):
        remember(tmp_path / "file", [EXPERIMENTS["beyond"]], FULL)
