import errno
import hashlib
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pfedfda.data import Federation, FederationConfig, open_source, prepare, preparing
from pfedfda.data import store as data_store
from pfedfda.data.shift import ShiftName
from pfedfda.errors import InputError
from tests.conftest import write_image

CONFIG = FederationConfig(clients=12, alpha=0.5, min_samples=20)


def row_set(images: np.ndarray) -> set[bytes]:
    return {image.tobytes() for image in images}


def test_every_client_is_a_slice_with_the_right_labels(tmp_path: Path) -> None:
    prepared = prepare(CONFIG, cache=tmp_path)
    source = open_source("digits").load()
    label_of = {i.tobytes(): y for i, y in zip(source.inputs, source.labels, strict=True)}
    seen = 0
    for client in range(len(prepared)):
        data = prepared.client(client)
        for images, labels in (
            (data.train_inputs, data.train_labels),
            (data.test_inputs, data.test_labels),
        ):
            assert [label_of[i.tobytes()] for i in images] == labels.tolist()
            seen += len(labels)
    assert seen == len(source.labels)
    assert isinstance(prepared.inputs.base, np.memmap)


def test_split_is_eighty_twenty_and_disjoint(tmp_path: Path) -> None:
    prepared = prepare(CONFIG, cache=tmp_path)
    for client in range(len(prepared)):
        data = prepared.client(client)
        total = len(data.train_labels) + len(data.test_labels)
        assert len(data.train_labels) == int(0.8 * total)
    rows = [
        row_set(prepared.client(c).train_inputs) | row_set(prepared.client(c).test_inputs)
        for c in range(12)
    ]
    assert sum(len(r) for r in rows) == len(set().union(*rows))


def test_training_fractions_are_nested_and_leave_the_test_set(tmp_path: Path) -> None:
    whole = prepare(CONFIG, cache=tmp_path)
    previous = whole
    for fraction in (0.75, 0.5, 0.25):
        part = prepare(replace(CONFIG, train_fraction=fraction), cache=tmp_path)
        for client in range(len(whole)):
            data, larger = part.client(client), previous.client(client)
            expected = round(len(whole.client(client).train_labels) * fraction)
            assert len(data.train_labels) == expected
            assert row_set(data.train_inputs) <= row_set(larger.train_inputs)
            np.testing.assert_array_equal(data.test_inputs, whole.client(client).test_inputs)
        previous = part


@pytest.mark.parametrize("shift", ["none", "paper"])
def test_validation_images_come_from_the_training_set_alone(
    tmp_path: Path, shift: ShiftName
) -> None:
    config = replace(CONFIG, train_fraction=0.5, shift=shift)
    whole = prepare(config, cache=tmp_path)
    held_out = prepare(replace(config, validation_share=0.2), cache=tmp_path)
    assert whole.attributes == held_out.attributes
    for client in range(len(whole)):
        data, part = whole.client(client), held_out.client(client)
        assert len(part.test_labels) == round(0.2 * len(data.train_labels))
        # Together they are the training set without validation, to the bit: also where corrupted.
        both = np.concatenate([part.train_inputs, part.test_inputs])
        np.testing.assert_array_equal(both, data.train_inputs)
        labels = np.concatenate([part.train_labels, part.test_labels])
        np.testing.assert_array_equal(labels, data.train_labels)
        if shift == "none":  # no two of the digits are equal
            assert not row_set(part.train_inputs) & row_set(part.test_inputs)
            assert not row_set(both) & row_set(data.test_inputs)


def test_validation_leaves_every_client_one_of_both(tmp_path: Path) -> None:
    config = FederationConfig(partition="iid", clients=100, train_fraction=0.2)
    for share in (0.01, 0.99):
        prepared = prepare(replace(config, validation_share=share), cache=tmp_path)
        smallest = prepared.test_sizes if share < 0.5 else prepared.train_sizes
        assert smallest.min() == 1
        assert (prepared.train_sizes + prepared.test_sizes).min() >= 2
    with pytest.raises(InputError, match=r"Client \d+ has one training sample.*min-samples"):
        prepare(replace(config, train_fraction=0.1, validation_share=0.2), cache=tmp_path)


def test_extreme_scarcity_has_the_asked_number_of_training_samples(tmp_path: Path) -> None:
    config = FederationConfig(partition="client-dirichlet", clients=20, samples=50)
    prepared = prepare(config, cache=tmp_path)
    assert set(prepared.train_sizes) == {50}
    assert set(prepared.test_sizes) == {13}  # 50 / 0.8 = 62.5, so 63 in all


