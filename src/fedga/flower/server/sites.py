"""What the server of a federation of real sites knows: who they are, which classes they agreed on, its own samples."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedga.algorithms import make_algorithm
from fedga.data import remarks
from fedga.data.federation import Dataset, Federation
from fedga.data.site import columns_digest, load_central
from fedga.engine.evaluation.metrics import own_metrics
from fedga.engine.stack.lanes import Lane
from fedga.errors import FedGAError
from fedga.flower.server.roster import Form, Roster
from fedga.spec.settings import RunSpec
from fedga.store.records import PartitionRecord
from fedga.study.prepare import fitting_model


@dataclass(frozen=True)
class Sites:
    """Provides runs with networks and with the server's samples; those of the sites stay there."""

    dataset: Dataset
    roster: Roster

    @classmethod
    def meet(cls, name: str, classes: Sequence[str], server_data: str, roster: Roster) -> "Sites":
        """From the sites that have introduced themselves; they must all have samples of one shape."""
        forms = {client: who.form for client, who in sorted(roster.identities.items()) if who.form is not None}
        if not forms:
            raise FedGAError("no site says what its samples look like: is fedga of the same version there?")
        form, whose = forms[min(forms)], roster.name(min(forms))
        dataset = load_central(server_data, classes) if server_data else no_samples(name, classes, form)
        if server_data:
            pictures = dataset.train_inputs.dtype == np.uint8
            form, whose = Form(dataset.input_shape, pictures, columns_digest(server_data)), "the server"
        for client, other in forms.items():
            if difference := form.difference(other):
                raise FedGAError(f"{roster.name(client)} has {difference}, which {whose} has: make them alike")
        roster.form = form
        return cls(dataset, roster)

    def lane(self, spec: RunSpec) -> Lane:
        shape, classes = self.dataset.input_shape, self.dataset.num_classes
        if spec.standardize and not len(self.dataset.train_targets):
            cure = "give server-data, or standardise the samples of every site alike before"
            raise FedGAError(f"standardize needs samples on the server to find mean and deviation from: {cure}")
        model = fitting_model(spec.model, shape, classes, norm=spec.norm, seed=spec.seed)
        algorithm = make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options))
        unknown = np.zeros(self.roster.num_clients + 1, dtype=np.int64)
        return Lane(spec, Federation(self.dataset, unknown[:0], unknown), algorithm, model, own_metrics())

    def scale_remark(self) -> str:
        """On inputs far from 1, where the server has samples to see that on; a site sees its own."""
        return remarks.scale_remark(self.dataset)

    def fingerprints(self, specs: Sequence[RunSpec]) -> dict[str, str]:
        """Of what has to stay the same for a run to go on."""
        content = json.dumps([self.roster.names, self.dataset.class_names, self.dataset.fingerprint])
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        return {spec.run_id: digest for spec in specs}

    def partitions(self, specs: Sequence[RunSpec]) -> list[PartitionRecord]:
        """Who holds which classes, if every site reports its counts."""
        counts = self.class_counts(range(self.roster.num_clients))
        if counts is None:
            return []
        names, spec = self.dataset.class_names, specs[0]
        place = (spec.dataset, spec.partition, None, self.roster.num_clients, spec.seed)
        return [PartitionRecord(*place, names, counts.long().numpy(), self.roster.names)]

    def class_counts(self, clients: Sequence[int]) -> Tensor | None:
        """``[clients, classes]``; None unless all of them report theirs."""
        known = self.roster.identities
        counts = [known[client].class_counts for client in clients if client in known]
        complete = len(counts) == len(clients) and None not in counts
        return torch.tensor(counts, dtype=torch.float32) if complete else None


def no_samples(name: str, classes: Sequence[str], form: Form) -> Dataset:
    """The server's own samples where it has none, in the form of the sites'."""
    dtype, scale = (np.uint8, 255.0) if form.pictures else (np.float32, 1.0)
    samples = (np.zeros((0, *form.input_shape), dtype), np.zeros(0, dtype=np.int64))
    return Dataset(name, *samples, *samples, tuple(classes), input_scale=scale)
