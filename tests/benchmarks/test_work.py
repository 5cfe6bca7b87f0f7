import networks
import numpy as np
import pytest
import torch
import work

from fedga.models import build_model

MODELS = list(work.INPUT_SHAPES)


@pytest.fixture
def smaller(monkeypatch):
    monkeypatch.setattr(work, "CLIENTS", 5)
    monkeypatch.setattr(work, "TEST_SAMPLES", 1000)


@pytest.mark.parametrize("model", MODELS)
def test_clients_share_the_training_split_equally(smaller, model):
    data = work.made_up_data(model)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.inputs.shape == (5 * 600, *work.INPUT_SHAPES[model])
    assert data.test.targets.shape == (1000,)
    shares = [data.client(k) for k in range(5)]
    assert all(share.inputs.shape == (600, *work.INPUT_SHAPES[model]) for share in shares)
    np.testing.assert_array_equal(np.concatenate([share.targets for share in shares]), data.train.targets)
    assert all(len(np.unique(share.targets)) == work.CLASSES for share in shares)


@pytest.mark.parametrize("model", MODELS)
def test_data_can_be_learned_but_not_at_a_glance(smaller, model):
    data = work.made_up_data(model)
    flat = work.as_floats(data.train.inputs).reshape(5 * 600, -1)
    means = np.stack([flat[data.train.targets == label].mean(0) for label in range(work.CLASSES)])

    def nearest_mean(inputs):
        return ((inputs.reshape(len(inputs), 1, -1) - means) ** 2).sum(-1).argmin(1)

    assert work.accuracy(data, nearest_mean) > 0.8
    assert work.accuracy(data, lambda inputs: np.zeros(len(inputs), int)) < 0.2
    brightness = work.as_floats(data.train.inputs).mean()
    assert 0.02 < brightness < 0.2  # as dark as MNIST, or SGD with momentum 0.9 diverges


def test_saved_data_come_back(smaller, tmp_path, monkeypatch):
    work.save_data("mlp", tmp_path)
    monkeypatch.setenv(work.DATA_FOLDER, str(tmp_path))
    loaded, made = work.load_data("mlp"), work.made_up_data("mlp")
    for some, same in ((loaded.train, made.train), (loaded.test, made.test)):
        np.testing.assert_array_equal(some.inputs, same.inputs)
        np.testing.assert_array_equal(some.targets, same.targets)


@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_everybody_trains_the_same_network_as_fedga(model):
    weights = {name: torch.from_numpy(value) for name, value in work.initial_weights(model).items()}
    ours = build_model(model, work.INPUT_SHAPES[model], work.CLASSES)
    ours.load_state_dict(weights)
    theirs = networks.build(model)
    inputs = torch.rand(4, *work.INPUT_SHAPES[model], generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.eval()(inputs), theirs.eval()(inputs))
    torch.testing.assert_close(ours.train()(inputs), theirs.train()(inputs))
