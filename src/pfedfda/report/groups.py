"""Which runs a report puts together: by federation, and by method over its seeds."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pfedfda.errors import InputError, printable
from pfedfda.report.styles import STYLES, Style, styles_of, title_of
from pfedfda.runs import (
    ClassCounts,
    ClientRow,
    RunResult,
    as_number,
    read_class_counts,
    read_run,
    read_tables,
)
from pfedfda.runs.config import LARGEST_INTEGER
from pfedfda.runs.layout import CHECKPOINT, CONFIG, METRICS, SUMMARY
from pfedfda.runs.mistakes import PicturedMistake, read_mistakes
from pfedfda.runs.quality import Predictions, add_predictions
from pfedfda.runs.seed_table import SeedRun, SeedTable
from pfedfda.runs.seeds import seed_folder


@dataclass(frozen=True)
class Entry:
    """A method with its settings, over all its seeds: a line of a chart and a row of a table.

    Parameters
    ----------
    runs
        The runs, equal in everything but the seed.
    label
        The title of the method, with more if that is not unique.
    index, style
        Its number in the legend and its look, which it shares with entries of the same label on
        other federations.
    own_partitions
        Whether every seed has a partition of its own, so that its clients are others.
    """

    runs: Sequence[RunResult]
    label: str
    index: int = 0
    style: Style = STYLES["pfedfda"]
    own_partitions: bool = False

    @property
    def first(self) -> RunResult:
        """The run of the first seed, for what all seeds have in common."""
        return self.runs[0]

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.runs)

    def number(self, name: str) -> float | None:
        """Return the mean over seeds of a number of the summary, None if a run lacks it."""
        return mean([run.number(name) for run in self.runs])

    @cached_property
    def rounds(self) -> list[float]:
        """The rounds after which every seed was evaluated."""
        first, *others = ([float(line["round"]) for line in run.metrics] for run in self.runs)
        return [number for number in first if all(number in other for other in others)]

    def curve(self, column: str) -> list[list[float | None]]:
        """Return the values of a column of ``metrics.jsonl`` for each of `rounds`, by seed."""
        by_round = [
            {float(line["round"]): line.get(column) for line in r.metrics} for r in self.runs
        ]
        return [[as_number(of[n], column, "metrics") for of in by_round] for n in self.rounds]

    @cached_property
    def clients(self) -> list[ClientRow]:
        """The clients, with the means over seeds of their test results and βs.

        Where every seed has clients of its own, those of all seeds.
        """
        if self.seeds == 1:
            return self.first.clients
        if self.own_partitions:
            return [
                replace(row, client=f"{seed}/{row.client}", name=f"{row.name} (seed {seed})")
                for run in self.runs
                for seed in [printable(_seed(run))]
                for row in run.clients
            ]
        rows: dict[str, list[ClientRow]] = {}
        for row in (row for run in self.runs for row in run.clients):
            rows.setdefault(row.client, []).append(row)
        return [
            replace(
                same[0],
                accuracy=mean([row.accuracy for row in same]),
                betas=_means([row.betas for row in same]),
                quality=_means([row.quality for row in same]),
            )
            for same in rows.values()
        ]

    @cached_property
    def predictions(self) -> Predictions | None:
        """What the predictions of all seeds add up to, None unless all runs say."""
        known = [run.predictions for run in self.runs if run.predictions is not None]
        return add_predictions(known) if len(known) == self.seeds else None

    @cached_property
    def mistakes(self) -> list[PicturedMistake]:
        """The most confident mistakes of the first seed with their images, if it kept any."""
        return read_mistakes(self.first.folder)

    @cached_property
    def new_clients(self) -> dict[str, list[float]]:
        """The accuracies of new clients by condition, of all seeds."""
        conditions = dict.fromkeys(name for run in self.runs for name in run.new_clients)
        return {
            name: [value for run in self.runs for value in run.new_clients.get(name, [])]
            for name in conditions
        }

    @property
    def seconds(self) -> dict[str, float]:
        """Mean wall-clock seconds by phase."""
        return _means([run.seconds for run in self.runs])

    @property
    def client_seconds(self) -> dict[str, float]:
        """Mean seconds inside the clients by component."""
        return _means([run.client_seconds for run in self.runs])


@dataclass(frozen=True)
class Group:
    """Entries on the same federation, which can share a chart.

    Parameters
    ----------
    entries
        The entries, each with a label of its own.
    unfinished
        Methods of a comparison that have no results yet.
    counts
        Who holds what, if one of the folders has a ``federation.json``.
    heading
        What tells this federation from the others in the report; empty if there is only one.
    own_partitions
        Whether every seed has a partition of its own.
    """

    entries: Sequence[Entry]
    unfinished: Sequence[str]
    counts: ClassCounts | None
    heading: str = ""
    own_partitions: bool = False

    @cached_property
    def statistics(self) -> SeedTable | None:
        """Means over seeds with intervals and tests, None if no method has several seeds."""
        several = [entry for entry in self.entries if entry.seeds > 1 and entry.rounds]
        if not several:
            return None
        methods = {entry.label: [SeedRun.of(run) for run in entry.runs] for entry in several}
        return SeedTable(methods, self.own_partitions)

    @property
    def runs(self) -> list[RunResult]:
        """All runs."""
        return [run for entry in self.entries for run in entry.runs]


def read_groups(folders: Sequence[Path]) -> list[Group]:
    """Read run and comparison folders, and group the runs by federation.

    Parameters
    ----------
    folders
        Folders of runs or of comparisons.
    """
    if not folders:
        raise InputError("There is no run to report on; name at least one folder.")
    groups: dict[str, list[RunResult]] = {}
    unfinished: dict[str, list[str]] = {}
    counts: dict[str, ClassCounts | None] = {}
    seen: set[Path] = set()
    own_partitions: set[str] = set()
    for folder in map(Path, folders):
        runs, missing, own = _read_folder(folder)
        keys = [_key(_federation_of(run, own)) for run in runs]
        for key, run in zip(keys, runs, strict=True):
            if run.folder.resolve() in seen:  # named twice, or alone and in its comparison
                continue
            seen.add(run.folder.resolve())
            groups.setdefault(key, []).append(run)
            if own:
                own_partitions.add(key)
            for place in (run.folder, run.folder.parent, folder):
                counts[key] = counts.get(key) or read_class_counts(place)
        unfinished.setdefault(keys[-1], []).extend(missing)
    owns = [key in own_partitions for key in groups]
    headings = _headings(
        [_federation_of(runs[0], own) for runs, own in zip(groups.values(), owns, strict=True)]
    )
    entries = _with_styles(
        [_entries(runs, own) for runs, own in zip(groups.values(), owns, strict=True)]
    )
    return [
        Group(of_group, unfinished.get(key, []), counts[key], heading, own)
        for key, of_group, heading, own in zip(groups, entries, headings, owns, strict=True)
    ]


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean, None if a value is missing or there is none."""
    known = list(values)
    numbers = [value for value in known if value is not None]
    return statistics.fmean(numbers) if numbers and len(numbers) == len(known) else None


