"""Preparing a federation: reading, dealing, splitting, corrupting and writing its samples once."""

import hashlib
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from pfedfda.data import partition
from pfedfda.data.catalogue import open_source
from pfedfda.data.corruptions import corrupt
from pfedfda.data.features import extract_features, fit_feature_map
from pfedfda.data.federation import Federation, FederationConfig
from pfedfda.data.hub import data_folder
from pfedfda.data.shift import Shift, assign_shift, frost_photos
from pfedfda.data.sources import Dataset
from pfedfda.data.store import default_cache, is_intact, read_hashes, store
from pfedfda.errors import InputError
from pfedfda.files import read_text, reserve
from pfedfda.models.backbones import open_backbone
from pfedfda.seeding import numpy_generator

FORMAT = 5
SOURCE_COLUMNS = ("image_column", "label_column", "group_column")
PrepareProgress = Callable[[str, int, int], None]


BACKBONE_SETTINGS = ("backbone", "backbone_size", "feature_dims", "feature_transform")


def prepare(
    config: FederationConfig,
    cache: Path | None = None,
    progress: PrepareProgress | None = None,
    device: str = "cpu",
) -> Federation:
    """Return the federation that a configuration describes, making it if it is not there yet.

    Parameters
    ----------
    config
        Source, partition, split, shift and seed.
    cache
        The folder for prepared federations, `default_cache` when None.
    progress
        Called with a description, the number done and the number in all during long steps.
    device
        Where a backbone runs: all cores for cpu, otherwise cuda, cuda:N or mps.
    """
    if config.backbone is None:
        return _prepare_inputs(config, cache, progress)
    raw = replace(
        config, backbone=None, backbone_size=None, feature_dims=None, feature_transform="none"
    )
    return _prepare_features(
        config, _prepare_inputs(raw, cache, progress), cache, progress, torch.device(device)
    )


def _prepare_features(
    config: FederationConfig,
    raw: Federation,
    cache: Path | None,
    progress: PrepareProgress | None,
    device: torch.device,
) -> Federation:
    """Return the federation whose inputs are the features that a backbone makes of another's."""
    assert config.backbone is not None
    kind = raw.index["type"]
    side = max(raw.input_shape[:2]) if kind == "uint8" else None
    backbone = open_backbone(config.backbone, config.backbone_size, side)
    wanted = {"images": "uint8", "texts": "text"}.get(backbone.takes, kind)
    if kind != wanted:
        found = {"uint8": "images", "text": "texts"}.get(kind, "numbers")
        raise InputError(
            f"The backbone {config.backbone} takes {backbone.takes}, and the inputs are {found}."
        )
    root = cache or default_cache()
    determined_by = {
        "format": FORMAT,
        "raw": raw.folder.name,
        "backbone": backbone.key(),
        "dims": config.feature_dims,
        "transform": config.feature_transform,
    }
    key = hashlib.sha256(json.dumps(determined_by, sort_keys=True).encode()).hexdigest()[:24]
    target = root / "federations" / key
    if is_intact(target):
        return Federation(target)

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress("extracting features", done, total)

    hashes = read_hashes(raw.folder)
    features = extract_features(
        backbone,
        raw.inputs,
        hashes["inputs.npy"] + hashes.get("stops.npy", ""),
        root,
        report,
        device,
    )
    stops = np.cumsum(raw.train_sizes + raw.test_sizes)
    starts = stops - raw.train_sizes - raw.test_sizes
    train = [slice(s, s + n) for s, n in zip(starts, raw.train_sizes, strict=True)]
    mapping = fit_feature_map(features, train, config.feature_dims, config.feature_transform)
    mapped = mapping(features)
    index = {
        **raw.index,
        "config": raw.index["config"] | {name: getattr(config, name) for name in BACKBONE_SETTINGS},
        "shape": mapped.shape[1:],
        "type": "float32",
        "features": {
            "backbone": config.backbone,
            **backbone.key(),
            "raw_dims": features.shape[1],
            "transform": config.feature_transform,
            "explained_variance": mapping.explained,
        },
    }

    def write(folder: Path) -> None:
        np.save(folder / "inputs.npy", mapped)
        np.save(folder / "labels.npy", raw.labels)
        save_file(mapping.tensors(), folder / "feature_map.safetensors")
        (folder / "index.json").write_text(json.dumps(index))

    store(target, write)
    return Federation(target)


