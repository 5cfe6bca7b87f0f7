"""A small Flower app that runs our algorithms: settings in its ``pyproject.toml``, and two lines of Python.

Flower sends the app to every site, and runs there what it finds in it. Ours holds nothing but the names of the two
parts; the algorithms come from the fedga that is installed on each machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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


def write_app(
    folder: Path, name: str, description: str, sections: Mapping[str, Mapping[str, Value]], readme: str
) -> None:
    """Write the app into a folder that is empty or does not exist; ``sections`` are settings under their headings."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedGAError(f"{folder} is not empty: choose a folder that does not exist")
    allowed = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "fedga-app"  # by Python's packaging
    config = "\n".join(f"# {heading}\n{as_toml(settings)}" for heading, settings in sections.items())
    described = as_toml({"description": description})
    for file, content in _MODULES.items():
        write_whole(folder / PACKAGE / file, content)
    write_whole(folder / "README.md", readme)
    project = _PROJECT.format(name=allowed, description=described, package=PACKAGE, config=config)
    write_whole(folder / "pyproject.toml", project)