def _means(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        name: statistics.fmean(table[name] for table in tables)
        for name in tables[0]
        if all(name in table for table in tables)
    }


def _read_folder(folder: Path) -> tuple[list[RunResult], list[str], bool]:
    """Return the runs of a folder, the methods of a comparison that have none yet, and more.

    That is whether every seed has a partition of its own.
    """
    if not folder.is_dir():
        raise InputError(f"There is no run folder {folder}.")
    if any((folder / name).exists() for name in (SUMMARY, METRICS, CHECKPOINT)):
        return [read_run(folder)], [], False
    config = read_tables(folder / CONFIG) if (folder / CONFIG).exists() else {"methods": {}}
    schedule = config.get("schedule", {})
    seeds = schedule.get("seeds")
    if not isinstance(seeds, list):
        return *_read_comparison(folder), False
    runs: list[RunResult] = []
    missing: list[str] = []
    for seed in seeds:
        known = type(seed) is int and abs(seed) <= LARGEST_INTEGER
        place = seed_folder(folder, seed) if known else None
        if place is not None and any(place.glob(f"*/{SUMMARY}")):
            found, without = _read_comparison(place)
            runs += found
            missing += [f"{title}, seed {seed}," for title in without]
        else:
            missing.append(f"Seed {printable(seed)}")
    if not runs:
        raise InputError(f"{folder} has no folder of a seed with a run that has a {SUMMARY}.")
    return runs, missing, bool(schedule.get("partition_seeds"))


