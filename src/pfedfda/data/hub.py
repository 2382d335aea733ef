"""Classification datasets of the Hugging Face Hub, or local copies of them.

A dataset is named ``hub:OWNER/NAME``. A folder ``OWNER/NAME`` in the Hub's layout below the data
folder (``--data-dir``, or the variable ``PFEDFDA_DATA``) is looked at first; otherwise the Hub is
asked. All labelled splits are merged, in the dataset's order. What has been decoded once is kept in
the cache.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedfda.data.decoding import Encoded, Progress, decode_all
from pfedfda.data.sources import Dataset
from pfedfda.data.store import DAMAGED, default_cache, is_intact, store
from pfedfda.data.tables import Columns
from pfedfda.errors import InputError, quote
from pfedfda.files import expand_user

FORMAT = 2


@dataclass(frozen=True)
class HubDataset:
    """A dataset of the Hub.

    Parameters
    ----------
    repository
        Its name, e.g. ``uoft-cs/cifar10``.
    config
        The name of one of its configurations, where it has several.
    image_column, label_column
        The names of its columns; found by their types if not given.
    group_column
        The column whose values are the clients, e.g. ``writer_id``.
    text_column, one_hot, drop_columns
        What the columns of a dataset without images are, as in `pfedfda.data.tables.Columns`.
    skip_unreadable
        Leave out images that cannot be decoded, and count them.
    image_size
        Scale the images to squares of this side; by default as `decode_all` chooses.
    colour
        Make colour (True) or grey (False) images of them.
    data_dir
        The folder of local copies; by default what ``PFEDFDA_DATA`` names.
    """

    repository: str
    config: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    text_column: str | None = None
    one_hot: bool = False
    drop_columns: str | None = None
    skip_unreadable: bool = False
    image_size: int | None = None
    colour: bool | None = None
    data_dir: Path | None = None

    def key(self) -> dict[str, Any]:
        """Return the settings, and the files of a local copy with their sizes and times."""
        settings = {name: value for name, value in asdict(self).items() if name != "data_dir"}
        for name in ("text_column", "one_hot", "drop_columns", "skip_unreadable"):
            if not settings[name]:  # what was decoded before there was a choice stays valid
                del settings[name]
        local = self.local_copy()
        files: list[list[Any]] = []
        if local is not None:
            paths = sorted(path for path in local.rglob("*") if path.is_file())
            files = [
                [str(p.relative_to(local)), p.stat().st_size, p.stat().st_mtime_ns] for p in paths
            ]
        return {"source": "hub", "version": FORMAT, **settings, "files": files}

    def load(self, progress: Progress | None = None) -> Dataset:
        """Return the images, from the cache if they have been decoded before."""
        key = hashlib.sha256(json.dumps(self.key(), sort_keys=True).encode()).hexdigest()[:24]
        folder = default_cache() / "sources" / key
        kept = _read(folder)
        if kept is not None:
            return kept
        decoded = self._decode(progress)
        if decoded.inputs.dtype != np.uint8:
            return decoded  # is read as quickly again
        store(folder, lambda place: _write(decoded, place))
        return decoded

    def local_copy(self) -> Path | None:
        """Return the folder of the local copy, None if there is none."""
        folder = data_folder(self.data_dir)
        if folder is None or not (folder / self.repository).is_dir():
            return None
        return folder / self.repository

    def _decode(self, progress: Progress | None) -> Dataset:
        encoded: list[Encoded] = []
        labels: list[Any] = []
        groups: list[Any] = []
        class_names: tuple[str, ...] = ()
        with tempfile.TemporaryDirectory(prefix="pfedfda-hub-") as scratch:
            splits = self._splits(scratch)
            if not self._has_images(next(iter(splits.values())).features):
                return self._tabular(splits)
            for split, table in splits.items():
                image, label = self._columns(table.features)
                values = table[label][:]
                if any(value in (None, -1) for value in values):
                    continue  # a split without labels
                class_names = tuple(getattr(table.features[label], "names", None) or ())
                for row, entry in enumerate(table.data.column(image).to_pylist()):
                    name = f"{row} of split {split}"
                    encoded.append(self._encoded(entry, name, Path(scratch)))
                labels += values
                if self.group_column is not None:
                    groups += table[self.group_column][:]
            if not encoded:
                raise InputError(f"The dataset {self.repository} has no split with labels.")
            unreadable: list[int] | None = [] if self.skip_unreadable else None
            images = decode_all(encoded, self.image_size, progress, self.colour, unreadable)
        kept = np.setdiff1d(np.arange(len(labels)), unreadable or [])
        left_out = len(labels) - len(kept)
        numbers, class_names = _number([labels[row] for row in kept], class_names)
        dataset = Dataset(images, numbers, class_names, left_out=left_out)
        if groups:
            ids, names = _number([groups[row] for row in kept], ())
            dataset = replace(dataset, groups=ids, group_names=names)
        return dataset

    def _has_images(self, features: Any) -> bool:
        kinds = [type(feature).__name__ for feature in features.values()]
        return self.text_column is None and (self.image_column is not None or "Image" in kinds)

    def _tabular(self, splits: dict[str, Any]) -> Dataset:
        """Return a dataset of texts or numbers, all labelled splits together."""
        if self.image_size is not None:
            raise InputError(f"The dataset {self.repository} holds no images: drop --image-size.")
        features = next(iter(splits.values())).features
        kinds = {name: getattr(feature, "dtype", "") for name, feature in features.items()}
        classes = {n: f.names for n, f in features.items() if type(f).__name__ == "ClassLabel"}
        label, text = self.label_column or next(iter(classes), None), self.text_column
        dropped = {name.strip() for name in (self.drop_columns or "").split(",")}
        inputs = [n for n in kinds if n not in (label, self.group_column, *dropped)]
        if len(inputs) == 1 and kinds[inputs[0]] in ("string", "large_string"):
            text = text or (None if self.one_hot else inputs[0])
        columns = Columns(label, self.group_column, text, self.one_hot, self.drop_columns)
        cells: dict[str, list[Any]] = {name: [] for name in features}
        for table in splits.values():
            if label in classes and any(value in (None, -1) for value in table[label][:]):
                continue  # a split without labels
            for name in features:
                found = table[name][:]
                names = classes.get(name)
                cells[name] += found if names is None else [names[k] for k in found]
        if not next(iter(cells.values())):
            raise InputError(f"The dataset {self.repository} has no split with labels.")
        return columns.dataset(cells, f"the dataset {self.repository}")

    def _splits(self, scratch: str) -> dict[str, Any]:
        """Open the local copy or the Hub, and return the splits by name."""
        local = self.local_copy()
        if local is None and os.environ.get("HF_HUB_OFFLINE") == "1":
            raise self._unreachable()
        try:
            import datasets
            import pyarrow
        except ImportError:
            raise InputError(
                "Datasets of the Hub need the package datasets: pip install 'pfedfda[hub]'."
            ) from None
        # Its retries would be logged line by line; what is wrong is said below, once.
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
        try:
            if local is not None:
                datasets.disable_progress_bars()
                splits = datasets.load_dataset(str(local), cache_dir=scratch)
            else:
                splits = datasets.load_dataset(self.repository, self.config)
        except (FileNotFoundError, ConnectionError) as error:
            if local is not None:
                raise self._unreadable(local, error) from error
            raise self._unreachable() from error
        except (ValueError, RuntimeError, OSError, pyarrow.ArrowException) as error:
            raise self._unreadable(local or self.repository, error) from error
        except datasets.exceptions.DatasetsError as error:
            raise self._unreadable(local or self.repository, error) from error
        named = (self.image_column, self.label_column, self.group_column, self.text_column)
        for column in named:
            known = next(iter(splits.values())).features
            if column is not None and column not in known:
                raise InputError(
                    f"The dataset {self.repository} has no column {column!r}; it has "
                    f"{', '.join(known)}."
                )
        return dict(splits)

    def _columns(self, features: Any) -> tuple[str, str]:
        """Return the names of the image and the label column."""
        kinds = {name: type(feature).__name__ for name, feature in features.items()}
        image = self.image_column or next((n for n, k in kinds.items() if k == "Image"), None)
        label = self.label_column or next((n for n, k in kinds.items() if k == "ClassLabel"), None)
        if label is None:
            usual = ("label", "labels", "class", "target")
            label = next((name for name in usual if name in kinds), None)
        for name, what in ((image, "images"), (label, "labels")):
            if name is None:
                raise InputError(
                    f"The dataset {self.repository} has no column of {what} that can be told by "
                    f"its type; its columns are {', '.join(kinds)}."
                )
        assert image is not None
        assert label is not None
        return image, label

    def _encoded(self, entry: Any, name: str, scratch: Path) -> Encoded:
        if isinstance(entry, dict) and entry.get("bytes"):
            return name, entry["bytes"]
        if isinstance(entry, dict) and entry.get("path"):
            local = self.local_copy()
            path = Path(entry["path"]).absolute()
            inside = local is None or any(
                path.is_relative_to(p.absolute()) for p in (local, scratch)
            )
            if not inside or ".." in path.parts:
                raise InputError(
                    f"Image {name} of the dataset {self.repository} is {quote(entry['path'])}, "
                    f"outside its folder."
                )
            return entry["path"], path
        if self.skip_unreadable:
            return name, b""  # will be counted with those that cannot be decoded
        raise InputError(f"Image {name} of the dataset {self.repository} is empty.")

    def _unreachable(self) -> InputError:
        folder = data_folder(self.data_dir)
        where = f"{folder} has no copy" if folder else "no folder of local copies is named"
        return InputError(
            f"The dataset {self.repository} is not available: the Hub does not know it or cannot "
            f"be reached, and {where}; connect to the internet, or name a folder that holds "
            f"{self.repository} in the Hub's layout with --data-dir or PFEDFDA_DATA."
        )

    def _unreadable(self, place: Path | str, error: BaseException) -> InputError:
        causes = [error]
        while (cause := causes[-1].__cause__) is not None:
            causes.append(cause)
        reason = " ".join(str(causes[-1]).split()) or type(causes[-1]).__name__
        return InputError(f"The dataset {place} cannot be read ({reason[:200]}).")


def data_folder(given: Path | None = None) -> Path | None:
    """Return the folder of local datasets: the given one, or what ``PFEDFDA_DATA`` names."""
    if given is not None:
        folder = expand_user(given)
        if not folder.is_dir():
            raise InputError(f"There is no data folder {given}.")
        return folder
    named = os.environ.get("PFEDFDA_DATA")
    return expand_user(Path(named)) if named else None


def _number(
    values: Sequence[Any], names: tuple[str, ...]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return values as integers from 0, and their names."""
    if names:
        return np.array(values, dtype=np.int64), names
    unique, numbers = np.unique(np.array(values), return_inverse=True)
    return numbers.astype(np.int64), tuple(str(value) for value in unique)


def _write(dataset: Dataset, folder: Path) -> None:
    np.save(folder / "inputs.npy", dataset.inputs)
    np.save(folder / "labels.npy", dataset.labels)
    if dataset.groups is not None:
        np.save(folder / "groups.npy", dataset.groups)
    names = {
        "class_names": dataset.class_names,
        "group_names": dataset.group_names,
        "left_out": dataset.left_out,
    }
    (folder / "names.json").write_text(json.dumps(names))


def _read(folder: Path) -> Dataset | None:
    """Return a decoded source from the cache, None if it is not there or damaged."""
    if not is_intact(folder):
        return None
    try:
        names = json.loads((folder / "names.json").read_text())
        images = np.load(folder / "inputs.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / "labels.npy", allow_pickle=False)
        groups = None
        if names["group_names"]:
            groups = np.load(folder / "groups.npy", allow_pickle=False)
        class_names, group_names = tuple(names["class_names"]), tuple(names["group_names"])
        left_out = names.get("left_out", 0)
        return Dataset(images, labels, class_names, groups, group_names, left_out=left_out)
    except DAMAGED:
        return None
