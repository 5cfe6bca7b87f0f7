"""`FedGAClassifier`: a federation of tabular sites as one scikit-learn estimator."""

import copy
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from fedga.algorithms import Algorithm
from fedga.data.federation import Dataset, Federation
from fedga.engine.server import LaneRound
from fedga.engine.simulate import RunResult, simulate
from fedga.errors import FedGAError, needs_extra
from fedga.models import ModelBuilder
from fedga.models.mlp import MLP

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise needs_extra("scikit-learn", "data", "FedGAClassifier") from error

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before scikit-learn 1.6 it was a method

    def validate_data(estimator: Any, *arrays: Any, **options: Any) -> Any:
        return estimator._validate_data(*arrays, **options)


ROWS_AT_ONCE = 8192  # when predicting: a table of any length needs no more memory than this many rows

# Parameters that go to the engine as they are, under the names of the flags of `fedga run`.
_SETTINGS = (
    *("rounds", "local_epochs", "batch_size", "optimizer", "lr", "lr_schedule", "momentum", "weight_decay", "clip"),
    *("aggregation", "server", "server_rate", "server_average", "evaluate_every", "diagnose_every"),
)


class FedGAClassifier(ClassifierMixin, BaseEstimator):
    """A network trained over sites that keep their rows: ``X [samples, features]``, ``groups [samples]`` names sites.

    ``fit(X, y, groups=site)`` plays the federation on this machine: in every round each site trains on its own rows,
    and a server averages the models. Parameters have the names and meanings of the flags of ``fedga run``, and the
    values of its strong preset. They are:

    - ``algorithm``: a name, with options as ``"fedprox:mu=0.01"`` (``fedga algorithms`` lists them), or an `Algorithm`.
    - ``model``: ``"mlp"`` with one layer of ``hidden`` units, another name that ``fedga run --model`` takes, a callable
      ``(input_shape, num_classes) -> nn.Module``, or a module to start from.
    - ``active``: sites that train in a round; None: all of them.
    - ``rounds``, ``local_epochs``, ``batch_size``, ``optimizer``, ``lr``, ``lr_schedule``, ``momentum``,
      ``weight_decay``, ``clip``: how a site trains.
    - ``aggregation``, ``server``, ``server_rate``, ``server_average``: what the server does. With ``server_average``
      above 0 the model that predicts is the mean over rounds.
    - ``standardize``: bring every column to mean 0 and deviation 1 over the rows of all sites. For that a site of a
      real federation sends the server the number of its rows and, of every column, two sums over rows.
    - ``evaluate_every``, ``diagnose_every``: rounds between entries of ``history_`` and ``site_history_``, which also
      have the last round (0: none of the latter). Both evaluate on the training rows, the latter the model of every
      active site: at hundreds of sites one evaluation takes longer than many rounds of training.
    - ``device``: where to train: ``"cpu"``, ``"cuda"``, ``"cuda:1"``. Predictions are made on the CPU.
    - ``progress``: show a bar of rounds; None: on a terminal and in a notebook.
    - ``random_state``: a whole number is the seed itself, as in ``fedga run --seeds``.

    ``predict_proba`` is overconfident, as networks that are trained to the end are: on `load_breast_cancer` over three
    skewed sites, half of the rows held out, five seeds, its log loss was .285, and .135 after
    ``CalibratedClassifierCV(FrozenEstimator(classifier)).fit(X_held_out, y_held_out)`` of scikit-learn (1.6 or newer)
    on two fifths of those rows, scored on the others. Accuracy was .968 and .971. Calibrate before probabilities are
    used as such.

    Beside ``classes_``, ``n_features_in_`` and ``feature_names_in_``, a fitted classifier has:

    - ``model_``: the trained `torch.nn.Module`. It takes columns that went through ``scaler_`` (None: as they are).
    - ``dtype_``: the precision it predicts in. That is float64, so that a row's answer is the same in every batch, or
      float32 for a network that takes nothing else.
    - ``n_iter_``: rounds trained. ``site_names_``: the values of ``groups``, sorted. ``class_counts_``: rows of each
      class there, ``[sites, classes]``.
    - ``history_``: a dict per evaluated round, with the scores of the global model over all sites.
    - ``site_history_``: a dict per diagnosed round, active site and class: the site's samples of the class, and its
      recall over all sites before and after the site trained. A fall is what that site forgets. Empty unless
      ``diagnose_every`` asks for it.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> site = np.arange(len(y)) % 3 * (y > 0)  # all of class 0 lies at site 0
    >>> classifier = FedGAClassifier(random_state=0).fit(X, y, groups=site)
    >>> classifier.class_counts_.tolist()
    [[59, 24, 16], [0, 23, 16], [0, 24, 16]]
    >>> bool(classifier.score(X, y) > 0.95)
    True
    """

    def __init__(
        self,
        algorithm: str | Algorithm = "fedga",
        *,
        model: str | ModelBuilder | nn.Module = "mlp",
        hidden: int = 128,
        rounds: int = 50,
        active: int | None = None,
        local_epochs: int = 2,
        batch_size: int = 32,
        optimizer: str = "sgd",
        lr: float = 0.1,
        lr_schedule: str = "cosine",
        momentum: float = 0.0,
        weight_decay: float = 0.001,
        clip: float | None = 5.0,
        aggregation: str = "samples",
        server: str = "momentum",
        server_rate: float | None = None,
        server_average: float = 0.05,
        standardize: bool = True,
        evaluate_every: int = 5,
        diagnose_every: int = 0,
        device: str | torch.device = "cpu",
        progress: bool | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.__dict__.update({name: value for name, value in locals().items() if name not in ("self", "__class__")})

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Train over the sites that ``groups [samples]`` names; without it all rows are one site's."""
        try:
            return self._fit(X, y, groups)
        except BaseException:  # an interrupted fit too: what it leaves behind would answer with parts of an earlier one
            for name in [name for name in vars(self) if name.endswith("_")]:
                delattr(self, name)
            raise

    def _fit(self, X: Any, y: Any, groups: Any) -> Self:  # noqa: N803
        rows, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        # These two are not seen by the engine, which checks the others.
        if not isinstance(self.hidden, Integral) or int(self.hidden) < 1:
            raise FedGAError(f"hidden must be a whole number of 1 or more, not {self.hidden!r}")
        if not isinstance(self.standardize, Integral | np.bool_) or self.standardize not in (0, 1):
            raise FedGAError(f"standardize must be True or False, not {self.standardize!r}")
        self.classes_, targets = np.unique(y, return_inverse=True)
        self.site_names_, sites = _numbered_sites(groups, y)
        self.scaler_ = StandardScaler().fit(rows) if self.standardize else None
        inputs, targets = self._inputs(rows), targets.astype(np.int64)
        # The training rows stand in for a test split: sites can score their own, and none have to be given up.
        dataset = Dataset("table", inputs, targets, inputs, targets, tuple(map(str, self.classes_)))
        sizes = np.bincount(sites, minlength=len(self.site_names_))
        federation = Federation(dataset, np.argsort(sites, kind="stable"), np.concatenate([[0], np.cumsum(sizes)]))
        self.class_counts_ = federation.class_counts
        self.site_history_: list[dict[str, Any]] = []
        result = self._train(federation)
        self.model_ = (result.averaged_model or result.model).eval().requires_grad_(False)
        self.dtype_ = _precision(self.model_, torch.from_numpy(inputs[:2]))
        self.history_ = result.rounds
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Probabilities of the classes, ``[samples, classes]`` in the order of ``classes_``."""
        check_is_fitted(self)
        inputs = torch.from_numpy(self._inputs(validate_data(self, X, reset=False, dtype=np.float64)))
        network = copy.deepcopy(self.model_).to(self.dtype_)
        with torch.no_grad():
            logits = torch.cat([network(rows.to(self.dtype_)) for rows in inputs.split(ROWS_AT_ONCE)])
        return logits.double().softmax(1).numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable class of every row, ``[samples]``."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def _inputs(self, rows: np.ndarray) -> np.ndarray:
        """Columns as the network takes them, float32."""
        if self.scaler_ is not None:
            rows = self.scaler_.transform(rows)
        with np.errstate(over="ignore"):
            inputs = np.ascontiguousarray(rows, dtype=np.float32)
        if not np.isfinite(inputs).all():
            column = int(np.flatnonzero(~np.isfinite(inputs).all(0))[0])
            cure = "give it another unit, or leave standardize=True"
            raise FedGAError(f"column {column} of X has values that float32 cannot hold: {cure}")
        return inputs

    def _train(self, federation: Federation) -> RunResult:
        active, seed = federation.num_clients if self.active is None else self.active, self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        result = simulate(
            federation,
            partial(MLP, hidden=self.hidden) if self.model == "mlp" else self.model,
            self.algorithm,
            device=self.device,
            progress=self.progress,
            on_round=self._remember,
            active=active,
            seed=int(seed),
            **{name: getattr(self, name) for name in _SETTINGS},
        )
        if result.diverged:
            raise FedGAError(f"training diverged in round {self.n_iter_}: give a smaller lr than {self.lr}, or a clip")
        return result

    def _remember(self, done: LaneRound) -> None:
        self.n_iter_ = done.round
        for site in done.clients:
            columns = zip(self.classes_, site.class_counts, site.accuracy_before, site.accuracy_after, strict=True)
            for label, samples, before, after in columns:
                row = {"round": done.round, "site": self.site_names_[site.client], "class": label, "samples": samples}
                self.site_history_.append(row | {"recall_before": before, "recall_after": after})


def _precision(network: nn.Module, rows: torch.Tensor) -> torch.dtype:
    """float64 where the network can be run in it, else float32, which it was trained in."""
    try:
        with torch.no_grad():
            copy.deepcopy(network).double()(rows.double())
    except Exception:  # of any kind, in the user's code; a fault that has nothing to do with float64 shows in predict
        return torch.float32
    return torch.float64


def _numbered_sites(groups: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The names of the sites, sorted, and the number of every row's site."""
    if groups is None:
        groups = np.zeros(len(y), dtype=np.int64)
    if np.ndim(groups) != 1:
        raise FedGAError(f"groups must name the site of every row, one value each, but has shape {np.shape(groups)}")
    if isinstance(groups, list | tuple) and np.asarray(groups).dtype.kind in "US" and len(set(map(type, groups))) > 1:
        groups = np.array(groups, dtype=object)  # NumPy alone makes the text "1" of the number 1, and "nan" of NaN
    groups = column_or_1d(groups)
    check_consistent_length(y, groups)
    if missing := sum(map(_is_missing, groups)) if groups.dtype.kind in "Of" else 0:
        raise FedGAError(f"groups names no site for {missing} rows: fill them in, or leave these rows out")
    try:
        return np.unique(groups, return_inverse=True)
    except TypeError as error:
        raise FedGAError("groups mixes kinds of values: name all sites by text, or all by numbers") from error


def _is_missing(site: Any) -> bool:
    """None, NaN, or what pandas has for both, which cannot be compared."""
    return site is None or type(site).__name__ == "NAType" or bool(site != site)
