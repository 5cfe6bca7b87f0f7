"""What a site's owner reads after local training, and the rows that are kept of it."""

from __future__ import annotations

import math
import resource
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from fedga.errors import FedGAError
from fedga.flower.client.site_log import FILE, WIDTH, ClassRow, SiteLog, read
from fedga.measures.asymmetry import forgetting

NAN = math.nan
HEADER = "run,round,class,kind,training_samples,held_out_samples,before,after"


def given_of(**changed: Any) -> dict[str, Any]:
    """A frequent class, a rare one, a missing one that is measured and a missing one that is not."""
    base = {
        "run": "r1",
        "site": "hospital-a",
        "round_number": 1,
        "class_names": ["nevus", "melanoma", "keratosis", "wart"],
        "class_counts": [90, 10, 0, 0],
        "looked_at": [20, 5, 4, 0],
        "before": [0.5, 0.6, 0.75, NAN],
        "after": [0.9, 0.2, 0.25, NAN],
    }
    return {**base, **changed}


@pytest.fixture
def log(tmp_path: Path) -> SiteLog:
    return SiteLog(tmp_path)


# --- lines ----------------------------------------------------------------------------------------


def test_lines_of_a_first_round(log: SiteLog) -> None:
    [headline, change, header, *rows] = log.record(**given_of())
    assert headline == "site hospital-a, round 1: recall on 29 held-out samples"
    assert change == "local training: frequent +40, rare -40, missing -50 points"
    assert header.split() == ["class", "kind", "training", "held", "out", "received", "trained", "here"]
    assert rows[1].split() == ["melanoma", "rare", "10", "5", "60%", "██████░░░░", "20%", "██░░░░░░░░"]
    assert rows[3].split() == ["wart", "missing", "0", "0", "not", "measured"]


def test_what_the_federation_changed_is_against_the_model_trained_here_before(log: SiteLog) -> None:
    log.record(**given_of(round_number=2, after=[0.5, 0.5, 0.5, NAN]))
    log.record(**given_of(round_number=4, after=[0.9, 0.1, NAN, NAN]))
    log.record(**given_of(round_number=5, run="another", after=[0.0] * 4))
    [_, federation, local, header, *rows] = log.record(**given_of(round_number=7))
    assert federation == "the federation: frequent -40, rare +50 points"
    assert local == "local training: frequent +40, rare -40, missing -50 points"
    assert "  round 4  " in header
    assert rows[1].split()[4:] == ["10%", "60%", "██████░░░░", "20%", "██░░░░░░░░"]
    assert rows[2].count("%") == 2
    repeated = log.record(**given_of(round_number=4))
    assert "  round 2  " in repeated[3]


def test_other_samples_are_not_compared(log: SiteLog) -> None:
    log.record(**given_of())
    lines = log.record(**given_of(round_number=2, looked_at=[20, 6, 4, 0]))
    assert lines[1] == "the federation: frequent -40, missing +50 points"
    lines = log.record(**given_of(round_number=3, looked_at=[90, 10, 0, 0], held_out=False))
    assert lines[0].endswith("recall on 100 training samples")
    assert not any(line.startswith("the federation") for line in lines)


def test_nothing_is_said_of_what_was_not_measured(log: SiteLog) -> None:
    lines = log.record(**given_of(looked_at=[20, 0, 0, 0], before=[0.5] * 4, after=[0.5, 0, 0, 0]))
    assert lines[1] == "local training: frequent +0 points"
    assert [line.endswith("not measured") for line in lines[3:]] == [False, True, True, True]
    [line] = log.record(**given_of(looked_at=[0] * 4))
    assert line.startswith("site hospital-a, round 1: no samples")