def _read_comparison(folder: Path) -> tuple[list[RunResult], list[str]]:
    parts = [path.parent for path in sorted(folder.glob(f"*/{SUMMARY}"))]
    if not parts:
        raise InputError(f"{folder} has no {SUMMARY} and no folder of a run that has one.")
    order = list(read_tables(folder / CONFIG)["methods"])
    runs = [read_run(part) for part in parts]
    # A method may be named by the path of its file, then its folder has another name.
    runs.sort(key=lambda run: order.index(run.method) if run.method in order else len(order))
    started = {name for run in runs for name in (run.method, *run.config["methods"])}
    return runs, [title_of(name) for name in order if name not in started]


def _federation_of(run: RunResult, own_partitions: bool = False) -> dict[str, Any]:
    """Return what must agree for runs to share a chart; where the data lies does not matter."""
    apart = ("data_dir", "partition_seed") if own_partitions else ("data_dir",)
    settings = {k: v for k, v in run.config.get("federation", {}).items() if k not in apart}
    settings |= {"partition_seed": "of each seed"} if own_partitions else {}
    return settings | {"new_clients": run.setting("schedule", "new_clients") or 0.0}


def _headings(federations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each federation its source and the settings that not all have in common."""
    if len(federations) == 1:
        return [""]
    names = sorted({name for federation in federations for name in federation} - {"source"})
    differing = [n for n in names if len({str(f.get(n)) for f in federations}) > 1]
    return [
        ", ".join(
            [str(f.get("source", "federation"))]
            + [f"{n.replace('_', ' ')} {f[n]}" for n in differing if n in f]
        )
        for f in federations
    ]


def _entries(runs: Sequence[RunResult], own_partitions: bool) -> list[Entry]:
    """Put runs together that are equal in everything but the seed; of equal ones each is alone."""
    together: dict[str, list[RunResult]] = {}
    for run in runs:
        schedule = run.config.get("schedule", {})
        settings = [
            run.method,
            run.status,
            run.rounds,
            {n: v for n, v in schedule.items() if n not in ("seed", "checkpoint_every")},
            *(run.config.get(table, {}) for table in ("model", "training", "aggregation")),
            *run.config["methods"].values(),
        ]
        key = _key(settings)
        while any(_seed(run) == _seed(other) for other in together.get(key, [])):
            key += " again"
        together.setdefault(key, []).append(run)
    entries = list(together.values())
    titles = [printable(title_of(of_entry[0].method)) for of_entry in entries]
    places = [printable(f"{e[0].folder.parent.name}/{e[0].folder.name}") for e in entries]
    choices = [
        titles,
        [f"{title}, {seeds_of(e)}" for title, e in zip(titles, entries, strict=True)],
        [f"{title}, {place}" for title, place in zip(titles, places, strict=True)],
        [f"{titles[n]}, {place} ({n})" for n, place in enumerate(places)],
    ]
    for choice in choices:
        labels = [
            title if titles.count(title) == 1 else longer
            for title, longer in zip(titles, choice, strict=True)
        ]
        if len(set(labels)) == len(labels):
            break
    return [
        Entry(of_entry, label, own_partitions=own_partitions)
        for of_entry, label in zip(entries, labels, strict=True)
    ]


def seeds_of(runs: Iterable[RunResult]) -> str:
    """Return the seeds of runs, such as ``seeds 0, 1``; empty if no run says."""
    seeds = sorted({str(_seed(run)) for run in runs} - {"None"}, key=lambda s: (len(s), s))
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" if seeds else ""


def _seed(run: RunResult) -> Any:
    return run.setting("schedule", "seed")


def _key(settings: Any) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _with_styles(groups: Sequence[Sequence[Entry]]) -> list[list[Entry]]:
    """Give every label a number and a look, the same on all federations."""
    methods = {entry.label: entry.first.method for entries in groups for entry in entries}
    looks = dict(zip(methods, enumerate(styles_of(methods.values())), strict=True))
    return [
        [replace(e, index=looks[e.label][0], style=looks[e.label][1]) for e in entries]
        for entries in groups
    ]
