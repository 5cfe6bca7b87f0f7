"""Helpers of the experiments' tests: a filled folder, other processes, and a user without rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedga
from fedga.spec.settings import RunSpec

# The workers need the store alone: a bare parent package spares them the import of torch.
_PREAMBLE = f"""
import sys, types
package = types.ModuleType("fedga")
package.__path__ = [{str(Path(fedga.__file__).parent)!r}]
sys.modules["fedga"] = package
from pathlib import Path
from fedga.spec.settings import RunSpec
from fedga.store.store import *
folder = sys.argv[1]
"""


def make_spec(**values: Any) -> RunSpec:
    return RunSpec(**{"dataset": "mnist", "alpha": 0.1, "algorithm": "fedga", **values})


@pytest.fixture
def spec() -> Callable[..., RunSpec]:
    return make_spec


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that runs a script on a folder; whatever is left of it at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(script: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _PREAMBLE + script, str(folder), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to all but one."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user whom file permissions bind, which root is not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture(name="unprivileged")
def _unprivileged() -> Callable[[], Any]:
    return unprivileged
