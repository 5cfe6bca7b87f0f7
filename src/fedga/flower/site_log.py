"""What local training does to a site's classes, for the site's owner: lines for a log, and rows in ``classes.csv``.

Nothing is said that was not measured: a class without a sample to measure it on has no figures, and what the
federation brought is told only where the model trained here before was measured on the same samples.
"""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from fedga.asymmetry import class_kinds, forgetting
from fedga.errors import FedGAError

FILE = "classes.csv"
WIDTH = 100  # columns of a line
KINDS = ("frequent", "rare", "missing")
_ROWS = 7  # classes in the lines; of more, one fewer and a line that says so
_SITE, _NAME = 40, 20  # columns for names
_BAR = 10

Vector = Sequence[float] | np.ndarray | Tensor  # one value per class


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalTraining:
    """The model a site received and the one it trained from it, class by class.

    Recalls are NaN for classes without samples. ``held_out=False`` says that no sample is held out, so that both
    models were measured on the training samples themselves.
    """

    run: str
    site: str
    round_number: int
    class_names: Sequence[str]
    class_counts: Vector  # training samples
    before: Vector  # recall of the received model
    after: Vector  # recall of the model trained here
    looked_at: Vector  # samples that both were measured on
    held_out: bool = True

    def __post_init__(self) -> None:
        for name in ("class_counts", "before", "after", "looked_at"):
            shape = _array(getattr(self, name)).shape
            if shape != (len(self.class_names),):
                raise FedGAError(
                    f"{name} has shape {list(shape)} for {len(self.class_names)} classes: give one value per class"
                )

    @cached_property
    def names(self) -> list[str]:
        return [_plain(name) for name in self.class_names]

    @cached_property
    def training(self) -> np.ndarray:
        return _array(self.class_counts).astype(np.int64)

    @cached_property
    def seen(self) -> np.ndarray:
        return _array(self.looked_at).astype(np.int64)

    @cached_property
    def kept_apart(self) -> np.ndarray:
        """Samples of each class that are held out."""
        return self.seen if self.held_out else np.zeros_like(self.seen)

    @cached_property
    def measured(self) -> np.ndarray:
        """Which classes have figures."""
        return (self.seen > 0) & np.isfinite(_array(self.before)) & np.isfinite(_array(self.after))

    @cached_property
    def received(self) -> np.ndarray:
        """Recall of the received model, NaN where it is not measured."""
        return np.where(self.measured, _array(self.before), np.nan)

    @cached_property
    def trained(self) -> np.ndarray:
        """Recall of the model trained here, NaN where it is not measured."""
        return np.where(self.measured, _array(self.after), np.nan)

    @cached_property
    def kinds(self) -> list[str]:
        masks = torch.stack(class_kinds(torch.tensor(self.training)))
        return [KINDS[place] for place in masks.int().argmax(0).tolist()]


@dataclass(frozen=True, eq=False)
class Earlier:
    """The model that the site trained in an earlier round: its recall of each class, NaN where unknown."""

    round: int
    recall: Vector


@dataclass(frozen=True)
class Row:
    """One class after one local training; recalls are NaN if the class was not measured.

    With nothing held out (``held_out_samples`` 0), recalls are those on the training samples.
    """

    run: str
    round: int
    name: str
    kind: str
    training_samples: int
    held_out_samples: int
    before: float
    after: float


_HEADER = ["class" if field.name == "name" else field.name for field in fields(Row)]


def class_lines(local: LocalTraining, earlier: Earlier | None = None) -> list[str]:
    """A few lines of text, at most 100 columns wide, on what this round's local training did to the classes.

    ``earlier`` is the model trained here before, if it was measured on the same samples: the received model against it
    is what the federation brought.
    """
    opening = f"site {_cut(_plain(local.site), _SITE)}, round {local.round_number}: "
    if not local.measured.any():
        return _wrapped(opening + "no samples to compare the received model with the one trained here")
    if earlier is not None and not (local.measured & np.isfinite(_array(earlier.recall))).any():
        earlier = None
    number = int(local.seen[local.measured].sum())
    kind = "held-out samples" if local.held_out else "training samples, since none are held out"
    lines = _wrapped(opening + f"received model against the one trained here, on {number:,} {kind}")
    lines.append(_table_line("class", "kind", "training / held out", _columns(earlier)))
    shown = _shown(local)
    lines += [_class_line(local, earlier, place) for place in shown]
    left_out = len(local.names) - len(shown)
    if left_out:
        lines.append(f"  {left_out:,} more left out: these are the rarest and those that moved most")
    sentences = (_federation_sentence(local, earlier), _local_sentence(local), _unmeasured_sentence(local))
    return lines + [line for sentence in sentences for line in _wrapped(sentence)]


