"""A small Flower app that runs our algorithms: settings in its ``pyproject.toml``, and two lines of Python.

Flower sends the app to every site, and runs there what it finds in it. Ours holds nothing but the names of the two
parts; the algorithms come from the fedga that is installed on each machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.flower.processes.words import Value, as_toml

PACKAGE = "fedga_app"

_PROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
{description}license = "Apache-2.0"
requires-python = ">=3.11"
# fedga[flower] is installed on every machine beforehand; whatever stood here, Flower would fetch for every run.
dependencies = []

[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
packages = ["{package}"]

[tool.flwr.app]
publisher = "fedga"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
{config}"""

_MODULE = """\
\"\"\"What runs {where}.\"\"\"

from fedga.flower import {name} as app

__all__ = ["app"]
"""

_MODULES = {
    "__init__.py": '"""Federated learning with fedga, as a Flower app."""\n',
    "server_app.py": _MODULE.format(where="on the server", name="server_app"),
    "client_app.py": _MODULE.format(where="at every client", name="client_app"),
}


@dataclass(frozen=True)
class Section:
    """Settings that belong together, under a line that says what they are."""

    heading: str
    settings: Mapping[str, Value]

    def __str__(self) -> str:
        return f"# {self.heading}\n{as_toml(self.settings)}"


def write_app(folder: Path, name: str, description: str, sections: list[Section], readme: str) -> None:
    """Write the app into a folder that is empty or not there yet."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedGAError(f"{folder} is not empty: choose a folder that is not there yet")
    config = "\n".join(map(str, sections))
    described = as_toml({"description": description})
    project = _PROJECT.format(name=project_name(name), description=described, package=PACKAGE, config=config)
    for file, content in _MODULES.items():
        write_whole(folder / PACKAGE / file, content)
    write_whole(folder / "README.md", readme)
    write_whole(folder / "pyproject.toml", project)


def project_name(text: str) -> str:
    """A name that Python's packaging allows, as near as possible to the one wanted.

    >>> project_name("My study (2)")
    'my-study-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "fedga-app"
