"""The ClientApp: answers the server's questions with the samples that are here.

At a site these are what its owner named when she started the node, and nothing that a message says changes which.
"""

import math
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedga.algorithms import ALGORITHMS, Algorithm, make_algorithm
from fedga.algorithms.base import overrides
from fedga.data.federation import Dataset
from fedga.data.remarks import scale_remark
from fedga.data.site import columns_digest, load_site
from fedga.engine.device_data import DeviceData, InputScaling
from fedga.engine.evaluation.metrics import own_mix
from fedga.engine.stack.lanes import OWN, Own, first_client_state, frozen
from fedga.engine.stack.stacked import StackedModel
from fedga.errors import FedGAError
from fedga.flower import wire
from fedga.flower.client.participant import ClientData, Participant, Received
from fedga.flower.client.site_log import SiteLog
from fedga.flower.client.state_store import ClientStateStore
from fedga.flower.replies import Declaration, declare, declared_pixels, read_arrays, vectors
from fedga.measures.scores import recall
from fedga.models import MODELS
from fedga.plugins import FILE_NAME, received_part
from fedga.spec.settings import RunSpec
from fedga.store.code import code_digest, own_code
from fedga.study.prepare import Preparation, choose_device, fitting_model

_LONGEST_SPEC = 100_000  # letters; ours have about a thousand
_REMEMBERED = 64  # runs, of which a message can name as many as it likes

client_app = ClientApp()


def introduce(message: Message, context: Context) -> Message:
    """Tell the server which client this node is: its site, or the number of its partition.

    In an app of your own: ``app.query("introduce")(introduce)``. Clients are then drawn by these numbers, and the same
    seed draws the same clients whatever ids Flower gives the nodes.
    """
    node, kinds = context.node_config, {"site": str, "partition-id": int}
    who = {name: kind(node[name]) for name, kind in kinds.items() if name in node}
    return wire.reply(message, identity=ConfigRecord(who))


@client_app.query("introduce")
def _introduce(message: Message, context: Context) -> Message:
    answer = introduce(message, context)
    if _at_site(context):
        client_data = _site_data_of(context, wire.config_of(message), RecordDict(), standardize=False)
        dataset, identity = client_data.data.dataset, answer.content.config_records[wire.IDENTITY]
        identity["input-shape"] = list(dataset.input_shape)
        identity["pictures"] = dataset.train_inputs.dtype == np.uint8
        identity["columns"] = columns_digest(str(context.node_config["data"]), _label_column(context))
        if context.node_config.get("report-class-counts", False):
            identity["class-counts"] = client_data.class_counts.tolist()
    return answer


@client_app.train()
def _train(message: Message, context: Context) -> Message:
    participant = _participant(message, context)
    shelf = _shelf(message, context, participant)
    answer, trained = answer_training(message, participant, shelf)
    if _at_site(context):
        config, data, used = wire.config_of(message), participant.client_data, model_in_use(message, participant, shelf)
        (before, _), (after, _) = participant.evaluate(used), participant.evaluate(trained)
        lines = SiteLog(_state_folder(context, config)).record(  # for the eyes of the site's owner alone
            run=_spec(config).run_id,
            site=str(context.node_config.get("site", f"client {participant.number}")),
            round_number=wire.whole(config, "server-round"),
            class_names=data.data.dataset.class_names,
            class_counts=data.class_counts.cpu(),
            before=recall(before),
            after=recall(after),
            looked_at=before.sum(1),
            held_out=data.held_out,
        )
        print("\n".join(lines), flush=True)
    return answer


def answer_survey(message: Message, participant: Participant, shelf: ClientStateStore) -> Message:
    """The one number that the server asks of every client before a round; nothing on the shelf is needed for it."""
    value = participant.survey(received_in(message, participant))
    return wire.reply(message, report=wire.to_record({"survey": value}))


def answer_losses(message: Message, participant: Participant, shelf: ClientStateStore) -> Message:
    """The loss of the received model, for a rule of selection that asks every client."""
    value = participant.survey(received_in(message, participant), Algorithm())
    return wire.reply(message, report=wire.to_record({"loss": value}))


def answer_training(message: Message, participant: Participant, shelf: ClientStateStore) -> tuple[Message, Received]:
    """A round of local training; what the client keeps for the next one goes to its ``shelf``."""
    config = wire.config_of(message)
    round_number, counted = wire.whole(config, "server-round"), wire.whole(config, "counted")
    received = received_in(message, participant)
    before = _kept_at(shelf, counted, participant, received)
    trained, report, kept = participant.train(round_number, received, before)
    if kept:
        shelf.write(round_number, kept, counted)
    model = participant.model
    named = model.params.views(trained.params) | model.buffers.views(trained.buffers)
    sent = {name: tensor for name, tensor in named.items() if name not in participant.declaration.unsent}
    examples = 1 if participant.spec.aggregation == "uniform" else len(participant.client_data.places)
    answer = wire.reply(
        message,
        arrays=wire.to_record(sent),
        report=wire.to_record(report),
        metrics=MetricRecord({wire.EXAMPLES: examples}),
    )
    return answer, trained


