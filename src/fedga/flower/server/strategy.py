"""A Flower strategy for every algorithm and server optimiser, for apps of one's own."""

import copy
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fedga.algorithms import Algorithm, make_algorithm
from fedga.algorithms.base import overrides
from fedga.common.sealed import DamagedError
from fedga.data.federation import Federation
from fedga.engine.device_data import DeviceData
from fedga.engine.stack.lanes import Lane
from fedga.errors import FedGAError
from fedga.flower import wire
from fedga.flower.replies import attempt, mean, read_metrics
from fedga.flower.server.audience import TooFewReplies
from fedga.flower.server.exchange import Exchange
from fedga.flower.server.remote import RemoteEngine, TimeoutPolicy
from fedga.flower.server.roster import Form, Roster
from fedga.flower.server.sites import no_samples
from fedga.spec.settings import RunSpec, TrainingSettings, parse_algorithm
from fedga.study.states import read_states, write_states


class AlgorithmStrategy(Strategy):
    """Draws clients from our streams, aggregates by the algorithm, moves by the server's optimiser, and resumes.

    ``model`` is the network whose ``state_dict`` travels; ``clients`` is how many nodes the federation has, ``active``
    how many of them train in a round (all, if not given). ``settings`` are those of `fedga run` that concern the
    server: ``server="momentum"``, ``server_rate``, ``server_average``, ``aggregation``, ``seed``. With a
    ``checkpoint`` file, written after every round, the same program goes on where it was killed.

    Clients answer as Flower's own strategies expect: a model under ``arrays``, their sample count as
    ``metrics["num-examples"]``. Algorithms that report more (``fedga algorithms`` lists what) need our `client_app`.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: str | Algorithm = "fedga",
        *,
        clients: int,
        active: int | None = None,
        num_classes: int | None = None,
        checkpoint: Path | str | None = None,
        evaluate_clients: bool = True,
        wait_for_clients: float = 600.0,
        **settings: Any,
    ) -> None:
        defaults = {"active": clients if active is None else active, "diagnose_every": 0}
        self.spec = TrainingSettings(**defaults | settings)
        if self.spec.active > clients:
            raise FedGAError(f"active={self.spec.active} is more than clients={clients}: give {clients} or fewer")
        old_id = ""  # in checkpoints of version 0.1, which left out the options of objects: those are not found by it
        if isinstance(algorithm, str):
            old: dict[str, Any] = {"algorithm": algorithm, "clients": clients, **defaults, **settings}
            old_id = RunSpec(dataset="own", model="own", partition="iid", **old).run_id
            name, options = parse_algorithm(algorithm)
            algorithm = make_algorithm(name, **dict(options))
        else:
            name = type(algorithm).__name__
        self.algorithm, self.num_clients = algorithm, clients
        # What Flower's own loop, one exchange a round with a server that has no samples, cannot do.
        instead = "use fedga.flower.server_app, or fedga run --engine flower"
        if algorithm.auxiliary_samples:
            raise FedGAError(f"{name} needs samples on the server, which a strategy alone has none of: {instead}")
        if overrides(algorithm, "groups") or algorithm.finishes:
            raise FedGAError(f"{name} needs more than one exchange in a round: {instead}")
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.evaluate_clients = evaluate_clients
        dataset = no_samples("own", tuple(map(str, range(num_classes or 2))), Form((1,), pictures=False))
        nobody = Federation(dataset, np.zeros(0, dtype=np.int64), np.zeros(clients + 1, dtype=np.int64))
        lane = Lane(self.spec, nobody, algorithm, copy.deepcopy(model).cpu())
        if lane.selection.auxiliary_samples:
            raise FedGAError(f"--select {self.spec.select} needs samples on the server, which has none here: {instead}")
        roster = Roster(clients, noticed=_say)
        timeouts = TimeoutPolicy(strict=False, arrive_within_s=wait_for_clients)
        data = DeviceData(dataset, torch.device("cpu"))
        self.engine = RemoteEngine(lane, data, roster, timeouts=timeouts, others=True)
        shapes = repr((self.engine.model.params.shapes, self.engine.model.buffers.shapes))
        described = repr((self.spec.to_json(), type(algorithm).__qualname__, algorithm, clients, shapes))
        self._run = hashlib.blake2b(described.encode(), digest_size=16).hexdigest()
        self._run_of_0_1 = f"{old_id}-{hashlib.blake2b(shapes.encode(), digest_size=8).hexdigest()}"
        if self.checkpoint is not None and self.checkpoint.exists():
            self._resume(self.checkpoint)

    def _resume(self, path: Path) -> None:
        try:
            found = read_states(path)
        except DamagedError as error:
            raise FedGAError(f"{error}: bring it back, or delete it to start over") from error
        state = dict(found.get(self._run) or found.get(self._run_of_0_1) or {})
        if not state:
            raise FedGAError(f"{path} is the checkpoint of another model or of other settings: give another file")
        self.engine = replace(self.engine, round=int(state.pop("round")), state=state)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's own loop, from the round after the checkpoint's; rounds are numbered from the first start on."""
        done = self.engine.round
        if done:
            _say(f"continuing after round {done} of {num_rounds}")
        else:
            self.engine.arrays = initial_arrays

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            return None if evaluate_fn is None else evaluate_fn(number + done, arrays)

        result = super().start(
            Exchange(grid), self.engine.arrays, num_rounds - done, timeout, train_config, evaluate_config, evaluate
        )
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, name, {number + done: found for number, found in getattr(result, name).items()})
        if not result.arrays:
            result.arrays = self.engine.arrays
        return result

    @property
    def averaged_arrays(self) -> ArrayRecord | None:
        """The mean of the global model over rounds, with the setting ``server_average``."""
        stack, model = self.engine.stack, self.engine.model
        if not stack.averaging:
            return None
        named = model.params.views(stack.averaged_params[0]) | model.buffers.views(stack.averaged_buffers[0])
        return wire.to_record(self.engine.lane.model.state_dict() | named)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to the clients that the seed draws for this round; a training configuration goes along."""
        self.engine.config = dict(config)
        return self.engine.begin(grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model, and the mean of the numbers that clients report; a round of too few replies is lost."""
        replies = list(replies)
        try:
            found = self.engine.finish(replies)
        except TooFewReplies as error:
            _say(str(error).replace(": it is tried again", ""))
            return None, None
        assert found is not None
        [result] = found
        if result.diverged:
            raise FedGAError(f"the model is no longer finite after round {result.round}: use a smaller learning rate")
        if self.checkpoint is not None:
            self._save(self.checkpoint)
        counted = [reply for reply in replies if reply.metadata.src_node_id in self.engine.counted]
        return self.engine.arrays, self._means(counted)

    def _save(self, path: Path) -> None:
        [state] = self.engine.stack.states()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.unfinished")
        write_states(unfinished, {self._run: {**state, "round": torch.tensor(self.engine.round)}})
        unfinished.replace(path)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all clients that are there, unless ``evaluate_clients`` is off."""
        if not self.evaluate_clients:
            return []
        config["server-round"] = self.engine.round
        content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: config})
        return [Message(content, node, wire.EVALUATE) for node in self.engine.roster.nodes.values()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean over clients of every number they report, weighted by their samples."""
        return self._means(replies)

    def _means(self, replies: Iterable[Message]) -> MetricRecord | None:
        """Of the numbers that at least half of the clients report; who reports none of use is named."""
        rows: list[tuple[float, MetricRecord]] = []
        for reply in replies:
            try:
                rows.append(attempt(reply, read_metrics))
            except FedGAError as error:
                roster, node = self.engine.roster, reply.metadata.src_node_id
                name = roster.name(roster.by_node[node]) if node in roster.by_node else "a client"
                _say(f"the metrics of {name} are left out: {error}")
        rows = [(weight, row) for weight, row in rows if weight]
        names = Counter(name for _, row in rows for name in row if name != wire.EXAMPLES)
        means = MetricRecord()
        for name in [name for name, times in names.items() if 2 * times >= len(rows)]:
            found = [(row[name], weight) for weight, row in rows if name in row]
            finite = [(each, weight) for each, weight in found if isinstance(each, int | float) and math.isfinite(each)]
            if finite:
                means[name] = mean(*zip(*finite, strict=True))
        return means if rows else None

    def summary(self) -> None:
        spec = self.spec
        log(INFO, "\t├──> %s, server %s, seed %d", self.algorithm, spec.server, spec.seed)
        log(INFO, "\t└──> %d of %s clients in every round", spec.active, self.num_clients)


def _say(text: str) -> None:
    log(INFO, "%s", text)
