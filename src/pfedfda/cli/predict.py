"""``pfedfda predict``."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from pfedfda.errors import InputError, printable


@dataclass(frozen=True)
class PredictCommand:
    """Print the class of images, tables or texts, by a model that was exported.

    Samples need no labels. Images are cropped at the centre and scaled, and numbers standardised,
    as those of the training were. Probabilities are the softmax of the model's head, which for
    pFedFDA is the posterior of its Gaussians.

    Parameters
    ----------
    folder
        The folder of a model, from 'pfedfda export', 'pfedfda personalize' or a site.
    files
        Images or folders of images, tables (.csv, .tsv, .parquet), arrays (.npz, .npy), or texts,
        one a line (.txt).
    top
        How many of the most probable classes to name.
    format
        table, csv or jsonl; by default table on a terminal and csv elsewhere.
    output
        Write to this file instead; its ending .jsonl or .csv sets the format.
    text_column
        The column of a table that holds the texts.
    model
        The function that makes the model's body, file.py:name, if it is a program of yours.
    backbone
        The function that makes the model's backbone, likewise.
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    files: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FILES")]
    top: int = 1
    format: Literal["table", "csv", "jsonl"] | None = None
    output: Path | None = None
    text_column: str | None = None
    model: str | None = None
    backbone: str | None = None

    def execute(self) -> int:
        """Print the classes."""
        from pfedfda.inference import load_model
        from pfedfda.inference.predictions import predict_files, write_predictions

        if self.top < 1:
            raise InputError(f"top is {self.top}; it must be at least 1.")
        if not self.files:
            raise InputError("FILES are missing: name images, folders, tables or texts.")
        classifier = load_model(self.folder, self.model, self.backbone)
        found = predict_files(classifier, self.files, self.top, self.text_column)
        write_predictions(found, self._format(), self.output)
        if self.output is not None:
            print(printable(self.output))
        return 0

    def _format(self) -> str:
        if self.format is not None:
            return self.format
        if self.output is not None:
            return "jsonl" if self.output.suffix == ".jsonl" else "csv"
        return "table" if sys.stdout.isatty() else "csv"


command = PredictCommand
