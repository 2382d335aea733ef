"""The suites: for each table and figure of the paper, which runs it needs and what it shows.

A suite is a grid of cells. Each cell knows the run that it needs, by a federation, a method with
its hyper-parameters and further settings, and how its number is read off the record of that run.
Cells may share a run: Table 4 has twelve columns and needs one run for each method.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pfedfda.data import CORRUPTIONS
from pfedfda.errors import unknown
from pfedfda.methods import find_method
from pfedfda.paper.published import TABLES, PublishedTable
from pfedfda.paper.published_figures import FIGURES
from pfedfda.paper.settings import (
    ABLATION,
    BEST_OF_TWO,
    METHOD_SETTINGS,
    TABLE_SETTINGS,
    federation_settings,
)
from pfedfda.runs.config import Config, from_mapping, make_config

EPOCHS = (1, 2, 5, 10, 20)
"""Local epochs for the figure that varies them; the paper's figure is an image without numbers."""

Record = Mapping[str, Any]
Value = tuple[float, float | None]


@dataclass(frozen=True)
class Need:
    """A run that a cell needs.

    Parameters
    ----------
    federation
        A key of `federation_settings`.
    method
        The name of a registered method.
    hyperparameters
        Its hyper-parameters where they are not the method's own defaults.
    settings
        Further settings, such as the share of new clients.
    """

    federation: str
    method: str
    hyperparameters: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def config(self, rounds: int | None = None, seed: int = 0) -> Config:
        """Return the configuration of this run with the paper's settings.

        Parameters
        ----------
        rounds
            The number of rounds, the paper's when None.
        seed
            The seed of the run.
        """
        settings = federation_settings(self.federation) | dict(self.settings) | {"seed": seed}
        if rounds is not None:
            settings["rounds"] = rounds
        kind = find_method(self.method)
        known = {f.name for f in dataclasses.fields(kind)}
        stated = METHOD_SETTINGS.get(self.method, {})
        values = {name: value for name, value in stated.items() if name in known}
        values |= dict(self.hyperparameters)
        method = from_mapping(kind, values, f"methods.{self.method}")
        return make_config({self.method: method}, **settings)


class Shown(NamedTuple):
    """What a cell needs, and how it reads its number off the record."""

    need: Need
    read: Callable[[Record], Value | None]


@dataclass(frozen=True)
class Suite:
    """A table or figure that can be reproduced by runs.

    Parameters
    ----------
    key
        Its name on the command line.
    title
        What it shows.
    columns, rows
        The keys of its columns, and of its rows unless the user chooses.
    shown
        What a cell shows, by row and column.
    published
        The paper's numbers, None for a figure.
    row_of
        Which row of the paper a row is compared with.
    free_columns
        Whether a column may be any federation, also one that the paper does not have.
    digits
        Decimal places that make sense.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    shown: Callable[[str, str], Shown]
    published: PublishedTable | None = None
    row_of: Callable[[str], str] = field(default=lambda row: row)
    free_columns: bool = False
    digits: int = 3

    def needs(self, rows: Iterable[str], columns: Iterable[str]) -> list[Need]:
        """Return the runs that these cells need, each once, column by column."""
        grid = [self.shown(row, column).need for column in columns for row in rows]
        return list(dict.fromkeys(grid))

    def choose_columns(self, asked: Iterable[str]) -> tuple[str, ...]:
        """Return the columns that the user asked for, all if none was named."""
        chosen = tuple(dict.fromkeys(asked)) or self.columns
        for column in chosen:
            if column in self.columns:
                continue
            if not self.free_columns:
                raise unknown(f"column of {self.key}:", column, self.columns)
            federation_settings(column)
        return chosen

    def choose_rows(self, asked: Iterable[str]) -> tuple[str, ...]:
        """Return the rows for the methods that the user asked for, all if none was named."""
        chosen = tuple(dict.fromkeys(asked)) or self.rows
        for row in chosen:
            self.shown(row, self.columns[0])  # refuses what is no row of this suite
        return chosen


def find_suite(key: str) -> Suite:
    """Return the suite of a name, such as ``table1``."""
    if key not in SUITES:
        raise unknown("suite", key, [*SUITES, *COMPUTED])
    return SUITES[key]


def _accuracy(record: Record, scale: float = 1.0) -> Value:
    return scale * record["mean_accuracy"], scale * record["std_accuracy"]


def _paper_row(row: str) -> str:
    """Return the paper's row for a method: pFedFDA has several presets here."""
    return "pfedfda" if row.startswith("pfedfda-") else row


def _by_federation(
    key: str, scale: float = 1.0, digits: int = 3, rows: tuple[str, ...] | None = None
) -> Suite:
    """Return a suite whose columns are federations and whose rows are methods."""
    table = TABLES[key]

    def shown(row: str, column: str) -> Shown:
        find_method(row)
        return Shown(Need(column, row), lambda record: _accuracy(record, scale))

    columns = TABLE_SETTINGS[key].federations
    chosen = rows or TABLE_SETTINGS[key].methods
    return Suite(key, table.caption, columns, chosen, shown, table, _paper_row, True, digits)


def _table4() -> Suite:
    table = TABLES["table4"]
    (federation,) = TABLE_SETTINGS["table4"].federations
    settings = tuple(TABLE_SETTINGS["table4"].settings.items())

    def shown(row: str, column: str) -> Shown:
        find_method(row)

        def read(record: Record) -> Value | None:
            if column == "original":
                return _accuracy(record)
            return _accuracy(record["new_clients"][column]) if "new_clients" in record else None

        return Shown(Need(federation, row, settings=settings), read)

    rows = TABLE_SETTINGS["table4"].methods
    return Suite("table4", table.caption, table.columns, rows, shown, table, _paper_row)


