"""A saved model and data as what is diagnosed: its predictions, and who trained on what."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedga.data import Dataset, Federation, load_dataset
from fedga.data.formats.files import Progress
from fedga.diagnosis.counts import Adjustment, TrainingCounts
from fedga.diagnosis.diagnosis import Diagnosis, with_adjustment
from fedga.diagnosis.measure import Errors, errors_of
from fedga.diagnosis.reading.arrays import tally_arrays
from fedga.diagnosis.reading.tally import MOST_CELLS, ROWS_AT_ONCE
from fedga.errors import FedGAError, quoted
from fedga.spec.settings import SITES
from fedga.study.model_files import SavedModel, load_model


@dataclass(frozen=True)
class DataOptions:
    dataset: str | None = None  # none: the one it was trained on
    label_column: str | None = None
    client_column: str | None = None
    data_dir: Path | None = None


class _Predictor:
    """A model of a file called ``name`` that is asked for its probabilities, some samples at a time."""

    def __init__(self, saved: SavedModel, name: str, device: torch.device, progress: Progress | None) -> None:
        self.saved, self.name, self._device, self._progress = saved, name, device, progress
        self._model, self._pixels = saved.model.to(device).eval(), saved.pixels.to(device)
        self.shift = np.zeros(len(saved.class_names))  # added to the logits

    def errors(
        self,
        data: Dataset,
        inputs: np.ndarray,
        targets: np.ndarray,
        places: np.ndarray | None = None,
        sites: np.ndarray | None = None,
    ) -> Errors:
        """The errors on samples at ``places``, all of them if left out, that belong to ``sites``."""
        places = np.arange(len(targets)) if places is None else places
        shape, names = (len(places), data.num_classes), tuple(map(str, range(data.num_classes)))
        probabilities, where = self._probabilities(inputs, places), f"the model on {data.name}"
        found = tally_arrays(shape, probabilities, targets[places], sites, names, where, show=self._progress)
        return errors_of(found.tally)

    @torch.inference_mode()
    def _probabilities(self, inputs: np.ndarray, places: np.ndarray) -> Iterator[np.ndarray]:
        for first in range(0, len(places), ROWS_AT_ONCE):
            chosen = torch.from_numpy(inputs[places[first : first + ROWS_AT_ONCE]]).to(self._device)
            logits = self._model(self._pixels.apply(chosen)).double()
            yield (logits + torch.from_numpy(self.shift).to(logits)).softmax(1).cpu().numpy()

    def other_names(self, data: Dataset) -> list[str]:
        other = data.class_names != self.saved.class_names
        return [f"The classes of {data.name} have other names than those trained on: taken in their order."] * other


def diagnose_model(
    path: Path,
    options: DataOptions,
    device: torch.device,
    progress: Progress | None = None,
    model: str | None = None,
    notice: Callable[[str], None] = lambda text: None,
    adjustment: Adjustment | None = None,
) -> Diagnosis:
    """Diagnose a model from the folder ``models`` of a run; ``model`` and ``notice`` are those of `load_model`.

    On the data it was trained on, classes are measured on the test split, which no client has, and sites on the samples
    that each of them trained with. Other data are measured as a whole, by their client column if they have one.
    An ``adjustment`` without counts takes those of the run's clients.
    """

    def diagnosed(measure: Callable[[], Diagnosis], federation: Federation | None) -> Diagnosis:
        known = None if federation is None else _holdings(federation, saved)
        shift = np.zeros(len(saved.class_names)) if adjustment is None else adjustment.shift(saved.class_names, known)

        def measured(with_it: Adjustment | None) -> Diagnosis:
            predictor.shift = np.zeros_like(shift) if with_it is None else shift
            return measure()

        return with_adjustment(measured, adjustment)

    def load(name: str, label_column: str | None, client_column: str | None) -> Dataset:
        columns: dict[str, Any] = {"label_column": label_column, "client_column": client_column}
        return load_dataset(name, data_dir=options.data_dir, resize=saved.resize(name), **columns)

    saved = load_model(path, model, notice)
    predictor = _Predictor(saved, path.name, device, progress)
    if options.dataset is None or saved.is_own_data(options.dataset):
        columns = saved.columns(options.label_column, options.client_column)
        trained = load(options.dataset or saved.own_data(), *columns)
        saved.check_fits(trained, path.name)
        other_columns = columns != saved.columns()
        if options.dataset is None and not other_columns:
            saved.check_trained_on(trained, path.name)
        if other_columns or trained.fingerprint == saved.fingerprint:
            federation = saved.federation(trained)
            return diagnosed(partial(_on_own_data, predictor, trained, federation), federation)
    assert options.dataset is not None  # else it is refused, or its own
    given = load(options.dataset, options.label_column, options.client_column)
    saved.check_fits(given, path.name)
    if given.fingerprint == saved.fingerprint:
        federation = saved.federation(given)
        return diagnosed(partial(_on_own_data, predictor, given, federation), federation)
    trained_on, notes = None, []
    try:
        trained_on = saved.federation(saved.load_trained_on(options.data_dir))
    except FedGAError as error:
        reason = str(error).partition(":")[0]  # without what to do, of a thing that need not be done
        notes.append(f"They are counted in place of those it was trained on, since {reason}.")
    return diagnosed(partial(_on_other_data, predictor, given, trained_on, *notes), trained_on)


def _on_own_data(predictor: _Predictor, data: Dataset, federation: Federation) -> Diagnosis:
    names, holdings = _site_names(federation, predictor.saved), _holdings(federation, predictor.saved)
    everywhere = predictor.errors(data, data.test_inputs, data.test_targets).at(0)
    notes = [f"Classes are measured on the test split of {data.name}, which no site trained on."]
    notes += predictor.other_names(data)
    if len(names) * data.num_classes**2 > MOST_CELLS or len(names) < 2:
        return Diagnosis(predictor.name, data.class_names, everywhere, (), None, holdings, tuple(notes))
    owners = np.repeat(np.arange(federation.num_clients), federation.sizes)
    by_site = predictor.errors(data, data.train_inputs, data.train_targets, federation.indices, owners)
    notes.append("Sites are measured on their own training samples, so that they look a little better than they are.")
    return Diagnosis(predictor.name, data.class_names, everywhere, names, by_site, holdings, tuple(notes))


def _on_other_data(predictor: _Predictor, given: Dataset, trained_on: Federation | None, *more_notes: str) -> Diagnosis:
    """Where ``trained_on`` is not known, the samples measured are counted in its place."""
    inputs = np.concatenate([given.train_inputs, given.test_inputs])
    targets = np.concatenate([given.train_targets, given.test_targets])
    everywhere = predictor.errors(given, inputs, targets).at(0)
    own = quoted(predictor.saved.spec.dataset.removeprefix(SITES)) if trained_on is None else trained_on.dataset.name
    notes = [f"All samples of {given.name} are measured: the model was trained on {own}.", *more_notes]
    notes += predictor.other_names(given)
    sites, by_site = given.client_names, None
    if given.train_clients is not None:
        by_site = predictor.errors(given, given.train_inputs, given.train_targets, None, given.train_clients)
        notes.append("Sites are measured without the samples that a test split would take.")
    if trained_on is None:
        counted = everywhere.samples[None].astype(np.float64)
        holdings = TrainingCounts((), counted, f"counted among the labels of {given.name}")
    else:
        holdings = _holdings(trained_on, predictor.saved)
    return Diagnosis(predictor.name, given.class_names, everywhere, sites, by_site, holdings, tuple(notes))


def _site_names(federation: Federation, saved: SavedModel) -> tuple[str, ...]:
    if saved.spec.partition == "natural" and federation.dataset.client_names and federation.num_clients > 1:
        return federation.dataset.client_names
    return tuple(f"client {number}" for number in range(federation.num_clients))


def _holdings(federation: Federation, saved: SavedModel) -> TrainingCounts:
    source = f"held by the clients of the run on {federation.dataset.name}"
    names = _site_names(federation, saved) if federation.num_clients > 1 else ()
    return TrainingCounts(names, federation.class_counts.astype(np.float64), source)
