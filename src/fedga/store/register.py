"""Entering runs into a results folder, and refusing those that would mix two experiments in it.

A folder is one experiment. What is named in a result's columns (data set, α, algorithm, preset, server, seed) tells its
runs apart; any other setting that differs between two runs of one name was either asked for as a list, or changed
by accident.
"""

import dataclasses
import shlex
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from fedga.errors import FedGAError
from fedga.spec.settings import SETTINGS, RunSpec
from fedga.store.code import enter_code, own_code
from fedga.store.database import IDENTITY
from fedga.store.digests import seal_runs
from fedga.store.records import Run
from fedga.store.results import identity, plain_value, read_runs

_DIGITS, _GLUED = 32, 48  # hexadecimal: of the hash of data alone, and with that of a trace behind it
_data = attrgetter("dataset", "label_column", "client_column", "resize")  # runs equal in these read the same samples


def register_runs(
    connection: sqlite3.Connection,
    folder: Path,
    specs: Sequence[RunSpec],
    fingerprints: Mapping[str, str],
    axes: Collection[str],
) -> list[Run]:
    """Enter what is new among ``specs``, inside the caller's transaction, so that a refusal leaves nothing behind."""
    there = read_runs(connection)
    for part, digest in own_code(specs, measured=True).items():
        if enter_code(connection, part, digest) != digest:
            changed = f"{part.origin} has changed since the runs in {str(folder)!r} were made with it"
            raise FedGAError(f"{changed}: give another --out, or bring the old code back")
    known = {run.run_id for run in there}
    by_identity: dict[tuple[Any, ...], list[RunSpec]] = {}
    for run in there:
        by_identity.setdefault(identity(run.spec), []).append(run.spec)
    hash_of = {source: found for run in there for source, found in _hashes(run.spec, run.fingerprint).items()}
    columns = ("run_id", "spec", "fingerprint", *IDENTITY)
    query = f"INSERT INTO runs ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for spec in specs:
        now, name = fingerprints[spec.run_id], identity(spec)
        for source, found in _hashes(spec, now).items():
            if (before := hash_of.setdefault(source, found)) != found:
                data = (f"the data of {spec.dataset!r} are not those", "data")
                trace = (f"the file of --availability {source!r} is not the one", "file")
                what, old = trace if source == spec.availability else data
                changed = f"{what} the results in {str(folder)!r} were made with"
                hashes = f"their hash was {before[:16]}, now it is {found[:16]}"
                raise FedGAError(f"{changed} ({hashes}): give another --out, or bring the old {old} back")
        if spec.run_id not in known:
            _check_settings(folder, spec, by_identity.get(name, []), axes)
            known.add(spec.run_id)
            connection.execute(query, (spec.run_id, spec.to_json(), now, *name))
            seal_runs(connection, [spec.run_id])
    entered = {run.run_id: run for run in read_runs(connection)}
    return [entered[spec.run_id] for spec in specs]


def _hashes(spec: RunSpec, fingerprint: str) -> dict[Any, str]:
    """Of the data, and of the file of ``--availability``; it once stood right behind the other."""
    data, _, trace = fingerprint.partition("+")
    if len(data) == _GLUED:
        data, trace = data[:_DIGITS], data[_DIGITS:]
    return {_data(spec): data} | ({spec.availability: trace} if trace else {})


def _check_settings(folder: Path, spec: RunSpec, there: Sequence[RunSpec], axes: Collection[str]) -> None:
    """Compare with the most similar run of the same name: a difference has to be one the command asked for."""
    names = [f.name for f in dataclasses.fields(RunSpec) if f.name not in axes]
    differing = [([name for name in names if getattr(spec, name) != getattr(other, name)], other) for other in there]
    changed, other = min(differing, key=lambda found: (len(found[0]), found[1].run_id), default=([], spec))
    if not changed:
        return
    before = [f"{_flag(name)} {_show(getattr(other, name))}" for name in changed]
    now = [_show(getattr(spec, name)) for name in changed]
    values = {name: (_show(getattr(other, name)), _show(getattr(spec, name))) for name in changed if name in SETTINGS}
    lists = {name: getattr(SETTINGS[name].kind, "separator", ",").join(of) for name, of in values.items()}
    both = [f"{_flag(name)} {shlex.quote(text)}" for name, text in lists.items()]
    remedy = f"give another --out, or list both values ({' '.join(both)})" if both else "give another --out"
    named = (spec.dataset, spec.alpha and f"α={spec.alpha:g}", spec.algorithm, spec.preset)
    held = f"{str(folder)!r} already holds {', '.join(part for part in named if part)}, seed {spec.seed}"
    raise FedGAError(f"{held} with {' and '.join(before)}, and now it should be {' and '.join(now)}: {remedy}")


def _flag(name: str) -> str:
    return SETTINGS[name].flag if name in SETTINGS else name.replace("_", " ")


def _show(value: Any) -> str:
    value = plain_value(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None or value == "" else f"{value:g}" if isinstance(value, float) else str(value)
