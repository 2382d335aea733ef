from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pfedfda.data import open_source, partition
from pfedfda.errors import InputError

Labels = NDArray[np.int64]


@pytest.fixture(scope="module")
def labels() -> Labels:
    return open_source("digits").load().labels


def assert_disjoint(parts: list[Labels], total: int | None = None) -> None:
    joined = np.concatenate(parts)
    assert len(np.unique(joined)) == len(joined)
    if total is not None:
        assert len(joined) == total


def test_iid_is_even_and_complete(labels: Labels) -> None:
    parts = partition.iid(labels, 20, seed=0)
    assert_disjoint(parts, len(labels))
    sizes = [len(p) for p in parts]
    assert max(sizes) - min(sizes) <= 1
    # Class shares stay near the global ones: no client misses a class at 90 samples each.
    assert all(len(np.unique(labels[p])) == 10 for p in parts)


@settings(max_examples=40, deadline=None)
@given(
    alpha=st.floats(0.5, 10),  # below, one class over many clients may fit in no draw
    clients=st.integers(2, 10),
    seed=st.integers(0, 1000),
    classes=st.integers(1, 12),
)
def test_dirichlet_keeps_every_sample_once(
    alpha: float, clients: int, seed: int, classes: int
) -> None:
    labels = np.arange(600) % classes
    parts = partition.dirichlet(labels, clients, alpha, min_samples=2, seed=seed)
    assert_disjoint(parts, len(labels))
    assert min(len(p) for p in parts) >= 2


def test_dirichlet_balances_itself(labels: Labels) -> None:
    """A client stops receiving classes once it holds its even share, so none grows far past it."""
    sizes = np.array([len(p) for p in partition.dirichlet(labels, 20, 0.5, 10, seed=1)])
    plain = np.zeros(20)
    random = np.random.default_rng(1)
    for _ in range(10):
        plain += random.dirichlet(np.full(20, 0.5)) * len(labels) / 10
    assert sizes.std() < plain.std()


def test_smaller_alpha_gives_fewer_classes(labels: Labels) -> None:
    def entropy(alpha: float) -> float:
        values = []
        for part in partition.dirichlet(labels, 20, alpha, 2, seed=3):
            share = np.bincount(labels[part], minlength=10) / len(part)
            values.append(-(share[share > 0] * np.log(share[share > 0])).sum())
        return float(np.mean(values))

    assert entropy(0.1) < entropy(0.5) < entropy(5.0) < entropy(500.0)
    assert entropy(500.0) > 0.97 * np.log(10)


