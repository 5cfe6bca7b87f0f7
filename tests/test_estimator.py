"""`FedGAClassifier` as scikit-learn expects it, and as the engine below it computes."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

from fedga import FedGAError, simulate
from fedga.algorithms import Algorithm
from fedga.data.federation import Dataset, Federation
from fedga.engine.evaluation.evaluator import ClientEvaluator
from fedga.estimator import FedGAClassifier
from fedga.models import build_model

QUICK: dict[str, Any] = {"rounds": 5, "hidden": 16, "evaluate_every": 1, "diagnose_every": 0, "random_state": 0}


@parametrize_with_checks([FedGAClassifier(rounds=10)])
def test_scikit_learns_own_checks(estimator: FedGAClassifier, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def wine() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three classes of wine at four sites, one of which lacks class 0 and another class 2."""
    inputs, targets = load_wine(return_X_y=True)
    sites = np.random.default_rng(0).integers(4, size=len(targets))
    sites[(sites == 1) & (targets == 0)] = 0
    sites[(sites == 2) & (targets == 2)] = 3
    return inputs, targets, sites


Table = tuple[np.ndarray, np.ndarray, np.ndarray]


def test_it_is_the_engines_run_on_the_same_federation(wine: Table) -> None:
    inputs, targets, sites = wine
    settings: dict[str, Any] = {"rounds": 4, "lr": 0.05, "batch_size": 8, "server": "adam", "active": 2}
    classifier = FedGAClassifier("fedprox:mu=0.1", random_state=3, **settings).fit(inputs, targets, groups=sites)
    rows = StandardScaler().fit_transform(inputs).astype(np.float32)
    dataset = Dataset("wine", rows, targets, rows, targets, ("0", "1", "2"))
    places = np.concatenate([np.flatnonzero(sites == site) for site in range(4)])
    federation = Federation(dataset, places, np.array([0, *np.cumsum(np.bincount(sites))]))
    more: dict[str, Any] = {"lr_schedule": "cosine", "weight_decay": 0.001, "server_average": 0.05}
    looks = {"evaluate_every": 5, "diagnose_every": 0}
    result = simulate(federation, "mlp", "fedprox:mu=0.1", seed=3, **settings, **more, **looks)
    np.testing.assert_equal(classifier.history_, result.rounds)  # nothing is forgotten where nothing is missing: NaN
    assert result.averaged_model is not None
    for ours, theirs in zip(classifier.model_.parameters(), result.averaged_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with torch.no_grad():
        probabilities = result.averaged_model(torch.from_numpy(rows)).softmax(1).numpy()
    np.testing.assert_allclose(classifier.predict_proba(inputs), probabilities, atol=1e-6)


def test_equal_counts_of_every_class_make_it_fedavg() -> None:
    inputs, targets = load_iris(return_X_y=True)  # 50 of each class
    sites = np.arange(150) % 5
    assert (FedGAClassifier(**QUICK).fit(inputs, targets, groups=sites).class_counts_ == 10).all()
    ours, theirs = (
        FedGAClassifier(algorithm, **QUICK).fit(inputs, targets, groups=sites).predict_proba(inputs)
        for algorithm in ("fedga", "fedavg")
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    skewed = np.where(targets == 2, 4, sites)
    ours, theirs = (
        FedGAClassifier(algorithm, **QUICK).fit(inputs, targets, groups=skewed).predict_proba(inputs)
        for algorithm in ("fedga", "fedavg")
    )
    assert np.abs(ours - theirs).max() > 0.01


def test_the_same_seed_gives_the_same_answers_whatever_sites_and_classes_are_called(wine: Table) -> None:
    inputs, targets, sites = wine
    first = FedGAClassifier(**QUICK).fit(inputs, targets, groups=sites)
    names = np.array(["bergen", "oslo", "tromsø", "voss"], dtype=object)
    second = FedGAClassifier(**QUICK).fit(
        pd.DataFrame(inputs), np.array(["a", "b", "c"])[targets], groups=pd.Series(names[sites])
    )
    np.testing.assert_array_equal(first.predict_proba(inputs), second.predict_proba(inputs))
    assert second.predict(inputs).tolist() == ["abc"[label] for label in first.predict(inputs)]
    assert second.site_names_.tolist() == names.tolist()
    np.testing.assert_array_equal(first.class_counts_, second.class_counts_)
    other = FedGAClassifier(**{**QUICK, "random_state": 1}).fit(inputs, targets, groups=sites)
    assert np.abs(first.predict_proba(inputs) - other.predict_proba(inputs)).max() > 1e-3


def test_without_groups_all_rows_are_one_sites(wine: Table) -> None:
    inputs, targets, _ = wine
    alone = FedGAClassifier(**QUICK).fit(inputs, targets)
    same = FedGAClassifier(**QUICK).fit(inputs, targets, groups=["here"] * len(targets))
    np.testing.assert_array_equal(alone.predict_proba(inputs), same.predict_proba(inputs))
    assert alone.class_counts_.tolist() == [np.bincount(targets).tolist()]


def test_the_unit_of_a_column_does_not_matter(wine: Table) -> None:
    inputs, targets, sites = wine
    grams = FedGAClassifier(**QUICK).fit(inputs, targets, groups=sites).predict_proba(inputs)
    tons = inputs * 1e-6 + 7
    np.testing.assert_allclose(
        FedGAClassifier(**QUICK).fit(tons, targets, groups=sites).predict_proba(tons), grams, atol=1e-3
    )
    as_they_are = FedGAClassifier(**QUICK, standardize=False).fit(tons, targets, groups=sites)
    assert as_they_are.scaler_ is None
    assert np.abs(as_they_are.predict_proba(tons) - grams).max() > 0.1


def test_sites_that_lack_a_class_are_told(wine: Table) -> None:
    inputs, targets, sites = wine
    classifier = FedGAClassifier(**{**QUICK, "diagnose_every": 2}).fit(inputs, targets, groups=sites)
    assert classifier.class_counts_[1, 0] == classifier.class_counts_[2, 2] == 0
    assert classifier.n_iter_ == 5
    assert [row["round"] for row in classifier.history_] == [1, 2, 3, 4, 5]
    seen = pd.DataFrame(classifier.site_history_)
    assert sorted(seen["round"].unique()) == [2, 4, 5]  # and the last
    assert len(seen) == 3 * 4 * 3
    counted = seen[seen["round"] == 2].pivot(index="site", columns="class", values="samples")
    np.testing.assert_array_equal(counted, classifier.class_counts_)
    assert seen[["recall_before", "recall_after"]].stack().between(0, 1).all()


def test_sites_are_looked_at_only_where_asked_for(wine: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look runs the model of every site over all rows: at many sites it would cost more than the training."""
    inputs, targets, sites = wine
    models = []

    def counted(evaluator: ClientEvaluator, params: Tensor, *others: Any) -> Any:
        models.append(len(params))
        return evaluate(evaluator, params, *others)

    evaluate = ClientEvaluator.evaluate
    monkeypatch.setattr(ClientEvaluator, "evaluate", counted)
    assert FedGAClassifier(rounds=5).fit(inputs, targets, groups=sites).site_history_ == []
    assert max(models) == 1
    assert FedGAClassifier(rounds=5, diagnose_every=5).fit(inputs, targets, groups=sites).site_history_
    assert max(models) == 4


def test_what_is_true_or_false_for_numpy_and_c_is_too(wine: Table) -> None:
    inputs, targets, _ = wine
    for standardize in (np.bool_(False), 0, np.int64(0)):
        with pytest.warns(UserWarning, match=r"columns of table lie between .*: give standardize=True"):
            assert FedGAClassifier(**QUICK, standardize=standardize).fit(inputs, targets).scaler_ is None  # type: ignore[arg-type]
    assert FedGAClassifier(**QUICK, standardize=1).fit(inputs, targets).scaler_ is not None


def test_a_list_of_sites_is_the_array_of_them(wine: Table) -> None:
    inputs, targets, sites = wine
    for names in (sites, sites.astype(str), np.where(sites, sites.astype(float), 0.5)):
        listed = FedGAClassifier(**QUICK).fit(inputs, targets, groups=names.tolist())
        assert listed.site_names_.tolist() == np.unique(names).tolist()
        assert listed.site_names_.dtype.kind == names.dtype.kind
    assert FedGAClassifier(**QUICK).fit(inputs, targets, groups=[1, 2.5] * 89).site_names_.tolist() == [1, 2.5]


def test_its_scores_are_those_of_its_own_predictions(wine: Table) -> None:
    inputs, targets, sites = wine
    classifier = FedGAClassifier(**QUICK, server_average=0).fit(inputs, targets, groups=sites)
    assert classifier.history_[-1]["accuracy"] == pytest.approx(classifier.score(inputs, targets))


def test_random_state_in_its_three_forms(wine: Table) -> None:
    inputs, targets, _ = wine

    def fitted(random_state: Any) -> np.ndarray:
        return FedGAClassifier(**{**QUICK, "random_state": random_state}).fit(inputs, targets).predict_proba(inputs)

    np.testing.assert_array_equal(fitted(np.int64(4)), fitted(4))
    np.testing.assert_array_equal(fitted(np.random.RandomState(4)), fitted(np.random.RandomState(4)))
    stream = np.random.RandomState(4)
    assert (fitted(stream) != fitted(stream)).any()
    assert (fitted(None) != fitted(None)).any()


def test_long_tables_are_predicted_in_parts(wine: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets, sites = wine
    classifier = FedGAClassifier(**QUICK).fit(inputs, targets, groups=sites)
    whole = classifier.predict_proba(inputs)
    monkeypatch.setattr("fedga.estimator.ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(classifier.predict_proba(inputs), whole, atol=1e-12)


def test_it_survives_pickle_joblib_and_clone(wine: Table) -> None:
    inputs, targets, sites = wine
    classifier = FedGAClassifier(**QUICK).fit(inputs, targets, groups=sites)
    file = io.BytesIO()
    joblib.dump(classifier, file)
    file.seek(0)
    for copy in (pickle.loads(pickle.dumps(classifier)), joblib.load(file)):
        np.testing.assert_array_equal(copy.predict_proba(inputs), classifier.predict_proba(inputs))
    unfitted = clone(classifier)
    assert unfitted.get_params() == classifier.get_params()
    with pytest.raises(NotFittedError):
        unfitted.predict(inputs)


def test_pipeline_and_grid_search_with_prefixed_groups(wine: Table) -> None:
    inputs, targets, sites = wine
    pipeline = make_pipeline(MinMaxScaler(), FedGAClassifier(**QUICK))
    search = GridSearchCV(pipeline, {"fedgaclassifier__lr": [1e-6, 0.1]}, cv=2)
    search.fit(inputs, targets, fedgaclassifier__groups=sites)
    assert search.best_params_ == {"fedgaclassifier__lr": 0.1}
    assert search.best_estimator_[-1].class_counts_.shape == (4, 3)


def test_groups_are_routed(wine: Table) -> None:
    inputs, targets, sites = wine
    with sklearn.config_context(enable_metadata_routing=True):
        classifier = FedGAClassifier(**QUICK).set_fit_request(groups=True)
        search = GridSearchCV(classifier, {"rounds": [1, 5]}, cv=2).fit(inputs, targets, groups=sites)
        assert search.best_estimator_.class_counts_.shape == (4, 3)
        by_site = cross_val_score(classifier, inputs, targets, cv=GroupKFold(4), params={"groups": sites})
        assert len(by_site) == 4  # each time on a site that took no part
        assert by_site.mean() > 0.8


class WithDropout(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_shape[0], 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, num_classes)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


def test_networks_and_algorithms_of_ones_own(wine: Table) -> None:
    inputs, targets, sites = wine
    classifier = FedGAClassifier(Algorithm(), model=WithDropout, **QUICK).fit(inputs, targets, groups=sites)
    np.testing.assert_array_equal(classifier.predict_proba(inputs), classifier.predict_proba(inputs))  # no dropout now
    named = FedGAClassifier("fedavg", model="tests.test_estimator:WithDropout", **QUICK)
    np.testing.assert_allclose(
        named.fit(inputs, targets, groups=sites).predict_proba(inputs), classifier.predict_proba(inputs), atol=1e-9
    )
    start = build_model("mlp", (13,), 3, seed=8)
    before = [value.clone() for value in start.parameters()]
    FedGAClassifier(model=start, **QUICK).fit(inputs, targets)
    assert all(torch.equal(*pair) for pair in zip(before, start.parameters(), strict=True))


class InFloat32(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.float())


def test_a_network_that_takes_float32_alone_predicts_in_it(wine: Table) -> None:
    def build(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return InFloat32(input_shape[0], num_classes)

    inputs, targets, sites = wine
    classifier = FedGAClassifier(model=build, **QUICK).fit(inputs, targets, groups=sites)
    plain = FedGAClassifier(model=lambda shape, classes: nn.Linear(shape[0], classes), **QUICK).fit(
        inputs, targets, groups=sites
    )
    assert (classifier.dtype_, plain.dtype_) == (torch.float32, torch.float64)
    found = classifier.predict_proba(inputs)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, plain.predict_proba(inputs), atol=1e-5)


def test_one_class_is_always_that_class() -> None:
    classifier = FedGAClassifier(**QUICK).fit(np.eye(4), ["only"] * 4)
    assert classifier.predict(np.ones((2, 4))).tolist() == ["only"] * 2
    assert classifier.predict_proba(np.ones((1, 4))).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("settings", "groups", "words"),
    [
        ({"rounds": 0}, None, "^rounds must be"),
        ({"hidden": 3.5}, None, "hidden must be a whole number"),
        ({"device": "cudaa"}, None, "is not a device"),
        ({"model": 3}, None, "model must be a name"),
        ({}, "hospital", "groups must name the site of every row"),
        ({"algorithm": "fedgaa"}, None, "did you mean 'fedga'"),
        ({"model": "mlq"}, None, "unknown model 'mlq'"),
        ({"active": 9}, None, "^active 9 is more than"),
        ({"device": "cuda"}, None, "PyTorch finds no CUDA device"),
        ({"lr": 1e30, "clip": None}, None, "training diverged in round [1-5]: give a smaller lr"),
        ({}, [0, 1], "inconsistent numbers of samples"),
        ({}, [[0, 1]] * 178, "groups must name the site of every row"),
        ({}, [None, *["a"] * 177], "groups names no site for 1 rows"),
        ({}, [float("nan"), *[1.0] * 177], "groups names no site for 1 rows"),
        ({}, pd.array([None, *[1] * 177], dtype="Int64"), "groups names no site for 1 rows"),
        ({}, np.array([1, *["a"] * 177], dtype=object), "groups mixes kinds of values"),
        ({}, [1, "1"] * 89, "groups mixes kinds of values"),
        ({}, (b"a", "a") * 89, "groups mixes kinds of values"),
        ({}, [float("nan"), *["a"] * 177], "groups names no site for 1 rows"),
        ({"standardize": "false"}, None, "^standardize must be True or False, not 'false'"),
        ({"standardize": 2}, None, "^standardize must be True or False, not 2"),
        ({"standardize": None}, None, "^standardize must be True or False, not None"),
    ],
)
def test_bad_input_is_a_sentence(settings: dict[str, Any], groups: Any, words: str, wine: Table) -> None:
    with pytest.raises(ValueError, match=words):
        FedGAClassifier(**{**QUICK, **settings}).fit(wine[0], wine[1], groups=groups)


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 1e30, "clip": None}, "diverged"),
        ({"algorithm": "nonsense"}, "unknown algorithm"),
        ({"active": 7}, "active 7 is more"),
        ({"lr": -1}, "^lr must be"),
    ],
)
def test_a_fit_that_fails_leaves_nothing(settings: dict[str, Any], words: str, fitted: bool, wine: Table) -> None:
    """Neither of its own nor of an earlier one: that one's model would answer through the scaler of this one."""
    classifier = FedGAClassifier(**QUICK)
    if fitted:
        classifier.fit(wine[0], wine[1])
    with pytest.raises(FedGAError, match=words):
        classifier.set_params(**settings).fit(3 * wine[0], np.array(["a", "b", "c"])[wine[1]])
    assert not [name for name in vars(classifier) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        classifier.predict(wine[0])


def test_tables_that_cannot_be_trained_on(wine: Table) -> None:
    inputs, targets, _ = wine
    with pytest.raises(TypeError, match="Sparse data was passed"):
        FedGAClassifier(**QUICK).fit(sparse.csr_matrix(inputs), targets)
    with pytest.raises(ValueError, match="NaN"):
        FedGAClassifier(**QUICK).fit(np.where(inputs > 14, np.nan, inputs), targets)
    with pytest.raises(FedGAError, match="column 2 of X has values that float32 cannot hold"):
        FedGAClassifier(**QUICK, standardize=False).fit(np.where(np.arange(13) == 2, 1e300, inputs), targets)


def test_the_defaults_learn_a_small_table_whose_sites_lack_classes(wine: Table) -> None:
    inputs, targets, sites = wine
    train = np.arange(len(targets)) % 3 > 0
    classifier = FedGAClassifier(random_state=0).fit(inputs[train], targets[train], groups=sites[train])
    assert balanced_accuracy_score(targets[~train], classifier.predict(inputs[~train])) > 0.9


def test_without_scikit_learn_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None\nimport fedga.estimator"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "FedGAClassifier needs scikit-learn, which is not installed: pip install 'fedga[data]'" in failed.stderr


@pytest.mark.long
def test_probabilities_are_overconfident_until_calibrated() -> None:
    """What the docstring and the page say was measured, on the same rows."""
    frozen = pytest.importorskip("sklearn.frozen")
    inputs, labels = load_breast_cancer(return_X_y=True)
    losses, right = [], []
    for seed in range(5):
        rows, rest, y, of_rest = train_test_split(inputs, labels, test_size=0.5, random_state=seed, stratify=labels)
        held, test, of_held, of_test = train_test_split(
            rest, of_rest, test_size=0.6, random_state=seed, stratify=of_rest
        )
        draw = np.random.default_rng(seed)
        site = np.where(draw.random(len(y)) < 0.85, y % 3, draw.integers(0, 3, len(y)))
        fitted = FedGAClassifier(random_state=seed).fit(rows, y, groups=site)
        calibrated = CalibratedClassifierCV(frozen.FrozenEstimator(fitted)).fit(held, of_held)
        found = [each.predict_proba(test) for each in (fitted, calibrated)]
        losses.append([log_loss(of_test, probs) for probs in found])
        right.append([np.mean(probs.argmax(1) == of_test) for probs in found])
    raw, better = np.mean(losses, 0)
    assert (raw, better) == (pytest.approx(0.285, abs=0.03), pytest.approx(0.135, abs=0.015))
    assert np.mean(right, 0) == pytest.approx([0.968, 0.971], abs=0.005)
