"""Features of a frozen backbone, computed once for a federation.

Raw features are kept in the cache under the hash of the inputs, the backbone's weights and its
preprocessing, and are computed in parts: a stopped extraction goes on where it was. Whatever the
federation then does with them (a power transform, fewer dimensions, a common scale) takes seconds.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from pfedfda.data.store import is_intact, store
from pfedfda.errors import InputError
from pfedfda.files import flush, make_folders
from pfedfda.models.backbones import Backbone

PART = 256  # inputs that are computed and kept at a time
Progress = Callable[[int, int], None]
Transform = Literal["none", "sqrt"]


def extract_features(
    backbone: Backbone,
    inputs: NDArray[Any],
    fingerprint: str,
    cache: Path,
    progress: Progress | None = None,
    device: torch.device | None = None,
) -> NDArray[np.float32]:
    """Return the features (n, d) of all inputs, from the cache as far as they are there.

    Parameters
    ----------
    backbone
        The frozen network.
    inputs
        Images, numbers or texts.
    fingerprint
        A hash of the inputs.
    cache
        The folder for prepared data.
    progress
        Called with the number of inputs done and the number in all.
    device
        Where the backbone runs; by default on all cores, each with inputs of its own.
    """
    key = {"version": 1, "inputs": fingerprint, "backbone": backbone.key()}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    target = cache / "features" / name
    parts = target.with_name(f"{name}.parts")
    while not is_intact(target):
        _extract_parts(backbone, inputs, parts, progress, device or torch.device("cpu"))
        starts = range(0, len(inputs), PART)
        try:
            features = [np.load(_part(parts, start), allow_pickle=False) for start in starts]
        except FileNotFoundError:  # another process was faster, and has removed them
            continue
        whole = np.concatenate(features)
        store(target, lambda folder, whole=whole: np.save(folder / "features.npy", whole))  # type: ignore[misc]
    shutil.rmtree(parts, ignore_errors=True)
    return np.asarray(np.load(target / "features.npy", mmap_mode="r", allow_pickle=False))


def _part(folder: Path, start: int) -> Path:
    return folder / f"{start:09}.npy"


def _extract_parts(
    backbone: Backbone,
    inputs: NDArray[Any],
    folder: Path,
    progress: Progress | None,
    device: torch.device,
) -> None:
    """Compute every part that is not there yet."""
    backbone.module.to(device)
    starts = list(range(0, len(inputs), PART))
    missing = [start for start in starts if not _part(folder, start).exists()]
    done = len(inputs) - sum(min(PART, len(inputs) - start) for start in missing)

    def compute(start: int) -> int:
        stop = min(start + PART, len(inputs))
        size = backbone.batch_size
        batches = [inputs[i : min(i + size, stop)] for i in range(start, stop, size)]
        features = np.concatenate([backbone.features(batch, device) for batch in batches])
        make_folders(folder)
        new = _part(folder, start).with_suffix(f".{os.getpid()}.new")
        with new.open("wb") as file:
            np.save(file, features)
        flush(new)
        new.replace(_part(folder, start))
        return stop - start

    # One thread for each core, and one core for each part: the bits of a part do not depend on how
    # many there are.
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for count in pool.map(compute, missing):
                done += count
                if progress is not None:
                    progress(done, len(inputs))
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class FeatureMap:
    """What is done to numbers or raw features: a transform, a shift, directions, and a scale.

    Parameters
    ----------
    transform
        ``sqrt`` is Tukey's power transform: the square root, with the sign kept.
    mean
        Subtracted after the transform, (d,).
    directions
        Orthonormal columns (d, k) on which features are projected; None keeps all dimensions.
    scale
        What everything is divided by in the end: one number, or one for each dimension.
    explained
        The share of the variance that the directions keep.
    """

    transform: Transform
    mean: NDArray[np.float64]
    directions: NDArray[np.float64] | None
    scale: NDArray[np.float64]
    explained: float = 1.0

    def __call__(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return features as clients get them."""
        mapped = transformed(features, self.transform) - self.mean
        if self.directions is not None:
            mapped = mapped @ self.directions
        return (mapped / self.scale).astype(np.float32)

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the numbers for a file."""
        arrays = {"mean": self.mean, "scale": np.atleast_1d(self.scale)}
        if self.directions is not None:
            arrays["directions"] = np.ascontiguousarray(self.directions)
        return arrays

    @classmethod
    def of(cls, transform: str, arrays: Mapping[str, NDArray[Any]]) -> "FeatureMap":
        """Return the map of the numbers of a file; raise ValueError if they do not fit."""
        if transform not in get_args(Transform):
            raise ValueError(f"unknown transform {transform[:80]!r}")
        mean, scale, directions = arrays["mean"], arrays["scale"], arrays.get("directions")
        given = [array for array in (mean, scale, directions) if array is not None]
        plain = all(a.dtype == np.float64 and np.isfinite(a).all() for a in given)
        dims = mean.shape if directions is None else directions.shape[1:]
        fits = mean.ndim == len(dims) == 1 and scale.shape in ((1,), dims) and (scale > 0).all()
        if not plain or not fits or (directions is not None and len(directions) != len(mean)):
            raise ValueError("the numbers of the feature map do not fit together")
        return cls(cast("Transform", transform), mean, directions, scale)


def transformed(features: NDArray[np.float32], transform: Transform) -> NDArray[np.float64]:
    """Return features after the power transform, in double precision."""
    values = np.asarray(features, dtype=np.float64)
    return np.sign(values) * np.sqrt(np.abs(values)) if transform == "sqrt" else values


def fit_feature_map(
    features: NDArray[np.float32],
    train: list[slice],
    dims: int | None,
    transform: Transform,
) -> FeatureMap:
    """Find the feature map of a federation from sums over its clients' training samples.

    The sums are the number of samples, Σz and Σzzᵀ of each client, so that a federation of real
    sites could add them up without a look at single samples. The scale makes the mean variance of a
    dimension 1, so that settings in absolute numbers, such as a ridge or a learning rate, mean the
    same for every backbone.

    Parameters
    ----------
    features
        Raw features of all samples.
    train
        Where each client's training samples are.
    dims
        How many principal directions to keep; all dimensions, unrotated, when None.
    transform
        The transform that comes first.
    """
    dimension = features.shape[1]
    if dims is not None and not 1 <= dims <= dimension:
        raise InputError(
            f"feature-dims is {dims}; the backbone has {dimension} features, so it must lie "
            f"between 1 and {dimension}."
        )
    count, total, products = 0, np.zeros(dimension), np.zeros((dimension, dimension))
    for part in train:
        own = transformed(features[part], transform)
        count += len(own)
        total += own.sum(axis=0)
        products += own.T @ own
    mean = total / count
    covariance = products / count - np.outer(mean, mean)
    variance = float(np.trace(covariance))
    if variance <= count * np.finfo(np.float64).eps * float(mean @ mean):  # rounding, and no more
        raise InputError(
            "The backbone gives the same features for all training samples: there is nothing to "
            "tell apart; are the inputs what it expects?"
        )
    if dims is None:
        return FeatureMap(transform, mean, None, np.sqrt([variance / dimension]))
    values, vectors = np.linalg.eigh(covariance)
    directions = vectors[:, ::-1][:, :dims]
    # A direction and its opposite are the same: the largest entry is made positive.
    largest = directions[np.abs(directions).argmax(axis=0), np.arange(dims)]
    directions = directions * np.where(largest < 0, -1.0, 1.0)
    kept = float(values[::-1][:dims].sum())
    return FeatureMap(transform, mean, directions, np.sqrt([kept / dims]), kept / variance)


def standardization(inputs: NDArray[np.float32], train: list[slice]) -> FeatureMap:
    """Return the map that gives every number mean 0 and variance 1 over all training samples.

    From sums over the clients, as in `fit_feature_map`. A number that never changes is only moved.

    Parameters
    ----------
    inputs
        Numbers (n, d) of all samples.
    train
        Where each client's training samples are.
    """
    count, total = 0, np.zeros(inputs.shape[1])
    for part in train:
        count += len(inputs[part])
        total += inputs[part].sum(axis=0, dtype=np.float64)
    mean = total / count
    squares = sum(np.square(inputs[part] - mean).sum(axis=0) for part in train)
    deviation = np.sqrt(squares / count)
    # Rounding of the sum leaves a little of a number that never changes.
    constant = deviation <= count * np.finfo(np.float64).eps * np.abs(mean)
    return FeatureMap("none", mean, None, np.where(constant, 1.0, deviation))
