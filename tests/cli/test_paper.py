"""`fedga paper` and `fedga tune`: from one command to tables, figures and a page."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from fedga.data import SOURCES
from fedga.paper.runs import EXPERIMENTS, Scope
from fedga.store.store import Store
from tests.cli.program import done, fedga
from tests.data.data_makers import splits, write_parquet

SMALL = "--scale quick --seeds 0,1 --alphas 0.1 --algorithms fedavg,fedga --threads 1"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All experiments, each with one α, two algorithms and two seeds."""
    folder = tmp_path_factory.mktemp("paper") / "out"
    done(f"paper all {SMALL} --out", folder)
    return folder


@pytest.fixture(scope="module")
def one_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table") / "out"
    done(f"paper table-80 {SMALL} --no-report --out", folder)
    return folder


def test_without_a_name_the_experiments_are_listed() -> None:
    listed = done("paper").out
    assert all(name in listed for name in EXPERIMENTS)
    assert "Table 1" in listed


def test_every_experiment_leaves_a_table_or_a_figure_and_has_its_place_on_the_page(everything: Path) -> None:
    page = (everything / "report.html").read_text(encoding="utf-8")
    for each in EXPERIMENTS.values():
        assert each.shows.split("`")[0] in page.replace("&#39;", "'"), each.name
    drawn = {path.stem for path in (everything / "figures").glob("*.svg")}
    for name in ("binary", "alphas", "client-ea", "curves", "adam", "epochs", "tuning", "beyond"):
        assert name in drawn
    for stem in ("clients-digits", "labels-digits", "zoom-digits", "strong-digits"):
        assert any(name.startswith(stem) for name in drawn), stem
    for name in drawn:
        assert (everything / "figures" / f"{name}.png").stat().st_size > 1000
        assert (everything / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    tables = {path.stem for path in (everything / "tables").glob("*.md")}
    expected = {"table-main-last", "table-main-80", "table-main-mean", "table-main-averaged", "table-80"}
    assert expected | {"rounds-to-90", "rounds-to-80", "tuning", "strong", "beyond"} <= tables
    for name in tables:
        assert (everything / "tables" / f"{name}.tex").read_text(encoding="utf-8").count(r"\begin{tabular}") == 1


def test_the_main_table_says_what_the_store_says(everything: Path) -> None:
    with (everything / "tables" / "table-main-last.csv").open(encoding="utf-8") as file:
        [row] = [row for row in csv.DictReader(file) if row["metric"] == "accuracy"]
    scope = Scope("quick", (), (0.1,), (0, 1), ("fedavg", "fedga"))
    runs = {spec.run_id for spec in EXPERIMENTS["table-main"].runs(scope)}
    with Store(everything) as store:
        ended = [s for s in store.summaries() if s.run.run_id in runs and s.run.spec.algorithm == "fedga"]
    mean = sum(summary.last["accuracy"] or 0.0 for summary in ended) / len(ended)
    assert len(ended) == 2
    assert float(row["FedGA"]) == pytest.approx(mean)


def test_a_report_leaves_its_tables_and_figures_as_files_too(one_table: Path, tmp_path: Path) -> None:
    done(f"archive {one_table}", tmp_path / "small")
    done(f"report {tmp_path / 'small'} --files --out", tmp_path / "page" / "index.html")
    for kind in ("md", "tex", "csv"):
        assert (tmp_path / "page" / "tables" / f"results.{kind}").stat().st_size > 100
        assert (tmp_path / "page" / "tables" / f"table-80.{kind}").exists()
    for kind in ("png", "svg", "pdf"):
        assert (tmp_path / "page" / "figures" / f"overview.{kind}").stat().st_size > 1000
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert str(tmp_path / "small") in page  # not the place where the archive was unpacked


def test_an_archive_is_looked_at_and_not_trained_into(one_table: Path, tmp_path: Path) -> None:
    done(f"archive {one_table}", tmp_path / "small")
    assert "is an archive of results" in fedga(f"paper table-80 {SMALL} --out", tmp_path / "small").complaint
    assert not (tmp_path / "small" / "results.sqlite").exists()


def test_a_page_overwrites_pages_alone(one_table: Path, tmp_path: Path) -> None:
    before = (one_table / "results.sqlite").read_bytes()
    assert "is no page" in fedga(f"report {one_table} --out", one_table / "results.sqlite").complaint
    assert (one_table / "results.sqlite").read_bytes() == before
    done(f"report {one_table} --out", tmp_path / "page.html")
    done(f"report {one_table} --out", tmp_path / "page.html")


def test_nothing_is_trained_twice(everything: Path) -> None:
    again = done(f"paper table-80 {SMALL} --out", everything)
    counts = re.search(r"(\d+) runs on cpu, (\d+) of them finished already", again.err)
    assert counts is not None
    assert counts[1] == counts[2] == "4"


def test_one_table_is_printed_at_the_moment_asked_for(everything: Path) -> None:
    last, mean = (done(f"paper table-main {SMALL} --at {at} --out", everything).out for at in ("last", "mean"))
    assert "Macro F1 and accuracy after the last round" in last
    assert "Macro F1 and accuracy in the mean over the rounds" not in last
    assert "Macro F1 and accuracy in the mean over the rounds" in mean
    assert "MNIST, printed" in last  # digits stand in for it, and only the order can be compared


def test_a_scope_too_narrow_for_a_table_says_so_and_keeps_the_rest(everything: Path) -> None:
    narrow = SMALL.replace("fedavg,fedga", "fedga").replace("0,1", "0")
    said = done(f"paper table-speed {narrow} --out", everything.with_name("narrow"))
    assert "Nothing to show: there is no FedAvg to compare with" in said.out
    assert "tables:" not in said.err
    assert "everything on one page:" in said.err


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("paper tabel-main", "unknown experiment 'tabel-main': did you mean 'table-main'?"),
        ("paper table-main --scale quck", "unknown scale 'quck': did you mean 'quick'?"),
        ("paper table-main --at 90", "unknown moment of --at '90'"),
        ("paper table-main --alphas 0", "--alphas must be a number above 0"),
        ("paper table-main --scale quick --algorithms fedgaa", "unknown algorithm 'fedgaa': did you mean 'fedga'?"),
        ("tune --on fedavg,fedga", "the rate is chosen on one"),
        ("tune --lr 0", "--lr must be a number above 0"),
        ("tune --optimizer sgd,adam", "a rate is chosen for one, so give one"),
        ("tune --then fedavgg", "unknown algorithm 'fedavgg': did you mean 'fedavg'?"),
        ("paper all --datasets digits", "no experiment has digits among its data sets"),
    ],
)
def test_bad_input_is_one_sentence(command: str, complaint: str) -> None:
    assert complaint in fedga(command).complaint


