"""What every local training did to a site's classes: rows in ``classes.csv``, and a few lines for the site's owner."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedga.errors import FedGAError
from fedga.measures.asymmetry import class_kinds, forgetting

FILE = "classes.csv"
WIDTH = 100  # columns of a line
_MOST_CLASSES = 7  # in the table; of more, one fewer and a line that says so
_SITE, _NAME = 30, 20  # columns for names
_BAR = 10

Vector = Sequence[float] | np.ndarray | Tensor  # one value per class


class ClassRow(NamedTuple):
    """One class after one local training; recalls are NaN if the class was not measured.

    With nothing held out (``held_out_samples`` 0), recalls are those on the training samples.
    """

    run: str
    round: int
    name: str
    kind: str  # frequent, rare or missing
    training_samples: int
    held_out_samples: int
    before: float  # recall of the received model
    after: float  # recall of the model trained here

    @property
    def measured(self) -> bool:
        return math.isfinite(self.before) and math.isfinite(self.after)


_HEADER = ["class" if name == "name" else name for name in ClassRow._fields]
_KINDS = ("frequent", "rare", "missing")

Earlier = tuple[int, Mapping[str, float]]  # a round, and the recall then of classes with the same samples as now


class SiteLog:
    """``classes.csv`` in a folder of the site's own, one row per class and local training.

    Rows are only added, all of a round at once; a torn last line is skipped by readers and removed by the next writer.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.path = self.folder / FILE

    def record(
        self,
        *,
        run: str,
        site: str,
        round_number: int,
        class_names: Sequence[str],
        class_counts: Vector,
        before: Vector,
        after: Vector,
        looked_at: Vector,
        held_out: bool = True,
    ) -> list[str]:
        """Add the rows of a round and return the lines for its owner; the last says if the file could not be written.

        ``before`` and ``after`` are recalls of the received and the trained model on ``looked_at`` samples, which with
        ``held_out=False`` are training samples.
        """
        seen, recalls = np.asarray(looked_at, np.int64), np.stack([before, after]).astype(np.float64)
        measured = (seen > 0) & np.isfinite(recalls).all(0)
        recalls[:, ~measured] = math.nan
        counts = torch.as_tensor(class_counts)
        kinds = torch.stack(class_kinds(counts)).int().argmax(0)
        held_outs = seen if held_out else np.zeros_like(seen)
        columns = (kinds.tolist(), counts.tolist(), held_outs.tolist(), *recalls.tolist())
        rows = [
            ClassRow(plain(run), round_number, plain(name), _KINDS[kind], *values)
            for name, kind, *values in zip(class_names, *columns, strict=True)
        ]
        earlier, trouble = None, []
        try:
            earlier = _earlier(read(self.folder), rows)
            self.folder.mkdir(parents=True, exist_ok=True)
            _append(self.path, rows)
        except OSError as error:
            trouble = [f"this is not in {self.path}, which cannot be written ({error.strerror or error}): make room"]
        except FedGAError as error:
            trouble = [f"this is not in the site's log: {error}"]
        return class_lines(site, rows, int(seen[measured].sum()), earlier) + trouble


def read(folder: str | Path) -> list[ClassRow]:
    """The rows of a site's log, oldest first; none if there is no log yet."""
    path = Path(folder).expanduser() / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FedGAError(f"{path} cannot be read ({error.strerror or error}): check its folder") from error
    whole = content[: content.rfind(b"\n") + 1].decode("utf-8", errors="replace")
    try:
        lines = list(csv.reader(io.StringIO(whole, newline="")))
    except csv.Error as error:
        raise FedGAError(f"{path} is damaged ({error}): move it elsewhere") from error
    if lines and lines[0] != _HEADER:
        raise FedGAError(f"{path} does not begin with {','.join(_HEADER)}: move it elsewhere")
    return [_row(path, place, cells) for place, cells in enumerate(lines[1:], 2) if cells]


def _row(path: Path, place: int, cells: Sequence[str]) -> ClassRow:
    try:
        run, number, name, kind, training, held_out, before, after = cells
        recalls = [float(text) if text else math.nan for text in (before, after)]
        return ClassRow(run, int(number), name, kind, int(training), int(held_out), *recalls)
    except ValueError as error:
        raise FedGAError(f"line {place} of {path} is not a row of a site's log: remove the line") from error


