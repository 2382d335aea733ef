"""A federation of arrays straight from Python."""

import csv
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfedfda.data.arrays import CLASS_NAMES
from pfedfda.data.federation import FederationConfig
from pfedfda.data.store import default_cache
from pfedfda.errors import InputError
from pfedfda.files import make_folders
from pfedfda.models.factories import name_callable


def federation_from_arrays(
    X: ArrayLike,
    y: ArrayLike,
    client: ArrayLike | None = None,
    class_names: list[str] | None = None,
    **settings: Any,
) -> FederationConfig:
    """Return a federation of arrays, for `pfedfda.run` and `pfedfda.compare`.

    The arrays are written once to the cache, under a name that their content determines.

    Parameters
    ----------
    X
        Inputs: numbers (samples, features) or of any other shape, uint8 images (samples, height,
        width[, channels]), or a list of texts.
    y
        One label per input: integers from 0, or names.
    client
        Who holds each input, a number or name; without it inputs are dealt to clients as
        `partition` says.
    class_names
        Names of integer labels.
    **settings
        Any other field of `FederationConfig`, e.g. ``clients=20`` or ``backbone=...``.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> federation = federation_from_arrays(X, y, clients=5)
    >>> federation.clients
    5
    """
    if callable(settings.get("backbone")):
        settings["backbone"] = name_callable(settings["backbone"])
    inputs = _array(X, "X")
    if inputs.dtype.kind in "OT" and all(isinstance(text, str) for text in inputs.ravel()):
        inputs = inputs.astype(np.str_)
    if inputs.dtype.kind == "O":
        raise InputError("X holds Python objects: expected an array of numbers, or texts.")
    arrays = {"X": inputs, "y": _plain(y, "y")}
    if client is not None:
        arrays["client"] = _plain(client, "client")
    if class_names is not None:
        arrays[CLASS_NAMES] = _plain(class_names, "class_names").astype(np.str_)
    for name in ("y", "client"):
        if name in arrays and arrays[name].shape != inputs.shape[:1]:
            raise InputError(
                f"X has shape {inputs.shape} and {name} {arrays[name].shape}: expected one entry "
                f"of {name} per input."
            )
    is_text = inputs.dtype.kind == "U"
    if is_text:
        _check_texts(arrays)
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    folder = default_cache() / "arrays"
    make_folders(folder)
    path = folder / f"{digest.hexdigest()[:24]}{'.csv' if is_text else '.npz'}"
    if not path.exists():
        new = path.with_suffix(".new")
        if is_text:
            _write_texts(new, arrays)
        else:
            with new.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        new.replace(path)
    if is_text:
        settings = {"text_column": "X", "label_column": "y"} | settings
    return FederationConfig(source=str(path), **settings)


def _array(values: ArrayLike, name: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"{name} is no array ({str(error).split('.')[0]}).") from error


def _plain(values: ArrayLike, name: str) -> NDArray[Any]:
    """Return labels or clients as an array of integers or strings."""
    array = _array(values, name)
    if array.dtype.kind in "OT":
        array = array.astype(np.str_)
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iuU":
        raise InputError(f"{name} is {array.dtype}; expected integers or names.")
    return array


def _check_texts(arrays: dict[str, NDArray[Any]]) -> None:
    """Refuse what a table would hold otherwise than it is meant."""
    if arrays["X"].ndim != 1:
        raise InputError(f"X has texts of shape {arrays['X'].shape}: expected one text per sample.")
    labels = arrays["y"]
    if CLASS_NAMES not in arrays:
        return
    if labels.dtype.kind == "U":
        raise InputError("y holds names already: drop class_names, or give y as integers.")
    classes = len(arrays[CLASS_NAMES])
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise InputError(
            f"Label {wrong} is out of range: with {classes} classes labels go from 0 to "
            f"{classes - 1}."
        )


def _write_texts(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write texts as a table: as an array, each would take the room of the longest."""
    columns = {name: array.tolist() for name, array in arrays.items() if name != CLASS_NAMES}
    if CLASS_NAMES in arrays:
        names = arrays[CLASS_NAMES].tolist()
        columns["y"] = [names[label] for label in columns["y"]]
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