def _table5() -> Suite:
    """Return the ablation: rows are none, single and multiple, or PRESET/none and so on."""
    table = TABLES["table5"]

    def shown(row: str, column: str) -> Shown:
        preset, _, betas = row.rpartition("/")
        if betas not in ABLATION:
            raise unknown("row of table5:", row, [*ABLATION, *(f"PRESET/{b}" for b in ABLATION)])
        hyperparameters = tuple(ABLATION[betas].items())
        return Shown(Need(column, preset or "pfedfda-paper", hyperparameters), _accuracy)

    columns = TABLE_SETTINGS["table5"].federations
    return Suite(
        "table5",
        "One β, two or none (β = 1) on CIFAR-100, of pfedfda-paper unless a row says otherwise",
        columns,
        tuple(ABLATION),
        shown,
        table,
        lambda row: row.rpartition("/")[2],
        free_columns=True,
    )


def _table6() -> Suite:
    table = TABLES["table6"]
    (federation,) = TABLE_SETTINGS["table6"].federations
    rounds = federation_settings(federation)["rounds"]

    def shown(row: str, column: str) -> Shown:
        find_method(row)

        def read(record: Record) -> Value:
            per_round = record["seconds"]["train"] / record["rounds"]
            return (
                (per_round, None) if column == "local-training" else (per_round * rounds / 60, None)
            )

        return Shown(Need(federation, row), read)

    rows = TABLE_SETTINGS["table6"].methods
    return Suite("table6", table.caption, table.columns, rows, shown, table, _paper_row, digits=2)


def _table9() -> Suite:
    table = TABLES["table9"]
    federations = dict(zip(table.rows, TABLE_SETTINGS["table9"].federations, strict=True))
    timers = {
        "network-passes": "network",
        "estimation": "statistics",
        "interpolation": "interpolation",
    }

    def shown(row: str, column: str) -> Shown:
        if row not in federations:
            raise unknown("row of table9:", row, federations)

        def read(record: Record) -> Value:
            seconds = record["seconds"]["clients"]
            return 100 * seconds.get(timers[column], 0.0) / sum(seconds.values()), None

        return Shown(Need(federations[row], "pfedfda-paper"), read)

    return Suite("table9", table.caption, table.columns, tuple(federations), shown, table, digits=2)


def _figure2() -> Suite:
    figure = FIGURES["figure2"]
    conditions = ("clean", *CORRUPTIONS)

    def shown(row: str, column: str) -> Shown:
        if row not in conditions:
            raise unknown("row of figure2:", row, conditions)

        def read(record: Record) -> Value | None:
            found = record.get("betas", {}).get(row)
            return None if found is None else (found["mean"], found["std"])

        return Shown(Need(column, "pfedfda"), read)

    return Suite(
        "figure2", figure.caption, figure.federations, conditions, shown, free_columns=True
    )


def _figure4() -> Suite:
    figure = FIGURES["figure4"]
    columns = tuple(f"{key}:E{epochs}" for key in figure.federations for epochs in EPOCHS)

    def shown(row: str, column: str) -> Shown:
        find_method(row)
        federation, _, epochs = column.partition(":E")
        return Shown(Need(federation, row, settings=(("epochs", int(epochs)),)), _accuracy)

    return Suite("figure4", figure.caption, columns, ("fedavg-ft", "pfedfda"), shown)


SUITES: dict[str, Suite] = {
    suite.key: suite
    for suite in (
        _by_federation("table1"),
        _by_federation("table2"),
        _by_federation("table3"),
        _table4(),
        _table5(),
        _table6(),
        _by_federation("table7", scale=100.0, digits=2),
        _table9(),
        _figure2(),
        _figure4(),
    )
}
"""The suites that need runs, by name."""

COMPUTED: dict[str, str] = {
    "table8": TABLES["table8"].caption,
    "figure3": FIGURES["figure3"].caption,
    "theorem1": "The error of interpolated means against the bound of Theorem 1, simulated",
}
"""What needs no run, by name."""


def differences(need: Need, record: Record) -> list[str]:
    """Return what differs between a run and the paper's setting, in a few words each."""
    paper = federation_settings(need.federation)
    notes = []
    if record["rounds"] != paper["rounds"]:
        notes.append(f"{record['rounds']} rounds instead of {paper['rounds']}")
    if record["status"] != "complete":
        notes.append(f"stopped early: {record.get('reason', 'no reason given')}")
    clients = record["federation"]["clients"]
    if paper.get("clients"):  # DIGIT-5 has them by its domains
        wanted = need.config().schedule.trained_clients(paper["clients"])
        if clients != wanted:
            kind = "writers" if need.federation.startswith("emnist") else "clients"
            notes.append(f"{clients} {kind} instead of {wanted}")
    domains = record["federation"]["domains"]
    if domains and "synthdigits" not in domains:
        notes.append("SynthDigits is missing, digits rendered from fonts stand in for it")
    if record["federation"].get("frost") == "drawn":
        notes.append("the photographs of frost are missing, frost is drawn in their place")
    if record["split"]["shift"] != "none" and record["split"]["shift_version"] == 1:
        notes.append(
            "shift version 1, with noise of the test images that depends on the share of the "
            "training samples"
        )
    if "new_clients" in dict(need.settings) and need.method in BEST_OF_TWO:
        notes.append("one way to fine-tune, where the paper has the better of two")
    if need.method == "pfedfda":
        notes.append("our default pFedFDA, which is not the paper's Algorithm 1")
    return notes
