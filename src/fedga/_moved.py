"""Modules of version 0.1 under their old names: an import of one warns, and gives the module of today.

Documented names (``fedga.ga_loss``, ``fedga.data.load_dataset``) never moved; this is for programs that went further.
"""

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # their module would take half the time of `import fedga`

# Old and new name on every line, without the package.
_HOMES = dict(line.split(",") for line in Path(__file__).with_name("moved.csv").read_text("utf-8").splitlines())


class _Alias(Loader):
    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self.home)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # which the import system has just replaced by that of the old name


class _OldNames(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != "fedga" or rest not in _HOMES:
            return None
        home = f"fedga.{_HOMES[rest]}"
        warnings.warn(f"{name} of fedga 0.1 is now {home}: import that", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, _Alias(home), is_package=rest in ("experiments", "simulation"))


def keep_old_names() -> None:
    sys.meta_path.insert(0, _OldNames())  # before the finder of files, which would find the new module a second time
