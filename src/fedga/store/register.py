"""Entering runs into a results folder, and refusing those that would mix two experiments in it.

A folder is one experiment. What is named in a result's columns (data set, α, algorithm, preset, server, seed) tells its
runs apart; any other setting that differs between two runs of one name was either asked for as a list, or changed
under the folder by accident.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedga.errors import FedGAError
from fedga.spec.settings import SETTINGS, RunSpec
from fedga.store.code import enter_code, own_code
from fedga.store.database import IDENTITY
from fedga.store.digests import seal_runs
from fedga.store.records import Run
from fedga.store.results import read_runs

_OF_THE_DATA = ("dataset", "label_column", "client_column")  # runs equal in these read the same samples


def register_runs(
    connection: sqlite3.Connection,
    folder: Path,
    specs: Sequence[RunSpec],
    fingerprints: Mapping[str, str],
    axes: Collection[str],
) -> list[Run]:
    """Enter what is new among ``specs``, inside the caller's transaction, so that a refusal leaves nothing behind."""
    there = read_runs(connection)
    _check_code(connection, folder, specs)
    known = {run.run_id for run in there}
    by_identity: dict[tuple[Any, ...], list[RunSpec]] = {}
    for run in there:
        by_identity.setdefault(_identity(run.spec), []).append(run.spec)
    data_of = {_data(run.spec): run.fingerprint for run in there}
    for spec in specs:
        fingerprint = fingerprints[spec.run_id]
        _check_data(folder, spec, data_of.setdefault(_data(spec), fingerprint), fingerprint)
        if spec.run_id in known:
            continue
        _check_settings(folder, spec, by_identity.get(_identity(spec), []), axes)
        known.add(spec.run_id)
        columns = ", ".join(("run_id", "spec", "fingerprint", *IDENTITY))
        connection.execute(
            f"INSERT INTO runs ({columns}) VALUES ({', '.join('?' * (3 + len(IDENTITY)))})",
            (spec.run_id, spec.to_json(), fingerprint, *_identity(spec)),
        )
        seal_runs(connection, [spec.run_id])
    entered = {run.run_id: run for run in read_runs(connection)}
    return [entered[spec.run_id] for spec in specs]


def _identity(spec: RunSpec) -> tuple[Any, ...]:
    return tuple(getattr(spec, name) for name in IDENTITY)


def _data(spec: RunSpec) -> tuple[Any, ...]:
    return tuple(getattr(spec, name) for name in _OF_THE_DATA)


def _check_data(folder: Path, spec: RunSpec, before: str, now: str) -> None:
    if before != now:
        raise FedGAError(
            f"the data of {spec.dataset!r} are not those the results in {str(folder)!r} were made with "
            f"(their hash was {before[:16]}, now it is {now[:16]}): give another --out, or bring the old data back"
        )


def _check_code(connection: sqlite3.Connection, folder: Path, specs: Sequence[RunSpec]) -> None:
    """Refuse code of the user's own that is not the one this folder's runs were made with."""
    for part, digest in own_code(specs, measured=True).items():
        if enter_code(connection, part, digest) != digest:
            raise FedGAError(
                f"{part.origin} has changed since the runs in {str(folder)!r} were made with it: give another --out, "
                "or bring the old code back"
            )


def _check_settings(folder: Path, spec: RunSpec, there: Sequence[RunSpec], axes: Collection[str]) -> None:
    """Compare with the most similar run of the same name: a difference has to be one the command asked for."""
    if not there:
        return
    differences = [[name for name in _differing(spec, other) if name not in axes] for other in there]
    nearest = min(range(len(there)), key=lambda i: (len(differences[i]), there[i].run_id))
    changed = differences[nearest]
    if not changed:
        return
    other = there[nearest]
    what = " and ".join(f"{_flag(name)} {_show(getattr(other, name))}" for name in changed)
    asked = " and ".join(_show(getattr(spec, name)) for name in changed)
    both = " ".join(
        f"{_flag(name)} {_show(getattr(other, name))},{_show(getattr(spec, name))}"
        for name in changed
        if name in SETTINGS
    )
    remedy = f"give another --out, or list both values ({both})" if both else "give another --out"
    run = ", ".join(
        part for part in (spec.dataset, spec.alpha and f"α={spec.alpha:g}", spec.algorithm, spec.preset) if part
    )
    raise FedGAError(
        f"{str(folder)!r} already holds {run}, seed {spec.seed} with {what}, and now it should be {asked}: {remedy}"
    )


def _differing(spec: RunSpec, other: RunSpec) -> list[str]:
    names = (f.name for f in dataclasses.fields(RunSpec))
    return [name for name in names if getattr(spec, name) != getattr(other, name)]


def _flag(name: str) -> str:
    return SETTINGS[name].flag if name in SETTINGS else name.replace("_", " ")


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return ":".join(f"{name}={option}" for name, option in value) or "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
