from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pfedfda.data import CORRUPTIONS, FederationConfig, corrupt, prepare
from pfedfda.data.shift import assign_shift
from pfedfda.errors import InputError
from pfedfda.seeding import numpy_generator

CONFIG = FederationConfig(clients=12, alpha=5.0)


def test_paper_has_unique_pairs_for_the_first_half() -> None:
    pairs = assign_shift("paper", None, 100)
    assert list(pairs) == list(range(50))
    assert len(set(pairs.values())) == 50
    assert {p.corruption for p in pairs.values()} == set(CORRUPTIONS)
    assert {p.severity for p in pairs.values()} == {1, 2, 3, 4, 5}


def test_released_has_only_ten_pairs() -> None:
    pairs = assign_shift("released", None, 100)
    assert len(pairs) == 50
    assert len(set(pairs.values())) == 10
    assert {pair.corruption for pair in pairs.values()} == set(CORRUPTIONS)
    assert pairs[0] == pairs[40] == ("motion_blur", 1)
    assert pairs[13] == ("shot_noise", 4)
    assert pairs[9] == pairs[49] == ("contrast", 5)


def test_no_shift() -> None:
    assert assign_shift("none", None, 100) == {}


def test_training_and_test_images_get_the_same_corruption(tmp_path: Path) -> None:
    plain = prepare(CONFIG, cache=tmp_path)
    shifted = prepare(replace(CONFIG, shift="paper"), cache=tmp_path)
    np.testing.assert_array_equal(plain.labels, shifted.labels)
    assert shifted.attributes["corruption"][6:] == [""] * 6
    for client in range(12):
        before, after = plain.client(client), shifted.client(client)
        if client >= 6:
            np.testing.assert_array_equal(before.train_inputs, after.train_inputs)
            np.testing.assert_array_equal(before.test_inputs, after.test_inputs)
            continue
        name = shifted.attributes["corruption"][client]
        severity = shifted.attributes["severity"][client]
        for images, got, end in (
            (before.train_inputs, after.train_inputs, ()),
            (before.test_inputs, after.test_inputs, ("test",)),
        ):
            random = numpy_generator("shift", CONFIG.partition_seed, client, *end)
            np.testing.assert_array_equal(got, corrupt(images, name, severity, random))


@pytest.mark.parametrize("share", [0.75, 0.5, 0.25])
def test_corrupted_test_images_do_not_depend_on_the_share_of_training_images(
    tmp_path: Path, share: float
) -> None:
    config = FederationConfig(clients=20, partition="iid", shift="paper")  # all ten corruptions
    whole = prepare(config, cache=tmp_path)
    part = prepare(replace(config, train_fraction=share), cache=tmp_path)
    for client in range(20):
        more, less = whole.client(client), part.client(client)
        np.testing.assert_array_equal(less.test_inputs, more.test_inputs)
        kept = len(less.train_labels)
        np.testing.assert_array_equal(less.train_inputs, more.train_inputs[:kept])


def test_version_1_corrupts_all_images_of_a_client_from_one_stream(tmp_path: Path) -> None:
    """The federations of old records can still be made."""
    config = replace(CONFIG, shift="paper", shift_version=1, train_fraction=0.5)
    plain = prepare(replace(config, shift="none"), cache=tmp_path)
    old, new = (prepare(replace(config, shift_version=v), cache=tmp_path) for v in (1, 2))
    assert old != new
    for client in range(6):
        before, after = plain.client(client), old.client(client)
        name, severity = (old.attributes[what][client] for what in ("corruption", "severity"))
        both = np.concatenate([before.train_inputs, before.test_inputs])
        random = numpy_generator("shift", CONFIG.partition_seed, client)
        got = np.concatenate([after.train_inputs, after.test_inputs])
        np.testing.assert_array_equal(got, corrupt(both, name, severity, random))
        np.testing.assert_array_equal(after.train_inputs, new.client(client).train_inputs)


def test_the_version_makes_no_difference_without_corrupted_test_images(tmp_path: Path) -> None:
    plain = [prepare(replace(CONFIG, shift_version=v), cache=tmp_path) for v in (1, 2)]
    assert plain[0] == plain[1]
    validation = replace(CONFIG, shift="paper", validation_share=0.2)
    first, second = (prepare(replace(validation, shift_version=v), tmp_path) for v in (1, 2))
    np.testing.assert_array_equal(first.inputs, second.inputs)
    with pytest.raises(InputError, match="shift-version is 3; it must be 1 or 2"):
        replace(CONFIG, shift_version=3)


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    config = replace(CONFIG, shift="paper")
    first, second = (prepare(config, cache=tmp_path / name).inputs for name in "ab")
    np.testing.assert_array_equal(first, second)


def test_any_assignment_by_a_table(tmp_path: Path) -> None:
    table = tmp_path / "shift.csv"
    table.write_text("client,corruption,severity\n3,fog,5\n0,contrast,2\n")
    config = replace(CONFIG, shift_table=table)
    first = prepare(config, cache=tmp_path)
    assert first.attributes["corruption"][:4] == ["contrast", "", "", "fog"]
    table.write_text("client,corruption,severity\n3,fog,4\n")
    assert prepare(config, cache=tmp_path) != first  # the content is part of the key


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("99,fog,1", "client 99"),
        ("1,fog,9", "severity 9"),
        ("1,mist,1", "Unknown corruption 'mist'"),
        ("one,fog,1", "Line 2"),
        ("1", "Line 2"),
        ("1,fog,1\n1,frost,2", "Line 3 .* names client 1 a second time"),
        ("", "names no client"),
    ],
)
def test_bad_tables(tmp_path: Path, line: str, message: str) -> None:
    table = tmp_path / "shift.csv"
    table.write_text(f"client,corruption,severity\n{line}\n")
    with pytest.raises(InputError, match=message):
        prepare(replace(CONFIG, shift_table=table), cache=tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        prepare(replace(CONFIG, shift_table=tmp_path / "absent.csv"), cache=tmp_path)
    with pytest.raises(InputError, match="either"):
        replace(CONFIG, shift="paper", shift_table=table)
