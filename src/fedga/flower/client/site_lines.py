"""What local training does to a site's classes, in words and small bars, for the site's owner.

Nothing is said that was not measured: a class without a sample to measure it on has no figures, and what the
federation brought is told only where the model trained here before was measured on the same samples.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from fedga.errors import FedGAError
from fedga.measures.asymmetry import class_kinds, forgetting

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
        return [plain(name) for name in self.class_names]

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


def class_lines(local: LocalTraining, earlier: Earlier | None = None) -> list[str]:
    """A few lines of text, at most 100 columns wide, on what this round's local training did to the classes.

    ``earlier`` is the model trained here before, if it was measured on the same samples: the received model against it
    is what the federation brought.
    """
    opening = f"site {_cut(plain(local.site), _SITE)}, round {local.round_number}: "
    if not local.measured.any():
        return wrapped(opening + "no samples to compare the received model with the one trained here")
    if earlier is not None and not (local.measured & np.isfinite(_array(earlier.recall))).any():
        earlier = None
    number = int(local.seen[local.measured].sum())
    kind = "held-out samples" if local.held_out else "training samples, since none are held out"
    lines = wrapped(opening + f"received model against the one trained here, on {number:,} {kind}")
    lines.append(_table_line("class", "kind", "training / held out", _columns(earlier)))
    shown = _shown(local)
    lines += [_class_line(local, earlier, place) for place in shown]
    left_out = len(local.names) - len(shown)
    if left_out:
        lines.append(f"  {left_out:,} more left out: these are the rarest and those that moved most")
    sentences = (_federation_sentence(local, earlier), _local_sentence(local), _unmeasured_sentence(local))
    return lines + [line for sentence in sentences for line in wrapped(sentence)]


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


def plain(text: str) -> str:
    """On one line, without characters that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)).strip()


def wrapped(text: str) -> list[str]:
    lines = textwrap.wrap(plain(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [_cut(line) for line in lines]


def _cut(text: str, width: int = WIDTH) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
