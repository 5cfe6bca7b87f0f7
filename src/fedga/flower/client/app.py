"""The ClientApp: answers the server's questions with the samples that are here.

At a site these are what its owner named when she started the node, and nothing that a message says changes which.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedga.algorithms import ALGORITHMS, Algorithm, make_algorithm
from fedga.data.site import columns_digest, load_site
from fedga.engine.device_data import DeviceData, InputScaling
from fedga.engine.local import uses_features
from fedga.engine.stack.lanes import first_client_state, frozen
from fedga.engine.stack.stacked import StackedModel
from fedga.errors import FedGAError
from fedga.flower import wire
from fedga.flower.client.participant import ClientData, Participant, TrainResult
from fedga.flower.client.site_log import SiteLog
from fedga.flower.client.state_store import ClientStateStore
from fedga.flower.replies import Declaration, declared_pixels, frozen_digest, read_arrays, unsent_names, vectors
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
    node = context.node_config
    who: dict[str, Any] = {}
    if "site" in node:
        who["site"] = str(node["site"])
    if "partition-id" in node:
        who["partition-id"] = int(node["partition-id"])
    return wire.reply(message, identity=ConfigRecord(who))


@client_app.query("introduce")
def _introduce(message: Message, context: Context) -> Message:
    answer = introduce(message, context)
    if _at_site(context):
        client_data = _site_data_of(context, wire.config_of(message), RecordDict(), standardize=False)
        identity = answer.content.config_records[wire.IDENTITY]
        identity["input-shape"] = list(client_data.data.dataset.input_shape)
        identity["pictures"] = client_data.data.dataset.train_inputs.dtype == np.uint8
        identity["columns"] = columns_digest(str(context.node_config["data"]), _label_column(context))
        if context.node_config.get("report-class-counts", False):
            identity["class-counts"] = client_data.class_counts.tolist()
    return answer


@client_app.query("survey")
def _survey(message: Message, context: Context) -> Message:
    return answer_survey(message, _participant(message, context))


@client_app.train()
def _train(message: Message, context: Context) -> Message:
    config, participant = wire.config_of(message), _participant(message, context)
    shelf = ClientStateStore(_state_folder(context, config), run_of(message), participant.number)
    answer, trained = answer_training(message, participant, shelf)
    if _at_site(context):
        received = received_in(message, participant)
        before = participant.evaluate(*_model_in(message, participant), received)
        after = participant.evaluate(trained.params, trained.buffers, received)
        data = participant.client_data
        lines = SiteLog(_state_folder(context, config)).record(  # for the eyes of the site's owner alone
            run=run_of(message),
            site=str(context.node_config.get("site", f"client {participant.number}")),
            round_number=wire.whole(config, "server-round"),
            class_names=data.data.dataset.class_names,
            class_counts=data.class_counts.cpu(),
            before=before.recall,
            after=after.recall,
            looked_at=before.confusion.sum(1),
            held_out=before.held_out,
        )
        print("\n".join(lines), flush=True)
    return answer


def answer_survey(message: Message, participant: Participant) -> Message:
    """The one number that the server asks of every client before a round."""
    value = participant.survey(*_model_in(message, participant), received_in(message, participant))
    return wire.reply(message, report=wire.to_record({"survey": value}))


def answer_training(message: Message, participant: Participant, shelf: ClientStateStore) -> tuple[Message, TrainResult]:
    """A round of local training; what the client keeps for the next one goes to its ``shelf``."""
    config = wire.config_of(message)
    round_number, counted = wire.whole(config, "server-round"), wire.whole(config, "counted")
    params, buffers = _model_in(message, participant)
    kept = _kept_at(shelf, counted, participant, params, buffers)
    trained = participant.train(round_number, params, buffers, received_in(message, participant), kept)
    if trained.kept:
        shelf.write(round_number, trained.kept, counted)
    model = participant.model
    named = model.params.views(trained.params) | model.buffers.views(trained.buffers)
    sent = {name: tensor for name, tensor in named.items() if name not in participant.unsent}
    examples = 1 if participant.spec.aggregation == "uniform" else len(participant.client_data.places)
    answer = wire.reply(
        message,
        arrays=wire.to_record(sent),
        report=wire.to_record(trained.report),
        metrics=MetricRecord({wire.EXAMPLES: examples}),
    )
    return answer, trained


def answer_final(message: Message, participant: Participant, shelf: ClientStateStore) -> Message:
    """What this client says of the final model."""
    config = wire.config_of(message)
    params, buffers = _model_in(message, participant)
    kept = _kept_at(shelf, wire.whole(config, "counted"), participant, params, buffers)
    given = (params, buffers, received_in(message, participant), kept)
    found = participant.final_report(wire.whole(config, "server-round"), *given)
    return wire.reply(message, report=wire.to_record(found))


def received_in(message: Message, participant: Participant) -> dict[str, Tensor]:
    """What the algorithm's server sends beside the model; evaluations get it where its head needs it."""
    if wire.RECEIVED not in message.content.array_records and message.metadata.message_type != wire.TRAIN:
        return {}
    sent = read_arrays(message.content, wire.RECEIVED, participant.declaration.received)
    return {name: tensor.to(participant.client_data.places.device) for name, tensor in sent.items()}


