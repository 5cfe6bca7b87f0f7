"""What a site's owner reads after local training, and the rows that are kept of it."""

from __future__ import annotations

import math
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from fedga.errors import FedGAError
from fedga.flower.client.site_lines import WIDTH, Earlier, LocalTraining, class_lines
from fedga.flower.client.site_log import FILE, Row, SiteLog, read
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


def lines_of(earlier: Earlier | None = None, **changed: Any) -> list[str]:
    return class_lines(LocalTraining(**given_of(**changed)), earlier)


# --- lines ----------------------------------------------------------------------------------------


def test_lines_of_a_first_round() -> None:
    assert lines_of() == [
        "site hospital-a, round 1: received model against the one trained here, on 29 held-out samples",
        "  class                 kind      training / held out  received → trained here",
        "  nevus                 frequent              90 / 20   50% █████░░░░░ →  90% █████████░",
        "  melanoma              rare                   10 / 5   60% ██████░░░░ →  20% ██░░░░░░░░",
        "  keratosis             missing                 0 / 4   75% ████████░░ →  25% ██░░░░░░░░",
        "  wart                  missing                 0 / 0  not measured",
        "local training lost 40 points on rare and 50 on missing classes, and gained 40 on frequent ones",
        "not measured, for want of samples: 1 of 2 missing classes",
    ]


def test_what_the_federation_brought_is_told_against_the_model_trained_here_before() -> None:
    lines = lines_of(Earlier(4, [0.9, 0.1, NAN, NAN]), round_number=5)
    assert lines[1].endswith("  round 4 → received → trained here")
    assert lines[3].endswith("   10% →  60% ██████░░░░ →  20% ██░░░░░░░░")
    assert "/ 4          75% ████████░░ →" in lines[4]
    assert lines[6] == "the federation brought 50 points on rare classes, and took 40 on frequent ones"
    assert lines[7].startswith("local training lost 40 points")


def test_nothing_is_said_of_what_was_not_measured() -> None:
    lines = lines_of(class_counts=[90, 10, 0, 0], looked_at=[20, 0, 0, 0], before=[0.5] * 4, after=[0.5, 0, 0, 0])
    assert [line.endswith("not measured") for line in lines[2:6]] == [False, True, True, True]
    assert lines[6:] == [
        "local training changed no kind of class by as much as a point",
        "not measured, for want of samples: 1 of 1 rare and 2 of 2 missing classes",
    ]
    unknown = Earlier(1, [NAN, 0.2, 0.3, 0.4])
    assert lines_of(unknown, looked_at=[20, 0, 0, 0]) == lines_of(looked_at=[20, 0, 0, 0])
    assert lines_of(looked_at=[0] * 4) == [
        "site hospital-a, round 1: no samples to compare the received model with the one trained here"
    ]


def test_training_samples_are_called_so() -> None:
    lines = lines_of(looked_at=[90, 10, 0, 0], held_out=False)
    assert " ".join(lines[:2]).endswith("on 100 training samples,   since none are held out")
    assert "    90 / 0  " in lines[3]