def test_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(CONFIG, cache=tmp_path)
    monkeypatch.setattr(preparing, "store", lambda *_: pytest.fail("prepared twice"))
    assert prepare(CONFIG, cache=tmp_path) == first


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.6},
        {"clients": 13},
        {"partition_seed": 1},
        {"train_fraction": 0.5},
        {"train_share": 0.7},
        {"validation_share": 0.2},
        {"image_size": 32},
        {"partition": "iid"},
    ],
)
def test_everything_that_determines_it_is_in_the_key(
    tmp_path: Path, change: dict[str, float]
) -> None:
    assert prepare(CONFIG, cache=tmp_path) != prepare(replace(CONFIG, **change), cache=tmp_path)


def test_damaged_federation_is_made_again(tmp_path: Path) -> None:
    first = prepare(CONFIG, cache=tmp_path)
    expected = first.inputs.copy()
    path = first.folder / "inputs.npy"
    path.write_bytes(path.read_bytes()[:-1000])
    np.testing.assert_array_equal(prepare(CONFIG, cache=tmp_path).inputs, expected)
    (first.folder / "index.json").write_text("{")
    np.testing.assert_array_equal(prepare(CONFIG, cache=tmp_path).inputs, expected)


def change_quietly(path: Path, change: Callable[[bytearray], object]) -> None:
    """Change a file and leave its size and its time of change as they were."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    change(content)
    assert len(content) == before.st_size
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap_labels(content: bytearray) -> None:
    labels = np.frombuffer(content, np.int64, offset=128)
    labels[:] = labels[::-1].copy()


def brighten_a_pixel(content: bytearray) -> None:
    content[len(content) // 2] ^= 1


def swap_names(content: bytearray) -> None:
    content[:] = content.replace(b'"3"', b'"x"').replace(b'"4"', b'"3"').replace(b'"x"', b'"4"')


@pytest.mark.parametrize("small", [0, 2**26], ids=["large", "small"])
@pytest.mark.parametrize(
    ("name", "change"),
    [("labels.npy", swap_labels), ("inputs.npy", brighten_a_pixel), ("index.json", swap_names)],
)
def test_quiet_changes_are_noticed_and_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[bytearray], object],
    small: int,
) -> None:
    monkeypatch.setattr(data_store, "ALWAYS_HASHED", small)
    first = prepare(CONFIG, cache=tmp_path)
    assert prepare(CONFIG, cache=tmp_path) == first
    before = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    change_quietly(first.folder / name, change)
    assert (first.folder / name).read_bytes() != before[name]
    steps: list[str] = []
    again = prepare(CONFIG, tmp_path, lambda step, *_: steps.append(step))
    assert (again.folder / name).read_bytes() == before[name]
    assert "damaged" in steps[0]


def test_large_files_are_hashed_once_for_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    real = data_store.file_hash
    monkeypatch.setattr(
        data_store, "file_hash", lambda path: hashed.append(path.name) or real(path)
    )
    images = prepare(CONFIG, cache=tmp_path).folder / "inputs.npy"
    monkeypatch.setattr(data_store, "ALWAYS_HASHED", images.stat().st_size - 1)
    for expected in (1, 0, 0):
        hashed.clear()
        prepare(CONFIG, cache=tmp_path)
        assert hashed.count("inputs.npy") == expected
        assert hashed.count("labels.npy") == 1
    images.touch()
    hashed.clear()
    prepare(CONFIG, cache=tmp_path)
    assert hashed.count("inputs.npy") == 1


def test_hashes_are_as_other_programs_compute_them(tmp_path: Path) -> None:
    folder = prepare(CONFIG, cache=tmp_path).folder
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    expected = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}"
        for name in ("index.json", "inputs.npy", "labels.npy")
    ]
    assert lines == expected


def test_a_federation_without_hashes_is_made_again(tmp_path: Path) -> None:
    folder = prepare(CONFIG, cache=tmp_path).folder
    for content in (None, "", "no hash\n"):
        path = folder / "SHA256SUMS"
        path.unlink() if content is None else path.write_text(content)
        assert not data_store.is_intact(folder)
        prepare(CONFIG, cache=tmp_path)
        assert data_store.is_intact(folder)


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    """The same images from another place have the same; any other image or label has another."""
    source = open_source("digits").load()
    prints = []
    for name, change in (("a", 0), ("b", 0), ("c", 1)):
        images = source.inputs.copy()
        images[900, 0, 0] += change
        np.savez(tmp_path / f"{name}.npz", images=images, labels=source.labels)
        config = replace(CONFIG, source=str(tmp_path / f"{name}.npz"))
        prints.append(prepare(config, cache=tmp_path).fingerprint)
    assert prints[0] == prints[1] != prints[2]


def _prepare_at(moment: float, cache: Path) -> None:
    time.sleep(max(moment - time.time(), 0))
    prepare(CONFIG, cache=cache)


def test_two_processes_at_once_do_not_spoil_it(tmp_path: Path) -> None:
    expected = prepare(CONFIG, cache=tmp_path / "alone")
    for attempt in range(3):
        cache = tmp_path / str(attempt)
        moment = time.time() + 0.3
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=_prepare_at, args=(moment, cache)) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        folders = list((cache / "federations").iterdir())
        assert [f.name for f in folders] == [expected.folder.name]  # no leftovers either
        for name in ("inputs.npy", "labels.npy", "index.json"):
            assert (folders[0] / name).read_bytes() == (expected.folder / name).read_bytes()


def test_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(preparing.np, "save", full_disk)
    with pytest.raises(InputError, match="No space left on device.*PFEDFDA_CACHE"):
        prepare(CONFIG, cache=tmp_path)
    assert list((tmp_path / "federations").iterdir()) == []


@pytest.mark.parametrize("without", ["posix_fallocate", None])
def test_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str | None
) -> None:
    """Whether the system can reserve space or not."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if without:
        monkeypatch.delattr(os, without)
        monkeypatch.setattr(preparing, "_write_at", full)
    else:
        monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match="No space left on device.*PFEDFDA_CACHE"):
        prepare(CONFIG, cache=tmp_path)
    assert list((tmp_path / "federations").iterdir()) == []


