"""What a run records, against a plain computation sample by sample, and against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sklearn_metrics
from torch import Tensor, nn

from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.evaluation.metrics import ClientRecord, client_scores
from fedga.engine.reference import Reference
from fedga.engine.stack.budget import MemoryBudget
from fedga.measures import asymmetry
from tests.engine.runs import make_data, make_dataset, make_federation, make_lane, make_uneven_federation, train

CLASSES = 4


def plain_scores(model: nn.Module, data: DeviceData, standardize: bool = False) -> dict[str, Any]:
    """One sample after another through an ordinary network."""
    pixels, dataset = data.pixels(standardize), data.dataset
    classes = dataset.num_classes
    confusion, sums, losses = torch.zeros(classes, classes), torch.zeros(classes, classes), []
    predictions = []
    with torch.no_grad():
        for stored, target in zip(dataset.test_inputs, dataset.test_targets, strict=True):
            logits = model.eval()(pixels.apply(torch.from_numpy(stored)[None]))[0]
            confusion[target, logits.argmax()] += 1
            sums[target] += logits.softmax(0)
            losses.append(F.cross_entropy(logits, torch.tensor(target)).item())
            predictions.append(logits.argmax().item())
    return {
        "confusion": confusion,
        "mean_predictions": sums / torch.from_numpy(np.bincount(dataset.test_targets, minlength=classes))[:, None],
        "loss": float(np.mean(losses)),
        "predictions": predictions,
    }


def scramble(model: nn.Module, seed: int, scale: float = 0.3) -> nn.Module:
    """Weights far from a good network's, so that predictions fall on many classes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model


class Normed(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, num_classes)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


@pytest.mark.parametrize("model", ["mlp", Normed], ids=["mlp", "own"])
@pytest.mark.parametrize(("models", "samples"), [(1, 7), (2, 40), (100, 1000)])
def test_evaluation_equals_a_plain_loop(model: Any, models: int, samples: int, exact_data: DeviceData) -> None:
    """Models and samples in parts of any size; some models see standardised pixels."""
    lanes = [make_lane(exact_data.dataset, model=model, seed=seed, standardize=seed in (0, 3)) for seed in range(5)]
    for lane in lanes:
        scramble(lane.model, lane.spec.seed)
    engine = Engine(lanes, exact_data, budget=MemoryBudget(slots=3, models=models, samples=samples))
    evaluation = engine.server.evaluate(1)
    spread = set()
    for row, lane in enumerate(lanes):
        expected = plain_scores(lane.model, exact_data, lane.spec.standardize)
        assert evaluation.confusion[row].tolist() == expected["confusion"].tolist()
        torch.testing.assert_close(
            evaluation.mean_predictions[row], expected["mean_predictions"], rtol=1e-12, atol=1e-12
        )
        assert evaluation.loss[row].item() == pytest.approx(expected["loss"], rel=1e-6)  # recorded in float32
        spread |= set(expected["predictions"])
    assert spread == set(range(CLASSES))


def test_evaluation_of_some_lanes(exact_data: DeviceData) -> None:
    lanes = [make_lane(exact_data.dataset, seed=seed, standardize=seed == 1) for seed in range(3)]
    engine = Engine(lanes, exact_data)
    every = engine.server.evaluate(1)
    some = engine.evaluator.evaluate(engine.stack.params[[2, 1]], engine.stack.buffers[[2, 1]], [2, 1], 1)
    torch.testing.assert_close(some.loss, every.loss[[2, 1]])
    torch.testing.assert_close(some.mean_predictions, every.mean_predictions[[2, 1]])
    assert torch.equal(some.confusion, every.confusion[[2, 1]])


def without_class(dataset: Dataset, missing: int) -> Dataset:
    kept = dataset.test_targets != missing
    return Dataset(
        dataset.name,
        dataset.train_inputs,
        dataset.train_targets,
        dataset.test_inputs[kept],
        dataset.test_targets[kept],
        dataset.class_names,
    )


def test_a_class_the_test_split_lacks_has_no_mean_prediction(pictures: Dataset) -> None:
    dataset = without_class(pictures, 2)
    data = make_data(dataset)
    lane = make_lane(dataset)
    scramble(lane.model, 1)
    engine = Engine([lane], data)
    evaluation = engine.server.evaluate(1)
    expected = plain_scores(lane.model, data)
    assert evaluation.mean_predictions[0, 2].isnan().all()
    torch.testing.assert_close(evaluation.mean_predictions[0], expected["mean_predictions"], equal_nan=True)
    assert evaluation.confusion[0, 2].sum() == 0


