"""An engine whose clients are other processes: the same server side, with messages where the engine trains."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedga.algorithms.base import overrides
from fedga.data.assemble import listed
from fedga.engine.device_data import DeviceData
from fedga.engine.evaluation.evaluator import ClientEvaluator
from fedga.engine.local import uses_features
from fedga.engine.precision import computing_in
from fedga.engine.round import Asking, Survey, Train, play_round
from fedga.engine.server import LaneRound, Returned, ServerSide, lane_sums
from fedga.engine.stack.budget import MemoryBudget
from fedga.engine.stack.lanes import Lane, LaneStack, LaneState, server_state
from fedga.engine.stack.stacked import StackedModel
from fedga.engine.stack.workers import Workers
from fedga.errors import FedGAError
from fedga.flower import wire
from fedga.flower.replies import (
    SCORES,
    Declaration,
    Read,
    Reply,
    attempt,
    frozen_digest,
    mean,
    read_final,
    read_scores,
    read_survey,
    read_training,
    unsent_names,
    vectors,
)
from fedga.flower.server.exchange import OF_THE_APP, Exchange, is_of_node
from fedga.flower.server.patience import Patience
from fedga.flower.server.roster import Roster
from fedga.spec.settings import RunSpec
from fedga.store.code import code_digest, own_code

TRY_AGAIN_AFTER_S = 5.0
GIVE_UP_AFTER = 3

ClassCounts = Callable[[Sequence[int]], Tensor | None]  # of the given clients, [clients, classes], where they are known


@dataclass(frozen=True)
class TimeoutPolicy:
    """How a server deals with clients that are late or away; on one machine (``strict``) a failure is an error."""

    strict: bool = True
    least_to_begin: int = 0  # 0: all
    least_replies: int = 0  # 0: half of those asked
    arrive_within_s: float = 600.0
    reply_within_s: float = 3600.0


class TooFewReplies(FedGAError):  # noqa: N818 - read as the sentence it starts
    """A round that cannot count."""


class _Stack(LaneStack):
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
    tells_pixels: bool = False  # whether the map from samples to inputs is sent along
    class_counts: ClassCounts = lambda clients: None
    others: bool = False  # whether clients are other people's ClientApps

    def __post_init__(self) -> None:
        device, shape = self.data.device, self.data.dataset.input_shape
        self.lanes: list[Lane] = [self.lane]
        self.model = StackedModel(self.lane.model).to(device)
        if uses_features(self.lane.algorithm):
            self.model.keep_features()
        self.workers = Workers(self.model, device)
        self.budget = MemoryBudget.for_model(self.model, device, shape, self.lane.spec.batch_size)
        self.stack = _Stack(self.lane, self.model, self.data, self.state)
        self.evaluator = ClientEvaluator(self.lanes, self.data, self.workers, self.budget)
        self.server = ServerSide(self.lanes, self.model, self.data, self.stack, self.evaluator, self._all_class_counts)
        state = self.lane.model.state_dict()
        self._constants = {name: tensor for name, tensor in state.items() if not tensor.is_floating_point()}
        self._unsent = unsent_names(self.model, self.lane.algorithm)
        code = code_digest(own_code([self.lane.spec])) if isinstance(self.lane.spec, RunSpec) else ""
        self._common = {
            **({"code": code} if code else {}),
            "frozen": frozen_digest({name: state[name] for name in self.model.stands_still}),
        }
        self._conversation: Asking | None = None  # of the round under way
        self._asked: Train | None = None  # what its clients are doing
        self._asked_at = 0.0  # of this machine's clock, in seconds
        self.counted: set[int] = set()  # nodes whose replies made the last round
        self._patience = Patience()
        self._failures: Counter[int] = Counter()  # in a row, of each client
        self._declaration = Declaration.of(
            self.model, state, self.lane.algorithm, self.data.dataset.num_classes, others=self.others
        )

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
            except TooFewReplies as error:
                if self.timeouts.strict:
                    raise
                self.notice(str(error))
                time.sleep(TRY_AGAIN_AFTER_S)
                continue
            break
        questions = self.evaluation(self.grid)
        if questions and not result[0].diverged:
            answers = self.grid.send_and_receive(questions, timeout=self.timeouts.reply_within_s)
            return [LaneRound(result[0].round, self.evaluated(answers), result[0].clients)]
        return result

    @torch.no_grad()
    def begin(self, grid: Grid) -> list[Message]:
        """The messages that ask clients to train in the next round."""
        self._gather(grid)
        if isinstance(grid, Exchange):
            grid.enough, grid.most_bytes = self._least, self._declaration.most_bytes
            self._hear_late(grid)
        number = self.round + 1
        self._conversation = play_round(self.server, number, lambda: self._not_asked(number))
        asked = self._continue(None, grid)
        assert asked is None  # a round ends after training
        return self.messages

    @torch.no_grad()
    def finish(self, replies: Iterable[Message]) -> list[LaneRound] | None:
        """The replies to the last messages become the next model; None where `messages` ask for more."""
        assert self._asked is not None
        with computing_in(self.lane.spec.precision), self.workers.alone():
            returned = self._returned(self._asked, replies)
        return self._continue(returned, self.grid)

    def _continue(self, answer: Any, grid: Grid | None) -> list[LaneRound] | None:
        """Answer the round's question, and those that follow, until clients must train or the round is over."""
        assert self._conversation is not None
        number = self.round + 1
        while True:
            try:
                with computing_in(self.lane.spec.precision), self.workers.alone():
                    question = self._conversation.send(answer)
            except StopIteration as end:
                self.round, self._conversation, self._asked = number, None, None
                return end.value
            if isinstance(question, Train):
                self._asked, self._asked_at = question, time.monotonic()
                self.messages = self._training_messages(question)
                return None
            assert grid is not None
            answer = [self._survey(grid, number) if isinstance(question, Survey) else self._final(grid, number)]

    def _training_messages(self, asked: Train) -> list[Message]:
        clients = self._clients_of(asked)
        received = {name: tensor[0] for name, tensor in asked.received[0].items()}
        beside = {wire.RECEIVED: wire.to_record(received)} if received else {}
        starts = None if asked.start is None else list(zip(*asked.start, strict=True))
        return self._messages(wire.TRAIN, clients, asked.round, beside, starts)

    def _clients_of(self, asked: Train) -> list[int]:
        """Whom a question is sent to, in the order of the selection."""
        there = None if asked.chosen.counts is None else asked.chosen.counts[0]
        return asked.chosen.clients[0, :there].tolist()

    def _returned(self, asked: Train, replies: Iterable[Message]) -> Returned | None:
        """What came back; None where the model has diverged everywhere."""
        returned = self._replies(asked, replies)
        if not returned:
            return None
        device, stack = self.data.device, self.stack
        clients = torch.tensor([[reply.client for reply in returned]], device=device)
        params = torch.stack([reply.params for reply in returned]).to(device)
        buffers = torch.stack([reply.buffers for reply in returned]).to(device)
        sizes = torch.tensor([[reply.examples for reply in returned]], device=device)
        shares, weights = self.server.weights(clients, sizes)
        report = {
            name: torch.stack([reply.report[name] for reply in returned]).to(device)[None]
            for name in returned[0].report
        }
        after = None
        if asked.examine:
            after = self.evaluator.evaluate(params, buffers, [0] * len(returned), asked.round)
        stack.counted[clients[0].cpu()] = asked.round
        self.counted = {self.roster.nodes[reply.client] for reply in returned}
        counts = self.class_counts([reply.client for reply in returned])
        return Returned(
            clients=clients,
            sizes=sizes,
            shares=shares,
            update=lane_sums(weights, params - stack.params),
            buffers=stack.buffers + lane_sums(shares, buffers - stack.buffers),
            reports=[report],
            params=params[None],
            all_buffers=buffers[None],
            after=after,
            class_counts=None if counts is None else counts.to(device)[None],
        )

    @property
    def _least(self) -> int:
        """Replies without which a round does not count."""
        active = min(self.lane.spec.active, self.roster.num_clients)
        return active if self.timeouts.strict else min(active, self.timeouts.least_replies or -(-active // 2))

    def _gather(self, grid: Grid) -> None:
        """Before the first round, wait for those who are to begin; later on, for as many as a round needs."""
        timeouts, roster = self.timeouts, self.roster
        if not roster.began:
            wanted = timeouts.least_to_begin or roster.num_clients
            roster.wait(grid, wanted, timeouts.arrive_within_s, enough=0 if self.round else None)
            roster.began = True
        roster.refresh(grid)
        if len(roster.nodes) < self._least:
            self.notice(f"{len(roster.nodes)} of the {self._least} that a round needs are there: waiting for more")
            roster.wait(grid, self._least, math.inf)

    def _not_asked(self, number: int) -> list[int]:
        """Clients that are away, and those that were silent; the latter only if enough others are left."""
        absent = set(self.roster.absent)
        without = absent | self._patience.passed_over(number, self.roster.entries)
        return sorted(without if self.roster.num_clients - len(without) >= max(1, self._least) else absent)

    def _hear_late(self, grid: Exchange) -> None:
        """Who has answered after all is asked again, and waited for; so is who has left and come again."""
        by_node = {node: client for client, node in self.roster.nodes.items()}
        for node in sorted(grid.late() & by_node.keys()):
            self._heard(by_node[node])
        still = self._patience.silent(self.roster.entries)
        grid.silent &= {node for node, client in by_node.items() if client in still}

    def _heard(self, client: int) -> None:
        if self._patience.heard(client):
            self.notice(f"{self.roster.name(client)} answers again")

    def _survey(self, grid: Grid, number: int) -> Tensor:
        """What every client's samples say about the model, ``[1, clients]``; of absent ones, the mean of the others."""
        asked = self._answering()
        replies = grid.send_and_receive(
            self._messages(wire.SURVEY, asked, number), timeout=self.timeouts.reply_within_s
        )
        values = dict(
            self._understood(asked, number, replies, lambda client, reply: read_survey(self._declaration, reply))
        )
        if not self.timeouts.strict:
            for client in [client for client, value in values.items() if not value.isfinite()]:
                del values[client]
                self._patience.failed(client, number)
                self.notice(f"{self.roster.name(client)} failed in round {number}: its answer is not a finite number")
        if not values:
            raise TooFewReplies(f"nobody answered what round {number} asks of every client: it is tried again")
        mean = torch.stack(list(values.values())).mean()
        survey = torch.stack([values.get(client, mean) for client in range(self.roster.num_clients)])
        return survey.to(self.data.device)[None]

    def _final(self, grid: Grid, number: int) -> dict[str, Tensor]:
        """What every client that answers says of the final model, ``[1, clients, ...]``."""
        asked = self._answering()
        received = {name: tensor[0] for name, tensor in self.server.broadcast(number)[0].items()}
        beside = {wire.RECEIVED: wire.to_record(received)} if received else {}
        questions = self._messages(wire.FINISH, asked, number, beside)
        replies = grid.send_and_receive(questions, timeout=self.timeouts.reply_within_s)
        found = self._understood(asked, number, replies, lambda client, reply: read_final(self._declaration, reply))
        if not found:
            raise TooFewReplies(f"nobody answered what follows round {number}: it is tried again")
        names = found[0][1]
        return {name: torch.stack([each[name] for _, each in found])[None].to(self.data.device) for name in names}

    def _for_head(self, number: int) -> dict[str, ArrayRecord]:
        """What clients need beside the model to evaluate it: something where the algorithm has a head of its own."""
        if not overrides(self.lane.algorithm, "head"):
            return {}
        sent = {name: tensor[0] for name, tensor in self.server.broadcast(number)[0].items()}
        return {wire.RECEIVED: wire.to_record(sent)} if sent else {}

    # --- evaluation at the sites, where the server has no samples of its own -----------------------------------------

    def evaluation(self, grid: Grid) -> list[Message]:
        """Questions to every client about the new model, in rounds in which it is due and the server cannot tell."""
        spec = self.lane.spec
        due = self.round % spec.evaluate_every == 0 or self.round == spec.rounds
        if len(self.data.test_targets) or not due:
            return []
        return self._messages(wire.EVALUATE, self._answering(), self.round, self._for_head(self.round))

    def evaluated(self, replies: Iterable[Message]) -> dict[str, float] | None:
        """Accuracy and loss over the samples that all sites hold out; None where none of them holds out any."""
        read = self._understood(
            self._answering(), self.round, replies, lambda client, reply: read_scores(self._declaration, reply)
        )
        rows = [row for _, row in read if row.examples]
        weights = [row.examples for row in rows]
        return {name: mean([row.values[name] for row in rows], weights) for name in SCORES} if rows else None

    def _answering(self) -> list[int]:
        """Who is there and answered when last asked; everybody, if nobody did."""
        there = set(self.roster.nodes)
        return sorted(there - self._patience.silent(self.roster.entries) or there)

    # --- messages ----------------------------------------------------------------------------------------------------

    @property
    def arrays(self) -> ArrayRecord:
        """The global model, named as in ``state_dict``."""
        return self._record(self.stack.params[0], self.stack.buffers[0])

    @arrays.setter
    def arrays(self, record: ArrayRecord) -> None:
        params, buffers = vectors(self.model, wire.from_record(record), self._kept_here())
        device = self.data.device
        self.stack.params[0], self.stack.buffers[0] = params.to(device), buffers.to(device)
        if self.stack.averaging:
            self.stack.averaged_params[0], self.stack.averaged_buffers[0] = params.to(device), buffers.to(device)

    def _record(self, params: Tensor, buffers: Tensor) -> ArrayRecord:
        """A model as it travels: without what stands still, and what clients keep for themselves."""
        named = self.model.params.views(params) | self.model.buffers.views(buffers) | self._constants
        order = [name for name in self.lane.model.state_dict() if name in named and name not in self._unsent]
        return wire.to_record({name: named[name] for name in order})

    def _kept_here(self) -> dict[str, Tensor]:
        """The parts of the model that do not travel, as they are here."""
        named = self.model.params.views(self.stack.params[0]) | self.model.buffers.views(self.stack.buffers[0])
        return {name: tensor.cpu() for name, tensor in named.items() if name in self._unsent}

    def _messages(
        self,
        kind: str,
        clients: Sequence[int],
        number: int,
        beside: Mapping[str, ArrayRecord] | None = None,
        starts: Sequence[tuple[Tensor, Tensor]] | None = None,
    ) -> list[Message]:
        """One for each client; ``starts`` are models other than the global one."""
        records: dict[str, ArrayRecord | ConfigRecord] = {wire.ARRAYS: self.arrays, **(beside or {})}
        if self.tells_pixels:
            scaling = self.server.scaling
            records[wire.PIXELS] = wire.to_record({"scale": scaling.scale[0], "shift": scaling.shift[0]})
        common = {**self.config, **self._common, "server-round": number, "spec": self.lane.spec.to_json()}
        messages = []
        for place, client in enumerate(clients):
            if starts is not None:
                records[wire.ARRAYS] = self._record(*starts[place])
            config = ConfigRecord({**common, "client": client, "counted": int(self.stack.counted[client])})
            content = RecordDict({**records, wire.CONFIG: config})
            # A message that nobody waits for any more must not keep a slow client from the next one.
            messages.append(Message(content, self.roster.nodes[client], kind, ttl=self.timeouts.reply_within_s))
        return messages

    def _understood(
        self, asked: Sequence[int], number: int, replies: Iterable[Message], read: Callable[[int, Message], Read]
    ) -> list[tuple[int, Read]]:
        """Replies that can be read, by client and in the order asked; what is wrong with the others is told."""
        by_node = {node: client for client, node in self.roster.nodes.items()}
        understood: dict[int, Read] = {}
        failed: set[int] = set()
        for reply in replies:
            client = by_node.get(reply.metadata.src_node_id)
            if client is None or client not in asked or client in understood or client in failed:
                continue
            if not self.timeouts.strict and not is_of_node(reply):
                continue
            try:
                understood[client] = attempt(reply, partial(read, client))
            except FedGAError as error:
                sentence = f"{self.roster.name(client)} failed in round {number}: {error}"
                if self.timeouts.strict:
                    raise FedGAError(sentence) from error
                self.notice(sentence)
                failed.add(client)
                self._patience.failed(client, number)
                self._failures[client] += reply.has_error() and reply.error.code in OF_THE_APP
            else:
                self._failures[client] = 0
        missing = [client for client in asked if client not in understood]
        if missing and self.timeouts.strict:
            raise TooFewReplies(
                f"round {number} has {len(understood)} of {len(asked)} replies, and none of "
                f"{listed([self.roster.name(client) for client in missing])}: give the same command again, it continues"
            )
        self._tell_silence([client for client in missing if client not in failed], number)
        for client in (*understood, *failed):
            self._heard(client)
        self._give_up_if_all_fail(number)
        return [(client, understood[client]) for client in asked if client in understood]

    def _tell_silence(self, clients: Sequence[int], number: int) -> None:
        """Clients that have not answered are asked less often, and that is said when it begins."""
        for client in clients:
            known = client in self._patience.silent(self.roster.entries)
            until = self._patience.missed(client, number, self.roster.entries[client])
            if not known:
                self.notice(
                    f"{self.roster.name(client)} did not answer in round {number}: it is asked again in round {until}, "
                    "then less and less often, and not waited for longer than the others until it answers"
                )

    def _give_up_if_all_fail(self, number: int) -> None:
        """What fails everywhere is not one client's fault; one alone never ends a run of several."""
        failing = [client for client in self.roster.nodes if self._failures[client] >= GIVE_UP_AFTER]
        if len(failing) == len(self.roster.nodes) and len(failing) >= min(2, self.roster.num_clients):
            raise FedGAError(
                f"everybody failed {GIVE_UP_AFTER} times in a row in round {number}, as said above: mend it, and the "
                "same command continues"
            )

    def _replies(self, question: Train, replies: Iterable[Message]) -> list[Reply]:
        """What counts of a round's replies; nothing where the model has diverged everywhere."""
        asked, number, unsent = self._clients_of(question), question.round, self._kept_here()
        returned = [
            reply
            for _, reply in self._understood(
                asked,
                number,
                replies,
                lambda client, reply: read_training(self.model, self._declaration, unsent, client, reply),
            )
        ]
        if self.timeouts.strict:
            return returned
        finite = [reply for reply in returned if reply.is_finite and reply.reports_finite]
        if len(returned) >= self._least and not any(reply.is_finite for reply in returned):
            everybody = listed([self.roster.name(reply.client) for reply in returned])
            self.notice(f"the models of {everybody} are not finite any more: the run has diverged")
            return []
        whole = {reply.client for reply in finite}
        for reply in returned:
            if reply.client not in whole:
                self._patience.failed(reply.client, number)
                name = self.roster.name(reply.client)
                self.notice(f"the reply of {name} is left out of round {number}: it holds numbers that are not finite")
        if len(finite) < self._least:
            raise TooFewReplies(f"round {number} has {len(finite)} replies and needs {self._least}: it is tried again")
        absent = [client for client in asked if client not in whole]
        if absent:
            seconds = time.monotonic() - self._asked_at
            silent = self._patience.silent(self.roster.entries)
            waited = f" (waited for {seconds:.0f} s)" if silent & set(absent) else ""
            self.notice(f"round {number} goes on without {', '.join(map(self.roster.name, absent))}{waited}")
        return finite

    def name_of(self, reply: Message) -> str:
        """Of the client that sent a reply."""
        by_node = {node: client for client, node in self.roster.nodes.items()}
        client = by_node.get(reply.metadata.src_node_id)
        return "a client" if client is None else self.roster.name(client)

    def notice(self, text: str) -> None:
        """At once: a round with sites that are away may last for hours."""
        self.roster.noticed(text)
