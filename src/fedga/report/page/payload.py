"""The numbers behind a page's charts and downloads, packed into it: JSON or CSV, gzip, base64.

Of a small study everything is there at full precision. Of a large one the charts get evenly chosen rounds and four
digits, which is more than a screen shows, and the page says so.
"""

import base64
import gzip
import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedga.drawing.heatmap import RAMP, counts_summary
from fedga.drawing.style import GAINED, LOST
from fedga.measures.columns import OF_MODELS, metric_column
from fedga.report.curves import Curve, main_accuracy, metric_title
from fedga.report.page.overview import compared, shown_cohorts
from fedga.report.page.study import Scenario, Study
from fedga.report.page.svg import svg_style
from fedga.report.series import setting_text
from fedga.store.database import IDENTITY
from fedga.store.records import AVERAGED, METRICS, ClientRound
from fedga.store.results import telling_fields
from fedga.store.store import Store

MOST_ROUNDS = 150  # of a run, in a chart
FEWEST_ROUNDS = 20
MOST_VALUES = 500_000  # of all curves together
MAIN_SHARE = 0.4  # of these, for the metrics shown first
FINE_VALUES = 150_000  # up to so many, values keep six digits
MOST_ROWS = 30_000  # of the whole CSV
MOST_CSV_BYTES = 1_200_000  # packed
MOST_CLIENTS = 100  # of a heat map
_MAIN = ("accuracy", "averaged_accuracy", "client_accuracy")
_MANY_CLASSES = 20  # with more of them, fewer clients are shown and their accuracies to a per cent
_DEFAULT_LINES = 14