def test_of_many_classes_the_rarest_and_those_that_moved_most_are_shown(log: SiteLog) -> None:
    number = 50
    before = np.full(number, 0.5)
    after = before.copy()
    after[[40, 41, 42]] = [0.9, 0.0, 0.8]
    counts = np.full(number, 100)
    counts[[3, 7, 9]] = [2, 0, 1]
    given = {"class_names": [f"c{place}" for place in range(number)], "class_counts": counts, "before": before}
    lines = log.record(**given_of(**given, looked_at=counts // 2 + 1, after=after))
    assert [line.split()[0] for line in lines[4:]] == ["c3", "c7", "c9", "c40", "c41", "c42"]
    assert lines[2].startswith("44 classes left out")


def test_classes_that_are_measured_are_shown_before_others(log: SiteLog) -> None:
    names = [f"c{place}" for place in range(30)]
    counts, looked_at = np.zeros(30, int), np.zeros(30, int)
    counts[20:26], looked_at[20:26] = 50, 10
    given = {"class_names": names, "class_counts": counts, "before": np.zeros(30), "after": np.zeros(30)}
    lines = log.record(**given_of(**given, looked_at=looked_at))
    assert [line.split()[0] for line in lines[4:]] == names[20:26]


@given(st.integers(0, 2**31), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_kinds_and_changes_are_those_of_forgetting(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(-3, 9, classes).clip(min=0)
    before, after = rng.random((2, classes))
    lost = forgetting(torch.tensor(before), torch.tensor(after), torch.tensor(counts))
    given = {"class_names": [str(place) for place in range(classes)], "class_counts": counts, "before": before}
    with tempfile.TemporaryDirectory() as folder:
        lines = SiteLog(folder).record(**given_of(**given, after=after, looked_at=np.ones(classes, int)))
        kinds = np.array([row.kind for row in read(folder)])
    for kind in ("frequent", "rare", "missing"):
        expected = (before - after)[kinds == kind].mean() if (kinds == kind).any() else NAN
        assert getattr(lost, kind).item() == pytest.approx(expected, nan_ok=True)
        assert (kind in lines[1]) == (kinds == kind).any()
        assert math.isnan(expected) or f"{kind} {round(-100 * getattr(lost, kind).item()):+d}" in lines[1]


@given(
    st.lists(st.text(max_size=60), min_size=1, max_size=20, unique=True),
    st.text(max_size=150),
    st.integers(0, 2**31),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_lines_are_few_and_fit(names: list[str], site: str, seed: int, held_out: bool) -> None:
    rng = np.random.default_rng(seed)
    counts, looked_at = rng.integers(0, 10 ** rng.integers(1, 10), (2, len(names)))
    before, after = rng.integers(0, 2, (2, len(names))).astype(float)
    given = {"site": site, "class_names": names, "class_counts": counts, "looked_at": looked_at, "before": before}
    with tempfile.TemporaryDirectory() as folder:
        for number in (9_998, 9_999):
            given |= {"round_number": number, "held_out": held_out, "after": after}
            lines = SiteLog(folder).record(**given_of(**given))
    assert len(lines) <= 12
    assert all(cell_len(line) <= WIDTH and line.isprintable() for line in lines)


# --- the file -------------------------------------------------------------------------------------


def test_rows_are_kept_and_read(tmp_path: Path) -> None:
    log = SiteLog(tmp_path / "new" / "folder")
    assert read(log.folder) == []
    log.record(**given_of())
    rows = read(log.folder)
    assert rows[:2] == [
        ClassRow("r1", 1, "nevus", "frequent", 90, 20, 0.5, 0.9),
        ClassRow("r1", 1, "melanoma", "rare", 10, 5, 0.6, 0.2),
    ]
    assert (rows[3].name, rows[3].held_out_samples, rows[3].measured) == ("wart", 0, False)
    log.record(**given_of(round_number=2))
    text = (log.folder / FILE).read_text()
    assert text.startswith(HEADER + "\nr1,1,nevus,frequent,90,20,0.5,0.9\n")
    assert (text.count(HEADER), len(read(log.folder))) == (1, 8)


def test_tensors_serve_as_well(tmp_path: Path) -> None:
    vectors = {
        name: torch.tensor(value)
        for name, value in given_of().items()
        if isinstance(value, list) and name != "class_names"
    }
    written = SiteLog(tmp_path / "tensors").record(**given_of(**vectors))
    assert written == SiteLog(tmp_path / "lists").record(**given_of())


def test_names_of_any_kind_are_found_again(tmp_path: Path) -> None:
    names = ['a,"b"', "line\nbreak", "Ämter 皮膚", " spaced "]
    for number in (1, 2):
        lines = SiteLog(tmp_path).record(**given_of(class_names=names, round_number=number, run="r\n,1"))
    assert [row.name for row in read(tmp_path)] == ['a,"b"', "line break", "Ämter 皮膚", "spaced"] * 2
    assert any(line.startswith("the federation: ") for line in lines)


@pytest.mark.parametrize("cut", [1, 10, 30, 41, 60])
def test_a_torn_last_line_is_passed_over_and_removed(cut: int, tmp_path: Path) -> None:
    log = SiteLog(tmp_path)
    log.record(**given_of())
    log.record(**given_of(round_number=2))
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-cut])
    kept = whole[:-cut].count(b"\n")
    assert len(read(tmp_path)) == kept - 1
    log.record(**given_of(round_number=3))
    assert len(read(tmp_path)) == kept - 1 + 4
    assert log.path.read_bytes().startswith(whole[: whole[:-cut].rfind(b"\n") + 1] + b"r1,3,nevus")


def test_a_torn_header_is_written_again(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(HEADER[:20])
    assert read(tmp_path) == []
    SiteLog(tmp_path).record(**given_of())
    assert (tmp_path / FILE).read_text().startswith(HEADER + "\nr1,1,nevus")


@pytest.mark.parametrize(("folder", "reason"), [("taken", "Not a directory"), ("nowhere", "File exists")])
def test_a_folder_that_cannot_be_written_to_costs_only_the_log(folder: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    lines = SiteLog(tmp_path / folder).record(**given_of())
    assert lines[:-1] == SiteLog(tmp_path / "good").record(**given_of())
    assert lines[-1].startswith("this is not in")
    assert reason in lines[-1]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    log = SiteLog(tmp_path)
    log.record(**given_of())
    before = log.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, hard))
    try:
        lines = log.record(**given_of(round_number=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.path.read_bytes() == before
    assert "cannot be written (File too large): make room" in lines[-1]
    assert lines[1].startswith("the federation: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "does not begin with run,round,class"),
        (HEADER + "\nr1,one,nevus,rare,1,1,0,0\n", "line 2 of .* is not a row of a site's log: remove the line"),
        (HEADER + "\nr1,1,nevus\n", "line 2 of .* is not a row"),
    ],
)
def test_a_file_of_another_kind_is_left_alone(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(FedGAError, match=message):
        read(tmp_path)
    lines = SiteLog(tmp_path).record(**given_of())
    assert lines[0].startswith("site hospital-a, round 1: recall on 29")
    assert lines[-1].startswith("this is not in the site's log:")
    assert (tmp_path / FILE).read_text() == text


def test_a_log_that_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(FedGAError, match=r"classes.csv cannot be read \(Is a directory\)"):
        read(tmp_path)
