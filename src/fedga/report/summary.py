"""What came out of a command: one line per algorithm and setting, over seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.text import Text

from fedga.measures.columns import AVERAGED, COLUMNS, MetricColumn, metric_column
from fedga.report.curves import Curve, deviation, mean, measured_split, median
from fedga.report.series import Panel, Series, make_panels, setting_text, telling_settings
from fedga.report.terminal import Column, TitledTable, full_width, least_width, make_table
from fedga.report.words import grouped
from fedga.store.records import METRICS

Row = dict[str, Any]
_NAMED = ("dataset", "alpha", "preset", "server", "algorithm")
_COUNTS = ("round", "runs", "seeds", "diverged", "unfinished")
_DISPENSABLE = ("balanced_accuracy", "macro_f1", "forgetting_rare", "ea_ratio")  # where the terminal is too narrow
_FIRST = ("accuracy", "averaged_accuracy", "macro_f1", "balanced_accuracy", "ea_ratio")
SUMMARY = tuple(COLUMNS[name] for name in (*_FIRST, "forgetting_rare", "forgetting_missing"))


def summary_metrics(curves: Iterable[Curve]) -> tuple[MetricColumn, ...]:
    """The columns of a summary of these runs: the built-in metrics, then those of the user's own that were measured."""
    curves = list(curves)
    found = sorted({name for curve in curves for name in curve.values}.difference(METRICS))
    return (*SUMMARY, *map(metric_column, sorted(found, key=lambda name: name.startswith(AVERAGED))))


def summary_rows(curves: Sequence[Curve], metrics: Sequence[MetricColumn] = SUMMARY) -> list[Row]:
    """One row per data set, α and series: its settings, how many runs it has, each metric and its deviation over seeds.

    A value is None where it was never measured, a deviation also for a single seed. Diverged runs and runs behind the
    others of their series are counted, and are in no mean: ``seeds`` says how many runs are.
    """
    return [_summary_row(panel, series, metrics) for panel in make_panels(curves) for series in panel.series]


def _summary_row(panel: Panel, series: Series, metrics: Sequence[MetricColumn]) -> Row:
    last = max((int(curve.rounds[-1]) for curve in series.sound), default=None)
    complete = [curve for curve in series.sound if curve.rounds[-1] == last]
    ended = [curve for curve in series.curves if curve.diverged or (curve.status == "done" and curve in complete)]
    row: Row = {"dataset": panel.dataset, "alpha": panel.alpha}
    row |= {name: series.settings.get(name) for name in _NAMED[2:]}
    others = {name: value for name, value in series.settings.items() if name not in _NAMED}
    row |= {name: setting_text(value) if isinstance(value, tuple) else value for name, value in others.items()}
    numbers = (last, len(series.curves), len(complete), len(series.diverged), len(series.curves) - len(ended))
    row |= dict(zip(_COUNTS, numbers, strict=True))
    for metric in metrics:
        values = [of.over_rounds(metric.name) if metric.over_rounds else of.last(metric.name) for of in complete]
        middle = median if metric.ratio else mean
        row[metric.name] = _known(middle(np.array(values)))
        if not metric.ratio:
            row[f"{metric.name}_deviation"] = _known(deviation(np.array(values)))
    return row


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def summary_table(
    curves: Sequence[Curve], metrics: Sequence[MetricColumn] = SUMMARY, *, width: int | None = None
) -> TitledTable:
    """The summary for a terminal of ``width``, the best in bold; what does not fit or nobody measured is left out."""
    rows = summary_rows(curves, metrics)
    no_settings = {*_COUNTS, *(f"{metric.name}{end}" for metric in metrics for end in ("", "_deviation"))}
    settings = [name for name in rows[0] if name not in no_settings] if rows else []
    telling = telling_settings([{name: row[name] for name in settings} for row in rows]) or ["algorithm"]
    shown = {metric.name: metric for metric in metrics if any(row[metric.name] is not None for row in rows)}
    left = [Column("α" if name == "alpha" else name, [Text(_setting(row[name])) for row in rows]) for name in telling]
    right = []
    if len({row["seeds"] for row in rows}) > 1:
        right.append(Column("seeds", [Text(str(row["seeds"])) for row in rows], "right"))
    if any(odd_runs(row) for row in rows):
        right.append(Column("note", [Text(odd_runs(row), style="yellow") for row in rows]))
    if measured_split(curves) == "validation" and "accuracy" in shown:
        shown["accuracy"] = replace(shown["accuracy"], heading="validation accuracy")
    middle = {name: Column(metric.heading, _cells(rows, metric, " "), "right") for name, metric in shown.items()}
    if width is not None and full_width([*left, *middle.values(), *right]) > width:
        middle = {name: Column(metric.heading, _cells(rows, metric, "\n"), "right") for name, metric in shown.items()}
    narrow: list[str] = []
    for name in _DISPENSABLE:
        if width is not None and name in middle and least_width([*left, *middle.values(), *right]) > width:
            narrow += [middle.pop(name).heading]
    caption = "Mean ± standard deviation over seeds. Bold: best of its data set and α."
    caption += explanations(shown[name] for name in middle)
    caption += _on_validation(curves)
    caption += f" Left out, the terminal is too narrow: {', '.join(narrow)}." if narrow else ""
    title = _title(rows, [name for name in settings if name not in telling])
    sections = [at for at, row in enumerate(rows[:-1]) if _place(rows[at + 1]) != _place(row)]
    return make_table([*left, *middle.values(), *right], title=title, caption=caption, width=width, sections=sections)


