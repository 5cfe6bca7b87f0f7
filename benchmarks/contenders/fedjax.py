"""FedJAX: its federated averaging over clients in memory, with networks in Haiku."""

from __future__ import annotations

import os
import sys

import fedjax
import haiku as hk
import jax
import numpy as np
import work
from turns import Turns


def mlp(batch: dict[str, jax.Array]) -> jax.Array:
    hidden = jax.nn.relu(hk.Linear(128, name="hidden")(hk.Flatten()(batch["x"])))
    return hk.Linear(work.CLASSES, name="output")(hidden)


def lenet(batch: dict[str, jax.Array]) -> jax.Array:
    features = batch["x"]
    for name, channels in {"conv1": 6, "conv2": 16}.items():
        features = jax.nn.relu(hk.Conv2D(channels, 5, padding="VALID", name=name)(features))
        features = hk.max_pool(features, (2, 2, 1), (2, 2, 1), "VALID")
    features = hk.Flatten()(features)
    for name, width in {"fc1": 120, "fc2": 84}.items():
        features = jax.nn.relu(hk.Linear(width, name=name)(features))
    return hk.Linear(work.CLASSES, name="fc3")(features)


NETWORKS = {"mlp": mlp, "lenet": lenet}


def channels_last(inputs: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))


def make_model(model: str) -> fedjax.Model:
    height, width, channels = channels_last(np.zeros((1, *work.INPUT_SHAPES[model]))).shape[1:]
    sample = {"x": np.zeros((1, height, width, channels), np.float32), "y": np.zeros(1, np.int64)}
    return fedjax.create_model_from_haiku(
        hk.transform(NETWORKS[model]),
        sample,
        train_loss=lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
    )


def initial_params(model: str) -> dict[str, dict[str, np.ndarray]]:
    """The common weights in JAX's layout: inputs before outputs, channels last."""
    weights = work.initial_weights(model)
    if model == "lenet":  # its first full layer reads pictures that are [channels, height, width] in PyTorch
        weights["fc1.weight"] = weights["fc1.weight"].reshape(120, 16, 5, 5).transpose(0, 2, 3, 1).reshape(120, 400)
    params: dict[str, dict[str, np.ndarray]] = {}
    for name, value in weights.items():
        layer, kind = name.split(".")
        transposed = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
        params.setdefault(layer, {})[kind[0]] = transposed
    return params


def make_clients(data: work.Data) -> fedjax.InMemoryFederatedData:
    stored = {}
    for k in range(work.CLIENTS):
        own = data.client(k)
        stored[b"%03d" % k] = {"x": channels_last(own.inputs), "y": own.targets}
    to_floats = fedjax.ClientPreprocessor([lambda _, examples: {**examples, "x": work.as_floats(examples["x"])}])
    return fedjax.InMemoryFederatedData(stored, preprocess_client=to_floats)


def main(model: str, devices: str) -> None:
    if int(devices) > 1:
        fedjax.set_for_each_client_backend("pmap")
    data, network = work.load_data(model), make_model(model)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(network),
        client_optimizer=fedjax.optimizers.sgd(work.RATES[model], work.MOMENTUM),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(work.BATCH, num_epochs=work.EPOCHS),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(make_clients(data), work.ACTIVE, seed=0)
    state = algorithm.init(jax.tree_util.tree_map(jax.numpy.asarray, initial_params(model)))

    def accuracy() -> float:
        def predict(inputs: np.ndarray) -> np.ndarray:
            return np.asarray(network.apply_for_eval(state.params, {"x": channels_last(inputs)}).argmax(1))

        return work.accuracy(data, predict)

    for _ in Turns("fedjax", "jax").rounds(accuracy):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)


if __name__ == "__main__":
    _, wanted_model, wanted_devices = sys.argv
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={wanted_devices}"
    main(wanted_model, wanted_devices)
