"""Tables and pictures as files, tables for the terminal; notes on cells stand below the table under letters."""

import os
import re
import string
from collections.abc import Callable
from pathlib import Path

from rich.text import Text

from fedga.common.spreadsheet import csv_text
from fedga.drawing.style import save, write_named
from fedga.report.documents import NOTHING, Cell, Section, Table
from fedga.report.terminal import Column, TitledTable, make_table

PICTURE_KINDS = ("png", "svg", "pdf")

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~$&])")  # what would end a cell, or be read as anything but itself
# Characters that TeX's usual fonts lack, and the commands of mathematics that draw them.
_SYMBOLS = "−±×÷·≈≠≤≥≪≫∞→√✓✗∑ΣΔ²αβγεηλμµρστ<>|"
_COMMANDS = (
    r"- \pm \times \div \cdot \approx \neq \leq \geq \ll \gg \infty \rightarrow \surd \surd \times \sum \Sigma"
    r" \Delta ^2 \alpha \beta \gamma \varepsilon \eta \lambda \mu \mu \rho \sigma \tau < > |"
)
_WRITTEN = r"\textbackslash{} \textasciicircum{} \textasciitilde{} '' `` '' ` ' -- --- \ldots{} ~"
_LATEX = {
    **{chr(code): " " for code in (*range(32), 127)},  # line ends, and what TeX refuses as invalid
    **{special: f"\\{special}" for special in "{}$&%#_"},
    **{special: f"{{{special}}}" for special in "[*"},  # which would belong to the line break before a row
    **{symbol: f"${command}$" for symbol, command in zip(_SYMBOLS, _COMMANDS.split(), strict=True)},
    **dict(zip('\\^~"“”‘’–—…\u00a0', _WRITTEN.split(), strict=True)),
}


