import picture
import pytest
from summary import Row, in_order, table


def measured(name, seconds, fedga_seconds):
    return Row(name, name, seconds, fedga_seconds, start_seconds=1.0, accuracy=0.9, memory_mib=100.0)


@pytest.fixture
def rows():
    return [
        measured("fedga", [1.0, 2.0], [1.0, 2.0]),
        measured("slow", [3.0, 8.0], [1.0, 2.0]),
        Row("broken", "broken", not_run="pip | failed", log=".bench/logs/broken.log"),
        measured("fast", [0.5, 1.0], [1.0, 2.0]),
    ]


def test_ratio_is_the_median_over_neighbours(rows):
    assert rows[0].ratio == 1.0
    assert rows[1].ratio == 3.5  # of 3 and 4; the ratio of medians would be 3.67
    assert measured("drifting", [1.0, 10.0, 2.0], [1.0, 10.0, 1.0]).ratio == 1.0


def test_spread_is_between_quartiles():
    assert measured("one", [5.0, 1.0, 2.0, 3.0, 4.0], [1.0] * 5).quartiles == (2.0, 4.0)
    assert measured("lone", [5.0], [1.0]).quartiles == (5.0, 5.0)


def test_fastest_comes_first_and_what_did_not_run_last(rows):
    assert [row.name for row in in_order(rows)] == ["fast", "fedga", "slow", "broken"]


def test_table_keeps_a_contender_that_failed(rows):
    lines = table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert all(line.count("|") == lines[0].count("|") for line in lines)
    assert "not run" in lines[-1]
    assert "pip / failed (.bench/logs/broken.log)" in lines[-1]
    assert "3.50" in lines[-2]
    assert Row("broken", "broken", not_run="pip failed").as_json()["not_run"] == "pip failed"


def test_picture_is_drawn_with_a_contender_that_failed(rows, tmp_path):
    picture.draw({"mlp": rows, "lenet": rows[:2]}, tmp_path / "cpu")
    assert (tmp_path / "cpu.png").stat().st_size > 0
    drawn = (tmp_path / "cpu.svg").read_text()
    assert "not run" in drawn
    assert "3.50 × fedga" in drawn
