"""The log of a site: what every local training did to its classes, as rows in ``classes.csv``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fedga.errors import FedGAError
from fedga.flower.client.site_lines import Earlier, LocalTraining, Vector, class_lines, plain, wrapped

FILE = "classes.csv"


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
        return class_lines(local, earlier) + wrapped(trouble)


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
            run=plain(local.run),
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
    rows = [row for row in rows if row.run == plain(local.run) and row.round < local.round_number]
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
