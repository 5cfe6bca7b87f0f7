"""Plugins: algorithms, models, data sets and metrics named in a project file, or offered by installed packages.

The project file is the ``fedga.toml`` of the folder one works in, or of the nearest folder above; ``FEDGA_PROJECT``
names another. It has a table per kind of part, of names and where each is defined::

    [algorithms]
    my-focal = "my_focal.py:MyFocal"  # a file, relative to fedga.toml, or "package.module:Class"

Code of a part is run when the part is asked for, not before; everything that trains or evaluates asks for metrics. What
a received file or message names is looked up in the project file and nowhere else (`received_part`). A project file, or
a file it names, that belongs to another user or that everybody may write is not read, unless ``FEDGA_PROJECT`` names
that project. Who may write by group, or write what such a file imports, is not checked.
"""

import importlib
import importlib.util
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedga.common.files import read_text
from fedga.common.tracing import format_error
from fedga.errors import FedGAError, quoted, unknown_name
from fedga.plugins.files import make_importable, run_file, source_digest

FILE_NAME = "fedga.toml"
VARIABLE = "FEDGA_PROJECT"
KINDS = {
    "algorithms": "algorithm",
    "models": "model",
    "datasets": "data set",
    "metrics": "metric",
    "partitions": "partition",
    "selections": "selection rule",
    "servers": "server optimiser",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_OURS = "belongs to another user, or everybody may write it, and {} would be run: set"


@dataclass(frozen=True)
class Plugin:
    """One algorithm, model, data set or metric that is not ours."""

    kind: str  # a key of KINDS
    name: str
    reference: str  # "focal.py:Focal" or "package.module:Class"
    folder: Path | None = None  # of the project file that names it; None for one of an installed package
    line: int = 0  # of that file

    def __str__(self) -> str:
        if self.reference == self.name:
            return f"{KINDS[self.kind]} {self.name!r}"
        line = f", {FILE_NAME} line {self.line}" if self.line else ""
        return f"{KINDS[self.kind]} {self.name} ({self.reference}{line})"

    @property
    def origin(self) -> str:
        """The file or module it is defined in."""
        return self.reference.rpartition(":")[0]

    @property
    def _is_file(self) -> bool:
        return self.folder is not None and self.origin.endswith(".py")

    def load(self) -> Any:
        """What the reference names; an error in the user's file is one sentence with its line."""
        place, _, attribute = self.reference.rpartition(":")
        module = run_file(self.file) if self._is_file else self._imported(importlib.import_module)
        found: Any = module
        for step in attribute.split("."):
            if not hasattr(found, step):
                defined = {name: value for name, value in vars(module).items() if not name.startswith("_")}
                known = [name for name, value in defined.items() if getattr(value, "__module__", "") == module.__name__]
                words = unknown_name(f"name in {place}", attribute, known or defined)
                raise FedGAError(f"{self} cannot be imported: {words}")
            found = getattr(found, step)
        return found

    @property
    def file(self) -> Path:
        """The source file of the part; only looked up, not run (except the packages it lies in)."""
        if self.folder is not None and self._is_file:
            path, project = self.folder / self.origin, self.folder / FILE_NAME
            if not path.is_file():
                raise FedGAError(f"{self}: there is no file {path}: correct {project}")
            if not os.environ.get(VARIABLE) and not _is_ours(path):
                raise FedGAError(f"{self}: {path} {_NOT_OURS.format('it')} {VARIABLE} to {project} if you trust it")
            return path.resolve()
        spec = self._imported(importlib.util.find_spec)
        if spec is None or not spec.origin:
            raise FedGAError(f"{self}: there is no module {self.origin}: install it, or give a file as focal.py:Focal")
        return Path(spec.origin)

    def call(self, function: Any, *arguments: Any) -> Any:
        """What a function of the part returns; an error in the user's file is one sentence with its line."""
        try:
            return function(*arguments)
        except (FedGAError, MemoryError, BrokenPipeError):
            raise
        except (Exception, SystemExit) as error:
            raise FedGAError(f"{self} failed: {format_error(error, self.file)}") from error

    def digest(self) -> str:
        """SHA-256 of the source of the part, and of the files beside it that it imports."""
        return source_digest(self.file)

    def _imported(self, action: Callable[[str], Any]) -> Any:
        if self.folder or self.reference == self.name:  # typed as package.module:Class: it may lie where the user works
            make_importable(self.folder or Path.cwd())
        try:
            return action(self.origin)
        except (Exception, SystemExit) as error:
            hint = ": check the name and PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
            raise FedGAError(f"{self} cannot be imported: {format_error(error)}{hint}") from error


def entry_points(group: str) -> Any:
    """As of `importlib.metadata`, which loads here: only who looks through the installed packages waits for it."""
    from importlib import metadata

    return metadata.entry_points(group=group)


def parts(kind: str, built_in: Collection[str] = (), *, installed: bool = True) -> dict[str, Plugin]:
    """The plugins of a kind, by name: of the project file, and of installed packages. No code is run.

    A name that is ``built_in`` is refused in a project file, and left out where a package offers it. Looking through
    the installed packages takes 10 ms, so they can be left out.
    """
    found: dict[str, Plugin] = {}
    if installed:
        group = entry_points(group=f"fedga.{kind}")
        found = {entry.name: Plugin(kind, entry.name, entry.value) for entry in group if entry.name not in built_in}
    path = project_file()
    for part in _read(path, path.stat().st_mtime_ns)[kind] if path else ():
        if part.name in built_in:
            raise shadows(part, part.name)
        found[part.name] = part
    return found


def is_away(kind: str, name: object, built_in: Collection[str]) -> bool:
    """Whether a part could be called so, and none is that is known here."""
    foreign = isinstance(name, str) and name not in built_in and _NAME.fullmatch(name) is not None
    return foreign and name not in parts(kind)


def unknown(kind: str, name: str, known: Collection[str]) -> FedGAError:
    """The error for a name that no part of a kind has: the flag it belongs to, or where none was looked for."""
    for other in (each for each in KINDS if each not in (kind, "metrics")):
        if part := parts(other).get(name):
            flag = "--select" if other == "selections" else f"--{other.removesuffix('s')}"
            return FedGAError(f"{part} is no {KINDS[kind]}: give it with {flag}")
    error = unknown_name(KINDS[kind], name, known)
    nowhere = f"; one of your own is not looked for: no {FILE_NAME} in {Path.cwd()} or above, and {VARIABLE} is not set"
    return error if project_file() else FedGAError(f"{error}{nowhere}")


def received_part(kind: str, name: str, built_in: Collection[str], where: str, flag: str) -> Plugin | None:
    """What a name means that stands in a file or message of somebody else: one of ours (None), or of the project file.

    Nothing else is looked up, let alone imported: what is received never chooses the code that runs. ``where`` it
    stands and the ``flag`` by which the user can name it herself are for the error.
    """
    if name in built_in:
        return None
    if mine := parts(kind, built_in, installed=False).get(name):
        return mine
    raise FedGAError(f"{where} names the {KINDS[kind]} {quoted(name)}, which is none of fedga's own: {flag}")


def shadows(part: Plugin, built_in: str) -> FedGAError:
    """The error for a part of a project that is called like one of ours."""
    place = f"{(part.folder or Path()) / FILE_NAME}, line {part.line}"
    return FedGAError(f"{place}: {built_in} is the name of a built-in {KINDS[part.kind]}: choose another name")


def project_file(folder: Path | None = None) -> Path | None:
    """The project file of a folder, or of the one we work in: the nearest above, unless the environment names one."""
    if given := os.environ.get(VARIABLE):
        path = Path(given).expanduser().resolve()
        path = path / FILE_NAME if path.is_dir() else path
        if not path.is_file():
            raise FedGAError(f"{VARIABLE} names {given}, where there is no {FILE_NAME}: correct it, or unset it")
        return path
    here = folder or Path.cwd()
    mine = here / FILE_NAME
    if mine.is_file() and not _is_ours(mine):
        raise FedGAError(f"{mine} {_NOT_OURS.format('what it names')} {VARIABLE} to it if you trust it")
    return next((path for above in (here, *here.parents) if _is_ours(path := above / FILE_NAME)), None)


def _is_ours(path: Path) -> bool:
    """Whether there is such a file, of this user or the administrator, that not everybody may write."""
    if not path.is_file() or not hasattr(os, "getuid"):
        return path.is_file()
    status = path.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & stat.S_IWOTH


def child_env() -> dict[str, str]:
    """The environment by which a process that we start finds the same project, wherever it works."""
    path = project_file()
    return {VARIABLE: str(path)} if path else {}


@lru_cache
def _read(path: Path, _changed: int) -> Mapping[str, tuple[Plugin, ...]]:
    """The parts of a project file; read again where the file has changed."""
    try:
        text = read_text(path)
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedGAError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise FedGAError(f"{path} cannot be read: {error.strerror}") from None
    for kind, table in tables.items():
        if kind not in KINDS and not isinstance(table, dict):
            listed = ", ".join(f"[{known}]" for known in KINDS) + ", or in a file for --config if it is a setting"
            raise FedGAError(f"{path}: {kind} stands in no table: put it under one of {listed}")
        if kind not in KINDS:
            raise unknown_name(f"table in {path}", kind, KINDS)
        if not isinstance(table, dict):
            raise FedGAError(f'{path}: {kind} must be a table, such as [{kind}] and below it name = "file.py:Name"')
    return {
        kind: tuple(_part(path, text, kind, name, reference) for name, reference in tables.get(kind, {}).items())
        for kind in KINDS
    }


def _part(path: Path, text: str, kind: str, name: str, reference: object) -> Plugin:
    line = _line(text, kind, name)
    place, _, attribute = reference.rpartition(":") if isinstance(reference, str) else ("", "", "")
    if not place or not all(step.isidentifier() for step in attribute.split(".")):
        example = f'{name} = "{name.replace("-", "_")}.py:Name"'
        raise FedGAError(f"{path}, line {line}: {name} must say where it is defined, as in {example}")
    if not _NAME.fullmatch(name):
        raise FedGAError(f"{path}, line {line}: {name!r} cannot be typed as a name: use letters, digits, - and _ only")
    return Plugin(kind, name, str(reference), path.parent, line)


def _line(text: str, kind: str, name: str) -> int:
    """The line of a name in its table, as far as it is written in the usual way."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w-]+)\s*\]", line):
            table = header[1]
        if table == kind and re.match(rf"""\s*["']?{re.escape(name)}["']?\s*=""", line):
            return number
    return 1
