"""The short table of many algorithms."""

from __future__ import annotations

from fedga.algorithms import Algorithm
from fedga.report.methods.combinable import combinable_rows
from fedga.report.methods.costs import algorithms_rows
from fedga.report.methods.listing import combinable_listing, listing
from tests.report.test_tables import MLP, cells, printed

NAMES = [f"{'algorithm'[: 3 + at % 7]}-number-{at:02}" for at in range(30)]
[ROW] = algorithms_rows(MLP, 10, {"fedavg": Algorithm})
COSTS = {"citation": "Karimireddy et al. 2020", "extra_up_bytes": 407_080, "extra_down_bytes": 407_080}
COSTS |= {"extra_forward_passes": "1 per local step"}


def test_each_of_many_algorithms_takes_one_line() -> None:
    rows = [ROW | COSTS | {"algorithm": name} for name in NAMES]
    for width in (80, 120):
        lines = printed(listing(rows, "mlp", MLP, width=width), width).splitlines()
        assert max(map(len, lines)) <= width
        shown = [line.split() for line in lines if line.startswith(tuple(NAMES))]
        assert shown == [[name, *["Karimireddy", "2020", "↕", "407.1", "kB", "1/step", "yes", "–"]] for name in NAMES]
        first = next(at for at, line in enumerate(lines) if line.startswith(NAMES[0]))
        assert lines[first + len(NAMES) - 1].startswith(NAMES[-1])


def test_what_is_sent_is_netted_with_what_of_the_model_is_not() -> None:
    def sent(**changes: int) -> str:
        return cells(listing([ROW | changes], "mlp", MLP), "sent")[0].plain

    assert sent() == "–"
    assert sent(extra_up_bytes=40) == "↑ 40 B"
    assert sent(extra_up_bytes=40, extra_down_bytes=8) == "↑ 40 B ↓ 8 B"
    assert sent(extra_up_bytes=40, extra_down_bytes=40, model_bytes=4 * MLP.total - 100) == "↕ −60 B"
    assert sent(extra_up_bytes=4, survey_down_bytes=4 * MLP.total) == "↑ 4 B*"
    assert sent(final_up_bytes=8) == "↑ 8 B*"


def test_what_goes_with_any_algorithm_says_where_sums_suffice() -> None:
    rows = combinable_rows()
    table = combinable_listing(rows, width=80)
    assert max(map(len, printed(table, 80).splitlines())) <= 80
    answers = dict(zip((row["setting"] for row in rows), (cell.plain for cell in cells(table, "secure")), strict=True))
    assert {setting for setting, answer in answers.items() if answer == "no"} >= {
        "--select balanced",
        "--select bandit",
    }
    assert {answers[name] for name in ("--select uniform", "--select in-turn", "--server adam")} == {"yes"}
