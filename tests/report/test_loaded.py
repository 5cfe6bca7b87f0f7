"""Results as tables and a picture."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fedga
from fedga.errors import FedGAError
from fedga.report.curves import read_curves
from fedga.report.loaded import Results
from fedga.store.archive import write_archive
from fedga.store.results import ResultsReader
from tests.cli.program import SMALL, done

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "runs"
    done(
        f"run {SMALL} --alpha 0.1 --seeds 0-1 --algorithm fedavg,fedga --model mlp --diagnose-every 1", "--out", folder
    )
    return folder


def test_metrics_are_the_rows_of_the_results_table(folder: Path) -> None:
    results = fedga.load_results(folder)
    with ResultsReader(folder).results() as table:
        expected = pandas.DataFrame(table.rows, columns=table.columns)
    assert len(expected) == 2 * 2 * 3
    shared = [name for name in expected.columns if name in results.metrics.columns]
    assert {"algorithm", "seed", "round", "accuracy", "ea_ratio"} <= set(shared)
    pandas.testing.assert_frame_equal(results.metrics[shared], expected[shared], check_dtype=False)


def test_runs_end_with_the_last_row_of_metrics(folder: Path) -> None:
    results = fedga.load_results(folder)
    last = results.metrics.groupby("run_id", sort=False).last()
    assert results.runs["run_id"].tolist() == last.index.tolist()
    assert results.runs["accuracy"].tolist() == last["accuracy"].tolist()
    assert set(results.runs["status"]) == {"done"}


def test_clients_hold_what_the_store_does(folder: Path) -> None:
    results, reader = fedga.load_results(folder), ResultsReader(folder)
    run = results.curves[0].run_id
    [first, *_] = reader.client_rounds(run)
    found = results.clients.query("run_id == @run and round == @first.round")
    for name, array in {"samples": "class_counts", "accuracy_after": "accuracy_after"}.items():
        np.testing.assert_array_equal(found[name].to_numpy(), first.arrays[array].reshape(-1))
    assert found["client"].unique().tolist() == first.arrays["client"].tolist()


def test_an_archive_is_read_like_its_folder(folder: Path, tmp_path: Path) -> None:
    write_archive(folder, tmp_path / "archive")
    found, expected = (fedga.load_results(place).metrics for place in (tmp_path / "archive", folder))
    pandas.testing.assert_frame_equal(found, expected, rtol=1e-3)  # four digits, as an archive has them


def test_it_draws_one_line_per_setting(folder: Path) -> None:
    results = fedga.load_results(folder)
    [axes] = results.plot().axes
    ends = {float(line.get_ydata()[-1]) for line in axes.get_lines() if len(line.get_ydata()) == 3}
    means = results.metrics.query("round == 3").groupby("algorithm")["accuracy"].mean()
    assert all(any(end == pytest.approx(value) for end in ends) for value in means)
    with pytest.raises(FedGAError, match="no metric 'acuracy': give one of"):
        results.plot("acuracy")


def test_without_pandas_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = fedga.load_results(folder)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedGAError, match="pip install pandas"):
        _ = results.metrics
    assert "4 runs of fedavg, fedga" in repr(results)
    assert isinstance(results, Results)
    assert len(read_curves(folder)) == len(results.curves)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedGAError, match="results"):
        fedga.load_results(tmp_path / "nowhere")
