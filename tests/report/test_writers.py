"""The same table in every form, and the files they are written to."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from fedga.common.spreadsheet import text_cell
from fedga.errors import FedGAError
from fedga.report import writers
from fedga.report.documents import Cell, Picture, Section, Table

ODD = [
    "a|b",
    "50 %",
    "$5 or $6",
    "x_1^2 & y",
    "{a}\\b",
    "#1 ~ <b>",
    "*new*",
    "[1] `c`",
    "α ± 0.1 × 2 – 3",
    "−1 ≥ ∞ …",
    '"q"',
]
RESULT = Table(
    "scores",
    "Scores at 80 %",
    ("data set", "α", "FedAvg", "FedGA"),
    (
        (Cell("MNIST", "mnist"), Cell("0.1", 0.1), Cell("0.893 (0.004)", 0.8931), Cell("0.915", 0.915, bold=True)),
        (Cell("SVHN", "svhn"), Cell("0.5", 0.5), Cell("0.690 (0.341)", 0.69, note="1 of 5 stuck"), Cell("–")),
        (Cell("SVHN", "svhn"), Cell("1", 1.0), Cell("0.8", 0.8, note="1 of 5 stuck"), Cell("0.9", 0.9, note="other")),
    ),
    "Mean over 5 seeds.",
    (0,),
)


def table_of(texts: list[str], *, bold: bool = False) -> Table:
    return Table(
        "odd", "Odd & ends", ("heading", *texts), (tuple(Cell(t, t, bold) for t in ("first", *texts)),), "50 %"
    )


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+x", "-x", "@SUM(A1)", "\t=1", "\r=1", "a\r=1"])
def test_no_spreadsheet_computes_a_text(text: str) -> None:
    rows = list(csv.reader(io.StringIO(writers.comma_separated(table_of([text])), newline="")))
    shown = ("" if text.startswith("a") else "'") + text.replace("\r", " ")
    assert rows == [["heading", shown], ["first", shown]]


def test_numbers_stay_numbers() -> None:
    row = (Cell("−0.5", -0.5, deviation=0.25), Cell("-1.5"), Cell("x", "-x"))
    text = writers.comma_separated(Table("t", "", ("a", "b", "c"), (row,)))
    assert text.splitlines()[1] == "-0.5,0.25,-1.5,'-x"


def test_no_control_character_reaches_tex() -> None:
    assert writers.escape_latex("a\r\n\x1b[31m\x00b") == "a   {[}31m b"


def parse_markdown(text: str) -> list[list[str]]:
    """The cells of the pipe table, as a reader of GitHub sees them."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[part.strip() for part in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    assert all(re.fullmatch("-+:?", part) for part in cells[1])
    seen = [cells[0], *cells[2:]]
    return [[re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", re.sub(r"(?<!\\)\*\*", "", part)) for part in row] for row in seen]


def parse_latex(text: str) -> list[list[str]]:
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0].replace(r"\midrule", "")
    rows = [row.strip() for row in body.split(r" \\") if row.strip()]
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", row)] for row in rows]


def assert_sound_latex(text: str) -> None:
    """Braces and environments close, dollars come in pairs, and nothing special is left bare."""
    bare = re.sub(r"\\[\\{}$&%#_]", "", re.sub(r"(?m)^%.*$", "", text))
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert re.findall(r"\\begin\{(\w+)\}", text) == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == ["tabular", "table"]
    outside = "".join(bare.split("$")[::2])
    assert not set("%#^") & set(outside)
    assert "_" not in outside.replace(re.findall(r"\\label\{.*?\}", text)[0], "")
    assert not re.search(r"(?m)^\s*[*\[]", text)


def is_bold(cell: Text) -> bool:
    return any("bold" in str(span.style) for span in cell.spans)


def test_markdown_parses_back_to_the_cells() -> None:
    marks = {"1 of 5 stuck": " <sup>a</sup>", "other": " <sup>b</sup>", "": ""}
    expected = [[cell.text + marks[cell.note] for cell in row] for row in RESULT.rows]
    text = writers.markdown(RESULT)
    assert parse_markdown(text) == [list(RESULT.headings), *expected]
    assert "| **0.915** |" in text
    assert text.count("**") == 4
    assert "|---|---:|---:|---:|" in text
    assert text.endswith("Mean over 5 seeds.\n\n<sup>a</sup> 1 of 5 stuck  \n<sup>b</sup> other\n")


@pytest.mark.parametrize("bold", [False, True])
def test_markdown_reads_odd_text_as_itself(bold: bool) -> None:
    assert parse_markdown(writers.markdown(table_of(ODD, bold=bold))) == [["heading", *ODD], ["first", *ODD]]


@given(st.lists(st.text(st.characters(codec="ascii", exclude_categories=["C"])), max_size=4))
def test_any_text_keeps_its_place_in_every_form(texts: list[str]) -> None:
    texts = [text.strip() for text in texts]
    table = table_of(texts)
    assert parse_markdown(writers.markdown(table)) == [["heading", *texts], ["first", *texts]]
    latex = writers.latex(table)
    assert_sound_latex(latex)
    assert [len(row) for row in parse_latex(latex)] == [1 + len(texts)] * 2
    cells = list(map(text_cell, texts))
    assert list(csv.reader(io.StringIO(writers.comma_separated(table)))) == [["heading", *cells], ["first", *cells]]


def test_latex_has_a_rule_where_the_table_breaks_bold_marks_and_notes() -> None:
    text = writers.latex(RESULT)
    assert_sound_latex(text)
    assert r"\begin{tabular}{lrrr}" in text
    assert r"\caption{Scores at 80 \%. Mean over 5 seeds.}" in text
    assert r"\label{tab:scores}" in text
    rows = parse_latex(text)
    assert rows[0] == ["data set", r"$\alpha$", "FedAvg", "FedGA"]
    assert rows[1][3] == r"\textbf{0.915}"
    assert rows[2][2:] == [r"0.690 (0.341)$^{\mathrm{a}}$", "--"]
    assert rows[3][2].endswith("a}}$")
    assert rows[3][3].endswith("b}}$")
    assert text.count(r"\midrule") == 2
    assert text.index("MNIST") < text.rindex(r"\midrule") < text.index("SVHN")
    assert "1 of 5 stuck." in text


def test_latex_escapes_what_tex_would_take_for_a_command() -> None:
    text = writers.latex(table_of(ODD))
    assert_sound_latex(text)
    for escaped in (r"50 \%", r"\$5 or \$6", r"x\_1\textasciicircum{}2 \& y", r"\{a\}\textbackslash{}b", r"\#1"):
        assert escaped in text
    assert r"$\alpha$ $\pm$ 0.1 $\times$ 2 -- 3" in text
    assert r"$-$1 $\geq$ $\infty$ \ldots{}" in text
    assert all(ord(character) < 128 for character in text)


def test_csv_holds_the_values_exactly_and_nothing_where_there_is_none() -> None:
    read = list(csv.reader(io.StringIO(writers.comma_separated(RESULT))))
    assert tuple(read[0]) == RESULT.headings
    for row, cells in zip(read[1:], RESULT.rows, strict=True):
        for field, cell in zip(row, cells, strict=True):
            assert field == ("" if cell.text == "–" else str(cell.text if cell.value is None else cell.value))
            assert not isinstance(cell.value, float) or float(field) == cell.value


def test_terminal_shows_bold_marks_and_notes() -> None:
    shown = writers.terminal(RESULT, width=80)
    assert [str(column.header) for column in shown.columns] == list(RESULT.headings)
    [last] = [list(column.cells) for column in shown.columns if str(column.header) == "FedGA"]
    assert [is_bold(cell) for cell in last if isinstance(cell, Text)] == [True, False, False]
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(shown)
    text = stream.getvalue()
    assert "0.690 (0.341) [a]" in text
    assert "[a] 1 of 5 stuck" in text
    assert "[b] other" in text
    assert text.startswith("Scores at 80 %")


def test_files_are_written_whole_and_the_same_each_time(tmp_path: Path) -> None:
    written = writers.write_table(RESULT, tmp_path / "new" / "tables")
    assert [path.name for path in written] == ["scores.md", "scores.tex", "scores.csv"]
    before = [path.read_bytes() for path in written]
    assert before[0].decode() == writers.markdown(RESULT)
    assert [path.read_bytes() for path in writers.write_table(RESULT, tmp_path / "new" / "tables")] == before
    assert sorted(path.name for path in written[0].parent.iterdir()) == ["scores.csv", "scores.md", "scores.tex"]


def test_a_table_that_cannot_be_written_is_one_sentence_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(FedGAError, match=r"the table '.*scores\.md' cannot be written"):
        writers.write_table(RESULT, tmp_path / "taken")
    first = writers.write_table(RESULT, tmp_path)[0]

    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FedGAError, match="No space left on device"):
        writers.write_table(Table("scores", "other", ("a",), ()), tmp_path)
    assert first.read_text(encoding="utf-8") == writers.markdown(RESULT)
    assert not list(tmp_path.glob(".*"))


def draw() -> Figure:
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1])
    axes.set_title("α = 0.1")
    return figure


def test_a_section_goes_into_tables_and_figures(tmp_path: Path) -> None:
    section = Section("main", "Main", ("words",), (RESULT,), (Picture("curve", "Curve", draw),))
    written = writers.write_section(section, tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in written] == [
        *(f"tables/scores.{kind}" for kind in ("md", "tex", "csv")),
        *(f"figures/curve.{kind}" for kind in ("png", "svg", "pdf")),
    ]
    assert all(path.stat().st_size for path in written)


def test_a_picture_is_the_same_bytes_each_time_and_says_neither_when_nor_by_what(tmp_path: Path) -> None:
    section = Section("main", "Main", pictures=(Picture("curve", "Curve", draw),))
    first, again = (writers.write_section(section, tmp_path / name) for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    pdf = first[2].read_bytes()
    assert pdf.startswith(b"%PDF")
    for told in (b"CreationDate", b"Producer", b"Creator", b"/Type3"):
        assert told not in pdf
