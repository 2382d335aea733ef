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
from numpy.typing import ArrayLike, NDArray

from pfedfda.data.catalogue import SOURCE_OPTIONS, open_source
from pfedfda.data.corruptions import corrupt
from pfedfda.data.dealing import deal, split
from pfedfda.data.decoding import UndecodableError
from pfedfda.data.features import FeatureMap, extract_features, fit_feature_map, standardization
from pfedfda.data.federation import Federation, FederationConfig
from pfedfda.data.hub import data_folder
from pfedfda.data.preprocessing import Preprocessing
from pfedfda.data.shift import Shift, assign_shift, frost_photos
from pfedfda.data.sources import Dataset, Source
from pfedfda.data.store import default_cache, is_intact, read_hashes, store
from pfedfda.errors import InputError
from pfedfda.files import read_text, reserve
from pfedfda.models.backbones import Backbone, open_backbone
from pfedfda.seeding import numpy_generator

FORMAT = 5
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
    raw = _prepare_inputs(_without_features(config), cache, progress)
    return _prepare_features(config, raw, cache, progress, torch.device(device))


def prepare_raw(config: FederationConfig) -> Federation:
    """Return the same federation with samples as the source has them, not as networks do."""
    if config.backbone is None and prepare(config).preprocessing.map is None:
        return prepare(config)
    return _prepare_inputs(_without_features(config), None, None)


def _without_features(config: FederationConfig) -> FederationConfig:
    return replace(
        config,
        backbone=None,
        backbone_size=None,
        feature_dims=None,
        feature_transform="none",
        standardize=False,  # features are, once they have been made
    )


