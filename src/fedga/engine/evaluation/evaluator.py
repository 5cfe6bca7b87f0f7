"""Evaluates the models of an engine's lanes: the global ones, the averaged ones, and clients' local ones."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fedga.algorithms.base import overrides
from fedga.engine.device_data import DeviceData
from fedga.engine.evaluation.evaluate import Evaluation, evaluate
from fedga.engine.evaluation.metrics import own_mix, scores
from fedga.engine.stack.budget import MemoryBudget
from fedga.engine.stack.lanes import OWN, Lane, LaneStack, segment_key
from fedga.engine.stack.stacked import Head
from fedga.engine.stack.workers import Workers


class ClientEvaluator:
    def __init__(self, lanes: Sequence[Lane], data: DeviceData, workers: Workers, budget: MemoryBudget) -> None:
        self.lanes, self.data, self.workers, self.budget = lanes, data, workers, budget
        # The algorithms' head for models of the given lanes in a round; None: the network's own.
        self.head: Callable[[], Callable[[Sequence[int], int], Head | None] | None] = lambda: None
        held_out = [lane.federation.held_out for lane in lanes]
        self._held_out = [None if of is None else torch.from_numpy(of).to(data.device) for of in held_out]
        self._same = {id(of): place for place, of in reversed(list(enumerate(held_out)))}  # the first lane with them
        self.has_samples = bool(len(data.test_targets)) or held_out[0] is not None

    def evaluate(self, params: Tensor, buffers: Tensor, lanes: Sequence[int], round_number: int) -> Evaluation:
        """Models on the test split, or on what their lanes hold out; those that see the same inputs go together.

        Each is of the lane that ``lanes`` names.
        """
        kinds = [self._kind(lane) for lane in lanes]
        parts, order = [], []
        for kind in sorted(set(kinds)):
            which = [row for row, value in enumerate(kinds) if value == kind]
            models, scaling = (params[which], buffers[which]), self.data.pixels(kind[0])
            received = None if kind[1] < 0 else partial(self._head, [lanes[row] for row in which], round_number)
            given = (self.workers, *models, self.data, scaling, self.budget, received, self._held_out[kind[2]])
            parts.append(self.budget.within(evaluate, *given))
            order += which
        return Evaluation.join(parts)[torch.tensor(order).argsort().to(params.device)]

    def _kind(self, lane: int) -> tuple[bool, int, int]:
        """Standardised or not, and the first lanes with the same head of its own (-1: the network's) and samples."""
        asked = self.lanes[lane]
        same = (place for place, each in enumerate(self.lanes) if segment_key(each) == segment_key(asked))
        head = next(same) if overrides(asked.algorithm, "head") else -1
        return asked.spec.standardize, head, self._same[id(asked.federation.held_out)]

    def _head(self, lanes: Sequence[int], round_number: int, some: slice) -> Head | None:
        found = self.head()
        return None if found is None else found(lanes[some], round_number)

    def examined(self, round_number: int) -> set[int]:
        """The lanes whose local models are looked at in this round: now and then, and in a lane's last round."""
        if not self.has_samples:
            return set()
        every = [(each.spec.diagnose_every, each.spec.rounds) for each in self.lanes]
        return {lane for lane, (n, last) in enumerate(every) if n and (round_number % n == 0 or round_number == last)}

    def metric_rows(self, stack: LaneStack, round_number: int) -> list[dict[str, float] | None]:
        """Scores of the global models beside those of the averaged ones, where due; examined and last rounds are."""
        regular = round_number % self.lanes[0].spec.evaluate_every == 0
        examined, ends = self.examined(round_number), [round_number == each.spec.rounds for each in self.lanes]
        due = [lane for lane, is_last in enumerate(ends) if regular or is_last or lane in examined]
        rows: list[dict[str, float] | None] = [None] * len(self.lanes)
        if not due or not self.has_samples:
            return rows
        last = self.evaluate(stack.params[due], stack.buffers[due], due, round_number)
        own = self.lanes[0].metrics  # the same for all lanes of an engine
        for lane, row in zip(due, scores(last, further=own), strict=True):
            rows[lane] = row
        places = [place for place, lane in enumerate(stack.averaging) if lane in due]
        if places:
            lanes = [stack.averaging[place] for place in places]
            models = stack.averaged_params[places], stack.averaged_buffers[places]
            averaged = self.evaluate(*models, lanes, round_number)
            for lane, row in zip(lanes, scores(averaged, "averaged_", own), strict=True):
                rows[lane] = (rows[lane] or {}) | row
        return rows

    def score_own_parts(
        self, rows: list[dict[str, float] | None], stack: LaneStack, class_counts: Tensor | None, round_number: int
    ) -> None:
        """Clients with a part of the model of their own: each is scored on the same samples by its own label mix.

        Where the head is a client's own there is no global model to test.
        """
        for segment in stack.segments:
            own = segment.own
            if own is None or class_counts is None or OWN[0] not in segment.client_state:
                continue
            for row, lane in enumerate(segment.numbers):
                if rows[lane] is None:
                    continue
                kept = [segment.client_state[name][row].to(stack.device) for name in OWN]
                params, buffers = (whole[lane].repeat(len(kept[0]), 1) for whole in (stack.params, stack.buffers))
                params[:, own.params], buffers[:, own.buffers] = kept
                found = self.evaluate(params, buffers, [lane] * len(params), round_number)
                others = {} if own.has_head else rows[lane] or {}
                rows[lane] = others | {"client_accuracy": own_mix(found.confusion, class_counts[lane].to(stack.device))}
