"""From specs to lanes: data loaded and partitioned once for all runs, names checked before anything runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedga.algorithms import make_algorithm
from fedga.data import Dataset, Federation, load_dataset, make_federation
from fedga.data.assemble import listed
from fedga.data.formats.files import Progress
from fedga.data.partitions import needs_alpha
from fedga.data.remarks import FEW_SAMPLES, MOST_ASIDE, aside, holdings, scale_remark
from fedga.engine.evaluation.metrics import Metric, own_metrics
from fedga.engine.slots import check_pictures
from fedga.engine.stack.lanes import Lane, check_optimizer
from fedga.engine.stack.stacked import StackedModel
from fedga.engine.stack.trial import check
from fedga.errors import FedGAError
from fedga.models import build_model, own_model
from fedga.selection import make_selection
from fedga.selection.availability import read_availability, trace_digest
from fedga.servers import make_server
from fedga.spec.augmentation import Augmentation
from fedga.spec.settings import RunSpec, parse_selection
from fedga.store.database import one_line
from fedga.store.records import PartitionRecord

CLIENTS_KEPT = 1000  # of a partition, for a report's heat map


def choose_device(name: str, flag: str = "--device") -> torch.device:
    """``auto`` takes a GPU where there is one.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise FedGAError(f"{flag} {name} is not a device: give auto, cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda"):
        raise FedGAError(f"{flag} {name} is not supported: give auto, cpu, cuda or cuda:1")
    if device.type == "cpu" and device.index:
        raise FedGAError(f"{flag} {name} is not there, the processor is one device: give {flag} cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FedGAError(f"{flag} {name} was asked for and PyTorch finds no CUDA device here: give {flag} cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise FedGAError(f"{flag} {name} was asked for and there are only {torch.cuda.device_count()} CUDA devices")
    return device


def federation_of(dataset: Dataset, spec: RunSpec, make: Callable[..., Federation] = make_federation) -> Federation:
    options = {name: getattr(spec, name) for name in ("clients", "seed", "alpha", "classes_per_client", "validate")}
    return make(dataset, spec.partition, **options)


class Preparation:
    """Everything the runs of a command need, each piece made once."""

    def __init__(
        self, specs: Sequence[RunSpec], data_dir: Path | None = None, progress: Progress | None = None
    ) -> None:
        self._load = cache(partial(load_dataset, data_dir=data_dir, progress=progress))
        self._make_federation = cache(make_federation)
        if specs:
            _ = self.metrics  # tried before anything runs
        for spec in specs:
            check_optimizer(make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options)), spec)
            name, options = parse_selection(spec.select)
            make_selection(name, **dict(options))
            make_server(spec.server)
            if spec.alpha is not None and not needs_alpha(spec.partition):
                raise FedGAError(f"--alpha means nothing with --partition {spec.partition}: leave it out")
        for spec in {(s.dataset, s.resize, s.model, s.norm, s.augment): s for s in specs}.values():
            # A network that does not fit the data, or the engine, is refused now, not in the middle of a sweep.
            dataset = self.dataset(spec)
            if change := Augmentation.parse("--augment", spec.augment):
                check_pictures(dataset, change)
            network = fitting_model(spec.model, dataset.input_shape, dataset.num_classes, norm=spec.norm)
            if own_model(spec.model):
                check(StackedModel(network), dataset.input_shape)
        for spec in specs:
            read_availability(spec.availability).check_clients(self.federation(spec).num_clients)

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """Those of the user's own, whose code is run where something is trained and nowhere else."""
        return own_metrics()

    def dataset(self, spec: RunSpec) -> Dataset:
        columns = {"label_column": spec.label_column, "client_column": spec.client_column}
        return self._load(spec.dataset, resize=spec.resize, **columns)

    def federation(self, spec: RunSpec) -> Federation:
        return federation_of(self.dataset(spec), spec, self._make_federation)

    def fit_active(self, specs: Sequence[RunSpec], chosen: bool) -> list[RunSpec]:
        """The specs with no more active clients than their data bring; an error where the user ``chose`` the number."""
        fitted = []
        for spec in specs:
            clients = self.federation(spec).num_clients
            if spec.active > clients and chosen:
                there = f"the {clients} clients that --partition {spec.partition} gives"
                raise FedGAError(f"--active {spec.active} is more than {there}: use --active {clients} or fewer")
            fitted.append(replace(spec, active=min(spec.active, clients)))
        return fitted

    def fingerprints(self, specs: Sequence[RunSpec]) -> dict[str, str]:
        """Content hash of every run's data, by run id; behind a plus that of the file of ``--availability``."""
        return {s.run_id: f"{self.dataset(s).fingerprint}+{trace_digest(s.availability)}".rstrip("+") for s in specs}

    def holdings(self, specs: Sequence[RunSpec]) -> list[str]:
        """How many samples of each data set are used, how many a client holds, and what to do about too few."""
        by_data: dict[str, list[RunSpec]] = {}
        for spec in specs:
            by_data.setdefault(spec.dataset, []).append(spec)
        return [self._holdings(Path(name).name, runs) for name, runs in by_data.items()]

    def _holdings(self, name: str, specs: Sequence[RunSpec]) -> str:
        federations = {id(found): (found, spec) for spec in specs for found in [self.federation(spec)]}
        said = [holdings([federation for federation, _ in federations.values()], name)]
        wasteful = [spec for federation, spec in federations.values() if aside(federation) > MOST_ASIDE]
        if wasteful:
            said.append(f"--partition {wasteful[0].partition} leaves the others aside, {self._using_all(wasteful[0])}")
        if small := [spec for federation, spec in federations.values() if federation.sizes.min() < FEW_SAMPLES]:
            natural = small[0].partition == "natural"
            cure = "join such clients, or leave them out" if natural else "give fewer --clients"
            said.append(f"a client with fewer than {FEW_SAMPLES} learns little: {cure}")
        return "; ".join(said)

    def _using_all(self, spec: RunSpec) -> str:
        """The partition of the same kind that gives every sample to a client."""
        if spec.partition != "dirichlet":
            return "--partition iid uses all"
        try:
            self.federation(replace(spec, partition="dirichlet-class"))
        except FedGAError:  # a client without a sample
            return "--partition dirichlet-class uses all (with fewer --clients or a larger --alpha)"
        return "--partition dirichlet-class uses all"

    def hints(self, specs: Sequence[RunSpec]) -> list[str]:
        """What a user should know of these data before they train; most often nothing."""
        found: dict[str, None] = {}
        remarks = dict[int, str]()  # by data set, which many runs share
        for spec in specs:
            dataset, name = self.dataset(spec), Path(spec.dataset).name
            federation = self.federation(spec)
            measured = _never_measured(dataset, name) if federation.held_out is None else _validating(spec)
            told = (
                measured,
                _unused(dataset, spec, name),
                _folders(dataset, spec, name),
                _same_as_fedavg(dataset, spec),
            )
            found |= dict.fromkeys(chain.from_iterable(told))
            if not spec.standardize:
                if id(dataset) not in remarks:
                    remarks[id(dataset)] = scale_remark(replace(dataset, name=name))
                found |= dict.fromkeys(filter(None, [remarks[id(dataset)]]))
        return list(found)

    def partitions(self, specs: Sequence[RunSpec]) -> list[PartitionRecord]:
        """Who holds which classes: of each partition of the data, the lowest seed and the first clients."""
        chosen: dict[tuple[Any, ...], RunSpec] = {}
        for spec in sorted(specs, key=lambda spec: spec.seed):
            chosen.setdefault((spec.dataset, spec.partition, spec.alpha, spec.clients), spec)
        kept = []
        for spec in chosen.values():
            federation = self.federation(replace(spec, validate=0.0))
            names, counts = federation.dataset.class_names, federation.class_counts[:CLIENTS_KEPT]
            place = (spec.dataset, spec.partition, spec.alpha, federation.num_clients, spec.seed)
            called = federation.dataset.client_names[:CLIENTS_KEPT] if spec.partition == "natural" else ()
            kept.append(PartitionRecord(*place, names, counts, called))
        return kept

    def lane(self, spec: RunSpec) -> Lane:
        dataset = self.dataset(spec)
        model = build_model(spec.model, dataset.input_shape, dataset.num_classes, norm=spec.norm, seed=spec.seed)
        algorithm = make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options))
        return Lane(spec, self.federation(spec), algorithm, model, self.metrics)


