"""The numbers of the paper's nine tables, as printed.

The cells are in the files ``tables/table1.csv`` to ``table9.csv``, one row for each row that can be
run: a method by its registered name, where the table compares methods. What the columns mean, their
units, and what is odd about a table stand here.

A column that is trained on a federation is called ``FEDERATION[-dirALPHA]@PERCENT``: a name of
`pfedfda.data.FEDERATIONS`, the Dirichlet α where it is not the federation's own 0.5, and how much
of the training samples is kept; for example ``cifar10-s@25`` and ``cifar100-dir0.1@100``. The
scarce federations, whose clients have a fixed number of samples, go without a percentage. The same
key means the same federation in every table.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from pfedfda.errors import InputError, unknown

FRACTION = "fraction correct"
PERCENT = "%"
POINTS = "percentage points"


@dataclass(frozen=True)
class PublishedCell:
    """One number of a table.

    Parameters
    ----------
    mean
        The number.
    std
        The standard deviation in brackets behind it, None where none is printed.
    printed
        Both as the paper has them, so that trailing zeros are not lost.
    """

    mean: float
    std: float | None
    printed: str


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper.

    Parameters
    ----------
    key, number
        ``table1`` and 1.
    caption
        What it shows, in a few words.
    metric
        What its numbers measure.
    std_over
        What the standard deviations are taken over, None where there are none.
    row_kind
        What a row is: a method, a choice of betas, a network, or a federation.
    units
        The columns from left to right, each with the unit of its numbers.
    rows
        The cells by row and column; a cell that the paper leaves blank is not there.
    remarks
        Where the table disagrees with itself, with another, or with the text.
    """

    key: str
    number: int
    caption: str
    metric: str
    std_over: str | None
    row_kind: str
    units: Mapping[str, str]
    rows: Mapping[str, Mapping[str, PublishedCell]]
    remarks: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys of the columns, from left to right."""
        return tuple(self.units)

    def cell(self, row: str, column: str) -> PublishedCell:
        """Return a cell, or say which rows and columns there are.

        Parameters
        ----------
        row, column
            Keys as in `rows` and `columns`.
        """
        if row not in self.rows:
            raise unknown(f"{self.row_kind} of {self.key}:", row, self.rows)
        if column not in self.units:
            raise unknown(f"column of {self.key}:", column, self.columns)
        if column not in self.rows[row]:
            raise InputError(f"The paper leaves {column} of {row} in {self.key} blank.")
        return self.rows[row][column]

    def find(self, row: str, column: str) -> PublishedCell | None:
        """Return a cell, None if the paper has no such row, column or number.

        Parameters
        ----------
        row, column
            Keys as in `rows` and `columns`.
        """
        return self.rows.get(row, {}).get(column)


def published_table(key: str) -> PublishedTable:
    """Return a table of the paper.

    Parameters
    ----------
    key
        ``table1`` to ``table9``.
    """
    if key not in TABLES:
        raise unknown("table", key, TABLES)
    return TABLES[key]


def _load(
    number: int,
    caption: str,
    metric: str,
    unit: str,
    *,
    std_over: str | None = None,
    other_units: Mapping[str, str] | None = None,
    remarks: tuple[str, ...] = (),
) -> PublishedTable:
    """Read a table's file; `unit` holds for every column that `other_units` does not name."""
    key = f"table{number}"
    text = files("pfedfda.paper").joinpath("tables", f"{key}.csv").read_text(encoding="utf-8")
    (row_kind, *columns), *lines = csv.reader(text.splitlines())
    units = {column: (other_units or {}).get(column, unit) for column in columns}
    rows = {
        row: MappingProxyType(
            {c: _cell(printed) for c, printed in zip(columns, cells, strict=True) if printed}
        )
        for row, *cells in lines
    }
    return PublishedTable(
        key,
        number,
        caption,
        metric,
        std_over,
        row_kind,
        MappingProxyType(units),
        MappingProxyType(rows),
        remarks,
    )


