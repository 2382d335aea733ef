"""The table of methods over several seeds: means with intervals, and tested differences."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from pfedfda.errors import printable
from pfedfda.runs.accuracy import ACCURACIES
from pfedfda.runs.comparison import plain_console
from pfedfda.runs.layout import PAIRS, SEEDS
from pfedfda.runs.reader import RunResult
from pfedfda.runs.seeds import what_varies
from pfedfda.runs.statistics import Difference, Interval, holm, mean_interval, paired_difference
from pfedfda.runs.writer import write_csv

SEED_COLUMNS = (
    *("method", "seeds", "mean_accuracy", "low", "high"),
    *(name for name in ACCURACIES if name != "mean_accuracy"),
    *("best_other", "difference", "difference_low", "difference_high", "p", "p_holm"),
)
PAIR_COLUMNS = ("first", "second", "difference", "low", "high", "p", "p_holm")


@dataclass(frozen=True)
class SeedRun:
    """What the statistics need of a run: its seed, its accuracies, and each client's accuracy."""

    seed: int
    accuracies: Mapping[str, float]
    clients: Mapping[str, float]

    @classmethod
    def of(cls, run: RunResult) -> "SeedRun":
        """Take it from the files of a run."""
        known = {row.client: row.accuracy for row in run.clients}
        return cls(
            seed=int(run.setting("schedule", "seed") or 0),
            accuracies={name: run.number(name) or 0.0 for name in ACCURACIES},
            clients={client: value for client, value in known.items() if value is not None},
        )


@dataclass(frozen=True)
class Pair:
    """Two methods, the one of higher mean first, and the tested difference between them."""

    first: str
    second: str
    difference: Difference
    p_holm: float | None = None


@dataclass(frozen=True)
class SeedRow:
    """A method over its seeds, and its difference from the best of the other methods."""

    method: str
    seeds: Sequence[int]
    accuracy: Interval
    accuracies: Mapping[str, float]  # means over seeds
    best_other: str = ""
    difference: Difference | None = None
    p_holm: float | None = None


@dataclass(frozen=True)
class SeedTable:
    """Methods over several seeds.

    Parameters
    ----------
    methods
        The runs of each method, by its name or title.
    own_partitions
        Whether every seed has a partition of its own.
    """

    methods: Mapping[str, Sequence[SeedRun]]
    own_partitions: bool = False

    @cached_property
    def pairs(self) -> list[Pair]:
        """All pairs of methods with seeds in common, with p-values corrected for their number."""
        ranked = sorted(self.methods, key=lambda name: -self._mean(name).mean)
        pairs = []
        for first, second in combinations(ranked, 2):
            difference = self._difference(first, second)
            if difference is not None:
                pairs.append(Pair(first, second, difference))
        tested = [pair for pair in pairs if pair.difference.p is not None]
        corrected = holm([float(pair.difference.p or 0.0) for pair in tested])
        found = {(pair.first, pair.second): p for pair, p in zip(tested, corrected, strict=True)}
        return [
            Pair(pair.first, pair.second, pair.difference, found.get((pair.first, pair.second)))
            for pair in pairs
        ]

    @cached_property
    def rows(self) -> list[SeedRow]:
        """A row for each method, in the order given."""
        rows = []
        for name, runs in self.methods.items():
            accuracies = {
                kind: float(np.mean([run.accuracies[kind] for run in runs])) for kind in ACCURACIES
            }
            others = [pair for pair in self.pairs if name in (pair.first, pair.second)]
            best = max(others, key=lambda p: self._mean(_other(p, name)).mean, default=None)
            row = SeedRow(name, [run.seed for run in runs], self._mean(name), accuracies)
            if best is not None:
                difference = best.difference
                difference = difference if best.first == name else difference.reversed()
                row = SeedRow(
                    name, row.seeds, row.accuracy, accuracies,
                    _other(best, name), difference, best.p_holm,
                )  # fmt: skip
            rows.append(row)
        return rows

    @property
    def varies(self) -> str:
        """What a seed draws anew."""
        return what_varies(self.own_partitions)

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({run.seed for runs in self.methods.values() for run in runs})

    def _mean(self, method: str) -> Interval:
        return mean_interval([run.accuracies["mean_accuracy"] for run in self.methods[method]])

    def _difference(self, first: str, second: str) -> Difference | None:
        """Return the difference over the seeds and clients that both methods have."""
        one, other = ({run.seed: run for run in self.methods[name]} for name in (first, second))
        seeds = [seed for seed in one if seed in other]
        runs = [run for seed in seeds for run in (one[seed], other[seed])]
        if self.own_partitions:
            # A client is of one seed alone, and their numbers may differ.
            values = [_by_common_clients([one[seed], other[seed]]) for seed in seeds]
            if not values or not all(a.size for a in values):
                return None
            means = np.array([value.mean(axis=1) for value in values])
            return paired_difference(means[:, :1], means[:, 1:], same_clients=False)
        matrix = _by_common_clients(runs)
        if not matrix.size:
            return None
        return paired_difference(matrix[0::2], matrix[1::2])


