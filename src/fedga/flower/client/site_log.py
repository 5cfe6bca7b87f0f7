"""The log of a site: what every local training did to its classes, as rows in ``classes.csv``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedga.errors import FedGAError
from fedga.flower.client.site_lines import ClassRow, Earlier, class_lines, plain
from fedga.measures.asymmetry import class_kinds

FILE = "classes.csv"
Vector = Sequence[float] | np.ndarray | Tensor  # one value per class

_HEADER = ["class" if field.name == "name" else field.name for field in fields(ClassRow)]


class SiteLog:
    """``classes.csv`` in a folder of the site's own, one row per class and local training.

    Rows are only ever added, all of a round at once. A process that is killed on the way leaves a torn last line, which
    readers skip and the next writer removes.
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
        """Add the rows of a round and return the lines for its owner.

        ``class_counts`` are training samples; ``before`` and ``after`` the recalls of the received and the trained
        model on ``looked_at`` samples, which with ``held_out=False`` are the training samples themselves. Training
        never fails because of its log: where the file cannot be read or written, the last line says so.
        """
        vectors = {"class_counts": class_counts, "before": before, "after": after, "looked_at": looked_at}
        counts, received, trained, seen = (_array(name, each, len(class_names)) for name, each in vectors.items())
        measured = (seen > 0) & np.isfinite(received) & np.isfinite(trained)
        kinds = torch.stack(class_kinds(torch.tensor(counts))).int().argmax(0).tolist()
        rows = [
            ClassRow(
                run=plain(run),
                round=round_number,
                name=plain(name),
                kind=("frequent", "rare", "missing")[kinds[place]],
                training_samples=int(counts[place]),
                held_out_samples=int(seen[place]) if held_out else 0,
                before=float(received[place]) if measured[place] else math.nan,
                after=float(trained[place]) if measured[place] else math.nan,
            )
            for place, name in enumerate(class_names)
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


def _array(name: str, values: Vector, classes: int) -> np.ndarray:
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)
    if array.shape != (classes,):
        raise FedGAError(f"{name} has shape {list(array.shape)} for {classes} classes: give one value per class")
    return array


def _append(path: Path, rows: Iterable[ClassRow]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    with path.open("a+b", buffering=0) as file:
        file.seek(0)
        end = file.read().rfind(b"\n") + 1
        if not end:
            writer.writerow(_HEADER)
        for row in rows:
            *values, before, after = astuple(row)
            writer.writerow([*values, *("" if math.isnan(recall) else f"{recall:.6g}" for recall in (before, after))])
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
    same = {(row.name, row.training_samples, row.held_out_samples) for row in now}
    recall = {
        row.name: row.after
        for row in before
        if row.round == latest and (row.name, row.training_samples, row.held_out_samples) in same
    }
    return Earlier(latest, recall)
