"""A saved model and data as what is diagnosed: its predictions, and who trained on what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedga.data import Dataset, Federation, load_dataset
from fedga.data.assemble import listed
from fedga.data.formats.files import Progress
from fedga.diagnosis.counts import Holdings
from fedga.diagnosis.diagnosis import Diagnosis
from fedga.diagnosis.measure import errors_of
from fedga.diagnosis.reading.arrays import tally_arrays
from fedga.diagnosis.reading.tally import MOST_CELLS, ROWS_AT_ONCE, Predictions
from fedga.errors import FedGAError, quoted
from fedga.spec.settings import SITES
from fedga.study.model_files import SavedModel, load_model
from fedga.study.prepare import dealt_out


@dataclass(frozen=True)
class DataOptions:
    """What the user says about the data of a model."""

    dataset: str | None = None  # none: the one it was trained on
    label_column: str | None = None
    client_column: str | None = None
    data_dir: Path | None = None


def diagnose_model(
    path: Path,
    options: DataOptions,
    device: torch.device,
    progress: Progress | None = None,
    model: str | None = None,
    notice: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Diagnose a model from the folder ``models`` of a run; ``model`` and ``notice`` are those of `load_model`.

    On the data it was trained on, classes are measured on the test split, which no client has, and sites on the samples
    that each of them trained with. Other data are measured as a whole, by their client column if they have one.
    """
    saved = load_model(path, model, notice)
    predictor = _Predictor(saved, device, progress)
    if options.dataset is None or saved.is_own_data(options.dataset):
        name = options.dataset or saved.own_data()
        columns = saved.columns(options.label_column, options.client_column)
        trained = _load(name, options.data_dir, *columns)
        saved.check_fits(trained, path.name)
        other_columns = columns != saved.columns()
        if options.dataset is None and not other_columns:
            saved.check_trained_on(trained, path.name)
        if other_columns or trained.fingerprint == saved.fingerprint:
            return _on_own_data(path, predictor, trained, saved)
    assert options.dataset is not None  # else it is refused, or its own
    given = _load(options.dataset, options.data_dir, options.label_column, options.client_column)
    saved.check_fits(given, path.name)
    if given.fingerprint == saved.fingerprint:
        return _on_own_data(path, predictor, given, saved)
    try:
        trained_on = _federation(_original(saved, options), saved)
    except FedGAError as error:
        reason = str(error).partition(":")[0]  # without what to do, of a thing that need not be done
        note = f"They are counted in place of those it was trained on, since {reason}."
        return _on_other_data(path, predictor, given, None, note)
    return _on_other_data(path, predictor, given, trained_on)


def _on_own_data(path: Path, predictor: _Predictor, data: Dataset, saved: SavedModel) -> Diagnosis:
    federation = _federation(data, saved)
    names, holdings = _site_names(federation, saved), _holdings(federation, saved, data)
    overall = predictor.tally(data, data.test_inputs, data.test_targets)
    notes = (
        f"Classes are measured on the test split of {data.name}, which no site trained on.",
        *_other_names(data, saved),
    )
    if len(names) * data.num_classes**2 > MOST_CELLS or len(names) < 2:
        return Diagnosis(path.name, data.class_names, errors_of(overall.tally).at(0), (), None, holdings, notes)
    owners = np.repeat(np.arange(federation.num_clients), federation.sizes)
    there = predictor.tally(data, data.train_inputs, data.train_targets, federation.indices, owners)
    notes = (
        *notes,
        "Sites are measured on the samples each of them trained with, so that they look a little better than they are.",
    )
    everywhere, by_site = errors_of(overall.tally).at(0), errors_of(there.tally)
    return Diagnosis(path.name, data.class_names, everywhere, names, by_site, holdings, notes)