def test_data_that_are_not_here_are_named_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGA_DATA", str(tmp_path))
    monkeypatch.setenv("FEDGA_CACHE", str(tmp_path / "cache"))
    complaint = fedga("paper table-80 --out", tmp_path / "out").complaint
    assert "mnist, cifar10 and svhn are not on this machine" in complaint
    assert "--scale quick" in complaint
    assert not (tmp_path / "out").exists()


def test_tune_chooses_the_best_rate_and_goes_on_with_it(tmp_path: Path) -> None:
    command = "tune --dataset digits --alpha 0.1,1 --lr 0.5,0.001 --rounds 5 --then fedga --threads 1 --out"
    outcome = done(command, tmp_path / "out")
    assert "The best learning rate is 0.5 on digits, α = 0.1; 0.5 on digits, α = 1." in " ".join(outcome.out.split())
    with Store(tmp_path / "out") as store:
        runs = store.runs()
    assert {run.spec.lr for run in runs if run.spec.algorithm == "fedga"} == {0.5}
    assert {(run.spec.algorithm, run.spec.validate) for run in runs} == {("fedavg", 0.1), ("fedga", 0.0)}
    assert "Validation accuracy by learning rate" in outcome.out
    assert len(runs) == 2 * 2 + 2
    assert (tmp_path / "out" / "figures" / "tuning.png").exists()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("dataset", "experiment"), [("cifar100", "figure-adam"), ("tiny-imagenet", "table-main")], ids=["adam", "main"]
)
def test_data_sets_that_were_not_at_hand_run_by_the_same_commands(
    dataset: str, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedga.paper.runs._QUICK_SHARE", 10_000)
    monkeypatch.setattr("fedga.paper.runs._FEWEST_ROUNDS", 2)
    train, labels, test, test_labels = splits(SOURCES[dataset], per_class=12)
    label = "fine_label" if dataset == "cifar100" else "label"
    names = [f"n{number:08d}" for number in range(SOURCES[dataset].classes)]
    monkeypatch.setenv("FEDGA_CACHE", str(tmp_path / "cache"))
    few = (test[:20], test_labels[:20])  # evaluating takes the time here
    for split, images, targets in (("train", train, labels), (SOURCES[dataset].test_splits[0], *few)):
        write_parquet(tmp_path / "data" / f"{dataset}-{split}.parquet", images, targets, label=label, names=names)
    command = f"paper {experiment} --datasets {dataset} --scale quick --alphas 0.05 --seeds 0 --algorithms fedga"
    said = done(f"{command} --data-dir {tmp_path / 'data'} --threads 2 --out", tmp_path / "out")
    assert "1 run on cpu" in said.err
    with Store(tmp_path / "out") as store:
        [run] = store.runs()
    assert (run.spec.dataset, run.spec.model, run.status) == (dataset, "resnet20", "done")
