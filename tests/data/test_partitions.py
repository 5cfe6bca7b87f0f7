from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedga.common.streams import numpy_generator
from fedga.data import PARTITIONS, Dataset, Federation, load_dataset, make_federation
from fedga.data.partitions import needs_alpha
from fedga.data.partitions.dirichlet import cut_to_fit, label_distributions, wanted_counts
from fedga.errors import FedGAError
from fedga.spec import settings as spec_settings

DRAWN = sorted(set(PARTITIONS) - {"natural"})


def make_dataset(samples: int, classes: int, clients: int | None = None, seed: int = 0) -> Dataset:
    generator = np.random.default_rng(seed)
    targets = np.concatenate([np.arange(classes), generator.integers(classes, size=samples - classes)])
    inputs = np.zeros((samples, 1), dtype=np.float32)
    owners = None
    if clients is not None:
        owners = np.concatenate([np.arange(clients), generator.integers(clients, size=samples - clients)])
    return Dataset(
        name="made",
        train_inputs=inputs,
        train_targets=targets,
        test_inputs=inputs,
        test_targets=targets,
        class_names=tuple(map(str, range(classes))),
        train_clients=owners,
        client_names=() if clients is None else tuple(f"site {k}" for k in range(clients)),
    )


def check_well_formed(federation: Federation) -> None:
    """Whatever the partition: nobody is empty, nothing is given twice."""
    indices, samples = federation.indices, len(federation.dataset.train_targets)
    assert indices.dtype == federation.offsets.dtype == np.int64
    assert federation.offsets[0] == 0
    assert federation.offsets[-1] == len(indices)
    assert federation.sizes.min() > 0
    assert len(np.unique(indices)) == len(indices)
    assert indices.min() >= 0
    assert indices.max() < samples
    assert federation.class_counts.sum() == len(indices)


@pytest.mark.parametrize("partition", DRAWN)
@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 12),
    classes=st.integers(1, 6),
    seed=st.integers(0, 2**40),
    alpha=st.sampled_from([0.001, 0.05, 0.5, 1.0, 10.0, 1e4]),
)
def test_every_partition_is_disjoint_and_repeatable(
    partition: str, clients: int, classes: int, seed: int, alpha: float
) -> None:
    dataset = make_dataset(400, classes)
    if partition == "dirichlet-class":
        alpha = max(alpha, 10.0)  # at a smaller one it may leave clients empty, which is refused
    federation = make_federation(dataset, partition, clients=clients, seed=seed, alpha=alpha)
    check_well_formed(federation)
    assert federation.num_clients == clients
    again = make_federation(dataset, partition, clients=clients, seed=seed, alpha=alpha)
    np.testing.assert_array_equal(federation.indices, again.indices)
    np.testing.assert_array_equal(federation.offsets, again.offsets)
    other = make_federation(dataset, partition, clients=clients, seed=seed + 1, alpha=1e4)
    assert len(other.indices) != len(federation.indices) or (other.indices != federation.indices).any()


@pytest.mark.parametrize("alpha", [0.05, 0.001])
@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_ends_where_others_loop_and_keeps_classes_missing(alpha: float, seed: int) -> None:
    dataset = make_dataset(60_000, 10)
    federation = make_federation(dataset, clients=100, seed=seed, alpha=alpha)
    check_well_formed(federation)
    assert np.ptp(federation.sizes) < 20
    assert (federation.class_counts == 0).mean() > 0.5


@settings(max_examples=50, deadline=None)
@given(clients=st.integers(1, 50), classes=st.integers(1, 20), seed=st.integers(0, 10**6), alpha=st.floats(1e-3, 100.0))
def test_dirichlet_counts_follow_the_formula_before_cutting(
    clients: int, classes: int, seed: int, alpha: float
) -> None:
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 1000, size=classes)
    shares = label_distributions(generator, alpha, clients, classes)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    demand = [sum(shares[k, c] for k in range(clients)) for c in range(classes)]
    scale = min(sizes[c] / demand[c] for c in range(classes) if demand[c] > 0)
    counts = wanted_counts(shares, sizes)
    expected = [[round(scale * shares[k, c]) for c in range(classes)] for k in range(clients)]
    assert (
        np.abs(counts - np.array(expected)).max() <= 1
    )  # the sums differ in their last bit, so a half may round either way
    assert (counts != expected).mean() < 0.01
    cut = cut_to_fit(counts, sizes)
    assert (cut >= 0).all()
    assert (cut <= counts).all()
    np.testing.assert_array_equal(cut.sum(axis=0), np.minimum(counts.sum(axis=0), sizes))


def test_federation_holds_what_the_formula_says() -> None:
    dataset = make_dataset(5000, 7)
    federation = make_federation(dataset, clients=20, seed=3, alpha=0.3)
    sizes = np.bincount(dataset.train_targets)
    counts = wanted_counts(label_distributions(numpy_generator(3, "partition"), 0.3, 20, 7), sizes)
    np.testing.assert_array_equal(federation.class_counts, cut_to_fit(counts, sizes))


