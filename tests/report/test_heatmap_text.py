"""The heat map in the terminal."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from fedga.errors import FedGAError
from fedga.report.figures import LabelHeatmapText

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def skewed(clients: int, classes: int, samples: int = 400) -> np.ndarray:
    generator = np.random.default_rng(0)
    shares = generator.dirichlet([0.1] * classes, clients)
    return np.array([generator.multinomial(samples, share) for share in shares])


def printed(renderable: object, width: int, color: str | None = None, encoding: str = "utf-8") -> list[str]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=stream, width=width, color_system=color, force_terminal=color is not None, legacy_windows=False
    )
    console.print(renderable)
    stream.seek(0)
    return stream.read().splitlines()


@pytest.mark.parametrize("width", [9, 24, 40, 80, 120, 200])
@pytest.mark.parametrize(("clients", "classes"), [(3, 10), (30, 100), (100, 200), (1, 1)])
def test_fits_any_width(width: int, clients: int, classes: int) -> None:
    names = CIFAR if classes == 10 else [f"n{number}" for number in range(classes)]
    lines = printed(LabelHeatmapText(skewed(clients, classes), names, "a title"), width)
    assert max(cell_len(line) for line in lines) <= width
    text = " ".join(" ".join(lines).split())
    assert ("the first 20 of" in text) == (clients > 20)


def test_counts_are_written_where_they_fit_and_missing_classes_are_blank() -> None:
    counts = np.array([[12, 0, 3], [0, 0, 345]])
    lines = printed(LabelHeatmapText(counts, ["a", "b", "c"], "title"), 40)
    assert lines[0] == "title"
    assert lines[1].split() == ["client", "a", "b", "c", "total"]
    assert lines[2].split() == ["0", "12", "3", "15"]
    assert lines[3].split() == ["1", "345", "345"]
    ends = [lines[1].index(name) for name in "abc"]
    assert lines[2][ends[0] - 1 : ends[0] + 1] == "12"
    assert lines[2][ends[1]] == " "
    assert lines[3][ends[0]] == " "


def test_missing_classes_have_no_colour_and_others_more_the_more_there_are() -> None:
    counts = np.array([[0, 1, 1000]])
    console = Console(width=60, color_system="truecolor", force_terminal=True, file=io.StringIO())
    lines = console.render_lines(LabelHeatmapText(counts, ["a", "b", "c"]), console.options, pad=False)
    cells = [(segment.text, segment.style.bgcolor if segment.style else None) for segment in lines[1]]
    blocks = {text.strip(): color.name for text, color in cells if color is not None}
    assert blocks == {"1": "#46327e", "1000": "#fde725"}


def test_without_colour_or_unicode_the_blocks_are_characters() -> None:
    counts = np.array([[0, 1, 30, 1000] * 5])
    names = [f"name {number}" for number in range(20)]
    blocks = printed(LabelHeatmapText(counts, names), 50)[1]
    assert blocks.split()[1] == "░▒█"
    plain = "\n".join(printed(LabelHeatmapText(counts, names), 50, encoding="ascii"))
    assert plain.isascii()
    assert "#" in plain


def test_names_that_do_not_fit_are_numbered_and_listed_below() -> None:
    lines = printed(LabelHeatmapText(skewed(3, 10), CIFAR), 80)
    assert lines[0].split() == ["client", *map(str, range(10)), "total"]
    text = " ".join(" ".join(lines).split())
    assert "Classes: 0 airplane, 1 automobile," in text
    wide = printed(LabelHeatmapText(skewed(3, 10), CIFAR), 140)
    assert wide[0].split() == ["client", *CIFAR, "total"]


def test_natural_clients_have_names_and_brackets_are_no_markup() -> None:
    lines = printed(LabelHeatmapText(np.array([[1, 2]]), ["[red]a", "b"], "[bold]x", client_names=["Ålesund [1]"]), 60)
    assert lines[0] == "[bold]x"
    assert "[red]a" in lines[1]
    assert lines[2].startswith("Ålesund [1]")


def test_counts_of_another_shape_are_refused() -> None:
    with pytest.raises(FedGAError, match="class_counts must be"):
        LabelHeatmapText(np.zeros(3), ["a", "b", "c"])
