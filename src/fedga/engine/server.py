"""The server's half of a round: who takes part, what is sent, how replies become the next model, what is recorded.

It is the same whoever trains the clients: the engine, stacked on this machine, or other machines under Flower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedga.algorithms.base import Algorithm, Server
from fedga.engine import schedule
from fedga.engine.device_data import DeviceData, InputScaling
from fedga.engine.evaluation.evaluate import Evaluation
from fedga.engine.evaluation.evaluator import ClientEvaluator
from fedga.engine.evaluation.metrics import ClientRecord, client_records, client_scores, mean_client_ratio
from fedga.engine.local import overrides
from fedga.engine.stack.lanes import Lane, LaneStack, Segment
from fedga.engine.stack.stacked import StackedModel

NOBODY_DRAWS_THIS = 2.0  # draws are below 1: whoever is absent comes last


@dataclass(frozen=True)
class LaneRound:
    """What one lane did in one round."""

    round: int
    metrics: dict[str, float] | None  # None in rounds that are not evaluated
    clients: list[ClientRecord] = field(default_factory=list)  # in rounds in which local models are examined
    diverged: bool = False


class ServerSide:
    """The servers of all lanes. ``stack`` is what they carry from round to round, and is moved on here."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        model: StackedModel,
        data: DeviceData,
        stack: LaneStack,
        evaluator: ClientEvaluator,
    ) -> None:
        self.lanes, self.model, self.data, self.stack, self.evaluator = lanes, model, data, stack, evaluator
        self.device = data.device
        self.active, self.num_clients = lanes[0].spec.active, lanes[0].federation.num_clients
        self.seeds = [lane.spec.seed for lane in lanes]
        self.uniform = torch.tensor([lane.spec.aggregation == "uniform" for lane in lanes], device=self.device)
        self.pixels = InputScaling(
            torch.stack([data.pixels[lane.spec.standardize].scale for lane in lanes]),
            torch.stack([data.pixels[lane.spec.standardize].shift for lane in lanes]),
        )

    @property
    def segments(self) -> list[Segment]:
        return self.stack.segments

    def select(self, round_number: int, absent: Sequence[int] = ()) -> Tensor:
        """Chosen clients, ``[lanes, active]``; ``absent`` ones are passed over, so that fewer may be left."""
        draws = schedule.client_draws(self.seeds, round_number, self.num_clients, self.device)
        draws[:, list(absent)] = NOBODY_DRAWS_THIS
        active = min(self.active, self.num_clients - len(absent))
        chosen = []
        for segment in self.segments:

            def one(state: dict[str, Tensor], draws: Tensor, algorithm: Algorithm = segment.algorithm) -> Tensor:
                return algorithm.select(state, draws, active)

            chosen.append(vmap(one)(segment.state, draws[segment.lanes]))
        return torch.cat(chosen)

    def broadcast(self) -> list[dict[str, Tensor]]:
        """What every segment's servers send besides the model, ``[lanes, ...]``."""
        return [self._broadcast(segment) for segment in self.segments]

    def _broadcast(self, segment: Segment) -> dict[str, Tensor]:
        if not overrides(segment.algorithm, "broadcast"):
            return {}
        classes, find = self.data.dataset.num_classes, self.model.last_layer

        def one(
            params: Tensor, buffers: Tensor, state: dict[str, Tensor], auxiliary: Tensor | None
        ) -> dict[str, Tensor]:
            def forward(params: Tensor, inputs: Tensor) -> Tensor:
                return self.model.forward_one(params, buffers, inputs)

            return segment.algorithm.broadcast(Server(params, state, classes, forward, find, auxiliary))

        params, buffers = self.stack.params[segment.lanes], self.stack.buffers[segment.lanes]
        auxiliary = None
        if segment.auxiliary is not None:
            stored = self.data.gather(segment.auxiliary)  # [lanes, classes, samples, ...]
            pixels = InputScaling(self.pixels.scale[segment.lanes], self.pixels.shift[segment.lanes])
            auxiliary = pixels.apply(stored.flatten(1, 2)).view(stored.shape)
        axes = (0, 0, 0, None if auxiliary is None else 0)
        return vmap(one, in_dims=axes)(params, buffers, segment.state, auxiliary)

    def weights(self, clients: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Shares by sample count (or equal), and the algorithms' weights made from them: ``[lanes, active]`` each."""
        sizes = torch.where(self.uniform[:, None], 1.0, sizes.to(self.model.dtype))
        shares = sizes / sizes.sum(1, keepdim=True)
        weights = [
            vmap(segment.algorithm.weights)(segment.state, clients[segment.lanes], shares[segment.lanes])
            for segment in self.segments
        ]
        return shares, torch.cat(weights)

    def advance(
        self,
        round_number: int,
        clients: Tensor,
        update: Tensor,
        buffers: Tensor,
        reports: Sequence[dict[str, Tensor]],
        surveys: Sequence[Tensor | None],
    ) -> None:
        """The servers' step. ``reports`` are ``[lanes, active, ...]`` and ``surveys [lanes, clients]`` per segment."""
        self.stack.advance(update, buffers, round_number)
        for segment, report, survey in zip(self.segments, reports, surveys, strict=True):
            if overrides(segment.algorithm, "update_server"):
                axes = (0, 0, 0, None if survey is None else 0)
                hook = vmap(segment.algorithm.update_server, in_dims=axes)
                segment.state = hook(segment.state, clients[segment.lanes], report, survey)

    def evaluate(self) -> Evaluation:
        """The global model of every lane on the test split."""
        return self.evaluator.evaluate(self.stack.params, self.stack.buffers, range(len(self.lanes)))

    def results(
        self,
        round_number: int,
        clients: Tensor,
        class_counts: Tensor | None,
        before: Evaluation | None,
        after: Evaluation | None,
    ) -> list[LaneRound]:
        """What is recorded of the round; ``class_counts [lanes, active, classes]`` is None where nobody tells them."""
        finite = self.stack.params.isfinite().all(1).tolist()
        rows = self.evaluator.metric_rows(self.stack, round_number)
        examined = self.evaluator.examined(round_number) if before is not None and after is not None else set()
        records: list[list[ClientRecord]] = [[] for _ in self.lanes]
        seen: list[dict[str, float]] = [{} for _ in self.lanes]
        if before is not None and after is not None and class_counts is not None:
            found = client_records(clients, class_counts, before, after)
            records = [records if lane in examined else [] for lane, records in enumerate(found)]
        elif after is not None:
            ratios = mean_client_ratio(after, len(self.lanes))
            seen = [{"client_ea_ratio": ratio} if lane in examined else {} for lane, ratio in enumerate(ratios)]
        results = []
        for lane, row in enumerate(rows):
            diverged = not finite[lane] or (row is not None and not np.isfinite(row["loss"]))
            if row is not None and not diverged:
                row |= client_scores(records[lane]) if records[lane] else seen[lane]
            results.append(LaneRound(round_number, None if diverged else row, records[lane], diverged))
        return results


def lane_sums(weights: Tensor, values: Tensor) -> Tensor:
    """Weighted sums over each lane's slots: ``[lanes, slots], [lanes * slots, n] -> [lanes, n]``."""
    return torch.bmm(weights[:, None], values.view(*weights.shape, values.shape[1])).squeeze(1)
