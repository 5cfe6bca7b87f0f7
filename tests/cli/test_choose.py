"""`fedga choose`: what it says, what it leaves behind, and that a killed one ends like one left in peace."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from fedga.data import load_dataset, make_federation
from fedga.data.counts import LabelCounts, deal
from fedga.engine.simulate import simulate
from fedga.errors import FedGAError
from fedga.store.store import Store
from tests.cli.program import done, fedga, start, trained

SMALL = "choose --dataset digits --alpha 0.5 --clients 6 --active 3 --rounds 6 --seeds 0,1 --threads 1 --validate 0.2"
FEW = f"{SMALL} --algorithm fedprox:mu=0.1,fedga --preset strong"


def runs_of(folder: Path) -> dict[str, tuple[str, int]]:
    with Store(folder) as store:
        return {run.run_id: (run.status, run.rounds_done) for run in store.runs()}


def test_it_names_a_method_the_command_to_train_it_and_draws_the_tournament(tmp_path: Path) -> None:
    outcome = done(f"{FEW} --out", tmp_path / "out")
    said = " ".join(outcome.out.split())
    assert "validation accuracy" in said
    assert re.search(r"Nothing beats FedAvg|beats FedAvg: it leads", said)
    assert "15 candidates with 2 seeds" in outcome.err
    assert "the test split is not looked at" in outcome.err
    for place in ("figures/choice.png", "figures/choice.svg", "tables/choice.csv", "tables/choice.md"):
        assert (tmp_path / "out" / place).stat().st_size > 100
    command = re.findall(r"^  fedga (run .*)$", outcome.out, re.MULTILINE)[0]
    again = done(f"{FEW} --out", tmp_path / "out")
    assert again.out == outcome.out
    chosen = done(f"{FEW} --then-run --out", tmp_path / "out")
    assert chosen.out.startswith(outcome.out.partition("To train it")[0])
    with Store(tmp_path / "out") as store:
        [tested] = {run.spec.algorithm for run in store.runs() if not run.spec.validate}
        final = {run.run_id for run in store.runs() if not run.spec.validate}
        assert {run.status for run in store.runs() if not run.spec.validate} == {"done"}
    assert tested in shlex.split(command)
    done(f"{command} --no-pictures --threads 1 --out", tmp_path / "direct")
    assert set(runs_of(tmp_path / "direct")) == final
    done("report", tmp_path / "out")
    assert "test or validation accuracy" in (tmp_path / "out" / "report.html").read_text("utf-8")


@pytest.mark.long
def test_a_killed_choice_goes_on_and_ends_like_one_left_in_peace(tmp_path: Path) -> None:
    whole = done(f"{FEW} --out", tmp_path / "whole")
    log = tmp_path / "log.txt"
    for rounds in (15, 60):
        process = start(f"{FEW} --out {tmp_path / 'out'}", log)
        process.until(lambda rounds=rounds: len(trained(log)) >= rounds)  # type: ignore[misc]
        process.kill()
    assert start(f"{FEW} --out {tmp_path / 'out'}", log).wait() == 0
    assert done(f"{FEW} --out", tmp_path / "out").out == whole.out
    assert done("results --format csv", tmp_path / "out").out == done("results --format csv", tmp_path / "whole").out
    assert runs_of(tmp_path / "out") == runs_of(tmp_path / "whole")


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("choose --alpha 0.1,1", "a choice is made for one, so give one"),
        ("choose --sends everything", "unknown --sends 'everything'"),
        ("choose --by loss", "unknown --by 'loss'"),
        ("choose --validate 0", "--validate is the share of samples to choose by"),
        ("choose --sends nothing --algorithm scaffold", "--algorithm scaffold sends more than the model"),
        ("choose --preset best", "unknown preset 'best'"),
        ("choose --algorithm fedavgg", "unknown algorithm 'fedavgg': did you mean 'fedavg'?"),
    ],
)
def test_bad_input_is_one_sentence(command: str, complaint: str) -> None:
    assert complaint in fedga(command).complaint


def test_results_that_validate_say_so(tmp_path: Path) -> None:
    small = "--dataset digits --rounds 2 --clients 6 --active 2 --threads 1 --algorithm fedavg --validate"
    only = done(f"run {small} 0.2 --out", tmp_path / "only")
    assert "validation accuracy" in " ".join(only.out.split())
    assert "validation numbers, not test numbers" in only.err
    assert "Validation accuracy" in (tmp_path / "only" / "figures" / "overview.svg").read_text("utf-8")
    both = done(f"run {small} 0,0.2 --no-pictures --out", tmp_path / "both")
    assert "Numbers of rows with validate above 0 are validation numbers" in " ".join(both.out.split())
    with Store(tmp_path / "both") as store, store.results() as table:
        place = table.columns.index("validate")
        assert {row[place] for row in table.rows} == {0.0, 0.2}


def test_a_federation_that_validates_is_made_so() -> None:
    federation = make_federation(load_dataset("digits"), "iid", clients=4, seed=0)
    with pytest.raises(FedGAError, match="give it to make_federation"):
        simulate(federation, validate=0.1)


COUNTS = "hospital,healthy,ill,unclear\nnorth,60,3,0\nsouth,0,40,9\neast,5,0,30\n"


def test_label_counts_alone_are_dealt_from_another_data_set(tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text(COUNTS)
    command = f"choose --like {tmp_path / 'counts.csv'} --rounds 4 --seeds 0,1 --threads 1 --algorithm fedga"
    outcome = done(f"{command} --preset strong --validate 0.2 --out", tmp_path / "out")
    assert "samples of digits dealt like" in outcome.err
    assert "need not suit your samples" in outcome.err
    [path] = (tmp_path / "out").glob("digits-like-counts-*.npz")
    federation = make_federation(load_dataset(path), "natural", clients=None, seed=0)
    names = federation.dataset.client_names
    assert {name: row.tolist() for name, row in zip(names, federation.class_counts, strict=True)} == {
        **{"north": [60, 3, 0], "south": [0, 40, 9], "east": [5, 0, 30]}
    }
    digits = load_dataset("digits")
    assert federation.dataset.class_names == ("healthy", "ill", "unclear")
    assert (federation.dataset.test_inputs == digits.test_inputs[digits.test_targets < 3]).all()
    assert str(path) in outcome.out  # of the command to go on with


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n", "is not a table of counts"),
        ("a,b\n1,x\n", "has the count 'x'"),
        ("a,b\n1,-2\n", "has the count '-2'"),
        ("client,a\nn,3\n", "has fewer than two classes"),
        ("client,a,b\nn,3,0\nm,0,0\n", "has clients without a sample (m): leave them out"),
        ("client,a,b\nn,3,1\nn,1,2\n", "names a client twice"),
        ("a,b\n3,0\n", "nobody holds a sample of class b"),
        ("client," + ",".join("abcdefghijk") + "\nn" + ",1" * 11 + "\n", "the counts have 11 classes"),
        ("a,b\n1000000,5\n1,5\n", "too few samples for these counts"),
    ],
)
def test_bad_counts_are_one_sentence(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text(text)
    assert complaint in fedga("choose --out", tmp_path / "out", "--like", tmp_path / "counts.csv").complaint
    assert not (tmp_path / "out").exists()


def test_counts_beyond_what_there_is_shrink_alike() -> None:
    wanted = LabelCounts(("n", "s"), ("a", "b"), np.array([[4000, 40], [400, 4000]]))
    digits = load_dataset("digits")
    dealt = deal(digits, wanted, np.random.default_rng(0))
    counts = np.array(
        [
            [((dealt.arrays["clients"] == name) & (dealt.arrays["y_train"] == c)).sum() for c in (0, 1)]
            for name in wanted.clients
        ]
    )
    assert 0 < dealt.share < 1
    assert (counts == np.floor(wanted.counts * dealt.share + 1e-9)).all()
    inputs = {sample.tobytes() for sample in dealt.arrays["x_train"]}
    assert len(inputs) == len(dealt.arrays["x_train"])  # nobody shares a sample