@pytest.fixture(params=[1_000_000, 1_417_216], ids=["images", "labels"])
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system that does not hold the digits' images, or nothing else."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a file system can be mounted by root on Linux only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_is_one_sentence(small_disk: Path) -> None:
    """In a process of its own: writing to a mapped file on a full disk is a deadly signal."""
    program = (
        "import sys, pathlib; from pfedfda import FederationConfig, InputError, prepare\n"
        "try: prepare(FederationConfig(), pathlib.Path(sys.argv[1]))\n"
        "except InputError as error: print(error)"
    )
    command = [sys.executable, "-c", program, str(small_disk)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    assert re.fullmatch(
        r"The data cannot be written to the cache .* free some space.*\n", done.stdout
    )
    assert list((small_disk / "federations").iterdir()) == []


def test_federation_travels_as_its_folder(tiny: Federation) -> None:
    assert tiny.inputs is not None
    assert len(pickle.dumps(tiny)) < 1000
    assert pickle.loads(pickle.dumps(tiny)) == tiny


def test_folder_clients_keep_their_names(tmp_path: Path) -> None:
    for client, count in (("anna", 5), ("ben", 6), ("cleo", 1)):
        for number in range(count):
            name = ("cat", "dog")[number % 2]
            write_image(tmp_path / "images" / client / name / f"{number}.png", number)
    config = FederationConfig(source=str(tmp_path / "images"))
    prepared = prepare(config, cache=tmp_path)
    assert prepared.client_names == ["anna", "ben"]  # cleo's one image cannot be split
    assert (prepared.train_sizes + prepared.test_sizes).tolist() == [5, 6]
    with pytest.raises(InputError, match="only 2 of 3 groups"):
        prepare(replace(config, clients=3), cache=tmp_path)


def test_group_partition_needs_groups(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has none"):
        prepare(FederationConfig(partition="group"), cache=tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alpha", 0.0),
        ("alpha", -1.0),
        ("alpha", float("nan")),
        ("alpha", float("inf")),
        ("clients", 0),
        ("min_samples", 1),
        ("samples", 0),
        ("train_share", 1.0),
        ("train_fraction", 0.0),
        ("train_fraction", 1.1),
        ("validation_share", -0.1),
        ("validation_share", 1.0),
        ("partition_seed", -1),
    ],
)
def test_bad_fields_are_refused(field: str, value: float) -> None:
    with pytest.raises(InputError, match=r"must"):
        FederationConfig(**{field: value})  # type: ignore[arg-type]


def test_more_clients_than_samples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2000 clients.*1797 samples: use at most 898"):
        prepare(FederationConfig(clients=2000), cache=tmp_path)