def _never_measured(dataset: Dataset, name: str) -> Iterator[str]:
    counts = np.bincount(dataset.test_targets, minlength=dataset.num_classes)
    if unseen := [label for label, count in zip(dataset.class_names, counts, strict=True) if not count]:
        cure = "add samples (every fifth of a class is held out), or a column split that says train or test"
        yield f"the test split of {name} has no sample of class {listed(unseen)}, so nothing is measured of it: {cure}"


def _validating(spec: RunSpec) -> Iterator[str]:
    held = f"--validate {spec.validate:g} keeps that share of every client's samples from training, to score on"
    yield f"validation numbers, not test numbers: {held}, and the test split is not looked at"


def _unused(dataset: Dataset, spec: RunSpec, name: str) -> Iterator[str]:
    """What the data say, and this partition leaves aside."""
    if spec.partition != "natural" and dataset.train_clients is not None:
        ignored = f"{name} says whose sample each one is, and --partition {spec.partition} ignores that"
        yield f"{ignored}: give --partition natural to keep it"


def _same_as_fedavg(dataset: Dataset, spec: RunSpec) -> Iterator[str]:
    if spec.algorithm_name == "fedntd" and dataset.num_classes == 2:
        yield "fedntd compares what two models say of the classes beside the true one: with two classes it is fedavg"