def answer_final(message: Message, participant: Participant, shelf: ClientStateStore) -> Message:
    """What this client says of the final model."""
    config = wire.config_of(message)
    received = received_in(message, participant)
    kept = _kept_at(shelf, wire.whole(config, "counted"), participant, received)
    found = participant.final_report(wire.whole(config, "server-round"), received, kept)
    return wire.reply(message, report=wire.to_record(found))


def answer_evaluation(message: Message, participant: Participant, shelf: ClientStateStore) -> Message:
    """What the model does on the samples held out here; a client's own model is weighted to its own label mix."""
    confusion, loss = participant.evaluate(model_in_use(message, participant, shelf))
    samples, accuracy = confusion.sum(), (confusion.trace() / confusion.sum()).item()
    if overrides(participant.algorithm, "travels"):
        accuracy = own_mix(confusion[None], participant.client_data.class_counts[None].cpu())
    metrics = MetricRecord({wire.EXAMPLES: 0})
    if participant.client_data.held_out and not math.isnan(accuracy):  # NaN: all are of classes it has no others of
        metrics = MetricRecord({wire.EXAMPLES: int(samples), "accuracy": accuracy, "loss": loss})
    return wire.reply(message, metrics=metrics)


def model_in_use(message: Message, participant: Participant, shelf: ClientStateStore) -> Received:
    """The model in a message, with this client's own part of it in place of the server's."""
    received = received_in(message, participant)
    own = Own.of(participant.algorithm, participant.model, received.params.device)
    if own is None:
        return received
    kept = _kept_at(shelf, wire.whole(wire.config_of(message), "counted"), participant, received)
    params, buffers = received.params.clone(), received.buffers.clone()
    params[own.params], buffers[own.buffers] = (kept[name] for name in OWN)
    return replace(received, params=params, buffers=buffers)


def received_in(message: Message, participant: Participant) -> Received:
    """The model in a message, and what comes beside it; evaluations get that where the algorithm's head needs it."""
    content, declaration, device = message.content, participant.declaration, participant.client_data.places.device
    try:
        sent = read_arrays(content, wire.ARRAYS, declaration.model)
        params, buffers = vectors(participant.model, sent, declaration.unsent)
    except FedGAError as error:
        raise FedGAError(f"the server's model is not the one that is here: {error}") from None
    beside: dict[str, Tensor] = {}
    if wire.RECEIVED in content.array_records or message.metadata.message_type == wire.TRAIN:
        beside = read_arrays(content, wire.RECEIVED, declaration.received)
    return Received(params.to(device), buffers.to(device), {name: each.to(device) for name, each in beside.items()})


def _kept_at(shelf: ClientStateStore, counted: int, participant: Participant, received: Received) -> dict[str, Tensor]:
    """What the client kept after the last round that counted, or what it has before its first."""
    kept = first_client_state(participant.algorithm, participant.model, received.params, received.buffers)
    if kept and counted:
        return {name: tensor.to(received.params.device) for name, tensor in shelf.read(counted).items()}
    return kept


@client_app.query("survey")
@client_app.query("losses")
@client_app.query("finish")
@client_app.evaluate()
def _answer(message: Message, context: Context) -> Message:
    participant = _participant(message, context)
    return ANSWERS[message.metadata.message_type](message, participant, _shelf(message, context, participant))


ANSWERS = {
    **{wire.SURVEY: answer_survey, wire.LOSSES: answer_losses},
    **{wire.FINISH: answer_final, wire.EVALUATE: answer_evaluation},
}


def _shelf(message: Message, context: Context, participant: Participant) -> ClientStateStore:
    config = wire.config_of(message)
    return ClientStateStore(_state_folder(context, config), _spec(config).run_id, participant.number)


def _at_site(context: Context) -> bool:
    return "data" in context.node_config


