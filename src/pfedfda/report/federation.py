"""Figures of a federation: who holds how many samples of which class, and what they look like."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from pfedfda.data import CORRUPTIONS, Federation, corrupt
from pfedfda.data.corruptions import SEVERITIES
from pfedfda.errors import printable
from pfedfda.files import replacing
from pfedfda.report.charts import MOST_CLASSES, bubbles
from pfedfda.report.figures import draw_chart, save
from pfedfda.report.text import spaced
from pfedfda.runs import ClassCounts
from pfedfda.seeding import numpy_generator

MOST_CLIENTS_LISTED = 50
SHEET_CLIENTS = 12
SHEET_IMAGES = 12


def draw_figures(
    federation: Federation,
    folder: Path,
    frost_photos: Sequence[NDArray[np.uint8]] | None = None,
) -> list[Path]:
    """Draw the bubble chart, a sheet of images by client, and a sheet of all corruptions.

    There are no sheets where inputs are not images.

    Parameters
    ----------
    federation
        What to show; of a large one, evenly spaced clients.
    folder
        Where the PNG files go; it is made if need be.
    frost_photos
        Photographs for the corruption frost.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("classes.png", "images.png", "corruptions.png")]
    _draw_classes(federation, paths[0])
    if federation.input_type != "uint8":
        return paths[:1]
    _draw_images(federation, paths[1])
    _draw_corruptions(federation, paths[2], frost_photos)
    return paths


def class_counts(federation: Federation) -> NDArray[np.int64]:
    """Return the training and test samples of every client (rows) and class (columns)."""
    classes = len(federation.class_names)
    counts = np.zeros((len(federation), classes), dtype=np.int64)
    for client in range(len(federation)):
        data = federation.client(client)
        labels = np.concatenate([data.train_labels, data.test_labels])
        counts[client] = np.bincount(labels, minlength=classes)
    return counts


def summary_table(federation: Federation) -> Table:
    """Return numbers about the federation, in one row or in one for each domain or corruption."""
    counts = class_counts(federation)
    held = (counts > 0).sum(1)
    kinds = [""] * len(federation)
    heading = ""
    for name in ("corruption", "domain"):
        if name in federation.attributes:
            kinds, heading = federation.attributes[name], name
    table = Table(title=printable(federation.describe()), title_justify="left")
    table.add_column(heading, no_wrap=True)
    for column in ("clients", "training\nsamples", "test\nsamples", "classes\nper client"):
        table.add_column(column, justify="right", no_wrap=True)
    for kind in sorted(set(kinds)):
        chosen = np.array([k == kind for k in kinds])
        low, high = held[chosen].min(), held[chosen].max()
        table.add_row(
            printable(kind) or ("all" if set(kinds) == {""} else "none"),
            str(int(chosen.sum())),
            _spread(federation.train_sizes[chosen]),
            _spread(federation.test_sizes[chosen]),
            f"{low}-{high}" if low != high else str(low),
        )
    return table


def clients_table(federation: Federation) -> Table | None:
    """Return what each client holds, None if the clients have no names but their numbers.

    Of a large federation the first clients are listed, and the caption says how many follow.
    """
    names = federation.client_names
    if names == [str(client) for client in range(len(federation))]:
        return None
    held = (class_counts(federation) > 0).sum(1)
    kinds = [name for name in ("domain", "corruption") if name in federation.attributes]
    left = len(names) - MOST_CLIENTS_LISTED
    more = f"and {left:,} more" if left > 0 else None
    table = Table(title="Clients", title_justify="left", caption=more, caption_justify="left")
    table.add_column("name", overflow="fold")
    for kind in kinds:
        table.add_column(kind, no_wrap=True)
    for column in ("training\nsamples", "test\nsamples", "classes"):
        table.add_column(column, justify="right", no_wrap=True)
    for client, name in enumerate(names[:MOST_CLIENTS_LISTED]):
        values = [str(federation.attributes[kind][client] or "none") for kind in kinds]
        sizes = (federation.train_sizes[client], federation.test_sizes[client], held[client])
        table.add_row(printable(name), *map(printable, values), *(f"{size:,}" for size in sizes))
    return table


