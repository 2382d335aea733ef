"""Names: of sources, and of the paper's federations with their settings."""

from pathlib import Path
from typing import Any

from pfedfda.data.arrays import ArrayFile
from pfedfda.data.digit5 import Digit5, FontDigits
from pfedfda.data.hub import HubDataset
from pfedfda.data.sources import Digits, Folder, Source
from pfedfda.data.table_files import SUFFIXES, TableFile
from pfedfda.data.tables import Columns
from pfedfda.errors import InputError, nearest, quote
from pfedfda.files import LARGEST_SIDE, expand_user

HUB_NAMES: dict[str, dict[str, str]] = {
    "cifar10": {"repository": "uoft-cs/cifar10"},
    "cifar100": {"repository": "uoft-cs/cifar100", "label_column": "fine_label"},
    "tiny-imagenet": {"repository": "zh-plus/tiny-imagenet"},
    "femnist": {
        "repository": "flwrlabs/femnist",
        "label_column": "character",
        "group_column": "writer_id",
    },
    "mnist": {"repository": "ylecun/mnist"},
    "mnist-m": {"repository": "Mike0307/MNIST-M"},
    "svhn": {"repository": "ufldl-stanford/svhn", "config": "cropped_digits"},
    "usps": {"repository": "flwrlabs/usps"},
}

SOURCES: dict[str, str] = {
    "digits": "1,797 handwritten digits, 28×28 grey, ten classes; always there",
    "cifar10": "CIFAR-10, 60,000 colour images of 32×32, ten classes",
    "cifar100": "CIFAR-100, the same with a hundred classes",
    "tiny-imagenet": "TinyImageNet, colour images of 64×64, 200 classes",
    "femnist": "FEMNIST, 28×28 grey, 62 characters, grouped by writer",
    "digit5": "SVHN, USPS, MNIST-M, MNIST and SynthDigits (or rendered digits), grouped by domain",
    "mnist, mnist-m, svhn, usps": "the domains of DIGIT-5 alone",
    "fontdigits": "digits rendered from fonts, 32×32 colour",
    "hub:OWNER/NAME": "any classification dataset of the Hugging Face Hub: images, texts, numbers",
    "FOLDER": "your images as class/image.png, or client/class/image.png",
    "FILE.npz, X.npy": "arrays X and y (or images and labels), optionally client and class_names",
    "FILE.csv, .tsv, .parquet": "a table: numbers, or texts with --text-column; label, client",
}

PUBLISHED = ("digits", "digit5", "fontdigits", *HUB_NAMES)
"""Sources with a name of their own: the settings of published results hold for them."""

_CIFAR: dict[str, Any] = {
    "partition": "dirichlet",
    "clients": 100,
    "alpha": 0.5,
    "min_samples": 63,
}
_SCARCE: dict[str, Any] = {
    "partition": "client-dirichlet",
    "clients": 100,
    "alpha": 0.5,
    "samples": 50,
}

FEDERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "emnist": (
        "FEMNIST, a client for each writer with 64 images or more",
        {
            "source": "femnist",
            "partition": "group",
            "min_samples": 64,
            "participation": 0.03,
            "batch_size": 16,
        },
    ),
    "cifar10": ("CIFAR-10, 100 clients, Dirichlet(0.5)", {"source": "cifar10", **_CIFAR}),
    "cifar100": ("CIFAR-100, 100 clients, Dirichlet(0.5)", {"source": "cifar100", **_CIFAR}),
    "tiny-imagenet": (
        "TinyImageNet, 100 clients, Dirichlet(0.5)",
        {"source": "tiny-imagenet", **_CIFAR},
    ),
    "cifar10-s": (
        "CIFAR-10, half of the clients corrupted",
        {"source": "cifar10", **_CIFAR, "shift": "paper"},
    ),
    "cifar100-s": (
        "CIFAR-100, half of the clients corrupted",
        {"source": "cifar100", **_CIFAR, "shift": "paper"},
    ),
    "digit5": (
        "DIGIT-5, four clients for each domain, Dirichlet(0.5) inside",
        {
            "source": "digit5",
            "partition": "group-dirichlet",
            "clients_per_group": 4,
            "alpha": 0.5,
            "participation": 1.0,
        },
    ),
    "cifar10-scarce": (
        "CIFAR-10, 100 clients with 50 training images each",
        {"source": "cifar10", **_SCARCE},
    ),
    "cifar100-scarce": (
        "CIFAR-100, 100 clients with 50 training images each",
        {"source": "cifar100", **_SCARCE},
    ),
}
"""The paper's federations: what each is, and its settings by their names on the command line."""


