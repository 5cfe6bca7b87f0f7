"""Federated learning when clients hold skewed, partly missing classes.

The method as functions (`ga_loss`, `GALoss`, `calibrated_labels`; `MultilabelGALoss` and `DenseGALoss` for several
labels and for maps), its measure (`error_asymmetry`, `ea_ratio`; as torchmetrics `ErrorAsymmetry`, `EARatio` and
`ClassForgetting`), an estimator for tables (`FedGAClassifier`), and an engine that trains whole grids of federated runs
at once (`fedga run`, or `simulate` from Python).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedga._moved import keep_old_names
from fedga.version import __version__

if TYPE_CHECKING:
    from fedga.engine.simulate import RunResult as RunResult
    from fedga.engine.simulate import simulate as simulate
    from fedga.errors import FedGAError as FedGAError
    from fedga.estimator import FedGAClassifier as FedGAClassifier
    from fedga.losses.calibration import GALoss as GALoss
    from fedga.losses.calibration import batch_class_counts as batch_class_counts
    from fedga.losses.calibration import binary_ga_loss as binary_ga_loss
    from fedga.losses.calibration import calibrated_labels as calibrated_labels
    from fedga.losses.calibration import ga_loss as ga_loss
    from fedga.losses.dense import DenseGALoss as DenseGALoss
    from fedga.losses.dense import dense_ga_loss as dense_ga_loss
    from fedga.losses.imbalance import balanced_softmax_loss as balanced_softmax_loss
    from fedga.losses.imbalance import class_weights as class_weights
    from fedga.losses.imbalance import focal_loss as focal_loss
    from fedga.losses.multilabel import MultilabelGALoss as MultilabelGALoss
    from fedga.losses.multilabel import multilabel_class_counts as multilabel_class_counts
    from fedga.losses.multilabel import multilabel_error_asymmetry as multilabel_error_asymmetry
    from fedga.losses.multilabel import multilabel_ga_loss as multilabel_ga_loss
    from fedga.measures.asymmetry import Forgetting as Forgetting
    from fedga.measures.asymmetry import binary_error_asymmetry as binary_error_asymmetry
    from fedga.measures.asymmetry import class_accuracy as class_accuracy
    from fedga.measures.asymmetry import ea_ratio as ea_ratio
    from fedga.measures.asymmetry import error_asymmetry as error_asymmetry
    from fedga.measures.asymmetry import forgetting as forgetting
    from fedga.measures.torchmetrics import ClassForgetting as ClassForgetting
    from fedga.measures.torchmetrics import EARatio as EARatio
    from fedga.measures.torchmetrics import ErrorAsymmetry as ErrorAsymmetry
    from fedga.report.loaded import Results as Results
    from fedga.report.loaded import load_results as load_results
    from fedga.study.trained import TrainedModel as TrainedModel
    from fedga.study.trained import load_model as load_model

keep_old_names()

# Loaded when first used: `fedga --help` and a refused flag need not wait for torch.
_HOMES = {
    "fedga.measures.asymmetry": (
        *("Forgetting", "binary_error_asymmetry", "class_accuracy", "ea_ratio", "error_asymmetry", "forgetting"),
    ),
    "fedga.losses.calibration": ("GALoss", "batch_class_counts", "binary_ga_loss", "calibrated_labels", "ga_loss"),
    "fedga.losses.dense": ("DenseGALoss", "dense_ga_loss"),
    "fedga.losses.imbalance": ("balanced_softmax_loss", "class_weights", "focal_loss"),
    "fedga.errors": ("FedGAError",),
    "fedga.losses.multilabel": (
        *("MultilabelGALoss", "multilabel_class_counts", "multilabel_error_asymmetry", "multilabel_ga_loss"),
    ),
    "fedga.engine.simulate": ("RunResult", "simulate"),
    "fedga.report.loaded": ("Results", "load_results"),
    "fedga.study.trained": ("TrainedModel", "load_model"),
}
# What needs an extra is not in __all__: `from fedga import *` must not.
_HOMES_OF_EXTRAS = {
    "fedga.estimator": ("FedGAClassifier",),
    "fedga.measures.torchmetrics": ("ClassForgetting", "EARatio", "ErrorAsymmetry"),
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
    return sorted({*__all__, *_HOME_OF})