def _append(path: Path, rows: Sequence[ClassRow]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    with path.open("a+b", buffering=0) as file:
        file.seek(0)
        end = file.read().rfind(b"\n") + 1
        if not end:
            writer.writerow(_HEADER)
        for row in rows:
            *values, before, after = row
            writer.writerow([*values, *(f"{recall:.6g}".replace("nan", "") for recall in (before, after))])
        data = text.getvalue().encode()
        try:
            file.truncate(end)  # of a torn last line
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(end)
            raise


def _earlier(rows: Sequence[ClassRow], now: Sequence[ClassRow]) -> Earlier | None:
    """The latest round of this run before this one, of the classes that have as many samples as then."""
    before = [row for row in rows if row.run == now[0].run and row.round < now[0].round]
    if not before:
        return None
    latest = max(row.round for row in before)
    samples = {row.name: (row.training_samples, row.held_out_samples) for row in now}
    same = [row for row in before if samples.get(row.name) == (row.training_samples, row.held_out_samples)]
    return latest, {row.name: row.after for row in same if row.round == latest}


def class_lines(site: str, rows: Sequence[ClassRow], samples: int, earlier: Earlier | None = None) -> list[str]:
    """At most 12 lines, 100 columns wide, on one local training; recalls were measured on so many ``samples``."""
    headline = f"site {_cut(plain(site), _SITE)}, round {rows[0].round}: "
    if not any(row.measured for row in rows):
        return [headline + "no samples to compare the received model with the one trained here"]
    held_out = any(row.held_out_samples for row in rows)
    known = earlier[1] if earlier else {}
    then, before = [known.get(row.name, math.nan) for row in rows], [row.before for row in rows]
    lines = [headline + f"recall on {samples:,} {'held-out' if held_out else 'training'} samples"]
    if any(row.measured and math.isfinite(recall) for row, recall in zip(rows, then, strict=True)):
        lines.append(f"the federation: {_points(rows, before, then)}")
    else:
        earlier = None
    lines.append(f"local training: {_points(rows, [row.after for row in rows], before)}")
    shown = _shown(rows)
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown):,} classes left out; shown: the rarest, and those that moved most")
    return [_cut(line) for line in lines] + _table(shown, earlier)


def _shown(rows: Sequence[ClassRow]) -> list[ClassRow]:
    """The classes of the table in their own order: of many the rarest and, as many, those that moved most."""
    if len(rows) <= _MOST_CLASSES:
        return list(rows)
    rarest = sorted(rows, key=lambda row: (not row.measured, row.training_samples))[: (_MOST_CLASSES - 1) // 2]
    others = [row for row in rows if row not in rarest]
    others.sort(key=lambda row: (-abs(row.after - row.before) if row.measured else 1.0, row.training_samples))
    return [row for row in rows if row in [*rarest, *others[: _MOST_CLASSES - 1 - len(rarest)]]]


def _points(rows: Sequence[ClassRow], now: Sequence[float], then: Sequence[float]) -> str:
    """The mean change in whole percentage points, by kind of class, for the kinds that are measured."""
    counts = torch.tensor([row.training_samples for row in rows])
    lost = forgetting(torch.tensor(then), torch.tensor(now), counts)
    changes = {kind: -100 * getattr(lost, kind).item() for kind in _KINDS}
    parts = [f"{kind} {round(change):+d}" for kind, change in changes.items() if math.isfinite(change)]
    return f"{', '.join(parts)} points"


def _table(rows: Sequence[ClassRow], earlier: Earlier | None) -> list[str]:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    then = [f"round {earlier[0]}"] if earlier else []
    for name in ("class", "kind", "training", "held out", *then, "received", "trained here"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("training", "held out", *then) else "left")
    for row in rows:
        figures = [_percent(earlier[1].get(row.name, math.nan))] if earlier else []
        figures += [_bar(row.before), _bar(row.after)] if row.measured else ["not measured"]
        counts = (f"{row.training_samples:,}", f"{row.held_out_samples:,}")
        table.add_row(Text(_cut(row.name, _NAME)), row.kind, *counts, *figures)
    out = io.StringIO()
    Console(file=out, width=WIDTH - 2, color_system=None, legacy_windows=False).print(table)
    return [f"  {line.rstrip()}" for line in out.getvalue().splitlines()]


def _bar(recall: float) -> str:
    filled = min(max(round(recall * _BAR), 0), _BAR)
    return f"{_percent(recall)} {'█' * filled}{'░' * (_BAR - filled)}"


def _percent(recall: float) -> str:
    return "" if math.isnan(recall) else f"{100 * recall:3.0f}%"


def plain(text: str) -> str:
    """On one line, without characters that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)).strip()


def _cut(text: str, width: int = WIDTH) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