def _folders(dataset: Dataset, spec: RunSpec, name: str) -> Iterator[str]:
    """How folders of pictures in folders were read where nobody said."""
    path = Path(spec.dataset).expanduser()
    by_name = spec.partition == "natural" and spec.client_column is None and dataset.train_clients is not None
    if by_name and path.is_dir() and not any(path.glob("*.parquet")):
        clients, classes = listed(dataset.client_names), listed(dataset.class_names)
        read = f"folders of {name} are taken as clients ({clients}), with classes in them ({classes})"
        yield f"{read}: give --label-column outer if the outer ones are classes"


def fitting_model(
    name: str, input_shape: tuple[int, ...], num_classes: int, *, norm: str = "batch", seed: int = 0
) -> nn.Module:
    """The network of that name, after it has shown that it turns such samples into such classes."""
    if num_classes < 2:
        raise FedGAError("the data have a single class, so there is nothing to tell apart: give samples of two or more")
    shape = "×".join(map(str, input_shape))
    with _explained(f"model {name} cannot be made for samples of shape {shape} in {num_classes} classes"):
        model = build_model(name, input_shape, num_classes, norm=norm, seed=seed).eval()
    with _explained(f"model {name} cannot read samples of shape {shape}"), torch.no_grad():
        logits = model(torch.zeros(2, *input_shape))
    if not isinstance(logits, Tensor) or logits.shape != (2, num_classes):
        found = f"shape {tuple(logits.shape[1:])}" if isinstance(logits, Tensor) else f"type {type(logits).__name__}"
        wrong = f"model {name} gives outputs of {found} where {num_classes} classes are to be told apart"
        raise FedGAError(f"{wrong}: its last layer must have {num_classes} outputs")
    return model


@contextmanager
def _explained(failure: str) -> Iterator[None]:
    """A network may be the user's own code: whatever it raises becomes a sentence; ``--traceback`` shows the place."""
    try:
        yield
    except (FedGAError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise FedGAError(f"{failure} ({reason}): correct it, or choose another model") from error