def _kept_at(
    shelf: ClientStateStore, counted: int, participant: Participant, params: Tensor, buffers: Tensor
) -> dict[str, Tensor]:
    """What the client kept after the last round that counted, or what it has before its first."""
    kept = first_client_state(participant.algorithm, participant.model, params, buffers)
    if kept and counted:
        return {name: tensor.to(params.device) for name, tensor in shelf.read(counted).items()}
    return kept


@client_app.query("finish")
def _finish(message: Message, context: Context) -> Message:
    participant = _participant(message, context)
    folder = _state_folder(context, wire.config_of(message))
    return answer_final(message, participant, ClientStateStore(folder, run_of(message), participant.number))


@client_app.evaluate()
def _evaluate(message: Message, context: Context) -> Message:
    participant = _participant(message, context)
    found = participant.evaluate(*_model_in(message, participant), received_in(message, participant))
    metrics = MetricRecord({wire.EXAMPLES: found.samples if found.held_out else 0})
    if found.held_out:
        metrics["accuracy"], metrics["loss"] = found.accuracy, found.loss
    return wire.reply(message, metrics=metrics)


def _model_in(message: Message, participant: Participant) -> tuple[Tensor, Tensor]:
    """The received model as the vectors our network works with."""
    device = participant.client_data.places.device
    try:
        sent = read_arrays(message.content, wire.ARRAYS, participant.declaration.model)
        params, buffers = vectors(participant.model, sent, participant.unsent)
    except FedGAError as error:
        raise FedGAError(f"the server's model is not the one that is here: {error}") from None
    return params.to(device), buffers.to(device)


def run_of(message: Message) -> str:
    """The id of the run that a message belongs to, under which this client keeps its state."""
    return _spec(str(wire.config_of(message).get("spec", ""))).run_id


def _at_site(context: Context) -> bool:
    return "data" in context.node_config


def _participant(message: Message, context: Context) -> Participant:
    config = wire.config_of(message)
    spec = _spec(str(config.get("spec", "")))
    if _at_site(context):
        _check_named_here(spec)
    _check_code(spec, str(config.get("code", "")))
    if _at_site(context):
        client_data = _site_data_of(context, config, message.content, spec.standardize)
    else:
        client_data = _partition_data(context, config, spec)
    dataset = client_data.data.dataset
    algorithm = make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options))
    shapes = (dataset.input_shape, dataset.num_classes)
    network, state = _network(spec.model, spec.norm, *shapes, client_data.data.device, algorithm, spec.seed)
    declaration = Declaration.of(network, state, algorithm, dataset.num_classes)
    unsent = {name: state[name] for name in unsent_names(network, algorithm)}
    if config.get("frozen", "") != frozen_digest({name: state[name] for name in network.stands_still}):
        raise FedGAError("frozen parameters are not the server's: use the same model, seed and version of torch here")
    return Participant(spec, algorithm, network, client_data, wire.whole(config, "client"), declaration, unsent)


def _check_named_here(spec: RunSpec) -> None:
    """At a site, what the server names is ours or of the site's own project: a message never chooses what is run."""
    cure = f"name it in this site's {FILE_NAME}"
    received_part("models", spec.model, MODELS, "the server's message", cure)
    received_part("algorithms", spec.algorithm_name, ALGORITHMS, "the server's message", cure)


