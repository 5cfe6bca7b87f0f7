"""One round, written once: select, ask, send, train, collect, advance, evaluate.

The server's half is here and in `fedga.engine.server`. The clients' half is whoever answers the questions that a round
asks: the engine, which trains stacked clients on this machine, or messages to other machines under Flower.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from fedga.algorithms.base import overrides
from fedga.engine.profile import AGGREGATION, ASKING, DATA, DIAGNOSIS, EVALUATION, NO_PROFILE, Profile
from fedga.engine.server import Chosen, LaneRound, ServerSide, TrainResult


@dataclass(frozen=True)
class Survey:
    """Every client's value of the received model; answered by ``[lanes, clients]`` or None per segment."""

    round: int


@dataclass(frozen=True)
class Losses:
    """Every client's loss, where a rule of selection asks; answered by ``[lanes, clients]`` or None per segment."""

    round: int


@dataclass(frozen=True)
class Train:
    """Local training of the chosen clients; answered by `TrainResult`, or by None where every model has diverged."""

    round: int
    chosen: Chosen
    received: list[dict[str, Tensor]]  # per segment, [lanes, ...]
    examine: bool  # whether local models are evaluated
    keep_models: bool  # whether single models are returned
    start: tuple[Tensor, Tensor] | None = None  # [active, ...] parameters and buffers other than the global ones


@dataclass(frozen=True)
class Finish:
    """What every client says of the final model; answered by ``[lanes, clients, ...]`` per segment, None for none."""

    round: int


Question = Survey | Losses | Train | Finish
Asking = Generator[Question, Any, list[LaneRound]]


def play_round(
    server: ServerSide, number: int, absent: Callable[[], Sequence[int]] = tuple, profile: Profile = NO_PROFILE
) -> Asking:
    """A round of all lanes, as a conversation: it asks questions, and ends with what each lane did."""
    examine = bool(server.evaluator.examined(number))
    with profile.span(DIAGNOSIS):
        before = server.evaluate(number) if examine else None
    surveys = [None] * len(server.segments)
    if any(segment.algorithm.evaluates_all_clients for segment in server.segments):
        with profile.span(ASKING):
            surveys = yield Survey(number)
    losses = surveys
    if any(segment.selection.needs_losses for segment in server.segments):
        with profile.span(ASKING):
            losses = yield Losses(number)
    with profile.span(DATA):
        chosen = server.select(number, absent(), losses)
    with profile.span(ASKING):
        received = server.broadcast(number)
    asked = Train(number, chosen, received, examine, server.inspects)
    returned = yield from _in_groups(server, asked)
    if returned is None:
        return [LaneRound(number, None, diverged=True) for _ in server.lanes]
    with profile.span(AGGREGATION):
        server.advance(number, returned, surveys)
    last = [lane for lane, each in enumerate(server.lanes) if each.spec.rounds == number]
    if any(server.lanes[lane].algorithm.finishes for lane in last):
        server.finish(number, (yield Finish(number)), last)
    with profile.span(EVALUATION):
        return server.results(number, returned, before)


def _in_groups(server: ServerSide, asked: Train) -> Generator[Question, Any, TrainResult | None]:
    """Training; where an algorithm has groups, their members one after another, each from the model before it."""
    [first, *others] = server.segments
    if others or not overrides(first.algorithm, "groups"):
        return (yield asked)
    counts = asked.chosen.counts  # a run with groups is alone in its engine
    chosen = Chosen(asked.chosen.clients[:, : counts[0] if counts else None])
    groups = server.groups(asked.round, chosen)
    members: dict[int, list[int]] = {}
    for place in server.training_order(asked.round, chosen):
        members.setdefault(groups[place], []).append(place)
    done: list[tuple[list[int], TrainResult]] = []
    last: dict[int, tuple[Tensor, Tensor]] = {}  # the newest model of every group
    for turn in zip_longest(*members.values()):
        wave = [place for place in turn if place is not None]
        clients = chosen.clients[:, wave]
        question = replace(asked, chosen=Chosen(clients), keep_models=True)
        if last:
            unchanged = (server.stack.params[0], server.stack.buffers[0])
            params, buffers = zip(*(last.get(groups[place], unchanged) for place in wave), strict=True)
            question = replace(question, start=(torch.stack(params), torch.stack(buffers)))
        returned = yield question
        if returned is None:
            return None
        assert returned.params is not None
        assert returned.all_buffers is not None
        places = dict(zip(clients[0].tolist(), wave, strict=True))
        answered = [places[client] for client in returned.clients[0].tolist()]  # on real machines, perhaps not all
        for row, place in enumerate(answered):
            last[groups[place]] = returned.params[0, row], returned.all_buffers[0, row]
        done.append((answered, returned))
    return _joined(server, done, groups, last)


def _joined(
    server: ServerSide,
    done: Sequence[tuple[list[int], TrainResult]],
    groups: Sequence[int],
    last: dict[int, tuple[Tensor, Tensor]],
) -> TrainResult:
    """The round of all waves: a group's last model counts as much as all its members."""
    clients = torch.cat([returned.clients for _, returned in done], dim=1)
    sizes = torch.cat([returned.sizes for _, returned in done], dim=1)
    shares, weights = server.weights(clients, sizes)
    stack, places = server.stack, [place for wave, _ in done for place in wave]
    update, buffers = torch.zeros_like(stack.params), stack.buffers.clone()
    for row, place in enumerate(places):
        params, local_buffers = last[groups[place]]
        update[0] += weights[0, row] * (params - stack.params[0])
        buffers[0] += shares[0, row] * (local_buffers - stack.buffers[0])
    if (own := server.segments[0].own) is not None:
        update[0, own.params], buffers[0, own.buffers] = 0, stack.buffers[0, own.buffers]
    first = done[0][1]
    counts = [returned.class_counts for _, returned in done]
    return TrainResult(
        clients=clients,
        sizes=sizes,
        shares=shares,
        update=update,
        buffers=buffers,
        reports=[{name: torch.cat([each.reports[0][name] for _, each in done], dim=1) for name in first.reports[0]}],
        params=torch.cat([each.params for _, each in done if each.params is not None], dim=1),
        after=None if first.after is None else type(first.after).join([each.after for _, each in done if each.after]),
        class_counts=None if first.class_counts is None else torch.cat([one for one in counts if one is not None], 1),
    )
