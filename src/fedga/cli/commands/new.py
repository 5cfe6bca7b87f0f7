"""`fedga new`: a part of one's own: a file that works as it is, its test, and its name in ``fedga.toml``.

The files are ``cli/templates/KIND.txt``, and ``templates.toml`` beside them has a table for each; ``{name}``,
``{module}`` and ``{title}`` stand for my-focal, my_focal and MyFocal.
"""

import ast
import datetime
import importlib.util
import keyword
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from fedga import plugins
from fedga.cli.console import say
from fedga.common.files import write_whole
from fedga.errors import FedGAError, quoted
from fedga.measures.columns import COLUMNS
from fedga.spec.catalog import find_source
from fedga.spec.settings import PARTITIONS, SERVERS

app = typer.Typer(
    help="Start an algorithm, network, selection rule or another part of your own.\n\n"
    "Each command writes NAME.py, which works as it is and says which line to change, test_NAME.py, and the name into "
    "fedga.toml: every fedga command in that folder, or below it, then knows it.",
    no_args_is_help=True,
)
LONGEST_NAME = 100  # file systems take 255 bytes, and the test's name is longer
_LOADED_UNASKED = ("conftest", "sitecustomize", "usercustomize")
Name = Annotated[str, typer.Argument(metavar="NAME", help="What you call it on the command line, such as my-focal.")]
Folder = Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the files go.", show_default="here")]


@dataclass(frozen=True)
class Template:
    kind: str  # its table in fedga.toml; the command and our files are called by the singular
    attribute: str  # what the file's reference names
    use: list[str]  # the commands that use it
    help: str

    def texts(self, filled: Mapping[str, object]) -> list[str]:
        folder = resources.files("fedga.cli").joinpath("templates")
        files = (folder / f"{self.kind[:-1]}.txt", folder / f"{self.kind[:-1]}_test.txt")
        return [file.read_text(encoding="utf-8").format(**filled) for file in files]

    @property
    def names(self) -> set[str]:
        """All names in the file and its test, except that of the part: one of the user's own must be none of them."""
        filled = {"name": "a-part", "module": "a_part", "title": "APart", "year": 2000}
        nodes = [node for text in self.texts(filled) for node in ast.walk(ast.parse(text))]
        found = {node.id for node in nodes if isinstance(node, ast.Name)}
        found |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        found |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
        return found - {self.attribute.format(**filled)}

    def write(self, name: Name, folder: Folder = Path()) -> None:
        module = name.replace("-", "_")
        title = "".join(word[0].upper() + word[1:] for word in module.split("_") if word)
        filled = {"name": name, "module": module, "title": title, "year": datetime.date.today().year}
        code, test = folder / f"{module}.py", folder / f"test_{module}.py"
        _check(self, name, module, folder)
        for path in (code, test):
            if path.exists():
                raise FedGAError(f"{path} is there already: choose another name, or another folder")
        attribute = self.attribute.format(**filled)
        if attribute in self.names or attribute.startswith("test"):
            taken = f"{attribute} means something else in the files that would be written"
            raise FedGAError(f"{taken}: choose another name")
        project = plugins.project_file(folder.resolve()) or folder / plugins.FILE_NAME
        place = Path(os.path.relpath(code.resolve(), project.resolve().parent)).as_posix()
        text = with_part(project, self.kind, name, f"{place}:{attribute}")
        _write_all(dict(zip((code, test, project), (*self.texts(filled), text), strict=True)))
        say(f"{code} is yours to change; {project} names it, and {test} checks it; next:")
        away = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
        for step in (*away, f"pytest {test.name}", *(use.format(**filled) for use in self.use)):
            say(f"    {step}")


_TABLES = tomllib.loads(resources.files("fedga.cli").joinpath("templates/templates.toml").read_text(encoding="utf-8"))
TEMPLATES = tuple(Template(kind, **given) for kind, given in _TABLES.items())