def test_released_procedure_on_digits(labels: Labels) -> None:
    """The released procedure, written a second time as plainly as possible, gives the same."""
    np.random.seed(42)  # noqa: NPY002
    smallest = 0
    while smallest < 10:
        clients: list[list[int]] = [[] for _ in range(30)]
        for c in range(10):
            index = np.where(labels == c)[0]
            np.random.shuffle(index)  # noqa: NPY002
            share = np.random.dirichlet(np.repeat(0.5, 30))  # noqa: NPY002
            share = np.array(
                [s if len(k) < len(labels) / 30 else 0 for s, k in zip(share, clients, strict=True)]
            )
            share = share / share.sum()
            cuts = (np.cumsum(share) * len(index)).astype(int)[:-1]
            clients = [k + i.tolist() for k, i in zip(clients, np.split(index, cuts), strict=True)]
        smallest = min(len(k) for k in clients)
    parts = partition.dirichlet(labels, 30, 0.5, min_samples=10, seed=42)
    assert [sorted(k) for k in clients] == [p.tolist() for p in parts]


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "column", "alpha", "expected"),
    [
        ("uoft-cs/cifar10/plain_text", "label", 0.5, (213, 609, 1036)),
        ("uoft-cs/cifar100/cifar100", "fine_label", 0.5, (480, 605, 759)),
    ],
)
def test_sizes_of_the_released_partitions(
    data_folder: Path, name: str, column: str, alpha: float, expected: tuple[int, int, int]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    files = [data_folder / name / f"{split}-00000-of-00001.parquet" for split in ("train", "test")]
    if not files[0].exists():
        pytest.skip(f"{files[0]} is not there")
    labels = np.concatenate([parquet.read_table(f, columns=[column])[column] for f in files])
    # The released program asks for 62.5 samples or more, which for whole numbers is 63.
    parts = partition.dirichlet(labels, 100, alpha, min_samples=63, seed=42)
    assert_disjoint(parts, 60000)
    sizes = [len(p) for p in parts]
    assert (min(sizes), int(np.median(sizes)), max(sizes)) == expected


def test_impossible_dirichlet_says_what_would_work(
    labels: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"room for 179.*or fewer samples per client \(8\)"):
        partition.dirichlet(labels, 200, 0.5, min_samples=10, seed=0)
    monkeypatch.setattr(partition, "MAX_DRAWS", 20)
    with pytest.raises(InputError, match="None of 20 Dirichlet draws.*min-samples of at most"):
        partition.dirichlet(labels, 50, 0.01, min_samples=30, seed=0)
    with pytest.raises(InputError, match="alpha is -1"):
        partition.dirichlet(labels, 10, -1, 10, seed=0)


def test_vanishing_alpha_does_not_divide_by_zero(
    labels: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "MAX_DRAWS", 5)
    with pytest.raises(InputError, match="None of 5"):
        partition.dirichlet(labels, 50, 1e-300, min_samples=2, seed=0)


def test_client_dirichlet_has_a_fixed_size(labels: Labels) -> None:
    parts = partition.client_dirichlet(labels, 30, 0.5, 50, seed=0)
    assert_disjoint(parts)
    assert {len(p) for p in parts} == {50}


def test_client_dirichlet_can_use_up_all_samples() -> None:
    labels = np.repeat(np.arange(4), 25)
    parts = partition.client_dirichlet(labels, 10, 0.05, 10, seed=0)
    assert_disjoint(parts, 100)


@settings(max_examples=60, deadline=None)
@given(classes=st.integers(1, 12), clients=st.integers(1, 30), data=st.data())
def test_shards_have_exactly_k_classes(classes: int, clients: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, classes))
    labels = np.arange(classes * 60) % classes
    if clients * k < classes:
        with pytest.raises(InputError, match="cannot hold all"):
            partition.shards(labels, clients, k, seed=0)
        return
    parts = partition.shards(labels, clients, k, seed=data.draw(st.integers(0, 99)))
    assert_disjoint(parts, len(labels))
    assert {len(np.unique(labels[p])) for p in parts} == {k}


def test_shards_of_too_many_classes(labels: Labels) -> None:
    with pytest.raises(InputError, match="between 1 and 10"):
        partition.shards(labels, 10, 11, seed=0)
    with pytest.raises(InputError, match="fewer clients"):
        partition.shards(np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]), 4, 1, seed=0)


def test_groups_become_clients() -> None:
    groups = np.array([2, 0, 2, 1, 0, 2])
    parts = partition.by_group(groups, None, min_samples=2)
    assert [p.tolist() for p in parts] == [[1, 4], [0, 2, 5]]
    with pytest.raises(InputError, match="only 2 of 3 groups"):
        partition.by_group(groups, 3, min_samples=2)


@pytest.mark.parametrize("kind", ["iid", "client_dirichlet", "shards", "dirichlet"])
def test_same_seed_same_partition(labels: Labels, kind: str) -> None:
    def draw(seed: int) -> list[list[int]]:
        arguments = {
            "iid": (20, seed),
            "client_dirichlet": (20, 0.5, 30, seed),
            "shards": (20, 2, seed),
            "dirichlet": (20, 0.5, 10, seed),
        }[kind]
        return [p.tolist() for p in getattr(partition, kind)(labels, *arguments)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
