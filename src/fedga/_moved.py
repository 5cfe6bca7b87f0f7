"""Modules of version 0.1 under their old names: an import of one warns, and gives the module of today.

Documented names (``fedga.ga_loss``, ``fedga.data.load_dataset``) never moved; this is for programs that went further.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_HOMES = {
    "asymmetry": "measures.asymmetry",
    "calibration": "losses.calibration",
    "checks": "testing",
    "dense": "losses.dense",
    "experiments": "study",
    "experiments.grid": "spec.grid",
    "experiments.presets": "spec.presets",
    "experiments.spec": "spec.settings",
    "experiments.store": "store.store",
    "experiments.sweep": "study.sweep",
    "flower.on_client": "flower.client.app",
    "flower.on_server": "flower.server.app",
    "flower.strategy": "flower.server.strategy",
    "metrics": "measures.torchmetrics",
    "multilabel": "losses.multilabel",
    "own": "plugins",
    "scores": "measures.scores",
    "simulation": "engine",
    "simulation.device_data": "engine.device_data",
    "simulation.engine": "engine.engine",
    "simulation.evaluation": "engine.evaluation.evaluate",
    "simulation.lanes": "engine.stack.lanes",
    "simulation.reference": "engine.reference",
    "simulation.simulate": "engine.simulate",
    "streams": "common.streams",
}


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
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != "fedga" or rest not in _HOMES:
            return None
        home = f"fedga.{_HOMES[rest]}"
        warnings.warn(f"{name} of fedga 0.1 is now {home}: import that", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, _Alias(home), is_package=rest in ("experiments", "simulation"))


def keep_old_names() -> None:
    sys.meta_path.insert(0, _OldNames())  # before the finder of files, which would find the new module a second time
