"""Who is there in a round, and who does part of the work: ``--availability`` and ``--stragglers``."""

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedga.common import streams
from fedga.common.files import read_text
from fedga.data.assemble import listed
from fedga.errors import FedGAError, quoted


@dataclass(frozen=True)
class Availability:
    """Everybody, always (``rate`` 1 and no ``trace``); a share of clients; or whom a trace names, round by round."""

    rate: float = 1.0
    trace: tuple[tuple[int, ...], ...] = ()  # clients of round 1, 2, ...; it begins again where it ends

    @property
    def always(self) -> bool:
        return self.rate >= 1 and not self.trace

    def check_clients(self, num_clients: int) -> None:
        """Refuse a trace that names clients which the data do not have."""
        largest = max((client for there in self.trace for client in there), default=0)
        if largest >= num_clients:
            named = f"the file of --availability names client {largest}"
            raise FedGAError(f"{named}, and there are {num_clients}: clients count from 0")

    def present(self, seed: int, round_number: int, num_clients: int) -> Tensor:
        """``[clients]`` bool; at least one client is there: a round waits for it."""
        if self.trace:
            named = list(self.trace[(round_number - 1) % len(self.trace)])
            there = torch.zeros(num_clients, dtype=torch.bool)
            there[named] = True
            if named:
                return there
        keys = torch.tensor(streams.key(seed, "availability", round_number))
        draws = streams.uniform(streams.fold(keys, torch.arange(num_clients)))
        return (draws < (0.0 if self.trace else self.rate)) | (draws == draws.min())


def read_availability(text: str) -> Availability:
    """From a setting: ``always``, a rate as 0.8, or a CSV file with the columns round and client.

    >>> read_availability("0.8")
    Availability(rate=0.8, trace=())
    """
    if text == "always":
        return Availability()
    try:
        rate = float(text)
    except ValueError:
        return Availability(trace=_read_trace(Path(text).expanduser()))
    if not 0 < rate <= 1:
        raise FedGAError(f"--availability {text} is not a share of clients: give a number above 0 and up to 1")
    return Availability(rate)


def trace_digest(text: str) -> str:
    """Of the file that a setting names; empty where it names none."""
    path = Path(text).expanduser()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if text != "always" and path.is_file() else ""


def _read_trace(path: Path) -> tuple[tuple[int, ...], ...]:
    where = f"--availability {str(path)!r}"
    if not path.is_file():
        looked = f"looked for {path.absolute()}; paths start from the folder one works in"
        raise FedGAError(f"{where} is neither 'always', a share such as 0.8, nor a file ({looked}): give one of them")
    try:
        text = read_text(path).removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise FedGAError(f"{where} is not a text in UTF-8: save it as one") from None
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    rows = csv.DictReader(text.splitlines(), delimiter=delimiter, skipinitialspace=True)
    rows.fieldnames = names = [name.strip() for name in rows.fieldnames or ()]
    if not {"round", "client"} <= set(names):
        lacks = f"lacks the columns 'round' and 'client' (it has {listed([*map(quoted, names)], most=12) or 'none'})"
        raise FedGAError(f"{where} {lacks}: write one row per round and present client")
    there: dict[int, set[int]] = {}
    for number, row in enumerate(rows, start=2):
        try:
            at, client = int(row["round"]), int(row["client"])
        except (TypeError, ValueError):
            raise FedGAError(f"{where}, line {number}: round and client must be whole numbers") from None
        if at < 1 or client < 0 or at > 10**6:
            raise FedGAError(f"{where}, line {number}: rounds count from 1 and clients from 0")
        there.setdefault(at, set()).add(client)
    if not there:
        raise FedGAError(f"{where} names no client: write one row per round and present client")
    return tuple(tuple(sorted(there.get(at, ()))) for at in range(1, max(there) + 1))


def work_shares(keys: Tensor, stragglers: Tensor) -> Tensor:
    """The part of its local steps that every client takes, ``[...]``; 1 for all but a share ``stragglers [...]``."""
    draws = streams.uniform(keys)
    slow = draws < stragglers
    # Given that it is slow, a draw is uniform between 0 and the share of slow clients: it serves twice.
    return torch.where(slow, draws / torch.where(slow, stragglers, 1.0), 1.0)