def _cell(printed: str) -> PublishedCell:
    """Read a number as the paper prints it, such as ``.586(.12)`` or ``+4.91``."""
    match = re.fullmatch(r"([-+]?\d*\.?\d+)(?:\((\d*\.\d+)\))?", printed)
    if match is None:
        raise ValueError(f"{printed!r} is not a number with an optional deviation in brackets.")
    mean, std = match.groups()
    return PublishedCell(float(mean), None if std is None else float(std), printed)


TABLES: Mapping[str, PublishedTable] = MappingProxyType(
    {
        table.key: table
        for table in (
            _load(
                1,
                "CIFAR-10 and CIFAR-100 with half of the clients corrupted, by training data",
                "test accuracy",
                FRACTION,
                std_over="clients",
                remarks=(
                    "The text gives the lead over the second best on CIFAR10-S as 6.9 points at "
                    "25 % of the samples. The table has 6.2 over FedPAC, the second best, and 6.9 "
                    "over FedAvgFT.",
                ),
            ),
            _load(
                2,
                "Four datasets with all training data and no corruption",
                "test accuracy",
                FRACTION,
                std_over="clients",
                remarks=(
                    "pFedFDA on CIFAR-100, Dirichlet(0.5), is .385(.07) here and .385(.06) in "
                    "Table 5.",
                ),
            ),
            _load(
                3,
                "Extreme scarcity: 50 training samples per client",
                "test accuracy",
                FRACTION,
                std_over="clients",
            ),
            _load(
                4,
                "Clients that took no part in training, CIFAR-10, Dirichlet(0.5): on clean images "
                "and under each corruption at severity 3, beside the clients that did take part",
                "test accuracy",
                FRACTION,
                std_over="clients",
            ),
            _load(
                5,
                "One β, two or none (β = 1) on CIFAR-100, and the time that finding them adds",
                "test accuracy; overhead: time added to a local iteration",
                FRACTION,
                std_over="clients",
                other_units={"overhead": PERCENT},
                remarks=(
                    "The caption names Dirichlet(0.1) alone; half of the columns are "
                    "Dirichlet(0.5).",
                    "The overheads stand behind an arrow that points down, for a lower speed.",
                    "One β on CIFAR-100, Dirichlet(0.5), is .385(.06) here and .385(.07) in "
                    "Table 2.",
                ),
            ),
            _load(
                6,
                "Run time on CIFAR-10: local training, and the whole run",
                "time",
                "s",
                other_units={"total": "min"},
                remarks=(
                    "The whole run is about 200 times the local training, so the latter seems to "
                    "be that of a round; FedPAC adds 34 minutes at the server.",
                ),
            ),
            _load(
                7,
                "DIGIT-5 by training data, with the gains over local training",
                "test accuracy; gain: accuracy less that of local training",
                PERCENT,
                other_units=dict.fromkeys(
                    ("gain@25", "gain@50", "gain@75", "gain@100", "gain"), POINTS
                ),
                remarks=(
                    "FedAvg at 100 % is printed as a gain of +0.32; by its accuracy it is a loss, "
                    "-0.32, and the mean gain would be 1.75 in place of 1.91.",
                    "The mean gains are cut off, not rounded: pFedFDA's is 5.8675, printed 5.86.",
                ),
            ),
            _load(
                8,
                "Parameters sent a round: Gaussians against a linear classifier",
                "parameters; overhead: change of all parameters sent",
                "parameters",
                other_units={"overhead": PERCENT},
                remarks=(
                    "MobileNetV3: the layer from 576 to 1024 features counts as part of the linear "
                    "classifier, but not of the Gaussians of the 1024 features it makes.",
                    "The text calls the overhead relative to the backbone; the printed numbers are "
                    "relative to the backbone with the linear classifier.",
                    "The text gives the range of the overheads as 1.1 to 6.8 %; the smallest, "
                    "1.164 %, is cut off, not rounded.",
                ),
            ),
            _load(
                9,
                "Parts of pFedFDA's local training time",
                "share of the local training time",
                PERCENT,
                std_over="not stated",
            ),
        )
    }
)
"""The tables by key, ``table1`` to ``table9``."""