@lru_cache(maxsize=_REMEMBERED)
def _check_code(spec: RunSpec, code: str) -> None:
    """What the server's user wrote herself must be here too, and the same."""
    if not code:
        return
    here = own_code([spec])
    names = " and ".join(part.origin for part in here)
    if not here:
        raise FedGAError(
            f"{spec.algorithm} on {spec.model} is code of the server's own, which is not here: install the package it "
            "is in, or copy fedga.toml and the files it names, set FEDGA_PROJECT to that fedga.toml, and start this "
            "node again"
        )
    if code_digest(here) != code:
        raise FedGAError(f"{names} is not the server's: copy its version here, and start this node again")


@lru_cache(maxsize=_REMEMBERED)
def _spec(text: str) -> RunSpec:
    if len(text) > _LONGEST_SPEC:
        raise FedGAError(f"the server describes its run in {len(text):,} letters: ask its owner what that is")
    return RunSpec.from_json(text)


@lru_cache(maxsize=_REMEMBERED)
def _network(
    name: str,
    norm: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    device: torch.device,
    algorithm: Algorithm,
    seed: int,
) -> tuple[StackedModel, dict[str, Tensor]]:
    """A network and its ``state_dict``; weights come with the message, but for those that never travel."""
    network = frozen(fitting_model(name, input_shape, num_classes, norm=norm, seed=seed), algorithm)
    stacked = StackedModel(network).to(device)
    if uses_features(algorithm):
        stacked.keep_features()
    return stacked, network.state_dict()


# --- on Flower's simulation engine -----------------------------------------------------------------------------------


@cache
def _preparation(data_dir: str) -> Preparation:
    """One for all clients that this process will play."""
    return Preparation([], Path(data_dir) if data_dir else None)


_DEVICE_DATA: dict[tuple[int, torch.device], DeviceData] = {}


def _partition_data(context: Context, config: ConfigRecord, spec: RunSpec) -> ClientData:
    preparation = _preparation(str(config.get("data-dir", "")))
    federation, dataset = preparation.federation(spec), preparation.dataset(spec)
    device = choose_device(str(config.get("device", "auto")))
    key = (id(dataset), device)
    if key not in _DEVICE_DATA:
        _DEVICE_DATA[key] = DeviceData(dataset, device)
    data = _DEVICE_DATA[key]
    places = torch.from_numpy(federation.client(wire.whole(config, "client"))).to(device)
    return ClientData(data, places, data.pixels[spec.standardize])


# --- at a site -------------------------------------------------------------------------------------------------------


def _site_data_of(context: Context, config: ConfigRecord, content: RecordDict, standardize: bool) -> ClientData:
    """The site's own samples; a map from samples to inputs that rests on many sites' samples comes from the server."""
    node, classes = context.node_config, config.get("classes")
    if not isinstance(classes, list) or not classes:
        raise FedGAError("the server names no classes: its fedga is older or newer than the one here")
    names, device = tuple(map(str, classes)), str(node.get("device", "auto"))
    data = _site_data(str(node["data"]), names, _label_column(context), device)
    own = data.pixels[False]
    if standardize:
        try:
            pixels = read_arrays(content, wire.PIXELS, declared_pixels(data.train_inputs.shape[1]))
        except FedGAError as error:
            raise FedGAError(f"the server standardises other samples ({error}): prepare them as others do") from None
        own = InputScaling(pixels["scale"].float(), pixels["shift"].float()).to(data.device)
    return ClientData(data, torch.arange(len(data.train_targets), device=data.device), own)


def _label_column(context: Context) -> str | None:
    return str(context.node_config.get("label-column") or "") or None


@cache
def _site_data(path: str, classes: tuple[str, ...], label_column: str | None, device: str) -> DeviceData:
    return DeviceData(load_site(path, classes, label_column=label_column), choose_device(device))


def _state_folder(context: Context, config: ConfigRecord) -> Path:
    if _at_site(context):
        own = Path.home() / ".fedga" / "sites" / str(context.node_config.get("site", "site"))
        return Path(str(context.node_config.get("state") or own))
    return Path(str(config["state"]))