def _spread(sizes: NDArray[np.int64]) -> str:
    return f"{sizes.sum():,} ({sizes.min()}-{sizes.max()})"


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _draw_classes(federation: Federation, path: Path) -> None:
    """Draw the bubble chart of the paper's appendix: samples by client and class."""
    counts = class_counts(federation)
    height = max(3.0, min(9.0, 0.28 * min(counts.shape[1], MOST_CLASSES) + 1.5))
    chart = bubbles(
        ClassCounts(list(federation.class_names), federation.client_names, counts.tolist()),
        "samples",
    )
    save(partial(draw_chart, chart=chart), path.with_suffix(""), (10, height), ["png"])


def _draw_images(federation: Federation, path: Path) -> None:
    """Draw a row of training images for each of some clients."""
    plt = _pyplot()
    clients = spaced(len(federation), SHEET_CLIENTS)
    height = 0.78 * len(clients) + 0.3
    figure, axes = plt.subplots(len(clients), SHEET_IMAGES, figsize=(10, height), squeeze=False)
    for row, client in enumerate(clients):
        data = federation.client(int(client))
        for column in range(SHEET_IMAGES):
            panel = axes[row, column]
            panel.set_axis_off()
            if column < len(data.train_inputs):
                _show(panel, data.train_inputs[column])
        about = [federation.client_names[client][:16]]
        shift = (federation.attributes.get(name) for name in ("corruption", "severity"))
        about += [str(values[client]) for values in shift if values and values[client]]
        title = "  ".join(about)
        axes[row, 0].set_title(title, fontsize=7, loc="left", pad=2, parse_math=False)
    figure.subplots_adjust(0.01, 0.01, 0.99, 1 - 0.25 / height, wspace=0.05, hspace=0.32)
    with replacing(path, durable=False) as new:
        figure.savefig(new, format="png", dpi=130)
    plt.close(figure)


def _draw_corruptions(
    federation: Federation, path: Path, photos: Sequence[NDArray[np.uint8]] | None
) -> None:
    """Draw all corruptions at all severities for one image that is not corrupted itself."""
    plt = _pyplot()
    severity = federation.attributes.get("severity", [0] * len(federation))
    clean = next((c for c in range(len(federation)) if not severity[c]), 0)
    image = np.array(federation.client(clean).train_inputs[:1])
    figure, axes = plt.subplots(len(CORRUPTIONS), len(SEVERITIES) + 1, figsize=(6.2, 10))
    for row, name in enumerate(CORRUPTIONS):
        _show(axes[row, 0], image[0])
        for column, level in enumerate(SEVERITIES, start=1):
            random = numpy_generator("sheet", row)
            _show(axes[row, column], corrupt(image, name, level, random, photos)[0])
            if row == 0:
                axes[row, column].set_title(f"severity {level}", fontsize=8)
        axes[row, 0].set_ylabel(name.replace("_", "\n"), fontsize=8, rotation=0, ha="right")
        for panel in axes[row]:
            panel.set_xticks([])
            panel.set_yticks([])
            panel.spines[:].set_visible(False)
    axes[0, 0].set_title("original", fontsize=8)
    figure.subplots_adjust(0.16, 0.01, 0.99, 0.97, wspace=0.04, hspace=0.04)
    with replacing(path, durable=False) as new:
        figure.savefig(new, format="png", dpi=130)
    plt.close(figure)


def _show(panel: Any, image: NDArray[np.uint8]) -> None:
    grey = image.shape[2] == 1
    panel.imshow(image[..., 0] if grey else image, cmap="gray" if grey else None, vmin=0, vmax=255)
