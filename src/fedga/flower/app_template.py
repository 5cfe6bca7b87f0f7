"""A small Flower app: settings, and the names of two parts, which come from the fedga installed on each machine."""

import re
from collections.abc import Mapping
from pathlib import Path

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.flower.processes.words import Value, as_toml

TEMPLATE = Path(__file__).with_name("template")
PACKAGE = "fedga_app"


def write_app(
    folder: Path, name: str, description: str, sections: Mapping[str, Mapping[str, Value]], readme: str
) -> None:
    """Write the app into a folder that is empty or does not exist; ``sections`` are settings under their headings."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedGAError(f"{folder} is not empty: choose a folder that does not exist")
    allowed = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "fedga-app"  # by Python's packaging
    config = "\n".join(f"# {heading}\n{as_toml(settings)}" for heading, settings in sections.items())
    described = as_toml({"description": description})
    for module in TEMPLATE.glob("*.py.txt"):
        write_whole(folder / PACKAGE / module.stem, module.read_text("utf-8"))
    write_whole(folder / "README.md", readme)
    project = (TEMPLATE / "app.toml").read_text("utf-8")
    project = project.format(name=allowed, description=described, package=PACKAGE, config=config)
    write_whole(folder / "pyproject.toml", project)