def markdown(table: Table) -> str:
    """A table as GitHub reads it: title, pipes, caption; bold between stars.

    >>> table = Table("t", "Scores", ("α", "FedGA"), ((Cell("0.1", 0.1), Cell("0.9 (0.1)", 0.9, bold=True)),))
    >>> print(markdown(table), end="")
    **Scores**
    <BLANKLINE>
    | α | FedGA |
    |---:|---:|
    | 0.1 | **0.9 (0.1)** |
    """
    marks = marks_of(table)
    cells = [[_escape_markdown(heading) for heading in table.headings]]
    cells += [[_markdown_cell(cell, marks) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    lines.insert(1, f"|{'|'.join('---:' if _is_numeric(table, at) else '---' for at in range(len(cells[0])))}|")
    notes = "  \n".join(f"<sup>{mark}</sup> {_escape_markdown(note)}" for note, mark in marks.items())
    parts = [f"**{_escape_markdown(table.title)}**", "\n".join(lines), _escape_markdown(table.caption), notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(table: Table) -> str:
    """A table as a float of LaTeX that needs the package booktabs and no other.

    >>> table = Table("t", "Scores", ("α", "FedGA"), ((Cell("0.1", 0.1), Cell("9 (2.00×)", 9, bold=True)),), "At 80 %.")
    >>> print(latex(table), end="")
    % needs \\usepackage{booktabs}
    \\begin{table}[htbp]
      \\centering
      \\caption{Scores. At 80 \\%.}
      \\label{tab:t}
      \\begin{tabular}{rr}
        \\toprule
        $\\alpha$ & FedGA \\\\
        \\midrule
        0.1 & \\textbf{9 (2.00$\\times$)} \\\\
        \\bottomrule
      \\end{tabular}
    \\end{table}
    """
    marks = marks_of(table)
    aligned = "".join("r" if _is_numeric(table, at) else "l" for at in range(len(table.headings)))
    said = " ".join(part for part in (_sentence(table.title), table.caption) if part)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}[htbp]",
        r"  \centering",
        rf"  \caption{{{escape_latex(said)}}}",
        rf"  \label{{tab:{table.name}}}",
        rf"  \begin{{tabular}}{{{aligned}}}",
        r"    \toprule",
        rf"    {' & '.join(escape_latex(heading) for heading in table.headings)} \\",
        r"    \midrule",
    ]
    for number, row in enumerate(table.rows):
        lines.append(rf"    {' & '.join(_latex_cell(cell, marks) for cell in row)} \\")
        if number in table.breaks and number + 1 < len(table.rows):
            lines.append(r"    \midrule")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    if marks:
        notes = " ".join(f"{_latex_mark(mark)} {escape_latex(_sentence(note))}" for note, mark in marks.items())
        lines.append(rf"  \par\smallskip{{\footnotesize {notes}\par}}")
    return "\n".join([*lines, r"\end{table}", ""])


def comma_separated(table: Table) -> str:
    """The values, a line per row under the headings, deviations in columns of their own; empty where there is none.

    >>> row = (Cell("–"), Cell("0.900 (0.010)", 0.9, deviation=0.01))
    >>> print(comma_separated(Table("t", "", ("α", "FedGA"), (row,))), end="")
    α,FedGA,FedGA deviation
    ,0.9,0.01
    """
    wide = [any(row[at].deviation is not None for row in table.rows) for at in range(len(table.headings))]
    names = zip(table.headings, wide, strict=True)
    headings = [name for heading, has in names for name in (heading, f"{heading} deviation")[: 1 + has]]
    rows = (zip(row, wide, strict=True) for row in table.rows)
    return csv_text([headings, *([value for cell, has in row for value in _values(cell)[: 1 + has]] for row in rows)])


def _values(cell: Cell) -> tuple[float | str | None, float | None]:
    if cell.value is not None or cell.text == NOTHING:
        return cell.value, cell.deviation
    try:
        return float(cell.text), cell.deviation  # a number without a value beside its text, such as -0.5: no formula
    except ValueError:
        return cell.text, cell.deviation


def terminal(table: Table, *, width: int | None = None) -> TitledTable:
    marks = marks_of(table)
    columns = []
    for at, heading in enumerate(table.headings):
        cells = [_terminal_cell(row[at], marks) for row in table.rows]
        columns.append(Column(heading, cells, "right" if _is_numeric(table, at) else "left"))
    notes = "".join(f"\n[{mark}] {note}" for note, mark in marks.items())
    return make_table(columns, title=table.title, caption=table.caption + notes, width=width, sections=table.breaks)


def write_table(table: Table, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``folder/<name>`` as ``.md``, ``.tex`` and ``.csv``, each whole or not at all."""
    kinds: dict[str, Callable[[Table], str]] = {"md": markdown, "tex": latex, "csv": comma_separated}
    return [write_named("table", Path(folder) / f"{table.name}.{kind}", of(table)) for kind, of in kinds.items()]


def write_section(section: Section, folder: str | os.PathLike[str]) -> list[Path]:
    """Its tables into ``folder/tables``, its pictures into ``folder/figures``."""
    tables = [write_table(table, Path(folder) / "tables") for table in section.tables]
    figures = Path(folder) / "figures"
    pictures = [save(picture.draw(), figures / picture.name, PICTURE_KINDS) for picture in section.pictures]
    return [path for paths in (*tables, *pictures) for path in paths]


def marks_of(table: Table) -> dict[str, str]:
    """Note -> letter, in the order of the table; what is said of several cells has one letter."""
    notes = dict.fromkeys(cell.note for row in table.rows for cell in row if cell.note)
    return {note: letters(number) for number, note in enumerate(notes)}


def letters(number: int) -> str:
    """The names of things in a row, however many they are.

    >>> [letters(number) for number in (0, 25, 26, 702)]
    ['a', 'z', 'aa', 'aaa']
    """
    rest, last = divmod(number, 26)
    return (letters(rest - 1) if rest else "") + string.ascii_lowercase[last]


def escape_latex(text: str) -> str:
    """Text in which TeX sees no command, and that its usual fonts can set.

    >>> print(escape_latex("50 % of α ± 0.1"))
    50 \\% of $\\alpha$ $\\pm$ 0.1
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.splitlines()))


def _markdown_cell(cell: Cell, marks: dict[str, str]) -> str:
    mark = f" <sup>{marks[cell.note]}</sup>" if cell.note else ""
    return f"**{_escape_markdown(cell.text)}**{mark}" if cell.bold else _escape_markdown(cell.text) + mark


def _latex_cell(cell: Cell, marks: dict[str, str]) -> str:
    mark = _latex_mark(marks[cell.note]) if cell.note else ""
    return rf"\textbf{{{escape_latex(cell.text)}}}{mark}" if cell.bold else escape_latex(cell.text) + mark


def _latex_mark(mark: str) -> str:
    return rf"$^{{\mathrm{{{mark}}}}}$"


def _terminal_cell(cell: Cell, marks: dict[str, str]) -> Text:
    text = Text().append(cell.text, style="bold" if cell.bold else None)
    return text.append(f" [{marks[cell.note]}]", style="dim") if cell.note else text


def _is_numeric(table: Table, column: int) -> bool:
    """Whether a column is set flush right: it has values, and they are numbers."""
    values = [row[column].value for row in table.rows if row[column].value is not None]
    return bool(values) and all(isinstance(value, (int, float)) for value in values)


def _sentence(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