def _participant(message: Message, context: Context) -> Participant:
    config = wire.config_of(message)
    spec, code = _spec(config), str(config.get("code", ""))
    if _at_site(context):  # there a message never chooses what is run: it is ours, or of the site's own project
        for kind, name, known in (("models", spec.model, MODELS), ("algorithms", spec.algorithm_name, ALGORITHMS)):
            received_part(kind, name, known, "the server's message", f"name it in this site's {FILE_NAME}")
    _check_code(spec, code)
    if _at_site(context):
        client_data = _site_data_of(context, config, message.content, spec.standardize)
    else:
        client_data = _partition_data(config, spec)
    algorithm, network, declaration = _network(spec, client_data.data.dataset, client_data.data.device)
    if config.get("frozen", "") != declaration.frozen:
        raise FedGAError("frozen parameters are not the server's: use the same model, seed and version of torch here")
    return Participant(spec, algorithm, network, client_data, wire.whole(config, "client"), declaration)


@lru_cache(maxsize=_REMEMBERED)
def _check_code(spec: RunSpec, code: str) -> None:
    """What the server's user wrote herself must be here too, and the same."""
    if not code:
        return
    here = own_code([spec])
    if not here:
        raise FedGAError(
            f"{spec.algorithm} on {spec.model} is code of the server's own, which is not here: install its package, or "
            "copy fedga.toml and the files it names, set FEDGA_PROJECT to that fedga.toml, and start this node again"
        )
    if code_digest(here) != code:
        names = " and ".join(part.origin for part in here)
        raise FedGAError(f"{names} is not the server's: copy its version here, and start this node again")


def _spec(config: ConfigRecord) -> RunSpec:
    text = str(config.get("spec", ""))
    if len(text) > _LONGEST_SPEC:
        raise FedGAError(f"the server describes its run in {len(text):,} letters: ask its owner what that is")
    return RunSpec.from_json(text)


@lru_cache(maxsize=_REMEMBERED)
def _network(spec: RunSpec, dataset: Dataset, device: torch.device) -> tuple[Algorithm, StackedModel, Declaration]:
    """A run's algorithm and network, whose weights come with the message, but for those that never travel."""
    algorithm = make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options))
    network = fitting_model(spec.model, dataset.input_shape, dataset.num_classes, norm=spec.norm, seed=spec.seed)
    return algorithm, *declare(frozen(network, algorithm), algorithm, dataset.num_classes, device)


# --- on Flower's simulation engine -----------------------------------------------------------------------------------


# One for all clients that this process will play.
_preparation, _device_data = cache(Preparation), cache(DeviceData)


def _partition_data(config: ConfigRecord, spec: RunSpec) -> ClientData:
    data_dir = str(config.get("data-dir", ""))
    preparation = _preparation((), Path(data_dir) if data_dir else None)
    federation, dataset = preparation.federation(spec), preparation.dataset(spec)
    device = choose_device(str(config.get("device", "auto")))
    data = _device_data(dataset, device)
    places = torch.from_numpy(federation.client(wire.whole(config, "client"))).to(device)
    held_out = None if federation.held_out is None else torch.from_numpy(federation.held_out).to(device)
    return ClientData(data, places, data.pixels(spec.standardize), held_out)


# --- at a site -------------------------------------------------------------------------------------------------------


def _site_data_of(context: Context, config: ConfigRecord, content: RecordDict, standardize: bool) -> ClientData:
    """The site's own samples; a map from samples to inputs that rests on many sites' samples comes from the server."""
    node, classes = context.node_config, config.get("classes")
    if not isinstance(classes, list) or not classes:
        raise FedGAError("the server names no classes: its fedga is older or newer than the one here")
    names, device = tuple(map(str, classes)), str(node.get("device", "auto"))
    data = _site_data(str(node["data"]), names, _label_column(context), device)
    scaling = data.pixels(False)
    if standardize:
        try:
            pixels = read_arrays(content, wire.PIXELS, declared_pixels(data.train_inputs.shape[1]))
        except FedGAError as error:
            raise FedGAError(f"the server standardises other samples ({error}): prepare them as others do") from None
        scaling = InputScaling(pixels["scale"].float(), pixels["shift"].float()).to(data.device)
    return ClientData(data, torch.arange(len(data.train_targets), device=data.device), scaling)


def _label_column(context: Context) -> str | None:
    return str(context.node_config.get("label-column") or "") or None


@cache
def _site_data(path: str, classes: tuple[str, ...], label_column: str | None, device: str) -> DeviceData:
    dataset = load_site(path, classes, label_column=label_column)
    if remark := scale_remark(dataset, "make sure that the server standardises them (standardize = true)"):
        print(remark, flush=True)
    return DeviceData(dataset, choose_device(device))


def _state_folder(context: Context, config: ConfigRecord) -> Path:
    if not _at_site(context):
        return Path(str(config["state"]))
    own = Path.home() / ".fedga" / "sites" / str(context.node_config.get("site", "site"))
    return Path(str(context.node_config.get("state") or own))