def _on_validation(curves: Sequence[Curve]) -> str:
    """A sentence where numbers are not the test split's, with a blank before it."""
    whose = {"validation": "All numbers", "test or validation": "Numbers of rows with validate above 0"}
    subject = whose.get(measured_split(curves))
    return f" {subject} are validation numbers: on samples held out of training." if subject else ""


def _place(row: Row) -> tuple[Any, Any]:
    return row["dataset"], row["alpha"]


def _compared(row: Row) -> tuple[Any, ...]:
    """Rows that are alike in this are measured on the same samples, or nearly: the best of them is marked."""
    return *_place(row), bool(row.get("validate"))


def _cells(rows: Sequence[Row], metric: MetricColumn, gap: str) -> list[Text]:
    """The column of a metric, ``gap`` before deviations. All that print like the best of their place are bold."""
    known = grouped((row for row in rows if row[metric.name] is not None), _compared)
    best = {place: metric.best([row[metric.name] for row in of]) for place, of in known.items()}
    return [_cell(row, metric, number_text(best.get(_compared(row), math.nan), metric.ratio), gap) for row in rows]


def _cell(row: Row, metric: MetricColumn, best: str, gap: str) -> Text:
    value, wide = row[metric.name], row.get(f"{metric.name}_deviation")
    if value is None:
        return Text("–", style="dim")
    shown = number_text(value, metric.ratio)
    text = Text().append(shown, style="bold" if shown == best else None)
    return text if wide is None else text.append(f"{gap}±{number_text(wide)}", style="dim")


def number_text(value: float, significant: bool = False) -> str:
    """A number for a table's cell: three decimals, or three significant digits.

    >>> number_text(0.91149), number_text(-0.0001), number_text(-0.5)
    ('0.911', '0.000', '−0.500')
    >>> [number_text(value, significant=True) for value in (1.2345, 12.345, 1234.5, 2.5e7, float("inf"))]
    ['1.23', '12.3', '1,234', '2e+07', '∞']
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= 1e6:
        return f"{value:.0e}"
    digits = 3 if not significant else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    text = f"{value:,.{digits}f}"
    return text.replace("-", "" if float(text.replace(",", "")) == 0 else "−")


def plus_minus(value: float, wide: float | None) -> str:
    """Mean and deviation with blanks at which no line is broken."""
    return number_text(value) + (f"\u00a0±\u00a0{number_text(wide)}" if wide is not None else "")


def odd_runs(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{row[name]} of {row['runs']} {name}" for name in ("diverged", "unfinished") if row[name])


def _title(rows: Sequence[Row], shared: Sequence[str]) -> str:
    if not rows:
        return "No results yet"
    known = {name: rows[0][name] for name in shared if rows[0][name] not in (None, "") and _same(rows, name)}
    parts = [f"α = {value:g}" if name == "alpha" else f"{name} {_setting(value)}" for name, value in known.items()]
    rounds = sorted({row["round"] for row in rows if row["round"] is not None})
    parts += [f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"] if rounds else []
    if _same(rows, "seeds"):
        parts.append(f"{rows[0]['seeds']} seed" + "s" * (rows[0]["seeds"] != 1))
    return ", ".join(part.removeprefix("dataset ") for part in parts)


def _same(rows: Sequence[Row], name: str) -> bool:
    return len({row[name] for row in rows}) == 1


def _setting(value: Any) -> str:
    return "–" if value in (None, "") else setting_text(value)


def explanations(metrics: Iterable[MetricColumn]) -> str:
    """What needs to be said of these columns, each sentence once, with a blank before it."""
    return "".join(f" {text}" for text in dict.fromkeys(metric.explanation for metric in metrics) if text)