for _template in TEMPLATES:
    app.command(_template.kind[:-1], help=_template.help)(_template.write)


def _write_all(texts: Mapping[Path, str]) -> None:
    """All of these files or, but for the last, which may have been there before, none."""
    written: list[Path] = []
    try:
        for path, text in texts.items():
            write_whole(path, text)
            written.append(path)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        reason = (error.strerror or str(error)).lower()
        raise FedGAError(f"nothing can be written to {path.parent} ({reason}): choose another folder") from error


def _check(template: Template, name: str, module: str, folder: Path) -> None:
    """A name that can be typed, that Python takes, and that nothing else has."""
    from fedga.algorithms import ALGORITHMS  # which load torch
    from fedga.engine.evaluation.metrics import check_name
    from fedga.models import MODELS
    from fedga.selection import SELECTIONS

    kind = plugins.KINDS[template.kind]
    if len(name) > LONGEST_NAME:
        long = f"the name {quoted(name, most=20)} has {len(name)} letters"
        raise FedGAError(f"{long}: choose one of at most {LONGEST_NAME}")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or keyword.iskeyword(module) or module.endswith("_"):
        raise FedGAError(f"{name!r} cannot be a name: use letters, digits, - and _, such as my-focal")
    taken: dict[str, Collection[str]] = {"algorithms": ALGORITHMS, "models": MODELS, "metrics": COLUMNS}
    taken |= {"partitions": PARTITIONS, "selections": SELECTIONS, "servers": SERVERS}
    if find_source(name) is not None if template.kind == "datasets" else name in taken[template.kind]:
        raise FedGAError(f"{name} is the name of a built-in {kind}: choose another name")
    if template.kind == "metrics":
        check_name(name)
    if folder.exists() and not folder.is_dir():
        raise FedGAError(f"{folder} is a file: give the folder that the new files are to go to")
    if _is_importable(module, folder):
        raise FedGAError(f"{module} is a Python module already, which {module}.py would hide: choose another name")


def _is_importable(module: str, folder: Path) -> bool:
    """Whether Python, or pytest, loads something under this name, but for a file of the folder itself."""
    if module in sys.stdlib_module_names or module in _LOADED_UNASKED:
        return True
    found = importlib.util.find_spec(module)
    return found is not None and Path(found.origin or "").resolve().parent != folder.resolve()


def with_part(project: Path, kind: str, name: str, reference: str) -> str:
    """The text of a project file with one more part, everything else in it as it was."""
    line = f'{name} = "{reference}"'
    try:
        text = project.read_text(encoding="utf-8") if project.is_file() else ""
        before = tomllib.loads(text)
        there = dict(before.get(kind, {}))
    except (ValueError, TypeError, RecursionError) as error:
        raise FedGAError(f"{project} is not a project file ({error}): correct it first") from None
    if name in there:
        raise FedGAError(f"{project} has the {plugins.KINDS[kind]} {name} already: choose another name")
    changed = _inserted(text, kind, line)
    with suppress(tomllib.TOMLDecodeError):  # a table of that name, written as no table is found
        if tomllib.loads(changed) == before | {kind: {**there, name: reference}}:
            return changed
    raise FedGAError(f"{project} is written in a way that cannot be added to: write {line} into its table [{kind}]")


def _inserted(text: str, kind: str, line: str) -> str:
    """The line behind the last of its table, or in a new table at the end."""
    lines = text.splitlines()
    headers = [at for at, content in enumerate(lines) if re.match(r"\s*\[", content)]
    start = next((at for at in headers if re.match(rf"\s*\[\s*{kind}\s*\]", lines[at])), None)
    if start is None:
        return "\n".join([*lines, *[""] * bool(lines), f"[{kind}]", line, ""])
    end = next((at for at in headers if at > start), len(lines))
    while not lines[end - 1].strip():
        end -= 1
    return "\n".join([*lines[:end], line, *lines[end:], ""])