def _prepare_inputs(
    config: FederationConfig, cache: Path | None, progress: PrepareProgress | None
) -> Federation:
    """Return the federation of the source's own inputs."""
    columns = {
        name: value for name in SOURCE_COLUMNS if (value := getattr(config, name)) is not None
    }
    source = open_source(config.source, config.image_size, config.data_dir, columns)
    of_source = (
        *("source", "image_size", "data_dir", "shift_table"),
        *SOURCE_COLUMNS,
        *BACKBONE_SETTINGS,
    )
    settings = {name: v for name, v in asdict(config).items() if name not in of_source}
    if not config.validation_share:  # federations from before there was validation stay valid
        del settings["validation_share"]
    if not _is_shifted(config):
        del settings["shift_version"]
    frost = _frost_folder(config)
    determined_by = {
        "format": FORMAT,
        "source": source.key(),
        "settings": settings,
        "shift_table": _content(config.shift_table),
        "frost": None if frost is None else sorted(f.name for f in frost.iterdir()),
    }
    key = hashlib.sha256(json.dumps(determined_by, sort_keys=True).encode()).hexdigest()[:24]
    root = cache or default_cache()
    target = root / "federations" / key
    if is_intact(target):
        return Federation(target)
    if target.exists() and progress is not None:
        progress("what the cache had is damaged, and is made anew", 1, 1)

    def report(step: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, total: progress(step, done, total)

    dataset = source.load(report("reading images"))
    names, parts, attributes = _deal(config, dataset, report("drawing a partition"))
    order, train_sizes, test_sizes = _split(config, parts)
    shifts = assign_shift(config.shift, config.shift_table, len(parts))
    if shifts:
        attributes["corruption"] = [
            shifts[c].corruption if c in shifts else "" for c in range(len(parts))
        ]
        attributes["severity"] = [
            shifts[c].severity if c in shifts else 0 for c in range(len(parts))
        ]
    index = {
        "format": FORMAT,
        "config": {**asdict(config), "data_dir": None, "shift_table": None},
        "shape": dataset.inputs.shape[1:],
        "type": "text" if dataset.inputs.dtype.kind == "T" else str(dataset.inputs.dtype),
        "class_names": dataset.class_names,
        "names": names,
        "train": train_sizes,
        "test": test_sizes,
        "attributes": attributes,
    }

    def write(folder: Path) -> None:
        if index["type"] == "text":
            _write_texts(folder, dataset.inputs[order].tolist())
        else:
            photos = frost_photos(config.data_dir) if shifts else None
            _write_inputs(
                folder, config, dataset, order, index, shifts, photos, report("writing inputs")
            )
        np.save(folder / "labels.npy", dataset.labels[order])
        (folder / "index.json").write_text(json.dumps(index))

    store(target, write)
    return Federation(target)


def _write_texts(folder: Path, texts: list[str]) -> None:
    """Write texts one behind the other, and where each stops."""
    encoded = [text.encode(errors="replace") for text in texts]
    np.save(folder / "inputs.npy", np.frombuffer(b"".join(encoded), dtype=np.uint8))
    np.save(folder / "stops.npy", np.cumsum([len(text) for text in encoded]))


def _frost_folder(config: FederationConfig) -> Path | None:
    """Return the folder with photographs of frost, if they are needed and there."""
    folder = data_folder(config.data_dir)
    if not _is_shifted(config) or folder is None or not (folder / "frost").is_dir():
        return None
    return folder / "frost"


def _is_shifted(config: FederationConfig) -> bool:
    return config.shift != "none" or config.shift_table is not None


def _content(path: Path | None) -> str | None:
    try:
        return None if path is None else read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The shift table {path} cannot be read ({error}).") from error


def _deal(
    config: FederationConfig,
    dataset: Dataset,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[str], list[NDArray[np.int64]], dict[str, list[Any]]]:
    """Return the names of the clients, the sample indices of each, and their attributes."""
    kind = config.partition
    if kind == "auto":
        kind = "dirichlet" if dataset.groups is None else "group"
    labels, seed = dataset.labels, config.partition_seed
    if kind in ("group", "group-dirichlet"):
        if dataset.groups is None:
            raise InputError(
                f"The partition {kind!r} needs a source with groups, and {config.source!r} has "
                f"none: use client/class/image.png or an array 'clients'."
            )
        if kind == "group-dirichlet":
            return _deal_inside_groups(config, dataset, dataset.groups, progress)
        minimum = config.min_samples or partition.MIN_CLIENT_SAMPLES
        parts = partition.by_group(dataset.groups, config.clients, minimum)
        return [dataset.group_names[dataset.groups[part[0]]] for part in parts], parts, {}
    clients = config.clients or 50
    if clients > len(labels):
        raise InputError(
            f"{clients} clients were asked for and {config.source!r} has {len(labels)} samples: "
            f"use at most {len(labels) // partition.MIN_CLIENT_SAMPLES} clients."
        )
    if kind == "iid":
        parts = partition.iid(labels, clients, seed)
    elif kind == "shards":
        parts = partition.shards(labels, clients, config.classes_per_client, seed)
    elif kind == "client-dirichlet":
        samples = max(math.ceil(config.samples / config.train_share - 1e-9), config.samples + 1)
        parts = partition.client_dirichlet(labels, clients, config.alpha, samples, seed)
    else:
        minimum = config.min_samples or _usual_minimum(len(labels), clients)
        parts = partition.dirichlet(labels, clients, config.alpha, minimum, seed, progress)
    return [str(client) for client in range(clients)], parts, {}


def _deal_inside_groups(
    config: FederationConfig,
    dataset: Dataset,
    groups: NDArray[np.int64],
    progress: Callable[[int, int], None] | None,
) -> tuple[list[str], list[NDArray[np.int64]], dict[str, list[Any]]]:
    """Split every group over clients of its own by Dirichlet shares."""
    names, parts, domains = [], [], []
    count = config.clients_per_group
    for group, name in enumerate(dataset.group_names):
        members = np.flatnonzero(groups == group)
        minimum = config.min_samples or _usual_minimum(len(members), count)
        inside = partition.dirichlet(
            dataset.labels[members],
            count,
            config.alpha,
            minimum,
            (config.partition_seed + group) % 2**32,
            progress,
        )
        parts += [members[part] for part in inside]
        names += [f"{name}-{client}" for client in range(count)]
        domains += [name] * count
    return names, parts, {"domain": domains}


def _usual_minimum(samples: int, clients: int) -> int:
    """Return the smallest size of a client where the user has not given one."""
    return min(10, max(partition.MIN_CLIENT_SAMPLES, samples // clients // 2))


def _split(
    config: FederationConfig, parts: list[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """Shuffle every client's samples and cut them into training and test samples.

    Each client keeps at least one of both. A smaller training fraction keeps the first of the same
    training samples, so that the sets of 25, 50, 75 and 100 % are nested and the test set is one.
    For validation, the last of the kept training samples take the place of the test samples; the
    images of a client begin with the same ones either way, and are corrupted alike.
    """
    order, train_sizes, test_sizes = [], [], []
    for client, part in enumerate(parts):
        random = numpy_generator("split", config.partition_seed, client)
        shuffled = random.permutation(part)
        cut = min(max(int(len(part) * config.train_share + 1e-9), 1), len(part) - 1)
        kept = max(round(cut * config.train_fraction), 1)
        if config.validation_share:
            if kept < 2:
                raise InputError(
                    f"Client {client} has one training sample, and validation needs a second: "
                    f"raise min-samples or train-fraction, or set validation-share to 0."
                )
            held_out = min(max(round(kept * config.validation_share), 1), kept - 1)
            order.append(shuffled[:kept])
            train_sizes.append(kept - held_out)
            test_sizes.append(held_out)
        else:
            order += [shuffled[:kept], shuffled[cut:]]
            train_sizes.append(kept)
            test_sizes.append(len(part) - cut)
    return np.concatenate(order), train_sizes, test_sizes


def _write_inputs(
    folder: Path,
    config: FederationConfig,
    dataset: Dataset,
    order: NDArray[np.int64],
    index: dict[str, Any],
    shifts: dict[int, Shift],
    frost_photos: list[NDArray[np.uint8]] | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the inputs client by client, corrupted where they are to be.

    They are not written through a map: on a full disk that ends the process without a word.
    """
    shape = (len(order), *dataset.inputs.shape[1:])
    sizes = np.array(index["train"]) + np.array(index["test"])
    stops = np.cumsum(sizes)

    def make(client: int) -> tuple[int, NDArray[Any]]:
        start, stop = int(stops[client] - sizes[client]), int(stops[client])
        own = dataset.inputs[order[start:stop]]
        if client in shifts:
            # Validation images are training images, and are corrupted as such.
            one_stream = config.shift_version == 1 or config.validation_share
            cut = len(own) if one_stream else index["train"][client]
            for part, use in ((own[:cut], ()), (own[cut:], ("test",))):
                random = numpy_generator("shift", config.partition_seed, client, *use)
                part[:] = corrupt(part, *shifts[client], random, frost_photos)
        return start, own

    with (folder / "inputs.npy").open("wb") as file:
        header = {"descr": dataset.inputs.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        begin, input_bytes = file.tell(), math.prod(shape[1:]) * dataset.inputs.itemsize
        reserve(file, begin + len(order) * input_bytes)
        lock = Lock()

        def fill(client: int) -> None:
            start, own = make(client)
            with lock:
                _write_at(file, begin + start * input_bytes, own)

        with ThreadPoolExecutor() as pool:  # numpy and Pillow work outside the interpreter lock
            for done, _ in enumerate(pool.map(fill, range(len(sizes))), start=1):
                if progress is not None:
                    progress(done, len(sizes))


def _write_at(file: BinaryIO, place: int, inputs: NDArray[Any]) -> None:
    file.seek(place)
    file.write(np.ascontiguousarray(inputs).data)