TABLE_OPTIONS = ("label_column", "group_column", "text_column", "one_hot", "drop_columns")
HUB_OPTIONS = ("image_column", *TABLE_OPTIONS, "skip_unreadable")
FOLDER_OPTIONS = ("skip_unreadable", "splits")
SOURCE_OPTIONS = (*HUB_OPTIONS, "splits")
"""Settings of a federation that only some sources know."""


def open_source(
    name: str,
    image_size: int | None = None,
    data_dir: Path | None = None,
    options: dict[str, Any] | None = None,
) -> Source:
    """Return the source that a string names.

    Parameters
    ----------
    name
        One of `SOURCES`: a short name, ``hub:OWNER/NAME``, ``folder:PATH``, or simply the path of a
        folder of images, of an ``.npz`` or ``.npy`` file, or of a table.
    image_size
        Scale all images to squares of this side; the source's own choice when None.
    data_dir
        The folder of local copies of datasets of the Hub.
    options
        Those of `SOURCE_OPTIONS` that are given; one that the source does not know is refused.
    """
    options = options or {}
    if image_size is not None and not 8 <= image_size <= LARGEST_SIDE:
        raise InputError(
            f"The image size is {image_size}; it must be between 8 and {LARGEST_SIDE} pixels."
        )
    if name == "digits":
        _refuse_options(name, options, ())
        return Digits() if image_size is None else Digits(image_size)
    if name in ("digit5", "fontdigits"):
        _refuse_options(name, options, ())
        if image_size not in (None, 32):
            raise InputError(f"The images of {name} are 32×32; the image size cannot be set.")
        return Digit5(data_dir) if name == "digit5" else FontDigits()
    if name in HUB_NAMES or name.startswith("hub:"):
        _refuse_options(name, options, HUB_OPTIONS)
        settings: dict[str, Any] = {"repository": name.removeprefix("hub:")}
        settings = settings | HUB_NAMES.get(name, {}) | options
        if not all(settings["repository"].split("/")) or ".." in settings["repository"]:
            raise InputError(f"{name!r} does not name a dataset; expected hub:OWNER/NAME.")
        return HubDataset(**settings, image_size=image_size, data_dir=data_dir)
    return _open_path(name, image_size, options)


def is_published(name: str) -> bool:
    """Tell whether a source has a name of its own here; other sources are the user's data."""
    return name in PUBLISHED


def _open_path(name: str, image_size: int | None, options: dict[str, Any]) -> Source:
    """Return the source that a path names."""
    explicit = name.startswith("folder:")
    path = expand_user(Path(name.removeprefix("folder:")))
    if explicit or path.is_dir():
        _refuse_options(name, options, FOLDER_OPTIONS)
        return Folder(path, image_size, **options)
    if path.suffix in (".npz", ".npy"):
        _refuse_options(name, options, ())
        return ArrayFile(path, image_size)
    if path.name.lower().endswith(SUFFIXES):
        _refuse_options(name, options, (*TABLE_OPTIONS, "expected"))
        if image_size is not None:
            raise InputError(f"The table {path} holds no images: drop --image-size.")
        return TableFile(path, Columns(**options))
    if "/" in name or name.startswith("."):
        raise InputError(
            f"There is no folder {path}, and its name is not that of a file of arrays or a table "
            f"(.npz, .npy, {', '.join(SUFFIXES)})."
            if not path.exists()
            else f"The file {path} is not one of .npz, .npy, {', '.join(SUFFIXES)}."
        )
    known = ["digits", "digit5", *HUB_NAMES]
    raise InputError(
        f"Unknown dataset {quote(name)}, and there is no folder or file of that name: choose "
        f"from {', '.join(known)}, hub:OWNER/NAME, or name a folder or file.{nearest(name, known)}"
    )


def _refuse_options(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for option in options:
        if option not in known:
            raise InputError(
                f"The dataset {quote(name)} has no use for --{option.replace('_', '-')}."
            )
