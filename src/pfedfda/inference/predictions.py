"""The classes of samples in files, as a table, as CSV or as JSON lines."""

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pfedfda.data.unlabelled import SampleReader
from pfedfda.errors import InputError, printable
from pfedfda.files import csv_cell, json_text, write_text
from pfedfda.inference.classifier import PersonalClassifier


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of a sample.

    Parameters
    ----------
    sample
        What it is called: the path of its file, and where it is in it.
    classes
        The names of the classes, the most probable first.
    probabilities
        Those of these classes.
    """

    sample: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


def predict_files(
    model: PersonalClassifier,
    files: Iterable[Path],
    top: int = 1,
    text_column: str | None = None,
) -> Iterator[Prediction]:
    """Yield the most probable classes of all samples in files and folders.

    Parameters
    ----------
    model
        The model.
    files
        As `PersonalClassifier.predict` takes them.
    top
        How many classes.
    text_column
        The column of a table that holds the texts.
    """
    reader = SampleReader(model.preprocessing, text_column)
    for file in files:
        for batch in reader.read(file):
            probabilities = model.probabilities(batch.values)
            order = (-probabilities).argsort(axis=1, kind="stable")[:, :top]
            for name, best, row in zip(batch.names, order, probabilities, strict=True):
                yield Prediction(
                    name,
                    tuple(model.class_names[label] for label in best),
                    tuple(float(row[label]) for label in best),
                )


def write_predictions(
    predictions: Iterable[Prediction], format: str, output: Path | None = None
) -> None:
    """Write predictions to a file, or print them.

    Parameters
    ----------
    predictions
        All of them, which are computed before anything is written.
    format
        table, csv or jsonl.
    output
        The file; the terminal when None.
    """
    found = list(predictions)
    write = {"table": _table, "csv": _csv, "jsonl": _json_lines}[format]
    text = write(found)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        write_text(output, text)
    except OSError as error:
        raise InputError(f"The predictions cannot be written to {output} ({error}).") from error


def _columns(found: Sequence[Prediction]) -> list[str]:
    ranks = [""] + [f"_{rank + 2}" for rank in range(len(found[0].classes) - 1)]
    return ["sample", *(f"{name}{rank}" for rank in ranks for name in ("class", "probability"))]


def _rows(found: Sequence[Prediction]) -> Iterator[list[Any]]:
    for one in found:
        pairs = zip(one.classes, one.probabilities, strict=True)
        yield [one.sample, *(cell for pair in pairs for cell in pair)]


def _table(found: Sequence[Prediction]) -> str:
    table = Table()
    for name in _columns(found):
        is_number = name.startswith("probability")
        table.add_column(name.replace("_", " "), justify="right" if is_number else "left")
    for row in _rows(found):
        table.add_row(*(f"{c:.3f}" if isinstance(c, float) else printable(c) for c in row))
    text = io.StringIO()
    # A terminal folds long paths; a file has room.
    width = None if sys.stdout.isatty() else 200
    Console(file=text, width=width, color_system=None, markup=False, highlight=False).print(table)
    return text.getvalue()


def _csv(found: Sequence[Prediction]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns(found))
    for row in _rows(found):
        writer.writerow(
            [f"{c:.6g}" if isinstance(c, float) else csv_cell(printable(c)) for c in row]
        )
    return text.getvalue()


def _json_lines(found: Sequence[Prediction]) -> str:
    lines = []
    for one in found:
        best, *others = zip(one.classes, one.probabilities, strict=True)
        line: dict[str, Any] = {"sample": one.sample, "class": best[0], "probability": best[1]}
        if others:
            line["next"] = [{"class": name, "probability": value} for name, value in others]
        lines.append(json_text(line) + "\n")
    return "".join(lines)