def _on_other_data(
    path: Path, predictor: _Predictor, given: Dataset, trained_on: Federation | None, *more_notes: str
) -> Diagnosis:
    """Where ``trained_on`` is not known, the samples measured are counted in its place."""
    inputs = np.concatenate([given.train_inputs, given.test_inputs])
    targets = np.concatenate([given.train_targets, given.test_targets])
    overall = predictor.tally(given, inputs, targets)
    own = quoted(predictor.saved.spec.dataset.removeprefix(SITES)) if trained_on is None else trained_on.dataset.name
    notes = [
        f"All samples of {given.name} are measured: the model was trained on {own}.",
        *more_notes,
        *_other_names(given, predictor.saved),
    ]
    sites, by_site = given.client_names, None
    if given.train_clients is not None:
        there = predictor.tally(given, given.train_inputs, given.train_targets, None, given.train_clients)
        by_site = errors_of(there.tally)
        notes.append("Sites are measured without the samples that a test split would take.")
    if trained_on is None:
        counted = overall.tally.samples.astype(np.float64)
        holdings = Holdings((), counted, f"counted among the labels of {given.name}")
    else:
        holdings = _holdings(trained_on, predictor.saved, trained_on.dataset)
    everywhere = errors_of(overall.tally).at(0)
    return Diagnosis(path.name, given.class_names, everywhere, sites, by_site, holdings, tuple(notes))


class _Predictor:
    """A model that is asked for its probabilities, some samples at a time."""

    def __init__(self, saved: SavedModel, device: torch.device, progress: Progress | None) -> None:
        self.saved, self._device, self._progress = saved, device, progress
        self._model, self._pixels = saved.model.to(device).eval(), saved.pixels.to(device)

    def tally(
        self,
        data: Dataset,
        inputs: np.ndarray,
        targets: np.ndarray,
        places: np.ndarray | None = None,
        sites: np.ndarray | None = None,
    ) -> Predictions:
        """The predictions on samples at ``places``, all of them if left out, that belong to ``sites``."""
        places = np.arange(len(targets)) if places is None else places
        return tally_arrays(
            (len(places), data.num_classes),
            self._probabilities(inputs, places),
            targets[places],
            sites,
            tuple(map(str, range(data.num_classes))),
            f"the model on {data.name}",
            show=self._progress,
        )

    @torch.inference_mode()
    def _probabilities(self, inputs: np.ndarray, places: np.ndarray) -> Iterator[np.ndarray]:
        for first in range(0, len(places), ROWS_AT_ONCE):
            chosen = torch.from_numpy(inputs[places[first : first + ROWS_AT_ONCE]]).to(self._device)
            yield self._model(self._pixels.apply(chosen)).double().softmax(1).cpu().numpy()


def _original(saved: SavedModel, options: DataOptions) -> Dataset:
    """The data the model was trained on, refused unless they are here and still fit it."""
    found = _load(saved.own_data(), options.data_dir, *saved.columns())
    if found.fingerprint != saved.fingerprint:
        raise FedGAError(f"{saved.spec.dataset} has changed since")
    if found.class_names != saved.class_names:
        raise FedGAError(f"{saved.spec.dataset} has other classes now ({listed(found.class_names, 6)})")
    return found


def _load(dataset: str, data_dir: Path | None, label_column: str | None, client_column: str | None) -> Dataset:
    return load_dataset(dataset, data_dir=data_dir, label_column=label_column, client_column=client_column)


def _federation(data: Dataset, saved: SavedModel) -> Federation:
    """The clients of the run, dealt out again."""
    spec = saved.spec
    natural = data.train_clients is not None and spec.partition == "natural"
    if spec.partition == "natural" and not natural:
        return Federation(data, np.arange(len(data.train_targets)), np.array([0, len(data.train_targets)]))
    return dealt_out(data, spec)


def _site_names(federation: Federation, saved: SavedModel) -> tuple[str, ...]:
    if saved.spec.partition == "natural" and federation.dataset.client_names and federation.num_clients > 1:
        return federation.dataset.client_names
    return tuple(f"client {number}" for number in range(federation.num_clients))


def _holdings(federation: Federation, saved: SavedModel, data: Dataset) -> Holdings:
    source = f"held by the clients of the run on {data.name}"
    names = _site_names(federation, saved) if federation.num_clients > 1 else ()
    return Holdings(names, federation.class_counts.astype(np.float64), source)


def _other_names(data: Dataset, saved: SavedModel) -> tuple[str, ...]:
    if data.class_names == saved.class_names:
        return ()
    return (f"The classes of {data.name} have other names than the model was trained with: taken in their order.",)
