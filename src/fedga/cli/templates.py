"""What `fedga new` writes: for every kind of part a file that works as it is, with the line to change, and its test."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """One kind of part; ``{name}``, ``{module}`` and ``{title}`` stand for focal-loss, focal_loss and FocalLoss."""

    kind: str  # its table in fedga.toml
    code: str
    test: str
    attribute: str  # what the file's reference names
    use: tuple[str, ...]  # the commands that use it

    @property
    def names(self) -> set[str]:
        """All names in the file and its test, but for that of the part: one of the user's own must be none of them."""
        filled = {"name": "a-part", "module": "a_part", "title": "APart", "year": 2000}
        nodes = [node for text in (self.code, self.test) for node in ast.walk(ast.parse(text.format(**filled)))]
        found = {node.id for node in nodes if isinstance(node, ast.Name)}
        found |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        found |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
        return found - {self.attribute.format(**filled)}


ALGORITHM = Template(
    "algorithms",
    '''\
"""{title}: what it does, in one sentence.

The formula as its paper writes it, and the paper: authors, title, venue and year.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms import Algorithm, Batch


@dataclass(frozen=True)
class {title}(Algorithm):
    smoothing: float = 0.1  # a field is an option: --algorithm {name}:smoothing=0.2

    citation: ClassVar[str] = "You, {year}"

    def local_loss(self, batch: Batch) -> Tensor:
        """One loss per sample, [samples], of one client's batch.

        batch.logits [samples, classes], batch.targets [samples], batch.class_counts [classes] of the client, and
        batch.mask [samples], which is 0 for padding: whatever adds over samples must multiply by it.
        """
        # Change this line. Use torch alone, and torch.where instead of if: it is mapped over all clients at once.
        return F.cross_entropy(batch.logits, batch.targets, reduction="none", label_smoothing=self.smoothing)

    # Other hooks there are, none of them needed; `python -m pydoc fedga.algorithms.Algorithm` says what each
    # is given and returns.
    #   on a client   penalty, correct, client_state, report, survey
    #   on the server server_state, select, broadcast, weights, update_server
    # What broadcast sends is declared in downloads, what report sends in uploads, what a client keeps in keeps:
    #   downloads: ClassVar[tuple[Sent, ...]] = (Sent("weights", "classes", "how rare each class is"),)
''',
    """\
from fedga.testing import check_algorithm
from {module} import {title}


def test_{module}():
    print(*check_algorithm({title}), sep="\\n")
""",
    "{title}",
    ("fedga algorithms {name}", "fedga run --algorithm fedavg,{name}"),
)

MODEL = Template(
    "models",
    '''\
"""{title}: a network of one hidden layer."""

import math

from torch import Tensor, nn


class {title}(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        # Change these layers; the last one has num_classes outputs. The weights they draw here depend on --seeds alone.
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(input_shape), 256), nn.ReLU(), nn.Linear(256, num_classes)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """[samples, *input_shape] -> logits [samples, num_classes]"""
        return self.layers(inputs)
''',
    """\
from fedga.testing import check_model
from {module} import {title}


def test_{module}():
    print(*check_model({title}, input_shape=(1, 8, 8)), sep="\\n")
""",
    "{title}",
    ("fedga run --model mlp,{name}",),
)

DATASET = Template(
    "datasets",
    '''\
"""{title}: where the samples come from."""

from pathlib import Path

import numpy as np

from fedga.data.assemble import Parts, Samples, assemble
from fedga.data.federation import Dataset


def load(data_dir: Path | None) -> Dataset:
    """data_dir is the folder of --data-dir or FEDGA_DATA, or None."""
    # Change these lines. Pictures are uint8 [samples, channels, height, width], rows of a table float32 [samples,
    # features]; labels are whole numbers or texts; clients say whose sample it is, for --partition natural, or None.
    random = np.random.default_rng(0)
    labels = random.choice(["healthy", "ill"], 400, p=[0.8, 0.2])
    inputs = (random.normal(size=(400, 5)) + (labels == "ill")[:, None]).astype(np.float32)
    clients = random.choice(["north", "south", "west"], 400)
    everything = Samples(inputs, labels, where="{name}", clients=clients)
    return assemble("{name}", Parts(everything, test=None))  # every fifth sample is held out for the test split
''',
    """\
from fedga.data import make_federation
from {module} import load


def test_{module}():
    assert make_federation(load(None), clients=5, seed=0, alpha=0.5).num_clients == 5
""",
    "load",
    ("fedga data show {name} --alpha 0.1 --clients 10", "fedga run --dataset {name} --clients 10"),
)

METRIC = Template(
    "metrics",
    '''\
"""{name}: what it measures, in one sentence."""

from torch import Tensor

from fedga.measures import scores
from fedga.engine.evaluation.evaluate import Evaluation


def {module}(evaluation: Evaluation) -> Tensor:
    """One number per model, [models].

    evaluation.confusion [models, true class, predicted class] are counts on the test split, and
    evaluation.mean_predictions [models, true class, class] mean probabilities.
    """
    # Change this line, which is the recall of the worst class.
    return scores.recall(evaluation.confusion).nan_to_num(1.0).amin(-1)
''',
    """\
import torch

from fedga.engine.evaluation.evaluate import Evaluation
from {module} import {module}


def test_{module}():
    confusion = torch.tensor([[[8, 2], [3, 1]]])  # of one model: the second class is found once in four times
    evaluation = Evaluation(confusion, confusion / confusion.sum(-1, keepdim=True), torch.tensor([0.5]))
    torch.testing.assert_close({module}(evaluation), torch.tensor([0.25]))  # change this number with your metric
""",
    "{module}",
    ("fedga run",),
)
