"""Python files of plugins: run once, and again when they or what they import have changed.

A file may import others that lie beside it, also in packages there. Parts in different folders may each have a
``helper.py``: the one beside a part is meant.
"""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from fedga.common.tracing import format_error
from fedga.errors import FedGAError

_modules: dict[Path, tuple[str, ModuleType]] = {}  # file -> digest of the code it was run with, and what came of it
_folders: list[str] = []  # those that we have put on the path, the last one used first


def run_file(path: Path) -> ModuleType:
    """The module of a file, run once for as long as it and what it imports from its folder stay as they are."""
    digest = source_digest(path)
    known = _modules.get(path)
    if known and known[0] == digest:
        return known[1]
    make_importable(path.parent)
    _forget_helpers(path)
    name = f"fedga_own_{path.stem}_{hashlib.sha256(str(path.parent).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a path that ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    # Python tells bytecode's age by seconds: a helper that changes twice in one, as in a loop, would stay as it was.
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise FedGAError(f"{path} cannot be used: {format_error(error, path)}") from error
    finally:
        sys.dont_write_bytecode = kept
    _modules[path] = digest, module
    return module


def make_importable(folder: Path) -> None:
    """Behind all libraries, which a file of the user's must not hide, and before the folders of other parts."""
    wanted = str(folder)
    if wanted in sys.path and wanted not in _folders:
        return
    ours = [place for place in _folders if place != wanted and place in sys.path]
    if wanted in sys.path:
        sys.path.remove(wanted)
    sys.path.insert(min(map(sys.path.index, ours), default=len(sys.path)), wanted)
    _folders[:] = [wanted, *ours]


def _forget_helpers(path: Path) -> None:
    """Let what the file imports from its folder be imported anew: it may have changed, or be another part's."""
    helpers = {source.relative_to(path.parent).parts[0].removesuffix(".py") for source in _sources(path) - {path}}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in helpers and file and any(Path(file).is_relative_to(place) for place in _folders):
            del sys.modules[name]


def source_digest(path: Path) -> str:
    """SHA-256 of a Python file and of the files in and below its folder that it imports, directly or not."""
    digest = hashlib.sha256(path.read_bytes())  # it may be called otherwise; what it imports may not
    for source in sorted(_sources(path) - {path}):
        digest.update(b"\0" + str(source.relative_to(path.parent)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def _sources(path: Path) -> set[Path]:
    found, waiting = {path}, [path]
    while waiting:
        source = waiting.pop()
        try:
            tree = ast.parse(source.read_bytes())
        except (SyntaxError, ValueError):
            continue  # reported when it is run
        imported = {file for node in ast.walk(tree) for file in _imported_files(node, source, path.parent)}
        new = {file for file in imported - found if file.is_file()}
        found |= new
        waiting += new
    return found


def _imported_files(node: ast.AST, source: Path, root: Path) -> Iterator[Path]:
    """Where a module that a statement names would lie, if it lies below the folder ``root``."""
    names, base = [], root
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]  # a module, or a name in one
        base = source.parents[node.level - 1] if node.level else root
    for name in names:
        place = base
        for step in name.split("."):
            place /= step
            for file in (place.with_name(f"{step}.py"), place / "__init__.py"):
                if file.is_relative_to(root):
                    yield file
