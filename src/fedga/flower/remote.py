"""An engine whose clients are other processes: the same server side, with messages where the engine trains."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedga.errors import FedGAError
from fedga.flower import wire
from fedga.flower.roster import Roster
from fedga.simulation.device_data import DeviceData
from fedga.simulation.evaluation import Evaluation
from fedga.simulation.examiner import Examiner
from fedga.simulation.lanes import Lane, LaneStack, LaneState, server_state
from fedga.simulation.memory import Appetite
from fedga.simulation.precision import computing_in
from fedga.simulation.server import LaneRound, ServerSide, lane_sums
from fedga.simulation.stacked import StackedModel
from fedga.simulation.workers import Workers

TRY_AGAIN_AFTER_S = 5.0

ClassCounts = Callable[[Sequence[int]], Tensor | None]  # of the given clients, [clients, classes], where they are known


@dataclass(frozen=True)
class Terms:
    """How a server deals with clients that are late or away; on one machine (``strict``) a failure is an error."""

    strict: bool = True
    least_to_begin: int = 0  # 0: all
    least_replies: int = 0  # 0: half of those asked
    arrive_within_s: float = 600.0
    reply_within_s: float = 3600.0


class TooFewReplies(FedGAError):  # noqa: N818 - read as the sentence it starts
    """A round that cannot count."""


@dataclass(frozen=True)
class _Round:
    """A round under way."""

    number: int
    clients: list[int]  # asked to train, in the order of the selection
    survey: Tensor | None  # [1, clients]
    before: Evaluation | None


@dataclass(frozen=True)
class _Reply:
    client: int
    params: Tensor
    buffers: Tensor
    examples: float
    report: dict[str, Tensor]


@dataclass
class RemoteEngine:
    """One run; the caller loops over `run_round`, or sends what `begin` gives and hands the replies to `finish`."""

    lane: Lane
    data: DeviceData  # the server's own samples
    roster: Roster
    grid: Grid | None = None
    round: int = 0  # the last one that is finished
    state: LaneState | None = None  # after that round
    terms: Terms = Terms()
    config: Mapping[str, ConfigRecordValues] = field(default_factory=dict)  # told to every client
    tells_pixels: bool = False  # whether the map from samples to inputs is sent along
    class_counts: ClassCounts = lambda clients: None

    def __post_init__(self) -> None:
        device, shape = self.data.device, self.data.dataset.input_shape
        self.lanes: list[Lane] = [self.lane]
        self.model = StackedModel(self.lane.model).to(device)
        self.workers = Workers(self.model, device)
        self.appetite = Appetite.for_model(self.model, device, shape, self.lane.spec.batch_size)
        self.stack = LaneStack(self.lanes, self.model, self.data, [self.state or server_state(self.lane, self.model)])
        self.examiner = Examiner(self.lanes, self.data, self.workers, self.appetite)
        self.server = ServerSide(self.lanes, self.model, self.data, self.stack, self.examiner)
        self._constants = {
            name: tensor for name, tensor in self.lane.model.state_dict().items() if not tensor.is_floating_point()
        }
        self._under_way: _Round | None = None
        self._came = False

    def without(self, ended: set[int]) -> None:
        """There is one run, and it has ended."""

    # --- a round -----------------------------------------------------------------------------------------------------

    def run_round(self) -> list[LaneRound]:
        """Send, wait, aggregate and evaluate; a round that too few clients answered is sent again."""
        assert self.grid is not None
        while True:
            try:
                replies = self.grid.send_and_receive(self.begin(self.grid), timeout=self.terms.reply_within_s)
                [result] = self.finish(replies)
            except TooFewReplies as error:
                if self.terms.strict:
                    raise
                self.notice(str(error))
                time.sleep(TRY_AGAIN_AFTER_S)
                continue
            break
        questions = self.evaluation(self.grid)
        if questions and not result.diverged:
            answers = self.grid.send_and_receive(questions, timeout=self.terms.reply_within_s)
            return [LaneRound(result.round, self.evaluated(answers), result.clients)]
        return [result]

    @torch.no_grad()
    def begin(self, grid: Grid) -> list[Message]:
        """The messages that ask clients to train in the next round."""
        self._gather(grid)
        number = self.round + 1
        with computing_in(self.lane.spec.precision), self.workers.alone():
            before = self.server.evaluate() if self.examiner.examined(number) else None
            clients: list[int] = self.server.select(number, self.roster.absent)[0].tolist()
            survey = self._survey(grid, number)
            received = {name: tensor[0] for name, tensor in self.server.broadcast()[0].items()}
        self._under_way = _Round(number, clients, survey, before)
        beside = {wire.RECEIVED: wire.to_record(received)} if received else {}
        return self._messages(wire.TRAIN, clients, number, beside)

    @torch.no_grad()
    def finish(self, replies: Iterable[Message]) -> list[LaneRound]:
        """The replies to `begin`'s messages become the next model."""
        under_way = self._under_way
        assert under_way is not None
        returned = self._returned(under_way, replies)
        device, stack = self.data.device, self.stack
        clients = torch.tensor([[reply.client for reply in returned]], device=device)
        params = torch.stack([reply.params for reply in returned]).to(device)
        buffers = torch.stack([reply.buffers for reply in returned]).to(device)
        sizes = torch.tensor([[reply.examples for reply in returned]], device=device)
        with computing_in(self.lane.spec.precision), self.workers.alone():
            shares, weights = self.server.weights(clients, sizes)
            update = lane_sums(weights, params - stack.params)
            moved = stack.buffers + lane_sums(shares, buffers - stack.buffers)
            report = {
                name: torch.stack([reply.report[name] for reply in returned]).to(device)[None]
                for name in returned[0].report
            }
            after = None
            if under_way.before is not None:
                after = self.examiner.evaluate(params, buffers, [0] * len(returned))
            self.server.advance(under_way.number, clients, update, moved, [report], [under_way.survey])
            self.round, self._under_way = under_way.number, None
            counts = self.class_counts([reply.client for reply in returned])
            counts = None if counts is None else counts.to(device)[None]
            return self.server.results(self.round, clients, counts, under_way.before, after)

    def _gather(self, grid: Grid) -> None:
        if not self._came:
            self.roster.wait(grid, self.terms.least_to_begin or self.roster.num_clients, self.terms.arrive_within_s)
            self._came = True
            return
        self.roster.refresh(grid)
        if not self.roster.nodes:
            self.notice("nobody is there: waiting until somebody comes back")
            self.roster.wait(grid, 1, math.inf)

    def _survey(self, grid: Grid, number: int) -> Tensor | None:
        """What every client's samples say about the model, ``[1, clients]``; of absent ones, the mean of the others."""
        if not self.lane.algorithm.surveys:
            return None
        asked = sorted(self.roster.nodes)
        replies = grid.send_and_receive(self._messages(wire.SURVEY, asked, number), timeout=self.terms.reply_within_s)
        values: dict[int, Tensor] = {}
        for client, reply in self._sound(asked, number, replies):
            value = wire.arrays_of(reply.content, wire.REPORT)["survey"].reshape(())
            if value.isfinite() or self.terms.strict:
                values[client] = value
        if not values:
            raise TooFewReplies(f"nobody answered what round {number} asks of every client")
        mean = torch.stack(list(values.values())).mean()
        survey = torch.stack([values.get(client, mean) for client in range(self.roster.num_clients)])
        return survey.to(self.data.device)[None]

    # --- evaluation at the sites, where the server has no samples of its own -----------------------------------------

    def evaluation(self, grid: Grid) -> list[Message]:
        """Questions to every client about the new model, in rounds in which it is due and the server cannot tell."""
        spec = self.lane.spec
        due = self.round % spec.evaluate_every == 0 or self.round == spec.rounds
        if len(self.data.test_targets) or not due:
            return []
        return self._messages(wire.EVALUATE, sorted(self.roster.nodes), self.round)

    def evaluated(self, replies: Iterable[Message]) -> dict[str, float] | None:
        """Accuracy and loss over the samples that all sites hold out; None where none of them holds out any."""
        asked = sorted(self.roster.nodes)
        found = [wire.metrics_of(reply) for _, reply in self._sound(asked, self.round, replies, strict=False)]
        rows = [row for row in found if row.get(wire.EXAMPLES, 0)]
        return {name: wire.mean(rows, name) for name in ("accuracy", "loss")} if rows else None

    # --- messages ----------------------------------------------------------------------------------------------------

    @property
    def arrays(self) -> ArrayRecord:
        """The global model, named as in ``state_dict``."""
        named = self.model.params.views(self.stack.params[0]) | self.model.buffers.views(self.stack.buffers[0])
        order = [name for name in self.lane.model.state_dict() if name in named or name in self._constants]
        return wire.to_record({name: (named | self._constants)[name] for name in order})

    @arrays.setter
    def arrays(self, record: ArrayRecord) -> None:
        params, buffers = self._vectors(wire.from_record(record))
        device = self.data.device
        self.stack.params[0], self.stack.buffers[0] = params.to(device), buffers.to(device)
        if self.stack.averaging:
            self.stack.averaged_params[0], self.stack.averaged_buffers[0] = params.to(device), buffers.to(device)

    def _vectors(self, named: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        for name, shape in (self.model.params.shapes | self.model.buffers.shapes).items():
            if name not in named or named[name].shape != shape:
                found = f"shape {tuple(named[name].shape)}" if name in named else "no entry"
                raise FedGAError(f"{found} for {name}, which has shape {tuple(shape)} here: use the same model")
        return self.model.params.flatten(named), self.model.buffers.flatten(named).to(self.model.dtype)

    def _messages(
        self, kind: str, clients: Sequence[int], number: int, beside: Mapping[str, ArrayRecord] | None = None
    ) -> list[Message]:
        records: dict[str, ArrayRecord | ConfigRecord] = {wire.ARRAYS: self.arrays, **(beside or {})}
        if self.tells_pixels:
            pixels = self.server.pixels
            records[wire.PIXELS] = wire.to_record({"scale": pixels.scale[0], "shift": pixels.shift[0]})
        common = {**self.config, "server-round": number, "spec": self.lane.spec.to_json()}
        return [
            Message(
                RecordDict({**records, wire.CONFIG: ConfigRecord({**common, "client": client})}),
                self.roster.nodes[client],
                kind,
            )
            for client in clients
        ]

    def _sound(
        self, asked: Sequence[int], number: int, replies: Iterable[Message], *, strict: bool | None = None
    ) -> list[tuple[int, Message]]:
        """Replies without an error, by client and in the order asked; what went wrong with the others is told."""
        strict = self.terms.strict if strict is None else strict
        by_node = {node: client for client, node in self.roster.nodes.items()}
        found: dict[int, Message] = {}
        for reply in replies:
            client = by_node.get(reply.metadata.src_node_id)
            if client is None or client not in asked:
                continue
            if not reply.has_error():
                found[client] = reply
            elif strict:
                raise FedGAError(f"{self.roster.name(client)} failed in round {number}: {_reason(reply)}")
            else:
                self.notice(f"{self.roster.name(client)} failed in round {number}: {_reason(reply)}")
        return [(client, found[client]) for client in asked if client in found]

    def _returned(self, under_way: _Round, replies: Iterable[Message]) -> list[_Reply]:
        asked, number = under_way.clients, under_way.number
        returned = []
        for client, reply in self._sound(asked, number, replies):
            try:
                read = self._read(client, reply)
            except (FedGAError, KeyError, TypeError, ValueError) as error:
                if self.terms.strict:
                    raise
                self.notice(f"the reply of {self.roster.name(client)} is left out of round {number}: {error}")
            else:
                returned.append(read)
        least = len(asked) if self.terms.strict else self.terms.least_replies or -(-len(asked) // 2)
        if len(returned) < max(1, min(least, len(asked))):
            raise TooFewReplies(
                f"round {number} has {len(returned)} replies of {len(asked)}, too few to count: it is tried again"
            )
        silent = [client for client in asked if client not in {reply.client for reply in returned}]
        if silent:
            names = ", ".join(map(self.roster.name, silent))
            self.notice(f"round {number} goes on without {names}")
        return returned

    def _read(self, client: int, reply: Message) -> _Reply:
        content, algorithm = reply.content, self.lane.algorithm
        params, buffers = self._vectors(wire.arrays_of(content, wire.ARRAYS))
        report = wire.arrays_of(content, wire.REPORT)
        declared = {sent.name for sent in algorithm.uploads if sent.name != "survey"}
        if set(report) != declared:
            raise FedGAError(f"it reports {sorted(report)} where {sorted(declared)} is declared")
        everything = torch.cat([params, buffers, *(tensor.flatten() for tensor in report.values())])
        if not self.terms.strict and not everything.isfinite().all():
            raise FedGAError("it holds numbers that are not finite")
        examples = wire.number(wire.metrics_of(reply), wire.EXAMPLES)
        if not examples > 0:
            raise FedGAError(f"it counts {examples:g} samples")
        return _Reply(client, params, buffers, examples, report)

    def notice(self, text: str) -> None:
        """At once: a round with sites that are away may last for hours."""
        self.roster.noticed(text)


def _reason(reply: Message) -> str:
    """The last line of what Flower says: the client's own sentence."""
    lines = [line.strip() for line in (reply.error.reason or "").splitlines() if line.strip()]
    return lines[-1] if lines else f"error {reply.error.code}"
