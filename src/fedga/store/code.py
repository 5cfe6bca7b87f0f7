"""Which plugins a run depends on, beside its settings and its data."""

import hashlib
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedga.errors import FedGAError, quoted
from fedga.measures.columns import COLUMNS
from fedga.plugins import KINDS, Plugin, parts
from fedga.spec.settings import PARTITIONS, SERVERS, RunSpec, parse_selection
from fedga.store.database import reading
from fedga.store.digests import Digests, has_table, seal_rows


def own_code(specs: Iterable[RunSpec], *, measured: bool = False) -> dict[Plugin, str]:
    """Plugins of these runs (and metrics, if they are ``measured``), with digests of their code."""
    from fedga.algorithms import ALGORITHMS  # which loads torch: results are read without it
    from fedga.models import own_model
    from fedga.selection import SELECTIONS

    specs = list(specs)
    registries: tuple[tuple[str, Collection[str], set[str]], ...] = (
        ("algorithms", ALGORITHMS, {spec.algorithm_name for spec in specs}),
        ("partitions", PARTITIONS, {spec.partition for spec in specs}),
        ("selections", SELECTIONS, {parse_selection(spec.select)[0] for spec in specs}),
        ("servers", SERVERS, {spec.server for spec in specs}),
    )
    used: list[Plugin] = []
    for kind, ours, names in registries:
        strange = names - set(ours)
        used += [part for name, part in parts(kind, ours, installed=bool(strange)).items() if name in strange]
    used += [part for name in sorted({spec.model for spec in specs}) if (part := own_model(name))]
    used += parts("metrics", COLUMNS).values() if measured else []
    return {part: part.digest() for part in used}


def code_digest(code: Mapping[Plugin, str]) -> str:
    """One digest of them all, equal wherever they are; empty where there are none."""
    content = sorted(f"{part.kind}/{part.name}/{digest}" for part, digest in code.items())
    return hashlib.sha256("\n".join(content).encode()).hexdigest() if content else ""


@dataclass(frozen=True)
class Stored:
    """A plugin as a folder's runs were made with it."""

    kind: str  # a key of `fedga.plugins.KINDS`
    name: str
    digest: str
    origin: str  # the file or module it was in

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} {quoted(self.name)[1:-1]} ({quoted(self.origin)[1:-1]}, SHA-256 {self.digest[:12]})"

    @property
    def fate(self) -> str:
        """What has become of it since; empty where it is here as it was."""
        try:
            part = parts(self.kind).get(self.name)
            if part is None:
                return "is not here"
            return "" if part.digest() == self.digest else "has changed since"
        except FedGAError:  # a project file that is damaged, or names files that are gone
            return "is not here"


def enter_code(connection: sqlite3.Connection, part: Plugin, digest: str) -> str:
    """Note the code that runs are made with, inside the caller's transaction; returns the digest noted first."""
    row = (f"{part.kind}/{part.name}", digest, part.origin)
    if connection.execute("INSERT OR IGNORE INTO own_code VALUES (?, ?, ?)", row).rowcount:
        seal_rows(connection, "code", [row])
    (before,) = connection.execute("SELECT digest FROM own_code WHERE part = ?", row[:1]).fetchone()
    return str(before)


def stored_code(folder: Path) -> list[Stored]:
    found = []
    with reading(folder) as connection:
        if not has_table(connection, "own_code"):
            return []
        digests = Digests(connection)
        for row in connection.execute("SELECT part, digest, origin FROM own_code"):
            digests.check_rows(f"code/{row[0]}", [row], "the list of your own code")
            kind, _, name = str(row[0]).partition("/")
            if kind not in KINDS or not all(isinstance(text, str) for text in row):
                raise digests.damaged("the list of your own code")
            found.append(Stored(kind, name, *row[1:]))
    return found
