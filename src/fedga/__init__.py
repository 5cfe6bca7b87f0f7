"""Federated learning when clients hold skewed, partly missing classes.

The method as functions (`ga_loss`, `GALoss`, `calibrated_labels`), its measure (`error_asymmetry`, `ea_ratio`), and an
engine that trains whole grids of federated runs at once (`fedga run`, or `simulate` from Python).
"""

from fedga.asymmetry import (
    Forgetting,
    binary_error_asymmetry,
    class_accuracy,
    ea_ratio,
    error_asymmetry,
    forgetting,
)
from fedga.calibration import GALoss, batch_class_counts, binary_ga_loss, calibrated_labels, ga_loss
from fedga.errors import FedGAError
from fedga.simulation.simulate import RunResult, simulate
from fedga.version import __version__

__all__ = [
    "FedGAError",
    "Forgetting",
    "GALoss",
    "RunResult",
    "__version__",
    "batch_class_counts",
    "binary_error_asymmetry",
    "binary_ga_loss",
    "calibrated_labels",
    "class_accuracy",
    "ea_ratio",
    "error_asymmetry",
    "forgetting",
    "ga_loss",
    "simulate",
]
