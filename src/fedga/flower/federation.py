"""What the server of a federation of real sites knows: who they are, which classes they agreed on, its own samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedga.algorithms import make_algorithm
from fedga.data.federation import Dataset, Federation
from fedga.data.site import load_central
from fedga.errors import FedGAError
from fedga.experiments.prepare import fitting_model
from fedga.experiments.records import Partition
from fedga.experiments.spec import RunSpec
from fedga.flower.roster import Roster
from fedga.models import build_model
from fedga.simulation.lanes import Lane


@dataclass(frozen=True)
class Sites:
    """Provides runs with networks and with the server's samples; those of the sites stay there."""

    dataset: Dataset
    roster: Roster

    @classmethod
    def meet(cls, name: str, classes: Sequence[str], server_data: str, roster: Roster) -> Sites:
        """From the sites that have introduced themselves; they must all have samples of one shape."""
        shapes = {roster.name(client): who.input_shape for client, who in sorted(roster.identities.items())}
        dataset = load_central(server_data, classes) if server_data else _no_samples(name, classes, roster)
        for site, shape in shapes.items():
            if shape != dataset.input_shape:
                other = f"the server's in {server_data}" if server_data else "those of the other sites"
                raise FedGAError(
                    f"samples of {site} have shape {_written(shape)} and {other} {_written(dataset.input_shape)}: "
                    "bring them to one shape"
                )
        return cls(dataset, roster)

    def lane(self, spec: RunSpec) -> Lane:
        shape, classes = self.dataset.input_shape, self.dataset.num_classes
        if spec.standardize and not len(self.dataset.train_targets):
            raise FedGAError(
                "standardize needs samples on the server to find mean and deviation from: give server-data, or "
                "standardise the samples of every site alike before"
            )
        fitting_model(spec.model, shape, classes, norm=spec.norm)
        model = build_model(spec.model, shape, classes, norm=spec.norm, seed=spec.seed)
        algorithm = make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options))
        nobody_knows = np.zeros(self.roster.num_clients + 1, dtype=np.int64)
        return Lane(spec, Federation(self.dataset, np.zeros(0, dtype=np.int64), nobody_knows), algorithm, model)

    def fingerprints(self, specs: Sequence[RunSpec]) -> dict[str, str]:
        """Of what has to stay the same for a run to go on."""
        content = json.dumps([self.roster.names, self.dataset.class_names, self.dataset.fingerprint])
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        return {spec.run_id: digest for spec in specs}

    def partitions(self, specs: Sequence[RunSpec]) -> list[Partition]:
        """Who holds which classes, if every site has its counts told."""
        counts = self.class_counts(range(self.roster.num_clients))
        if counts is None:
            return []
        names, spec = self.dataset.class_names, specs[0]
        place = (spec.dataset, spec.partition, None, self.roster.num_clients, spec.seed)
        return [Partition(*place, names, counts.long().numpy(), self.roster.names)]

    def class_counts(self, clients: Sequence[int]) -> Tensor | None:
        """``[clients, classes]``; None unless all of them have theirs told."""
        told = [self.roster.identities[client].class_counts for client in clients if client in self.roster.identities]
        if len(told) < len(clients) or not all(told):
            return None
        return torch.tensor(told, dtype=torch.float32)


def _no_samples(name: str, classes: Sequence[str], roster: Roster) -> Dataset:
    """The server's own samples where it has none, in the shape of the first site's."""
    first = roster.identities[min(roster.identities)]
    shape = (0, *(first.input_shape or ()))
    nothing = np.zeros(shape, dtype=np.uint8 if first.pictures else np.float32)
    labels = np.zeros(0, dtype=np.int64)
    scale = 255.0 if first.pictures else 1.0
    return Dataset(name, nothing, labels, nothing, labels, tuple(classes), input_scale=scale)


def _written(shape: tuple[int, ...] | None) -> str:
    return "×".join(map(str, shape)) if shape else "unknown"