def test_overrun_is_cut_from_the_last_clients() -> None:
    counts = np.array([[3, 0], [3, 1], [3, 1]])
    np.testing.assert_array_equal(cut_to_fit(counts, np.array([7, 1])), [[3, 0], [3, 1], [1, 0]])


@pytest.mark.parametrize("alpha", [1e-320, 1e-12, 1e-3, 1.0, 1e6, 1e300])
def test_label_distributions_are_finite_for_any_alpha(alpha: float) -> None:
    shares = label_distributions(np.random.default_rng(0), alpha, 200, 10)
    assert np.isfinite(shares).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    if alpha < 1e-6:
        assert (shares.max(axis=1) == 1.0).all()
        assert len(np.unique(shares.argmax(axis=1))) == 10
    if alpha > 1e5:
        np.testing.assert_allclose(shares, 0.1, rtol=0.05)


def test_label_distributions_have_the_moments_of_a_dirichlet() -> None:
    alpha, classes = 0.3, 5
    shares = label_distributions(np.random.default_rng(0), alpha, 200_000, classes)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / classes, atol=0.005)
    variance = (1 / classes) * (1 - 1 / classes) / (classes * alpha + 1)
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.02)


def test_a_class_that_nobody_draws_sets_no_limit() -> None:
    shares = np.array([[1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(wanted_counts(shares, np.array([10, 3])), [[5, 0], [5, 0]])
    np.testing.assert_array_equal(wanted_counts(shares, np.array([0, 3])), [[0, 0], [0, 0]])


@pytest.mark.parametrize("alpha", [0.05, 0.5])
def test_even_uses_the_samples_of_dirichlet(alpha: float) -> None:
    dataset = make_dataset(6000, 10)
    skewed = make_federation(dataset, "dirichlet", clients=30, seed=7, alpha=alpha)
    flat = make_federation(dataset, "even", clients=30, seed=7, alpha=alpha)
    np.testing.assert_array_equal(np.sort(skewed.indices), np.sort(flat.indices))
    assert np.ptp(flat.sizes) <= 1
    spread = [np.std(each.class_counts / each.sizes[:, None], axis=0).mean() for each in (skewed, flat)]
    assert spread[1] < spread[0] / 2


@pytest.mark.parametrize("partition", ["dirichlet-class", "iid", "shards"])
def test_partitions_that_use_every_sample(partition: str) -> None:
    dataset = make_dataset(997, 6)
    federation = make_federation(dataset, partition, clients=9, seed=1, alpha=1.0)
    np.testing.assert_array_equal(np.sort(federation.indices), np.arange(997))


def test_iid_sizes_are_even() -> None:
    assert np.ptp(make_federation(make_dataset(101, 3), "iid", clients=7, seed=0).sizes) <= 1


@pytest.mark.parametrize("per_client", [1, 2, 5])
def test_shards_give_few_classes_to_each_client(per_client: int) -> None:
    dataset = make_dataset(6000, 10)
    federation = make_federation(dataset, "shards", clients=20, seed=0, classes_per_client=per_client)
    assert np.ptp(federation.sizes) <= per_client
    classes = (federation.class_counts > 0).sum(axis=1)
    assert classes.max() <= 2 * per_client  # a shard of fewer samples than a class has touches at most two classes


def test_natural_keeps_every_sample_with_its_client() -> None:
    dataset = make_dataset(50, 3, clients=4)
    federation = make_federation(dataset, "natural", clients=None, seed=0)
    check_well_formed(federation)
    assert dataset.train_clients is not None
    for k in range(4):
        np.testing.assert_array_equal(federation.client(k), np.flatnonzero(dataset.train_clients == k))
    assert make_federation(dataset, "natural", clients=4, seed=0).num_clients == 4


def test_one_hundred_thousand_clients() -> None:
    federation = make_federation(make_dataset(2_000_000, 10), clients=100_000, seed=0, alpha=0.5)
    assert federation.num_clients == 100_000
    check_well_formed(federation)


def test_partition_does_not_depend_on_what_was_drawn_before() -> None:
    dataset = load_dataset("digits")
    first = make_federation(dataset, clients=10, seed=5, alpha=0.1)
    np.random.default_rng(0).random(100)
    make_federation(dataset, "iid", clients=3, seed=5)
    np.testing.assert_array_equal(first.indices, make_federation(dataset, clients=10, seed=5, alpha=0.1).indices)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition": "dirichlett", "clients": 3}, "unknown partition 'dirichlett': did you mean 'dirichlet'"),
        ({"clients": 3}, "partition 'dirichlet' needs alpha"),
        ({"partition": "even", "clients": 3}, "partition 'even' needs alpha"),
        ({"clients": 3, "alpha": 0.0}, r"alpha is 0.0: give a finite number above 0"),
        ({"clients": 3, "alpha": -1}, "alpha is -1: give"),
        ({"clients": 3, "alpha": float("nan")}, "alpha is nan: give"),
        ({"clients": 3, "alpha": float("inf")}, "alpha is inf: give"),
        ({"clients": 3, "alpha": "0.1"}, "alpha is 0.1: give a finite number"),
        ({"clients": 0, "alpha": 1.0}, "number of clients is 0: give a whole number"),
        ({"clients": 2.5, "alpha": 1.0}, "number of clients is 2.5: give a whole number"),
        ({"clients": None, "alpha": 1.0}, "number of clients is missing"),
        ({"clients": 51, "alpha": 1.0}, "51 clients cannot share 50 training samples: use at most 50"),
        ({"partition": "shards", "clients": 3, "classes_per_client": 0}, "classes_per_client is 0"),
        ({"partition": "shards", "clients": 30}, "50 training samples cannot be cut into 30 clients x 2 shards"),
        ({"partition": "natural", "clients": None}, "does not say which client a sample belongs to"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(FedGAError, match=message):
        make_federation(make_dataset(50, 3), **{"seed": 0, **arguments})  # type: ignore[arg-type]


def test_empty_clients_are_named_with_cause_and_remedy() -> None:
    dataset = make_dataset(200, 2)
    with pytest.raises(
        FedGAError, match=r"of 50 clients \(.*\) are left without samples by partition 'dirichlet-class'"
    ):
        make_federation(dataset, "dirichlet-class", clients=50, seed=0, alpha=0.05)
    with pytest.raises(FedGAError, match=r"with alpha=10 of 'made': use fewer clients"):
        make_federation(dataset, clients=190, seed=0, alpha=10.0)


def test_natural_refuses_another_number_of_clients() -> None:
    with pytest.raises(FedGAError, match="has 4 natural clients, not 5: leave clients out"):
        make_federation(make_dataset(50, 3, clients=4), "natural", clients=5, seed=0)


def test_built_in_names_agree_with_the_settings() -> None:
    assert tuple(PARTITIONS) == spec_settings.PARTITIONS
    assert tuple(filter(needs_alpha, PARTITIONS)) == spec_settings.READ_ALPHA


RULE = """
import numpy as np
from fedga.data import Partition

class Mine(Partition):
    needs_alpha = {alpha}

    def assign(self, inputs):
        striped = [np.arange(k, len(inputs.targets), inputs.clients) for k in range(inputs.clients)]
        return {returned}
"""


def own_rule(folder: Path, returned: str, alpha: bool = False) -> None:
    (folder / "mine.py").write_text(RULE.format(returned=returned, alpha=alpha), encoding="utf-8")
    (folder / "fedga.toml").write_text('[partitions]\nmine = "mine.py:Mine"\n', encoding="utf-8")


def test_a_rule_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own_rule(tmp_path, "striped")
    federation = make_federation(make_dataset(50, 3), "mine", clients=4, seed=0)
    check_well_formed(federation)
    np.testing.assert_array_equal(federation.client(1), np.arange(1, 50, 4))
    assert not needs_alpha("mine")


def test_a_rule_of_the_users_own_that_needs_alpha(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own_rule(tmp_path, "striped[: int(inputs.alpha)] + striped[int(inputs.alpha) :]", alpha=True)
    with pytest.raises(FedGAError, match="partition 'mine' needs alpha"):
        make_federation(make_dataset(50, 3), "mine", clients=4, seed=0)
    assert make_federation(make_dataset(50, 3), "mine", clients=4, seed=0, alpha=2).num_clients == 4


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("striped[:3]", "returned 3 clients: return an array for each of the 4"),
        ("striped[:3] + [striped[0]]", "gave sample 0 to a client 2 times: give each at most once"),
        ("striped[:3] + [striped[3][:0]]", "client 3 is left without samples by partition 'mine'"),
        ("striped[:3] + [striped[3] + 3]", "returned indices outside 0 to 49"),
        ("striped[:3] + [striped[3] / 2]", "returned indices of type float64"),
        ("None", "returned a NoneType: return one array of indices per client"),
        ("1 / 0", "failed: line 10 of mine.py raised ZeroDivisionError"),
    ],
)
def test_what_a_rule_returns_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    own_rule(tmp_path, returned)
    with pytest.raises(FedGAError, match=said):
        make_federation(make_dataset(50, 3), "mine", clients=4, seed=0)


def test_a_rule_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("Mine = len\n", encoding="utf-8")
    (tmp_path / "fedga.toml").write_text('[partitions]\nmine = "mine.py:Mine"\n', encoding="utf-8")
    with pytest.raises(FedGAError, match="is not a partition: make it a class"):
        make_federation(make_dataset(50, 3), "mine", clients=4, seed=0)
