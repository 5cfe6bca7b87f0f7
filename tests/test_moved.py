"""Programs written for 0.1 find the modules they import, and are told where those are now."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

from fedga._moved import _HOMES


@pytest.mark.parametrize("old", sorted(_HOMES))
def test_an_old_module_is_the_new_one_and_says_so(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"fedga.{old}", raising=False)
    with warnings.catch_warnings(action="ignore"):  # of the package it is in, which is imported first
        import_module(f"fedga.{old}".rpartition(".")[0])
    with pytest.warns(DeprecationWarning, match=f"is now fedga.{_HOMES[old]}: import that"):
        found = import_module(f"fedga.{old}")
    home = import_module(f"fedga.{_HOMES[old]}")
    assert found is home
    assert home.__spec__ is not None
    assert home.__spec__.name == f"fedga.{_HOMES[old]}"


def test_a_program_of_version_0_1_runs() -> None:
    program = (
        "from fedga.asymmetry import ea_ratio; from fedga.experiments.spec import RunSpec; import fedga.streams; "
        "from fedga.simulation.simulate import simulate; import fedga; "
        "print(simulate is fedga.simulate, ea_ratio is fedga.ea_ratio, fedga.streams.key(0, 'x') != 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]