class SiteLog:
    """``classes.csv`` in a folder of the site's own, one row per class and local training.

    Rows are only ever added, all of a round at once. A process that is killed on the way leaves a torn last line, which
    readers pass over and the next writer removes.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()

    @property
    def path(self) -> Path:
        return self.folder / FILE

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
        """Add the rows of a round, given as for :class:`LocalTraining`, and return the lines for a log.

        Training never fails for the sake of its log: where the file cannot be read or written, the last line says so.
        """
        local = LocalTraining(
            run=run,
            site=site,
            round_number=round_number,
            class_names=class_names,
            class_counts=class_counts,
            before=before,
            after=after,
            looked_at=looked_at,
            held_out=held_out,
        )
        earlier, trouble = None, ""
        try:
            earlier = _earlier(read(self.folder), local)
            self.folder.mkdir(parents=True, exist_ok=True)
            _append(self.path, _rows(local))
        except OSError as error:
            reason = error.strerror or error
            trouble = (
                f"this is not in {self.path}, which cannot be written ({reason}): make room, or allow writing there"
            )
        except FedGAError as error:
            trouble = f"this is not in the site's log: {error}"
        return class_lines(local, earlier) + _wrapped(trouble)


def read(folder: str | Path) -> list[Row]:
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


def _row(path: Path, place: int, cells: Sequence[str]) -> Row:
    try:
        run, number, name, kind, training, held_out, before, after = cells
        recalls = [float(text) if text else math.nan for text in (before, after)]
        return Row(run, int(number), name, kind, int(training), int(held_out), *recalls)
    except ValueError as error:
        raise FedGAError(f"line {place} of {path} is no row of a site's log: remove the line") from error


def _rows(local: LocalTraining) -> Iterable[Row]:
    for place, name in enumerate(local.names):
        yield Row(
            run=_plain(local.run),
            round=local.round_number,
            name=name,
            kind=local.kinds[place],
            training_samples=int(local.training[place]),
            held_out_samples=int(local.kept_apart[place]),
            before=float(local.received[place]),
            after=float(local.trained[place]),
        )


def _append(path: Path, rows: Iterable[Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    with path.open("a+b", buffering=0) as file:
        end, torn = _end_of_whole_lines(file)
        if not end:
            writer.writerow(_HEADER)
        for row in rows:
            recalls = ["" if math.isnan(value) else f"{value:.6g}" for value in (row.before, row.after)]
            counts = (row.training_samples, row.held_out_samples)
            writer.writerow([row.run, row.round, row.name, row.kind, *counts, *recalls])
        data = text.getvalue().encode()
        try:
            if torn:
                file.truncate(end)
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(end)
            raise


def _end_of_whole_lines(file: io.FileIO) -> tuple[int, bool]:
    """Where the last whole line ends, and whether a torn one follows."""
    file.seek(0)
    content = file.read()
    end = content.rfind(b"\n") + 1
    return end, end < len(content)


def _earlier(rows: Sequence[Row], local: LocalTraining) -> Earlier | None:
    """The latest round of this run before this one, of the classes that have as many samples as then."""
    now = {row.name: row for row in _rows(local)}
    rows = [row for row in rows if row.run == _plain(local.run) and row.round < local.round_number]
    if not rows:
        return None
    latest = max(row.round for row in rows)
    same = {row.name: row.after for row in rows if row.round == latest and _same_samples(row, now.get(row.name))}
    return Earlier(latest, [same.get(name, math.nan) for name in local.names])


def _same_samples(row: Row, other: Row | None) -> bool:
    if other is None:
        return False
    return (row.training_samples, row.held_out_samples) == (other.training_samples, other.held_out_samples)


# --- lines ----------------------------------------------------------------------------------------


def _shown(local: LocalTraining) -> list[int]:
    """Places of the classes to show, in the agreed order: of many the rarest and, as many, those that moved most."""
    places = range(len(local.names))
    if len(places) <= _ROWS:
        return list(places)
    moved = np.nan_to_num(np.abs(local.trained - local.received), nan=-1.0)
    by_count = sorted(places, key=lambda place: (not local.measured[place], local.training[place]))
    rarest = by_count[: (_ROWS - 1) // 2]
    others = sorted(set(places) - set(rarest), key=lambda place: (-moved[place], local.training[place]))
    return sorted([*rarest, *others[: _ROWS - 1 - len(rarest)]])


def _columns(earlier: Earlier | None) -> str:
    then = "" if earlier is None else f"round {earlier.round} → "
    return f"{then}received → trained here"


def _class_line(local: LocalTraining, earlier: Earlier | None, place: int) -> str:
    figures = "not measured"
    if local.measured[place]:
        figures = f"{_bar(local.received[place])} → {_bar(local.trained[place])}"
        then = math.nan if earlier is None else float(_array(earlier.recall)[place])
        if math.isfinite(then):
            figures = f"{_percent(then)} → {figures}"
        elif earlier is not None:
            figures = " " * 7 + figures
    counts = f"{local.training[place]:,} / {local.kept_apart[place]:,}"
    return _table_line(local.names[place], local.kinds[place], counts, figures)


def _table_line(name: str, kind: str, counts: str, figures: str) -> str:
    return _cut(f"  {set_cell_size(_cut(name, _NAME), _NAME)}  {kind:<8}  {counts:>19}  {figures}")


def _bar(recall: float) -> str:
    filled = min(max(round(recall * _BAR), 0), _BAR)
    return f"{_percent(recall)} {'█' * filled}{'░' * (_BAR - filled)}"


def _percent(recall: float) -> str:
    return f"{100 * recall:3.0f}%"


def _local_sentence(local: LocalTraining) -> str:
    told = _told(_points(local, local.received, local.trained), "lost", "gained")
    return f"local training {told}" if told else "local training changed no kind of class by as much as a point"


def _federation_sentence(local: LocalTraining, earlier: Earlier | None) -> str:
    if earlier is None:
        return ""
    told = _told(_points(local, local.received, _array(earlier.recall)), "brought", "took")
    return f"the federation {told}" if told else "the federation changed no kind of class by as much as a point"


def _unmeasured_sentence(local: LocalTraining) -> str:
    of_kind = np.array(local.kinds)
    groups = {kind: of_kind == kind for kind in KINDS}
    parts = [
        f"{(group & ~local.measured).sum():,} of {group.sum():,} {kind}"
        for kind, group in groups.items()
        if (group & ~local.measured).any()
    ]
    return f"not measured, for want of samples: {_joined(parts)} classes" if parts else ""


def _points(local: LocalTraining, high: np.ndarray, low: np.ndarray) -> Mapping[str, int]:
    """Mean difference in whole points over the classes of each kind, for the kinds that are measured."""
    mean = forgetting(torch.tensor(high), torch.tensor(low), torch.tensor(local.training))
    points = {kind: 100 * getattr(mean, kind).item() for kind in ("rare", "missing", "frequent")}
    return {kind: round(value) for kind, value in points.items() if math.isfinite(value)}


def _told(points: Mapping[str, int], above: str, below: str) -> str:
    """
    >>> _told({"rare": 12, "missing": 40, "frequent": -3}, "lost", "gained")
    'lost 12 points on rare and 40 on missing classes, and gained 3 on frequent ones'
    >>> _told({"rare": 0, "frequent": -1}, "lost", "gained")
    'gained 1 point on frequent classes'
    """
    clauses: list[str] = []
    for verb, sign in ((above, 1), (below, -1)):
        parts = [(sign * value, kind) for kind, value in points.items() if sign * value > 0]
        if not parts:
            continue
        unit = "" if clauses else " point" if parts[0][0] == 1 else " points"
        amounts = [f"{value}{'' if place else unit} on {kind}" for place, (value, kind) in enumerate(parts)]
        clauses.append(f"{verb} {_joined(amounts)} {'ones' if clauses else 'classes'}")
    return ", and ".join(clauses)


def _joined(parts: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def _array(values: Vector) -> np.ndarray:
    plain: Any = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    return np.asarray(plain, dtype=np.float64)


def _plain(text: str) -> str:
    """On one line, without characters that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)).strip()


def _wrapped(text: str) -> list[str]:
    lines = textwrap.wrap(_plain(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [_cut(line) for line in lines]


def _cut(text: str, width: int = WIDTH) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