def _prepare_features(
    config: FederationConfig,
    raw: Federation,
    cache: Path | None,
    progress: PrepareProgress | None,
    device: torch.device,
) -> Federation:
    """Return the federation whose inputs are the features that a backbone makes of another's."""
    backbone = _backbone_for(config, raw)
    root = cache or default_cache()
    determined_by = {
        "format": FORMAT,
        "raw": raw.folder.name,
        "backbone": backbone.key(),
        "dims": config.feature_dims,
        "transform": config.feature_transform,
    }
    if not config.standardize:
        determined_by["standardize"] = False
    target = root / "federations" / _key(determined_by)
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
    mapping = _feature_map(config, features, raw)
    mapped = mapping(features)
    index = {
        **raw.index,
        "config": raw.index["config"]
        | {name: getattr(config, name) for name in (*BACKBONE_SETTINGS, "standardize")},
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
        Preprocessing(
            raw.index["type"],
            raw.input_shape,
            raw.preprocessing.columns,
            config.backbone,
            config.backbone_size,
            backbone.key(),
            mapping,
            raw.preprocessing.text_column,
        ).save(folder)
        (folder / "index.json").write_text(json.dumps(index))

    store(target, write)
    return Federation(target)


def _backbone_for(config: FederationConfig, raw: Federation) -> Backbone:
    """Return the backbone, or refuse inputs that it does not take."""
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
    return backbone


def _feature_map(
    config: FederationConfig, features: NDArray[np.float32], raw: Federation
) -> FeatureMap:
    """Return what is done to the backbone's features."""
    if not config.standardize:
        unmoved, unscaled = np.zeros(features.shape[1]), np.ones(1)
        return FeatureMap(config.feature_transform, unmoved, None, unscaled)
    train = _training_slices(raw.train_sizes, raw.test_sizes)
    return fit_feature_map(features, train, config.feature_dims, config.feature_transform)


def _prepare_inputs(
    config: FederationConfig, cache: Path | None, progress: PrepareProgress | None
) -> Federation:
    """Return the federation of the source's own inputs."""
    given = {name: getattr(config, name) for name in SOURCE_OPTIONS}
    options = {name: value for name, value in given.items() if value not in (None, False)}
    source = open_source(config.source, config.image_size, config.data_dir, options)
    target = (cache or default_cache()) / "federations" / _key(_determined_by(config, source))
    if is_intact(target):
        return Federation(target)
    if target.exists() and progress is not None:
        progress("what the cache had is damaged, and is made anew", 1, 1)

    def report(step: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, total: progress(step, done, total)

    try:
        dataset = source.load(report("reading samples"))
    except UndecodableError as error:
        raise InputError(f"{error} Or leave out such images with --skip-unreadable.") from error
    _refuse_shift(config, dataset)
    names, parts, attributes = deal(config, dataset, report("drawing a partition"))
    order, train_sizes, test_sizes = split(config, parts)
    shifts = assign_shift(config.shift, config.shift_table, len(parts))
    attributes |= _shift_attributes(shifts, len(parts))
    index = _index(config, dataset, attributes)
    index |= {"names": names, "train": train_sizes, "test": test_sizes}
    preprocessing = _preprocessing(config, dataset, order, index)
    if preprocessing.map is not None:
        dataset = replace(dataset, inputs=preprocessing.map(dataset.inputs))

    def write(folder: Path) -> None:
        if index["type"] == "text":
            _write_texts(folder, dataset.inputs[order].tolist())
        else:
            photos = frost_photos(config.data_dir) if shifts else None
            _write_inputs(
                folder, config, dataset, order, index, shifts, photos, report("writing inputs")
            )
        np.save(folder / "labels.npy", dataset.labels[order])
        if preprocessing.does_something:
            preprocessing.save(folder)
        (folder / "index.json").write_text(json.dumps(index))

    store(target, write)
    return Federation(target)


def _determined_by(config: FederationConfig, source: Source) -> dict[str, Any]:
    """Return what determines the federation of the source's own inputs."""
    of_source = (
        *("source", "image_size", "data_dir", "shift_table"),
        *SOURCE_OPTIONS,
        *BACKBONE_SETTINGS,
    )
    settings = {name: v for name, v in asdict(config).items() if name not in of_source}
    if not config.validation_share:  # federations from before there was validation stay valid
        del settings["validation_share"]
    if not _is_shifted(config):
        del settings["shift_version"]
    if config.standardize:
        del settings["standardize"]
    if config.train_samples is None:
        del settings["train_samples"]
    frost = _frost_folder(config)
    return {
        "format": FORMAT,
        "source": source.key(),
        "settings": settings,
        "shift_table": _content(config.shift_table),
        "frost": None if frost is None else sorted(f.name for f in frost.iterdir()),
    }


def _key(determined_by: dict[str, Any]) -> str:
    """Return the name of a folder for what is determined so."""
    return hashlib.sha256(json.dumps(determined_by, sort_keys=True).encode()).hexdigest()[:24]


def _shift_attributes(shifts: dict[int, Shift], clients: int) -> dict[str, list[Any]]:
    """Return the corruption and severity of every client, if any client is corrupted."""
    if not shifts:
        return {}
    return {
        "corruption": [shifts[c].corruption if c in shifts else "" for c in range(clients)],
        "severity": [shifts[c].severity if c in shifts else 0 for c in range(clients)],
    }


def _index(
    config: FederationConfig, dataset: Dataset, attributes: dict[str, list[Any]]
) -> dict[str, Any]:
    """Return what ``index.json`` says, but for names and sizes of the clients."""
    index: dict[str, Any] = {
        "format": FORMAT,
        "config": {**asdict(config), "data_dir": None, "shift_table": None},
        "shape": dataset.inputs.shape[1:],
        "type": "text" if dataset.inputs.dtype.kind == "T" else str(dataset.inputs.dtype),
        "class_names": dataset.class_names,
        "attributes": attributes,
    }
    if dataset.left_out:
        index["left_out"] = dataset.left_out
    return index


def _preprocessing(
    config: FederationConfig, dataset: Dataset, order: NDArray[np.int64], index: dict[str, Any]
) -> Preprocessing:
    """Return what is done to a sample: vectors are standardised, others stay as they are."""
    mapping = None
    if config.standardize and dataset.inputs.dtype == np.float32 and dataset.inputs.ndim == 2:
        train = _training_slices(index["train"], index["test"])
        mapping = standardization(dataset.inputs[order], train)
    return Preprocessing(
        index["type"],
        dataset.inputs.shape[1:],
        dataset.columns,
        map=mapping,
        text_column=config.text_column,
    )


def _training_slices(train_sizes: ArrayLike, test_sizes: ArrayLike) -> list[slice]:
    """Return where each client's training samples are among all, sorted by client."""
    train = np.asarray(train_sizes)
    stops = np.cumsum(train + np.asarray(test_sizes))
    starts = stops - train - np.asarray(test_sizes)
    return [slice(s, s + n) for s, n in zip(starts.tolist(), train.tolist(), strict=True)]


def _refuse_shift(config: FederationConfig, dataset: Dataset) -> None:
    if _is_shifted(config) and dataset.inputs.dtype != np.uint8:
        raise InputError("Only images can be corrupted: drop --shift and --shift-table.")


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
