"""A run on Flower within this process: the messages of the server and the answers of its clients, without a network."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from fedga.engine.device_data import DeviceData
from fedga.engine.stack.lanes import Lane
from fedga.flower import wire
from fedga.flower.client.app import ANSWERS, answer_training
from fedga.flower.client.participant import ClientData, Participant
from fedga.flower.client.state_store import ClientStateStore
from fedga.flower.replies import declare
from fedga.flower.server.remote import RemoteEngine
from fedga.flower.server.roster import Roster


class _Clients:
    """What the server needs of Flower's grid: all clients of a federation, each a node of its own."""

    def __init__(self, lane: Lane, data: DeviceData, folder: Path) -> None:
        self.lane, self.data, self.folder = lane, data, folder
        classes = lane.federation.dataset.num_classes
        self.network, self.declaration = declare(lane.model, lane.algorithm, classes, torch.device("cpu"))

    def get_node_ids(self) -> Iterable[int]:
        return range(self.lane.federation.num_clients)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        spec, client = self.lane.spec, wire.whole(wire.config_of(message), "client")
        federation = self.lane.federation
        held_out = None if federation.held_out is None else torch.from_numpy(federation.held_out)
        places, scaling = torch.from_numpy(federation.client(client)), self.data.pixels(spec.standardize)
        client_data = ClientData(self.data, places, scaling, held_out)
        participant = Participant(spec, self.lane.algorithm, self.network, client_data, client, self.declaration)
        shelf = ClientStateStore(self.folder, "run", client)
        if message.metadata.message_type == wire.TRAIN:
            return answer_training(message, participant, shelf)[0]
        return ANSWERS[message.metadata.message_type](message, participant, shelf)


def run_in_process(lane: Lane, data: DeviceData, rounds: int, folder: Path) -> Tensor:
    """The global model after so many rounds, ``[parameters]``; what clients keep lies in ``folder``."""
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # as in a process that Flower starts
    clients: Any = _Clients(lane, data, folder)
    roster = Roster(lane.federation.num_clients)
    roster.nodes = {client: client for client in range(roster.num_clients)}
    roster.began = True
    counts = torch.from_numpy(lane.federation.class_counts).float()
    engine = RemoteEngine(lane, data, roster, clients, class_counts=lambda which: counts[list(which)])
    for _ in range(rounds):
        engine.run_round()
    return engine.stack.params[0]
