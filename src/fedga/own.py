"""A user's own algorithms, models, data sets and metrics: named in a project file, or offered by installed packages.

The project file is the ``fedga.toml`` of the folder one works in, or of the nearest folder above; ``FEDGA_PROJECT``
names another. It has a table per kind of part, of names and where each is defined::

    [algorithms]
    focal = "focal.py:Focal"     # a file, relative to fedga.toml, or "package.module:Class"

Code of a part is run when the part is asked for, not before. Processes we start find the same project, wherever they
run: its path is in their environment.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fedga.errors import FedGAError, unknown_name

FILE_NAME = "fedga.toml"
VARIABLE = "FEDGA_PROJECT"
KINDS = {"algorithms": "algorithm", "models": "model", "datasets": "data set", "metrics": "metric"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_mirrored: str | None = None  # what we ourselves put into FEDGA_PROJECT, for the processes we start
_modules: dict[Path, tuple[str, ModuleType]] = {}  # file -> digest of the code it was run with, and what came of it


@dataclass(frozen=True)
class Part:
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

    def load(self) -> Any:
        """What the reference names; whatever goes wrong in the user's file is one sentence with its line."""
        place, _, attribute = self.reference.rpartition(":")
        module = _run_file(self.file) if self.folder and place.endswith(".py") else self._import(place)
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
        """The source file of the part; only looked up, not run (but for the packages it lies in)."""
        place = self.origin
        if self.folder and place.endswith(".py"):
            path = self.folder / place
            if not path.is_file():
                raise FedGAError(f"{self}: there is no file {path}: correct {self.folder / FILE_NAME}")
            return path.resolve()
        spec = self._imported(lambda: importlib.util.find_spec(place))
        if spec is None or not spec.origin:
            raise FedGAError(f"{self}: there is no module {place}: install it, or give a file such as focal.py:Focal")
        return Path(spec.origin)

    def call(self, function: Any, *arguments: Any) -> Any:
        """What a function of the part returns; an error in the user's file is one sentence with its line."""
        try:
            return function(*arguments)
        except (FedGAError, MemoryError, OSError):
            raise
        except Exception as error:
            raise FedGAError(f"{self} failed: {told(error, self.file)}") from error

    def digest(self) -> str:
        """SHA-256 of the source of the part, and of the files beside it that it imports."""
        return source_digest(self.file)

    def _import(self, module: str) -> ModuleType:
        return self._imported(lambda: importlib.import_module(module))

    def _imported(self, action: Any) -> Any:
        if self.folder:
            _make_importable(self.folder)
        try:
            return action()
        except Exception as error:
            hint = ": check the name and PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
            raise FedGAError(f"{self} cannot be imported: {told(error)}{hint}") from error


def parts(kind: str, built_in: Collection[str] = (), *, installed: bool = True) -> dict[str, Part]:
    """The user's own parts of a kind, by name: of the project file, and of installed packages. No code is run.

    A name that is ``built_in`` is refused in a project file, and left out where a package offers it. Looking through
    the installed packages takes 10 ms, so they can be left out.
    """
    found: dict[str, Part] = {}
    if installed:
        group = entry_points(group=f"fedga.{kind}")
        found = {entry.name: Part(kind, entry.name, entry.value) for entry in group if entry.name not in built_in}
    path = project_file()
    for part in _read(path, path.stat().st_mtime_ns)[kind] if path else ():
        if part.name in built_in:
            raise shadows(part, part.name)
        found[part.name] = part
    return found


def shadows(part: Part, built_in: str) -> FedGAError:
    """The error for a part of a project that is called like one of ours."""
    place = f"{(part.folder or Path()) / FILE_NAME}, line {part.line}"
    return FedGAError(f"{place}: {built_in} is the name of a built-in {KINDS[part.kind]}: choose another name")


def project_file(folder: Path | None = None) -> Path | None:
    """The project file of a folder, or of the one we work in; its path goes into the environment of our children."""
    global _mirrored
    given = os.environ.get(VARIABLE)
    if given and given != _mirrored:
        path = Path(given).expanduser().resolve()
        path = path / FILE_NAME if path.is_dir() else path
        if not path.is_file():
            raise FedGAError(f"{VARIABLE} names {given}, where there is no {FILE_NAME}: correct it, or unset it")
        return path
    here = folder or Path.cwd()
    found = next((folder / FILE_NAME for folder in (here, *here.parents) if (folder / FILE_NAME).is_file()), None)
    if found is not None:
        os.environ[VARIABLE] = str(found)
    elif given:
        del os.environ[VARIABLE]
    _mirrored = None if found is None else str(found)
    return found