@pytest.mark.parametrize("lacks", [None, 2])
def test_recorded_scores_match_scikit_learn(lacks: int | None) -> None:
    """After a round so small that the model is still wrong about many samples."""
    dataset = make_dataset(samples=400)
    dataset = dataset if lacks is None else without_class(dataset, lacks)
    data = make_data(dataset)
    lanes = [
        make_lane(dataset, make_uneven_federation(dataset), lr=0.003, seed=seed, server_average=0.5)
        for seed in range(3)
    ]
    engine = Engine(lanes, data)
    for _ in range(2):
        results = engine.run_round()
    for row, result in enumerate(results):
        assert result.metrics is not None
        for prefix, params in (("", engine.stack.params), ("averaged_", engine.stack.averaged_params)):
            model = lanes[row].model
            engine.model.unflatten(params[row], engine.stack.buffers[row], model)
            plain = plain_scores(model, data)
            targets, predictions = dataset.test_targets, plain["predictions"]
            found = {
                name.removeprefix(prefix): value for name, value in result.metrics.items() if name.startswith(prefix)
            }
            assert 0 < found["accuracy"] < 1
            assert found["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(targets, predictions))
            assert found["macro_f1"] == pytest.approx(
                sklearn_metrics.f1_score(targets, predictions, average="macro", zero_division=0)
            )
            recalls = sklearn_metrics.recall_score(targets, predictions, labels=np.unique(targets), average=None)
            assert found["balanced_accuracy"] == pytest.approx(recalls.mean())
            assert found["loss"] == pytest.approx(plain["loss"], rel=1e-5)
            ea = asymmetry.asymmetry_from_means(plain["mean_predictions"])
            present = ea[~ea.isnan()]
            assert len(present) == len(np.unique(targets))
            assert found["ea_ratio"] == pytest.approx((present.max() / present.min()).item(), rel=1e-4)


def test_client_records_are_the_local_models_on_the_test_split(exact_data: DeviceData) -> None:
    """Each active client before and after its training, against the plain loop's local models."""
    dataset = exact_data.dataset
    lane = make_lane(dataset, diagnose_every=1, lr=0.02, standardize=True)
    engine, reference = Engine([lane], exact_data), Locals(lane, exact_data)
    for _ in range(2):
        before = plain_scores(reference.model, exact_data, True)
        reference.locals.clear()
        (result,) = engine.run_round()
        reference.run_round()
        assert [record.client for record in result.clients] == list(reference.locals)
        for record in result.clients:
            after = plain_scores(reference.locals[record.client], exact_data, True)
            assert record.class_counts == lane.federation.class_counts[record.client].tolist()
            for scores, accuracy, ea in (
                (before, record.accuracy_before, record.ea_before),
                (after, record.accuracy_after, record.ea_after),
            ):
                matrix = scores["confusion"]
                assert accuracy == pytest.approx((matrix.diagonal() / matrix.sum(1)).tolist())
                assert ea == pytest.approx(asymmetry.asymmetry_from_means(scores["mean_predictions"]).tolist())
        assert result.metrics is not None
        assert client_scores(result.clients).items() <= result.metrics.items()


class Locals(Reference):
    """The plain loop, keeping every client's local model."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.locals: dict[int, nn.Module] = {}

    def _train_client(self, k: int, *given: Any) -> Any:
        local, report = super()._train_client(k, *given)
        self.locals[k] = local
        return local, report


def test_client_scores_are_means_over_clients() -> None:
    nan = float("nan")
    records = [
        ClientRecord(0, [9, 1, 0], [0.5, 0.5, 0.5], [0.9, 0.3, 0.1], [1.0, 1.0, 1.0], [1.0, 2.0, 4.0]),
        ClientRecord(1, [0, 6, 6], [0.5, 0.5, nan], [0.0, 0.7, nan], [1.0, 1.0, nan], [3.0, 1.5, nan]),
    ]
    found = client_scores(records)
    assert found == pytest.approx(
        {
            "client_ea_ratio": (4.0 + 2.0) / 2,
            "forgetting_frequent": (-0.4 - 0.2) / 2,
            "forgetting_rare": 0.2,
            "forgetting_missing": (0.4 + 0.5) / 2,
        }
    )


def test_rounds_that_are_evaluated(pictures_data: DeviceData) -> None:
    """Every third round and a lane's last one; and those in which its clients are examined: every fourth, the last."""
    lanes = [
        make_lane(pictures_data.dataset, evaluate_every=3, diagnose_every=4, rounds=rounds, server_average=average)
        for rounds, average in ((5, 0.0), (6, 0.1))
    ]
    engine = Engine(lanes, pictures_data)
    evaluated, diagnosed = [], []
    for _ in range(5):
        results = engine.run_round()
        evaluated.append([result.metrics is not None for result in results])
        diagnosed.append([bool(result.clients) for result in results])
        for result, averaged in zip(results, (False, True), strict=True):
            if result.metrics is not None:
                assert ("averaged_accuracy" in result.metrics) == averaged
    assert evaluated == [[False] * 2, [False] * 2, [True] * 2, [True] * 2, [True, False]]
    assert diagnosed == [[False] * 2] * 3 + [[True] * 2] + [[True, False]]


def test_clients_are_never_examined_when_not_asked(pictures_data: DeviceData) -> None:
    engine = Engine([make_lane(pictures_data.dataset, diagnose_every=0, rounds=2)], pictures_data)
    assert [engine.run_round()[0].clients for _ in range(2)] == [[], []]


def test_averaged_model_is_the_model_after_round_one(pictures_data: DeviceData) -> None:
    lane = make_lane(pictures_data.dataset, server_average=0.25)
    engine = train([lane], pictures_data, 1)
    torch.testing.assert_close(engine.stack.averaged_params, engine.stack.params, rtol=0, atol=1e-6)
    first = engine.stack.params.clone()
    engine.run_round()
    expected = (0.25 * 0.75 * first + 0.25 * engine.stack.params) / (1 - 0.75**2)
    torch.testing.assert_close(engine.stack.averaged_params, expected, rtol=0, atol=1e-6)


def test_training_learns(pictures_data: DeviceData) -> None:
    """The pictures are easy: a run that works is right about nearly all of them."""
    federation = make_federation(pictures_data.dataset, [20] * 6, seed=0)
    engine = Engine([make_lane(pictures_data.dataset, federation, rounds=8)], pictures_data)
    accuracies = [engine.run_round()[0].metrics["accuracy"] for _ in range(8)]  # type: ignore[index]
    assert accuracies[-1] > 0.9