def test_of_many_classes_the_rarest_and_those_that_moved_most_are_shown() -> None:
    number = 50
    before = np.full(number, 0.5)
    after = before.copy()
    after[[40, 41, 42]] = [0.9, 0.0, 0.8]
    counts = np.full(number, 100)
    counts[[3, 7, 9]] = [2, 0, 1]
    names = [f"class {place}" for place in range(number)]
    lines = lines_of(class_names=names, class_counts=counts, looked_at=counts // 2 + 1, before=before, after=after)
    shown = [line.split()[1] for line in lines[2:8]]
    assert shown == ["3", "7", "9", "40", "41", "42"]
    assert lines[8] == "  44 more left out: these are the rarest and those that moved most"


def test_classes_that_are_measured_are_shown_before_others() -> None:
    names = [f"class {place}" for place in range(30)]
    counts, looked_at = np.zeros(30, int), np.zeros(30, int)
    counts[20:26], looked_at[20:26] = 50, 10
    lines = lines_of(
        class_names=names, class_counts=counts, looked_at=looked_at, before=np.zeros(30), after=np.zeros(30)
    )
    assert [line.split()[1] for line in lines[2:8]] == ["20", "21", "22", "23", "24", "25"]


@given(st.integers(0, 2**31), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_kinds_and_losses_are_those_of_forgetting(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(-3, 9, classes).clip(min=0)
    before, after = rng.random((2, classes))
    training = LocalTraining(
        **given_of(
            class_names=[str(place) for place in range(classes)],
            class_counts=counts,
            looked_at=np.ones(classes, int),
            before=before,
            after=after,
        )
    )
    lost = forgetting(torch.tensor(before), torch.tensor(after), torch.tensor(counts))
    for kind in ("frequent", "rare", "missing"):
        group = np.array(training.kinds) == kind
        expected = (before - after)[group].mean() if group.any() else NAN
        assert getattr(lost, kind).item() == pytest.approx(expected, nan_ok=True)
    sentence = next(line for line in class_lines(training) if line.startswith("local training"))
    for kind in ("frequent", "rare", "missing"):
        points = 100 * getattr(lost, kind).item()
        told = math.isfinite(points) and round(points) != 0
        assert (kind in sentence) == told
        assert not told or f"{abs(round(points))} " in sentence


@given(
    st.lists(st.text(max_size=60), min_size=1, max_size=20, unique=True),
    st.text(max_size=150),
    st.integers(0, 2**31),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_lines_are_few_and_fit(names: list[str], site: str, seed: int, held_out: bool) -> None:
    rng = np.random.default_rng(seed)
    number = len(names)
    counts, looked_at = rng.integers(0, 10 ** rng.integers(1, 10), (2, number))
    before, after, earlier = rng.integers(0, 2, (3, number)).astype(float)
    training = LocalTraining(
        run="",
        site=site,
        round_number=int(rng.integers(0, 10_000)),
        class_names=names,
        class_counts=counts,
        looked_at=looked_at,
        before=before,
        after=after,
        held_out=held_out,
    )
    lines = class_lines(training, Earlier(9_999, earlier))
    assert len(lines) <= 13
    assert all(cell_len(line) <= WIDTH and line.isprintable() for line in lines)


def test_lengths_must_agree() -> None:
    with pytest.raises(FedGAError, match=r"after has shape \[3\] for 4 classes: give one value per class"):
        LocalTraining(**given_of(after=[0.1, 0.2, 0.3]))


# --- the file -------------------------------------------------------------------------------------


def test_rows_are_kept_and_read(tmp_path: Path) -> None:
    log = SiteLog(tmp_path / "new" / "folder")
    assert read(log.folder) == []
    lines = log.record(**given_of())
    assert lines == lines_of()
    rows = read(log.folder)
    assert rows[:2] == [
        Row("r1", 1, "nevus", "frequent", 90, 20, 0.5, 0.9),
        Row("r1", 1, "melanoma", "rare", 10, 5, 0.6, 0.2),
    ]
    assert (rows[3].name, rows[3].held_out_samples) == ("wart", 0)
    assert math.isnan(rows[3].before)
    assert math.isnan(rows[3].after)
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
    assert SiteLog(tmp_path).record(**given_of(**vectors)) == lines_of()


def test_the_round_before_is_read_from_the_file(tmp_path: Path) -> None:
    SiteLog(tmp_path).record(**given_of(round_number=2, after=[0.5, 0.5, 0.5, NAN]))
    SiteLog(tmp_path).record(**given_of(round_number=4, after=[0.5, 0.1, 0.25, NAN]))
    SiteLog(tmp_path).record(**given_of(round_number=5, run="another", after=[0.0] * 4))
    lines = SiteLog(tmp_path).record(**given_of(round_number=7))
    assert lines == lines_of(Earlier(4, [0.5, 0.1, 0.25, NAN]), round_number=7)
    assert "the federation brought 50 points on rare and 50 on missing classes" in lines
    repeated = SiteLog(tmp_path).record(**given_of(round_number=4))
    assert repeated == lines_of(Earlier(2, [0.5, 0.5, 0.5, NAN]), round_number=4)


def test_other_samples_are_not_compared(tmp_path: Path) -> None:
    SiteLog(tmp_path).record(**given_of())
    lines = SiteLog(tmp_path).record(**given_of(round_number=2, looked_at=[20, 6, 4, 0]))
    assert lines == lines_of(Earlier(1, [0.9, NAN, 0.25, NAN]), round_number=2, looked_at=[20, 6, 4, 0])
    lines = SiteLog(tmp_path).record(**given_of(round_number=3, looked_at=[90, 10, 0, 0], held_out=False))
    assert not any(line.startswith("the federation") for line in lines)


def test_names_of_any_kind_are_found_again(tmp_path: Path) -> None:
    names = ['a,"b"', "line\nbreak", "Ämter 皮膚", " spaced "]
    for number in (1, 2):
        lines = SiteLog(tmp_path).record(**given_of(class_names=names, round_number=number, run="r\n,1"))
    assert [row.name for row in read(tmp_path)] == ['a,"b"', "line break", "Ämter 皮膚", "spaced"] * 2
    assert any(line.startswith("the federation brought") for line in lines)


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
    said = lines_of()
    assert lines[: len(said)] == said
    assert lines[len(said)].startswith("this is not in")
    assert reason in " ".join(line.strip() for line in lines[len(said) :])
    assert all(cell_len(line) <= WIDTH for line in lines)


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
    said = lines_of(Earlier(1, given_of()["after"]), round_number=2)
    assert lines[: len(said)] == said
    assert "cannot be written (File too large): make room" in " ".join(line.strip() for line in lines[len(said) :])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "does not begin with run,round,class"),
        (HEADER + "\nr1,one,nevus,rare,1,1,0,0\n", "line 2 of .* is no row of a site's log: remove the line"),
        (HEADER + "\nr1,1,nevus\n", "line 2 of .* is no row"),
    ],
)
def test_a_file_of_another_kind_is_left_alone(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(FedGAError, match=message):
        read(tmp_path)
    lines = SiteLog(tmp_path).record(**given_of())
    assert lines[: len(lines_of())] == lines_of()
    assert lines[len(lines_of())].startswith("this is not in the site's log:")
    assert (tmp_path / FILE).read_text() == text


def test_a_log_that_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(FedGAError, match=r"classes.csv cannot be read \(Is a directory\)"):
        read(tmp_path)