@lru_cache
def _read(path: Path, _changed: int) -> Mapping[str, tuple[Part, ...]]:
    """The parts of a project file; read again where the file has changed."""
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedGAError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise FedGAError(f"{path} cannot be read: {error.strerror}") from None
    for table in tables:
        if table not in KINDS:
            raise unknown_name(f"table in {path}", table, KINDS)
    found: dict[str, tuple[Part, ...]] = dict.fromkeys(KINDS, ())
    for kind, table in tables.items():
        if not isinstance(table, dict):
            raise FedGAError(f'{path}: {kind} must be a table, such as [{kind}] and below it name = "file.py:Name"')
        found[kind] = tuple(_part(path, text, kind, name, reference) for name, reference in table.items())
    return found


def _part(path: Path, text: str, kind: str, name: str, reference: object) -> Part:
    line = _line(text, kind, name)
    place, _, attribute = reference.rpartition(":") if isinstance(reference, str) else ("", "", "")
    if not place or not all(step.isidentifier() for step in attribute.split(".")):
        raise FedGAError(
            f"{path}, line {line}: {name} must say where it is defined, as in "
            f'{name} = "{name.replace("-", "_")}.py:Name" or "package.module:Name", not {reference!r}'
        )
    if not _NAME.fullmatch(name):
        raise FedGAError(f"{path}, line {line}: {name!r} cannot be typed as a name: use letters, digits, - and _ only")
    return Part(kind, name, str(reference), path.parent, line)


def _line(text: str, kind: str, name: str) -> int:
    """The line of a name in its table, as far as it is written in the usual way."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w-]+)\s*\]", line):
            table = header[1]
        if table == kind and re.match(rf"""\s*["']?{re.escape(name)}["']?\s*=""", line):
            return number
    return 1


def _run_file(path: Path) -> ModuleType:
    """The module of a file, run once for as long as it and what it imports from its folder stay as they are."""
    digest = source_digest(path)
    known = _modules.get(path)
    if known and known[0] == digest:
        return known[1]
    _make_importable(path.parent)
    _forget({source for source in _sources(path) if source != path})
    name = f"fedga_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a path that ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise FedGAError(f"{path} cannot be used: {told(error, path)}") from error
    _modules[path] = digest, module
    return module


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a file of the user's must not hide a library


def _forget(files: set[Path]) -> None:
    """Let these be imported anew; they may have changed."""
    for name, module in list(sys.modules.items()):
        if (file := getattr(module, "__file__", None)) and Path(file) in files:
            del sys.modules[name]


def told(error: Exception, path: Path | None = None) -> str:
    """An error of the user's own code, with the line of her file that it came from."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} of {Path(error.filename or '').name} is not Python ({error.msg}): correct it"
    words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    line = line_of(error, path)
    hint = ": write @dataclass(frozen=True)" if "non-frozen dataclass" in words else ""
    return f"{line} raised {words}{hint}" if line else words + hint


def line_of(error: Exception, path: Path | None) -> str:
    """The line of a file that an error came through last; empty where it never came there."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if path and Path(frame.filename) == path]
    return f"line {frames[-1].lineno} of {frames[-1].filename.rpartition(os.sep)[2]}" if frames else ""


def source_digest(path: Path) -> str:
    """SHA-256 of a Python file and of the files in its folder that it imports, directly or not."""
    digest = hashlib.sha256()
    for source in sorted(_sources(path)):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources(path: Path) -> set[Path]:
    found, waiting = {path}, [path]
    while waiting:
        try:
            tree = ast.parse(waiting.pop().read_bytes())
        except (SyntaxError, ValueError):
            continue  # told when it is run
        for node in ast.walk(tree):
            for name in _imported_names(node):
                source = path.parent / f"{name}.py"
                if source not in found and source.is_file():
                    found.add(source)
                    waiting.append(source)
    return found


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.module or alias.name).partition(".")[0] for alias in node.names]
    return []