def pack(study: Study) -> dict[str, Any]:
    """What goes into the page, and what the page says about it; ``csv`` is empty where only the charts' rows fit."""
    rows = sum(len(curve.rounds) for curve in study.curves)
    csv = _whole_csv(study) if rows <= MOST_ROWS else ""
    lines, clients = _Lines(study.curves), _client_evaluations(study)
    averaged = AVERAGED if any(run.spec.server_average for run in study.runs) else ()
    data = {
        "metrics": lines.metrics,
        "scale": 10**lines.digits,
        "places": [_place(place, lines) for place in study.places],
        "lines": lines.packed,
        "rounds": lines.rounds,
        "runs": _runs(study, lines, with_names=not csv),
        "maps": _maps(study),
        **clients,
        "ramp": RAMP,
        "lost": LOST,
        "gained": GAINED,
        # What stands before the round, the metrics after it, and the settings at the end, as `fedga results` has them.
        "columns": [] if csv else [list(IDENTITY), [*OF_MODELS, *averaged], list(telling_fields(list(study.runs)))],
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    said = {"rows": rows, "evaluated": bool(clients["evaluations"]), "thinned": lines.thinned, "digits": lines.digits}
    kept = {"most_rounds": lines.main_rounds, "other_rounds": lines.other_rounds}  # of a curve of accuracy, of others
    return {"charts": _zip(text), "csv": csv, **said, **kept}


def _zip(text: str) -> str:
    """The same text gives the same letters: gzip gets no time."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _whole_csv(study: Study) -> str:
    stream = io.StringIO()
    with Store(study.folder) as store:
        store.write_results(stream, "csv")
    packed = _zip(stream.getvalue())
    return packed if len(packed) <= MOST_CSV_BYTES else ""


class _Lines:
    """The curves of all runs, metric by metric: rounds that several share are kept once, values as differences."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        found = {name for curve in curves for name in curve.values}
        names = [*(name for name in METRICS if name in found), *sorted(found.difference(METRICS))]
        self.names = sorted(names, key=lambda name: name != main_accuracy(curves))
        self.metrics = [_metric(name, curves) for name in self.names]
        counts = {name: [int((~np.isnan(curve.metric(name))).sum()) for curve in curves] for name in self.names}
        main = [number for name in self.names if name in _MAIN for number in counts[name]]
        others = [number for name in self.names if name not in _MAIN for number in counts[name]]
        self.main_rounds = _most_rounds(main, MAIN_SHARE * MOST_VALUES if others else MOST_VALUES)
        kept = _kept(main, self.main_rounds)
        self.other_rounds = min(_most_rounds(others, MOST_VALUES - kept), self.main_rounds)
        kept += _kept(others, self.other_rounds)
        self.thinned = kept < sum(main) + sum(others)
        self.digits = 6 if kept <= FINE_VALUES else 4
        self.rounds: list[list[int]] = []
        self._places: dict[bytes, int] = {}
        self.packed = [[self._line(curve, name) for name in self.names] for curve in curves]
        self.at = {curve.run_id: number for number, curve in enumerate(curves)}

    def _line(self, curve: Curve, name: str) -> list[Any] | None:
        """Number of the list of rounds, values, and whether they stand as they are or as differences."""
        values = curve.metric(name)
        known = np.flatnonzero(~np.isnan(values))
        if not len(known):
            return None
        most = self.main_rounds if name in _MAIN else self.other_rounds
        if len(known) > most:
            known = known[np.linspace(0, len(known) - 1, most).round().astype(int)]
        rounds = self._place(curve.rounds[known])
        values = values[known]
        if metric_column(name).ratio or not np.isfinite(values).all() or np.abs(values).max() >= 1000:
            return [rounds, [_significant(value, self.digits) for value in values.tolist()], 1]
        whole = np.rint(values * 10**self.digits).astype(np.int64)
        return [rounds, np.diff(whole, prepend=0).tolist()]

    def _place(self, rounds: np.ndarray) -> int:
        if (key := rounds.tobytes()) not in self._places:
            self._places[key] = len(self.rounds)
            self.rounds.append(np.diff(rounds, prepend=0).tolist())
        return self._places[key]


def _kept(measured: Sequence[int], most: int) -> int:
    return sum(min(number, most) for number in measured)


def _most_rounds(measured: Sequence[int], room: float) -> int:
    """As many rounds per curve as all of them have room for."""
    fitting = (most for most in range(MOST_ROUNDS, FEWEST_ROUNDS, -5) if _kept(measured, most) <= room)
    return next(fitting, FEWEST_ROUNDS)


def _significant(value: float, digits: int) -> float | int | str:
    """The shortest number with so many digits; JSON has no infinity, so that one is a text.

    >>> _significant(12.3456789, 4), _significant(1200.0, 4), _significant(float("inf"), 4)
    (12.35, 1200, 'Infinity')
    """
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _metric(name: str, curves: Sequence[Curve]) -> dict[str, Any]:
    column = metric_column(name)
    numbers = {"ratio": int(column.ratio), "bounded": int(column.bounded)}  # a ratio: median and range on a logarithm
    return {"name": name, "label": metric_title(name, curves), "group": column.measured_on, **numbers}


def _place(place: Scenario, lines: _Lines) -> dict[str, Any]:
    shown = shown_cohorts(place.cohorts, _DEFAULT_LINES)
    cohorts = []
    for cohort in place.cohorts:
        members = []
        for member in cohort.members:
            named = {"name": member.name, "label": cohort.label(member)}
            runs = [lines.at[curve.run_id] for curve in member.series.curves]
            members.append({**named, **svg_style(member.style), "runs": runs})
        cohorts.append({"name": cohort.name, "shown": int(cohort in shown), "members": members})
    return {"dataset": place.dataset_label, "alpha": place.alpha_label, "cohorts": cohorts}


def _runs(study: Study, lines: _Lines, *, with_names: bool) -> list[list[Any]]:
    """Seed and status of every run; with what names it in the CSV where the page makes that itself."""
    further = telling_fields(list(study.runs))
    runs: list[list[Any]] = [[] for _ in study.curves]
    for run in study.runs:
        if run.run_id in lines.at:
            values = [getattr(run.spec, name) for name in (*IDENTITY, *further)] if with_names else []
            names = [setting_text(of) if isinstance(of, tuple) else "" if of is None else str(of) for of in values]
            runs[lines.at[run.run_id]] = [run.spec.seed, run.status, *names]
    return runs


def _maps(study: Study) -> list[dict[str, Any]]:
    return [
        {
            "dataset": study.labels.get(one.dataset, one.dataset),
            "alpha": "–" if one.alpha is None else f"{one.alpha:g}",
            "partition": one.partition,
            "seed": one.seed,
            "clients": one.clients,
            "classes": list(one.class_names),
            "counts": one.class_counts[:MOST_CLIENTS].tolist(),
            "names": list(one.client_names[:MOST_CLIENTS]),
            "largest": int(one.class_counts.max(initial=0)),
            "said": counts_summary(one.class_counts),
        }
        for one in study.partitions
    ]


def _client_evaluations(study: Study) -> dict[str, list[Any]]:
    """The last evaluation of the active clients of every series, of its lowest seed; shared parts are kept once."""
    held: dict[str, int] = {}
    named: dict[str, int] = {}
    evaluations = []
    with Store(study.folder) as store:
        for at, place in enumerate(study.places):
            names = study.class_names(place.dataset)
            for cohort in compared(place.cohorts):
                for member in cohort.members:
                    ordered = sorted(member.series.curves, key=lambda curve: curve.seed)
                    found = ((curve.seed, store.client_rounds(curve.run_id)) for curve in ordered)
                    seed, seen = next(((seed, rounds) for seed, rounds in found if rounds), (0, []))
                    if seen:
                        one = _evaluation(seen[-1], names, study.client_names(place.dataset))
                        one |= {"place": at, "label": cohort.label(member), "seed": seed}
                        one["counts"] = held.setdefault(json.dumps(one["counts"]), len(held))
                        one["classes"] = named.setdefault(json.dumps(one["classes"]), len(named))
                        evaluations.append(one)
    return {"evaluations": evaluations, "held": list(map(json.loads, held)), "classNames": list(map(json.loads, named))}


def _evaluation(seen: ClientRound, names: Sequence[str], called: Sequence[str]) -> dict[str, Any]:
    arrays = seen.arrays
    classes = arrays["class_counts"].shape[1]
    most, decimals = (4, 2) if classes > _MANY_CLASSES else (10, 3)
    return {
        "round": seen.round,
        "of": len(arrays["client"]),
        "clients": [called[number] if number < len(called) else number for number in arrays["client"][:most].tolist()],
        "counts": arrays["class_counts"][:most].tolist(),
        "before": _thousandths(arrays["accuracy_before"][:most], decimals),
        "after": _thousandths(arrays["accuracy_after"][:most], decimals),
        "classes": list(names) if len(names) == classes else [str(number) for number in range(classes)],
    }


def _thousandths(accuracy: np.ndarray, decimals: int) -> list[list[int | None]]:
    """In thousandths, None for a class that the test split has no sample of."""
    rows = np.round(accuracy, decimals).tolist()
    return [[None if math.isnan(value) else round(1000 * value) for value in row] for row in rows]
