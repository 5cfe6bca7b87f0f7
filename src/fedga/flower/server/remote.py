"""An engine whose clients are other processes: the same server side, with messages where the engine trains."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedga.data.assemble import listed
from fedga.engine.device_data import DeviceData
from fedga.engine.evaluation.evaluator import ClientEvaluator
from fedga.engine.round import Asking, Losses, Survey, Train, play_round
from fedga.engine.server import LaneRound, ServerSide, TrainResult, lane_sums
from fedga.engine.stack.budget import MemoryBudget
from fedga.engine.stack.lanes import Lane, LaneStack, LaneState, rows_of, server_state
from fedga.engine.stack.stacked import StackedModel
from fedga.engine.stack.workers import Workers, computing_in
from fedga.errors import FedGAError
from fedga.flower import replies as reading
from fedga.flower import wire
from fedga.flower.replies import Declaration, Declared, Read, Reply
from fedga.flower.server.audience import Audience, TooFewReplies
from fedga.flower.server.exchange import Exchange
from fedga.flower.server.roster import Roster
from fedga.spec.settings import RunSpec
from fedga.store.code import code_digest, own_code

TRY_AGAIN_AFTER_S = 5.0

Records = Mapping[str, ArrayRecord]
ClassCounts = Callable[[Sequence[int]], Tensor | None]  # of the given clients, [clients, classes], where they are known


@dataclass(frozen=True)
class TimeoutPolicy:
    """How a server deals with clients that are late or away; on one machine (``strict``) a failure is an error."""

    strict: bool = True
    least_to_begin: int = 0  # 0: all
    least_replies: int = 0  # 0: half of those asked
    arrive_within_s: float = 600.0
    reply_within_s: float = 3600.0


class _RemoteStack(LaneStack):
    """What a run carries along, and of every client the last round that counted: it goes on from what it kept then."""

    def __init__(self, lane: Lane, model: StackedModel, data: DeviceData, state: LaneState | None) -> None:
        super().__init__([lane], model, data, [state or server_state(lane, model)])
        clients = lane.federation.num_clients
        self.counted = torch.zeros(clients, dtype=torch.int64) if state is None else state["counted"].clone()

    def states(self) -> list[LaneState]:
        return [{**state, "counted": self.counted.clone()} for state in super().states()]


@dataclass
class RemoteEngine:
    """One run; the caller loops over `run_round`, or sends what `begin` gives and hands the replies to `finish`."""

    lane: Lane
    data: DeviceData  # the server's own samples
    roster: Roster
    grid: Grid | None = None
    round: int = 0  # the last one that is finished
    state: LaneState | None = None  # after that round
    timeouts: TimeoutPolicy = TimeoutPolicy()
    config: Mapping[str, ConfigRecordValues] = field(default_factory=dict)  # told to every client
    class_counts: ClassCounts = lambda clients: None
    others: bool = False  # whether clients are other people's ClientApps

    def __post_init__(self) -> None:
        device, shape = self.data.device, self.data.dataset.input_shape
        self.lanes: list[Lane] = [self.lane]
        self.model, self._declaration = reading.declare(
            self.lane.model, self.lane.algorithm, self.data.dataset.num_classes, device, others=self.others
        )
        self.workers = Workers(self.model, device)
        self.budget = MemoryBudget.for_model(self.model, device, shape, self.lane.spec.batch_size)
        self.stack = _RemoteStack(self.lane, self.model, self.data, self.state)
        self.evaluator = ClientEvaluator(self.lanes, self.data, self.workers, self.budget)
        self.own = self.stack.segments[0].own  # what stays at clients, for which the server has its first values
        self.server = ServerSide(self.lanes, self.model, self.data, self.stack, self.evaluator, self._all_class_counts)
        state = self.lane.model.state_dict()
        self._constants = {name: tensor for name, tensor in state.items() if not tensor.is_floating_point()}
        code = code_digest(own_code([self.lane.spec])) if isinstance(self.lane.spec, RunSpec) else ""
        digests = {"code": code, "frozen": self._declaration.frozen}
        self._common = {name: digest for name, digest in digests.items() if digest}
        self._conversation: Asking | None = None  # of the round under way
        self._asked: Train | None = None  # what its clients are doing
        self._asked_at = 0.0  # of this machine's clock, in seconds
        self.counted: set[int] = set()  # nodes whose replies made the last round
        self.audience = Audience(self.roster, self.timeouts.strict)

    def _all_class_counts(self) -> Tensor | None:
        counts = self.class_counts(range(self.roster.num_clients))
        return None if counts is None else counts[None]

    def without(self, ended: set[int]) -> None:
        """There is one run, and it has ended."""

    # --- a round -----------------------------------------------------------------------------------------------------

    def run_round(self) -> list[LaneRound]:
        """Send, wait, aggregate and evaluate; a round that too few clients answered is sent again."""
        assert self.grid is not None
        while True:
            try:
                messages, result = self.begin(self.grid), None
                while result is None:  # more than once where clients train one after another
                    result = self.finish(self.grid.send_and_receive(messages, timeout=self.timeouts.reply_within_s))
                    messages = self.messages
                break
            except TooFewReplies as error:
                if self.timeouts.strict:
                    raise
                self.roster.noticed(str(error))
                time.sleep(TRY_AGAIN_AFTER_S)
        spec, [done], own = self.lane.spec, result, self.own
        due = self.round % spec.evaluate_every == 0 or self.round == spec.rounds or done.metrics is not None
        if done.diverged or not due or (own is None and len(self.data.test_targets)):
            return result
        here = {} if own is not None and own.has_head else done.metrics or {}  # nobody trains the server's head
        return [LaneRound(done.round, here | self._evaluate() or None, done.clients)]

    @torch.no_grad()
    def begin(self, grid: Grid) -> list[Message]:
        """The messages that ask clients to train in the next round."""
        self.grid = grid
        self._gather()
        if isinstance(grid, Exchange):
            grid.enough, grid.most_bytes = self._least, self._declaration.most_bytes
            self.audience.hear_late(grid)
        number = self.round + 1
        self._answered: list[int] = []  # of the round under way
        self._conversation = play_round(self.server, number, lambda: self.audience.not_asked(number, self._least))
        asked = self._continue(None)
        assert asked is None  # a round ends after training
        return self.messages

    @torch.no_grad()
    def finish(self, replies: Iterable[Message]) -> list[LaneRound] | None:
        """The replies to the last messages become the next model; None where `messages` ask for more."""
        assert self._asked is not None
        with computing_in(self.lane.spec.precision), self.workers.alone():
            returned = self._returned(self._asked, replies)
        return self._continue(returned)

    def _continue(self, answer: Any) -> list[LaneRound] | None:
        """Answer the round's question, and those that follow, until clients must train or the round is over."""
        assert self._conversation is not None
        number = self.round + 1
        while True:
            try:
                with computing_in(self.lane.spec.precision), self.workers.alone():
                    question = self._conversation.send(answer)
            except StopIteration as end:
                self.stack.counted[self._answered] = number
                self.round, self._conversation, self._asked = number, None, None
                return end.value
            if isinstance(question, Train):
                self._asked, self._asked_at = question, time.monotonic()
                starts = [] if question.start is None else list(map(self._record, *question.start))
                received, clients = _beside(rows_of(question.received[0], 0)), self._clients_of(question)
                self.messages = self._messages(wire.TRAIN, clients, number, received, starts)
                return None
            self.stack.counted[self._answered] = number  # a question before training finds nobody yet
            if isinstance(question, Survey):
                answer = [self._survey(number, wire.SURVEY, "survey", self._declaration.survey)]
            elif isinstance(question, Losses):
                answer = [self._survey(number, wire.LOSSES, "loss", self._declaration.loss)]
            else:
                answer = [self._final(number)]

    def _clients_of(self, asked: Train) -> list[int]:
        """Whom a question is sent to, in the order of the selection."""
        there = None if asked.chosen.counts is None else asked.chosen.counts[0]
        return asked.chosen.clients[0, :there].tolist()

    def _returned(self, asked: Train, replies: Iterable[Message]) -> TrainResult | None:
        """What came back; None where the model has diverged everywhere."""
        read = partial(reading.read_training, self.model, self._declaration, self._kept_here())
        understood = self.audience.understood(self._clients_of(asked), asked.round, replies, read)
        counted = understood if self.timeouts.strict else self._finite(asked, understood)
        if not counted:
            return None
        device, stack, returned = self.data.device, self.stack, list(counted.values())
        clients = torch.tensor([list(counted)], device=device)
        params = torch.stack([reply.params for reply in returned]).to(device)
        buffers = torch.stack([reply.buffers for reply in returned]).to(device)
        sizes = torch.tensor([[reply.examples for reply in returned]], device=device)
        shares, weights = self.server.weights(clients, sizes)
        examine = asked.examine and self.own is None  # else the models that clients use are not here
        after = self.evaluator.evaluate(params, buffers, [0] * len(returned), asked.round) if examine else None
        self._answered += counted  # what they keep counts with the round, not with this turn of it
        self.counted = {self.roster.nodes[client] for client in counted}
        counts = self.class_counts(list(counted))
        return TrainResult(
            clients=clients,
            sizes=sizes,
            shares=shares,
            update=lane_sums(weights, params - stack.params),
            buffers=stack.buffers + lane_sums(shares, buffers - stack.buffers),
            reports=[self._stacked([reply.report for reply in returned])],
            params=params[None],
            all_buffers=buffers[None],
            after=after,
            class_counts=None if counts is None else counts.to(device)[None],
        )

    def _stacked(self, reports: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """What several clients report, ``[1, clients, ...]``."""
        return {name: torch.stack([each[name] for each in reports]).to(self.data.device)[None] for name in reports[0]}

    def _finite(self, asked: Train, returned: Mapping[int, Reply]) -> dict[int, Reply]:
        """What counts of a round's replies; nothing where the model has diverged everywhere."""
        name, clients = self.roster.name, self._clients_of(asked)
        least = min(self._least, len(clients))  # few are asked where few are available, or train in turn
        if len(returned) >= least and not any(reply.is_finite for reply in returned.values()):
            everybody = listed([name(client) for client in returned])
            self.roster.noticed(f"the models of {everybody} are not finite any more: the run has diverged")
            return {}
        finite = {client: reply for client, reply in returned.items() if reply.is_finite and reply.reports_finite}
        for client in returned.keys() - finite.keys():
            sentence = f"the reply of {name(client)} is left out of round {asked.round}"
            self.audience.leave_out(client, asked.round, f"{sentence}: it holds numbers that are not finite")
        if len(finite) < least:
            raise TooFewReplies(f"round {asked.round} has {len(finite)} replies and needs {least}: it is tried again")
        if absent := [client for client in clients if client not in finite]:
            seconds = time.monotonic() - self._asked_at
            waited = f" (waited for {seconds:.0f} s)" if self.audience.silent() & set(absent) else ""
            self.roster.noticed(f"round {asked.round} goes on without {', '.join(map(name, absent))}{waited}")
        return finite

    @property
    def _least(self) -> int:
        """Replies without which a round of as many clients does not count."""
        active = min(self.lane.spec.active, self.roster.num_clients)
        return active if self.timeouts.strict else min(active, self.timeouts.least_replies or -(-active // 2))

    def _gather(self) -> None:
        """Before the first round, wait for those who are to begin; later on, for as many as a round needs."""
        grid, timeouts, roster = self.grid, self.timeouts, self.roster
        assert grid is not None
        if not roster.began:
            wanted = timeouts.least_to_begin or roster.num_clients
            roster.wait(grid, wanted, timeouts.arrive_within_s, enough=0 if self.round else None)
            roster.began = True
        roster.refresh(grid)
        if len(roster.nodes) < self._least:
            roster.noticed(f"{len(roster.nodes)} of the {self._least} that a round needs are there: waiting for more")
            roster.wait(grid, self._least, math.inf)

    def _ask_all(
        self, kind: str, number: int, beside: Records, read: Callable[[Declaration, Message], Read]
    ) -> dict[int, Read]:
        """What every client that answers says of the global model."""
        assert self.grid is not None
        asked = self.audience.answering()
        questions = self._messages(kind, asked, number, beside)
        replies = self.grid.send_and_receive(questions, timeout=self.timeouts.reply_within_s)
        return self.audience.understood(asked, number, replies, partial(read, self._declaration))

    def _survey(self, number: int, kind: str, name: str, declared: Mapping[str, Declared]) -> Tensor:
        """What every client's samples say about the model, ``[1, clients]``; of absent ones, the mean of the others."""
        read = partial(reading.read_report, declared)
        found = self._ask_all(kind, number, _beside(self.server.sent_with_head(0, number)), read)
        values = {client: report[name] for client, report in found.items()}
        for client in [client for client, value in values.items() if not value.isfinite()]:
            if not self.timeouts.strict:
                del values[client]
                sentence = f"{self.roster.name(client)} failed in round {number}: its answer is not a finite number"
                self.audience.leave_out(client, number, sentence)
        if not values:
            raise TooFewReplies(f"nobody answered what round {number} asks of every client: it is tried again")
        mean = torch.stack(list(values.values())).mean()
        survey = torch.stack([values.get(client, mean) for client in range(self.roster.num_clients)])
        return survey.to(self.data.device)[None]

    def _final(self, number: int) -> dict[str, Tensor]:
        """What every client that answers says of the final model, ``[1, clients, ...]``."""
        beside = _beside(rows_of(self.server.broadcast(number)[0], 0))
        read = partial(reading.read_report, self._declaration.final)
        while not (found := self._ask_all(wire.FINISH, number, beside, read)):
            self.roster.noticed(f"nobody answered what follows round {number}: it is asked again")
            time.sleep(TRY_AGAIN_AFTER_S)
            self._gather()
        return self._stacked(list(found.values()))

    # --- evaluation at the clients, where the server has no samples, or not what clients keep for themselves ---------

    def _evaluate(self) -> dict[str, float]:
        """Over what clients hold out, if any: accuracy and loss, or how good their own models are, as on the engine."""
        needed = _beside(self.server.sent_with_head(0, self.round))
        read = self._ask_all(wire.EVALUATE, self.round, needed, reading.read_scores)
        rows = [row for row in read.values() if row[0]]
        if not rows:
            return {}
        weights, scores = zip(*rows, strict=True)
        if self.own is not None:
            return {"client_accuracy": sum(score["accuracy"] for score in scores) / len(scores)}
        return {name: reading.mean([score[name] for score in scores], weights) for name in reading.SCORES}

    # --- messages ----------------------------------------------------------------------------------------------------

    @property
    def arrays(self) -> ArrayRecord:
        """The global model, named as in ``state_dict``."""
        return self._record(self.stack.params[0], self.stack.buffers[0])

    @arrays.setter
    def arrays(self, record: ArrayRecord) -> None:
        given, kept = record.to_torch_state_dict(), self._kept_here()
        for name in given.keys() & kept.keys():
            if not torch.equal(given[name].to(kept[name]), kept[name]):
                wrong = f"the first arrays have another {name} than the strategy's model, and {name} is never sent"
                raise FedGAError(f"{wrong}: give strategy and clients one model")
        params, buffers = reading.vectors(self.model, given, kept)
        self.stack.params[0], self.stack.buffers[0] = params, buffers
        if self.stack.averaging:
            self.stack.averaged_params[0], self.stack.averaged_buffers[0] = params, buffers

    def _record(self, params: Tensor, buffers: Tensor) -> ArrayRecord:
        """A model as it travels: without what stands still, and what clients keep for themselves."""
        named = self.model.params.views(params) | self.model.buffers.views(buffers) | self._constants
        unsent = self._declaration.unsent
        order = dict.fromkeys((*self.lane.model.state_dict(), *named))  # not all buffers are in a state_dict
        return wire.to_record({name: named[name] for name in order if name in named and name not in unsent})

    def _kept_here(self) -> dict[str, Tensor]:
        """The parts of the model that do not travel, as they are here."""
        named = self.model.params.views(self.stack.params[0]) | self.model.buffers.views(self.stack.buffers[0])
        return {name: tensor.cpu() for name, tensor in named.items() if name in self._declaration.unsent}

    def _messages(
        self, kind: str, clients: Sequence[int], number: int, beside: Records, starts: Sequence[ArrayRecord] = ()
    ) -> list[Message]:
        """One for each client; ``starts`` are models other than the global one."""
        records: dict[str, ArrayRecord | ConfigRecord] = {wire.ARRAYS: self.arrays, **beside}
        if self.roster.names and self.lane.spec.standardize:  # real sites do not know the map from samples to inputs
            scaling = self.server.scaling
            records[wire.PIXELS] = wire.to_record({"scale": scaling.scale[0], "shift": scaling.shift[0]})
        common = {**self.config, **self._common, "server-round": number, "spec": self.lane.spec.to_json()}
        messages = []
        for place, client in enumerate(clients):
            if starts:
                records[wire.ARRAYS] = starts[place]
            config = ConfigRecord({**common, "client": client, "counted": int(self.stack.counted[client])})
            content = RecordDict({**records, wire.CONFIG: config})
            # A message that nobody waits for any more must not keep a slow client from the next one.
            messages.append(Message(content, self.roster.nodes[client], kind, ttl=self.timeouts.reply_within_s))
        return messages


def _beside(sent: Mapping[str, Tensor]) -> Records:
    """What a run's algorithm sends with the model, as a record if it sends anything."""
    return {wire.RECEIVED: wire.to_record(sent)} if sent else {}
