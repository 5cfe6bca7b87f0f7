"""Federated learning when clients hold skewed, partly missing classes.

The method as functions (`ga_loss`, `GALoss`, `calibrated_labels`; `MultilabelGALoss` and `DenseGALoss` for several
labels and for maps), its measure (`error_asymmetry`, `ea_ratio`; as torchmetrics `ErrorAsymmetry`, `EARatio` and
`ClassForgetting`), an estimator for tables (`FedGAClassifier`), and an engine that trains whole grids of federated runs
at once (`fedga run`, or `simulate` from Python).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedga.version import __version__

if TYPE_CHECKING:
    from fedga.asymmetry import Forgetting as Forgetting
    from fedga.asymmetry import binary_error_asymmetry as binary_error_asymmetry
    from fedga.asymmetry import class_accuracy as class_accuracy
    from fedga.asymmetry import ea_ratio as ea_ratio
    from fedga.asymmetry import error_asymmetry as error_asymmetry
    from fedga.asymmetry import forgetting as forgetting
    from fedga.calibration import GALoss as GALoss
    from fedga.calibration import batch_class_counts as batch_class_counts
    from fedga.calibration import binary_ga_loss as binary_ga_loss
    from fedga.calibration import calibrated_labels as calibrated_labels
    from fedga.calibration import ga_loss as ga_loss
    from fedga.dense import DenseGALoss as DenseGALoss
    from fedga.dense import dense_ga_loss as dense_ga_loss
    from fedga.errors import FedGAError as FedGAError
    from fedga.estimator import FedGAClassifier as FedGAClassifier
    from fedga.metrics import ClassForgetting as ClassForgetting
    from fedga.metrics import EARatio as EARatio
    from fedga.metrics import ErrorAsymmetry as ErrorAsymmetry
    from fedga.multilabel import MultilabelGALoss as MultilabelGALoss
    from fedga.multilabel import multilabel_class_counts as multilabel_class_counts
    from fedga.multilabel import multilabel_error_asymmetry as multilabel_error_asymmetry
    from fedga.multilabel import multilabel_ga_loss as multilabel_ga_loss
    from fedga.simulation.simulate import RunResult as RunResult
    from fedga.simulation.simulate import simulate as simulate

# Loaded when first used: `fedga --help` and a refused flag need not wait for torch.
_HOMES = {
    "fedga.asymmetry": (
        *("Forgetting", "binary_error_asymmetry", "class_accuracy", "ea_ratio", "error_asymmetry", "forgetting"),
    ),
    "fedga.calibration": ("GALoss", "batch_class_counts", "binary_ga_loss", "calibrated_labels", "ga_loss"),
    "fedga.dense": ("DenseGALoss", "dense_ga_loss"),
    "fedga.errors": ("FedGAError",),
    "fedga.multilabel": (
        *("MultilabelGALoss", "multilabel_class_counts", "multilabel_error_asymmetry", "multilabel_ga_loss"),
    ),
    "fedga.simulation.simulate": ("RunResult", "simulate"),
}
# What needs an extra is not in __all__: `from fedga import *` must not.
_HOMES_OF_EXTRAS = {
    "fedga.estimator": ("FedGAClassifier",),
    "fedga.metrics": ("ClassForgetting", "EARatio", "ErrorAsymmetry"),
}
_HOME_OF = {name: home for home, names in (_HOMES | _HOMES_OF_EXTRAS).items() for name in names}

__all__ = ["__version__", *(name for names in _HOMES.values() for name in names)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedga' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