def _other(pair: Pair, name: str) -> str:
    return pair.second if pair.first == name else pair.first


def _by_common_clients(runs: Sequence[SeedRun]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the accuracies of the clients that all runs have, a row for each run."""
    if not runs:
        return np.zeros((0, 0))
    common = [name for name in runs[0].clients if all(name in run.clients for run in runs)]
    return np.array([[run.clients[name] for name in common] for run in runs], dtype=np.float64)


def write_seed_table(folder: Path, table: SeedTable) -> None:
    """Write ``seeds.csv`` and ``pairs.csv``, with full precision."""
    rows = []
    for row in table.rows:
        found = row.difference or Difference(0.0)
        numbers = [found.mean, found.low, found.high, found.p] if row.difference else [None] * 4
        rows.append(
            [
                row.method, " ".join(map(str, row.seeds)),
                row.accuracy.mean, row.accuracy.low, row.accuracy.high,
                *(row.accuracies[name] for name in ACCURACIES if name != "mean_accuracy"),
                row.best_other, *numbers, row.p_holm,
            ]
        )  # fmt: skip
    write_csv(folder / SEEDS, SEED_COLUMNS, [[_blank(v) for v in row] for row in rows])
    pairs = [
        [p.first, p.second, p.difference.mean, p.difference.low, p.difference.high,
         p.difference.p, p.p_holm]
        for p in table.pairs
    ]  # fmt: skip
    write_csv(folder / PAIRS, PAIR_COLUMNS, [[_blank(v) for v in row] for row in pairs])


def _blank(value: Any) -> Any:
    return "" if value is None else value


def build_seed_table(table: SeedTable, judged_on: str = "test", heading: str = "") -> Table:
    """Return the table for a terminal."""
    seeds = ", ".join(map(str, table.seeds))
    where = f"{printable(heading)}: " if heading else ""
    title = (
        f"{where}{judged_on.capitalize()} accuracy after the last round, means over seeds {seeds}\n"
        f"A seed draws {table.varies}."
    )
    built = Table(title=title, title_justify="left")
    built.add_column("Method", no_wrap=True)
    for name in (
        "mean, 95 % interval\nover seeds",
        "std over\nclients",
        "weighted",
        "worst\ntenth",
        "less the best other\nover seeds and clients",
        "p, Holm",
    ):
        built.add_column(name, justify="right", no_wrap=True)
    best = max((row.accuracy.mean for row in table.rows), default=0.0)
    for row in table.rows:
        built.add_row(
            printable(row.method),
            interval_text(row.accuracy),
            f"{row.accuracies['std_accuracy']:.3f}",
            f"{row.accuracies['weighted_accuracy']:.3f}",
            f"{row.accuracies['worst_tenth_accuracy']:.3f}",
            "–" if row.difference is None else interval_text(row.difference, "+"),
            p_text(row.p_holm),
            style="bold" if row.accuracy.mean == best and len(table.rows) > 1 else "",
        )
    return built


def interval_text(interval: Interval, sign: str = "") -> str:
    """Return a mean with its interval, such as ``0.812 [0.790, 0.834]``."""
    mean = f"{interval.mean:{sign}.3f}"
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def p_text(p: float | None) -> str:
    """Return a p-value with as many digits as matter."""
    if p is None:
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def seed_table_text(table: SeedTable) -> str:
    """Return the table as plain text."""
    buffer = io.StringIO()
    plain_console(file=buffer, width=120).print(build_seed_table(table))
    return buffer.getvalue().rstrip()
