"""Numbers, bold and widths of the tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from fedga.algorithms import Algorithm, Sent, Server, known_algorithms
from fedga.algorithms.fednh import FedNH
from fedga.algorithms.parameters import Parameters
from fedga.data.partitions import PARTITIONS
from fedga.models import build_model
from fedga.report.curves import Curve, curves_from_rows
from fedga.report.methods.combinable import combinable_rows, combinable_table
from fedga.report.methods.costs import algorithms_rows, algorithms_table, cost_columns
from fedga.report.summary import summary_rows, summary_table
from fedga.report.tables import settings_table
from fedga.report.terminal import TitledTable
from fedga.selection import SELECTIONS
from fedga.servers import SERVERS
from fedga.spec.grid import build_sweep
from tests.report.made_up import make_curves, make_rows


def printed(table: TitledTable, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


def cells(table: TitledTable, heading: str) -> list[Text]:
    [column] = [column for column in table.columns if str(column.header) == heading]
    return list(column.cells)


def is_bold(cell: Text) -> bool:
    return any("bold" in str(span.style) for span in cell.spans)


def test_summary_rows_are_mean_and_deviation_of_the_last_round(curves: list[Curve]) -> None:
    rows = summary_rows(curves)
    [row] = [row for row in rows if (row["algorithm"], row["preset"]) == ("fedga", "strong")]
    chosen = [c for c in curves if c.settings["algorithm"] == "fedga" and c.settings["preset"] == "strong"]
    last = np.array([curve.metric("accuracy")[-1] for curve in chosen])
    assert row["accuracy"] == pytest.approx(last.mean())
    assert row["accuracy_deviation"] == pytest.approx(last.std(ddof=1))
    assert row["averaged_accuracy"] == pytest.approx(last.mean() + 0.02)
    assert row["ea_ratio"] == pytest.approx(10 / 0.9 + 1)
    assert "ea_ratio_deviation" not in row
    assert row["forgetting_missing"] == pytest.approx(0.1)
    assert (row["seeds"], row["runs"], row["diverged"], row["unfinished"], row["round"]) == (3, 3, 0, 0, 20)
    assert (row["dataset"], row["alpha"], row["server"]) == ("digits", 0.1, "momentum")
    json.dumps(rows, allow_nan=False)
    csv.DictWriter(io.StringIO(), rows[0]).writerows(rows)


def test_the_best_of_each_data_set_and_alpha_is_bold_and_it_alone() -> None:
    rows = [row for alpha in (0.1, 1.0) for row in make_rows("fedavg", 0, 0.7, alpha=alpha)]
    rows += make_rows("fedga", 0, 0.9, alpha=0.1) + make_rows("fedga", 0, 0.5, alpha=1.0)
    table = summary_table(curves_from_rows(rows))
    assert [str(cell) for cell in cells(table, "algorithm")] == ["fedavg", "fedga", "fedavg", "fedga"]
    for heading in ("accuracy", "macro F1", "balanced accuracy", "EA ratio", "lost on rare", "lost on missing"):
        assert [is_bold(cell) for cell in cells(table, heading)] == [False, True, True, False], heading
    assert [cell.plain for cell in cells(table, "EA ratio")] == ["14.3", "11.1", "14.3", "20.0"]


def test_what_prints_alike_is_bold_alike_and_a_row_alone_has_nothing_to_beat() -> None:
    rows = [{"dataset": "d", "alpha": 1, "algorithm": name, "round": 1} for name in ("fedavg", "fedntd", "fedga")]
    alike = curves_from_rows([row | {"accuracy": a} for row, a in zip(rows, (0.90001, 0.90004, 0.8), strict=True)])
    assert [is_bold(cell) for cell in cells(summary_table(alike), "accuracy")] == [True, True, False]
    assert not is_bold(cells(summary_table(alike[:1]), "accuracy")[0])


def test_one_seed_has_no_deviation_and_unmeasured_metrics_no_column(one_seed: list[Curve]) -> None:
    rows = summary_rows(one_seed)
    assert all(row["accuracy_deviation"] is None for row in rows)
    table = summary_table(one_seed)
    assert all("±" not in cell.plain for cell in cells(table, "accuracy"))
    assert [cell.plain for cell in cells(table, "averaged model")][:2] == ["–", "–"]
    bare = curves_from_rows([{"dataset": "d", "algorithm": "fedga", "round": 1, "accuracy": 0.5, "loss": None}])
    assert [str(column.header) for column in summary_table(bare).columns] == ["algorithm", "accuracy"]


def test_diverged_runs_are_counted_named_and_in_no_mean(with_diverged: list[Curve]) -> None:
    rows = {row["algorithm"]: row for row in summary_rows(with_diverged)}
    sound = [c.last("accuracy") for c in with_diverged if c.settings["algorithm"] == "fedavg" and not c.diverged]
    assert rows["fedavg"]["accuracy"] == pytest.approx(np.mean(sound))
    assert (rows["fedavg"]["seeds"], rows["fedavg"]["diverged"]) == (2, 1)
    assert (rows["fedntd"]["accuracy"], rows["fedntd"]["seeds"], rows["fedntd"]["diverged"]) == (None, 0, 3)
    table = summary_table(with_diverged)
    assert [str(cell) for cell in cells(table, "note")] == ["1 of 3 diverged", "3 of 3 diverged", ""]
    assert [str(cell) for cell in cells(table, "seeds")] == ["2", "0", "3"]


def test_unfinished_runs_are_counted_and_those_behind_are_in_no_mean() -> None:
    rows = [row | {"status": "running"} for row in make_rows("fedga", 0, 0.8)]
    rows += [row | {"status": "running"} for row in make_rows("fedga", 1, 0.8)[:7]]
    [row] = summary_rows(curves_from_rows(rows))
    assert (row["seeds"], row["unfinished"], row["round"]) == (1, 2, 20)
    assert row["accuracy"] == pytest.approx(rows[19]["accuracy"])
    assert "2 of 2 unfinished" in " ".join(printed(summary_table(curves_from_rows(rows)), 120).split())


def test_infinite_and_absent_numbers_are_printed_as_such() -> None:
    rows = [{"dataset": "d", "algorithm": "fedga", "seed": s, "round": 1, "ea_ratio": float("inf")} for s in (0, 1)]
    rows += [{"dataset": "d", "algorithm": "fedavg", "seed": 0, "round": 1, "ea_ratio": 3.0, "accuracy": float("nan")}]
    table = summary_table(curves_from_rows(rows))
    assert [cell.plain for cell in cells(table, "EA ratio")] == ["3.00", "∞"]
    assert [is_bold(cell) for cell in cells(table, "EA ratio")] == [True, False]
    assert "No results yet" in printed(summary_table([]), 80)


def test_shared_settings_stand_in_the_title_and_telling_ones_in_columns(curves: list[Curve]) -> None:
    table = summary_table(curves)
    assert table.heading == "digits, α = 0.1, round 20, 3 seeds"
    assert [str(column.header) for column in table.columns][:2] == ["preset", "algorithm"]
    rates = [row | {"seed": 0} for lr in (0.1, 0.3) for row in make_rows("fedga", 0, 0.8 + lr / 10, lr=lr)]
    assert [str(column.header) for column in summary_table(curves_from_rows(rates)).columns][:2] == ["algorithm", "lr"]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_number_is_cut_or_broken_at_any_width(width: int) -> None:
    many = [curve for alpha in (0.05, 10.0) for curve in make_curves(2, alpha=alpha)]
    text = printed(summary_table(many, width=width), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for row in summary_rows(many):
        assert f"{row['accuracy']:.3f}" in text
        assert f"±{row['forgetting_missing_deviation']:.3f}" in text
    assert ("Left out, the terminal is too narrow" in " ".join(text.split())) == (width == 60)


with torch.device("meta"):
    MLP = Parameters(build_model("mlp", (1, 28, 28), 10))
HEAD = 4 * (128 * 10 + 10)  # bytes
FIXED = ("algorithm", "citation", "options", "model_bytes", "sums_suffice")


def test_costs_of_every_algorithm_are_those_it_declares() -> None:
    rows = {row["algorithm"]: row for row in algorithms_rows(MLP, 10)}
    assert rows.keys() == known_algorithms().keys()
    for name in ("fedavg", "fedprox", "fedga", "fedga-batch"):
        assert not any(rows[name][key] for key in rows[name] if key not in FIXED), name
    assert rows["fedntd"]["extra_forward_passes"] == "1 per local step"
    assert rows["fedrl"]["extra_down_bytes"] == 40
    assert rows["fedrl"]["server_samples_per_class"] == 32
    assert rows["fedrl"]["server_learns"] == "how rare each class is overall"
    assert (rows["climb"]["survey_down_bytes"], rows["climb"]["extra_up_bytes"]) == (4 * 101_770, 4)
    assert rows["fednh"]["extra_forward_passes"] == "1 over a client's data at its end"
    assert rows["climb"]["extra_forward_passes"] == "1 over all data of every client"
    assert rows["fedsam"]["extra_forward_passes"] == "1 per local step, and backward"
    assert rows["fedacg"]["extra_forward_passes"] == rows["fedlesam"]["extra_forward_passes"] == ""
    for key in ("extra_up_bytes", "extra_down_bytes", "client_keeps_bytes"):
        assert rows["scaffold"][key] == 4 * 101_770
    assert {name for name, row in rows.items() if not row["sums_suffice"]} == {"climb", "fed-focal", "astraea"}
    assert cost_columns([rows["climb"]], MLP)["the server needs"] == [
        "more than sums over clients (a weight for each client; survey)"
    ]
    assert rows["fedga"]["options"] == {"strength": 1.0, "power": 1.0, "variant": "soft"}
    json.dumps(list(rows.values()))


def test_the_table_of_algorithms_is_for_the_chosen_model_and_fits() -> None:
    for width in (80, 100, 200):
        text = printed(algorithms_table("mlp", MLP, 10, width=width), width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        words = " ".join(text.split())
        assert "mlp (101,770 parameters, 407.1 kB)" in words
    table = algorithms_table("mlp", MLP, 10)
    asking = [cell.plain for cell in cells(table, "extra down") if "kB to" in cell.plain]
    assert asking == ["407.1 kB to each client not active"] * 2  # CLIMB and Fed-Focal


def test_an_algorithm_of_ones_own_is_listed_by_what_it_declares() -> None:
    @dataclass(frozen=True)
    class Mine(Algorithm):
        """Sends what nobody should."""

        citation: ClassVar[str] = "Me 2030"
        evaluates_all_clients: ClassVar[bool] = True
        uploads: ClassVar[tuple[Sent, ...]] = (Sent("survey", "1", "a loss"), Sent("counts", "classes", "label counts"))

    [row] = algorithms_rows(MLP, 5, {"mine": Mine})
    assert (row["extra_up_bytes"], row["survey_up_bytes"]) == (24, 4)
    assert row["server_learns"] == "a loss; label counts"
    assert not row["sums_suffice"]
    text = " ".join(printed(algorithms_table("m", MLP, 5, {"mine": Mine}), 250).split())
    assert "20 B; 4 B from every client" in text


@dataclass(frozen=True)
class OwnHead(Algorithm):
    def travels(self, parameters: Parameters) -> Collection[str]:
        return [name for name in parameters.shapes if name not in parameters.head]


@dataclass(frozen=True)
class Looks(Algorithm):
    finishes: ClassVar[bool] = True
    final_uploads: ClassVar[tuple[Sent, ...]] = (Sent("moments", "features×features", "second moments"),)

    def inspect(self, server: Server, client_params: Tensor) -> dict[str, Tensor]:
        return {"norm": client_params.norm(dim=1)}


def test_what_does_not_move_or_travel_is_not_paid_for() -> None:
    rows = {row["algorithm"]: row for row in algorithms_rows(MLP, 10, {"fednh": FedNH, "own": OwnHead, "looks": Looks})}
    assert {name: row["model_bytes"] for name, row in rows.items()} == {
        **{"fednh": 4 * MLP.total - HEAD, "own": 4 * MLP.total - HEAD, "looks": 4 * MLP.total}
    }
    assert rows["fednh"]["extra_up_bytes"] == rows["fednh"]["extra_down_bytes"] == 4 * 10 * 128
    assert (rows["own"]["client_keeps"], rows["own"]["client_keeps_bytes"]) == ("its own head", HEAD)
    assert (rows["looks"]["server_learns"], rows["looks"]["final_up_bytes"]) == (
        *("second moments; single updates", 4 * 128 * 128),
    )
    assert {name for name, row in rows.items() if row["sums_suffice"]} == {"fednh", "own"}
    up = {name: cost_columns([row], MLP)["extra up"][0] for name, row in rows.items()}
    assert up["fednh"] == "5.1 kB; 5.2 kB less of the model"
    assert up["looks"] == "65.5 kB after the last round"
    assert cost_columns([rows["own"]], None)["extra up"] == [""]


def test_the_table_of_what_goes_with_any_algorithm_has_all_of_it_and_fits() -> None:
    rows = {row["setting"]: row for row in combinable_rows()}
    flags = {"select": SELECTIONS, "server": SERVERS, "partition": PARTITIONS}
    assert {f"--{flag} {name}" for flag, ours in flags.items() for name in ours} < rows.keys()
    assert {"--augment", "--centralize", "--availability", "--stragglers"} < rows.keys()
    assert all(row["what it does"] for row in rows.values())
    assert rows["--select balanced"]["the server needs"] == "class counts"
    assert rows["--select balanced"]["options"] == {"patience": 1.0}
    assert rows["--select bandit"]["the server needs"] == "single updates"
    assert rows["--select uniform"]["the server learns"] == ""
    assert rows["--augment"]["options"] == {"default": "none"}
    assert rows["--centralize"]["options"] == {"default": False}
    adam = rows["--server adam"]
    assert (adam["options"], adam["source"]) == ({"--server-rate": 0.01}, "Reddi et al. 2021")
    text = printed(combinable_table(rows.values(), width=80), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_settings_say_where_they_came_from() -> None:
    sweep = build_sweep({"dataset": ["mnist"], "preset": ["paper", "strong"], "lr": [0.3], "seed": [0, 1, 2, 3]})
    table = settings_table(sweep.provenance, width=80)
    columns = [[cell.plain for cell in cells(table, name)] for name in ("setting", "value", "from")]
    rows = list(zip(*columns, strict=True))
    assert ("lr", "0.3", "--lr") in rows
    assert ("seed", "0-3", "--seeds") in rows
    at = columns[0].index("lr_schedule")
    assert (columns[0][at : at + 2], columns[1][at : at + 2]) == (["lr_schedule", ""], ["constant", "cosine"])
    assert [str(column.header) for column in table.columns] == ["setting", "value", "from"]
    text = printed(table, 80)
    assert text.count("lr_schedule") == 1
    assert "--seeds" in text
    assert max(map(len, text.splitlines())) <= 80
    [given] = [cell for cell in cells(table, "from") if cell.plain == "--lr"]
    assert given.style == "bold"
