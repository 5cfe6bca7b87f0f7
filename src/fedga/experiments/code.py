"""Which code of the user's own a run depends on, beside its settings and its data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from fedga.experiments.records import METRICS
from fedga.experiments.spec import RunSpec
from fedga.own import Part, parts


def own_code(specs: Iterable[RunSpec], *, measured: bool = False) -> dict[Part, str]:
    """The user's own algorithms and networks of these runs, her metrics if ``measured``, and digests of their code."""
    from fedga.algorithms import ALGORITHMS, own_algorithms  # which load torch: results are read without it
    from fedga.models import own_model

    specs = list(specs)
    names, models = {spec.algorithm_name for spec in specs} - ALGORITHMS.keys(), {spec.model for spec in specs}
    used = [part for name, part in own_algorithms(installed=bool(names)).items() if name in names]
    used += [part for name in sorted(models) if (part := own_model(name))]
    used += parts("metrics", METRICS).values() if measured else []
    return {part: part.digest() for part in used}


def code_digest(code: Mapping[Part, str]) -> str:
    """One digest of them all, equal wherever they are; empty where there are none."""
    content = sorted(f"{part.kind}/{part.name}/{digest}" for part, digest in code.items())
    return hashlib.sha256("\n".join(content).encode()).hexdigest() if content else ""
