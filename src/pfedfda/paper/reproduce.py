"""Reproducing a table of the paper: run what is missing, and set our numbers beside the paper's."""

import hashlib
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pfedfda.data import Federation, prepare
from pfedfda.data.hub import data_folder
from pfedfda.engine import LocalEngine, Step
from pfedfda.errors import InputError, InterruptedRunError, RunStoppedError
from pfedfda.experiment.observers import Observer
from pfedfda.experiment.rounds import draw_participants, run_rounds
from pfedfda.experiment.start import make_task
from pfedfda.files import inside, make_folders, refuse_link, refuse_links
from pfedfda.machine import one_thread
from pfedfda.paper.records import (
    make_record,
    matching,
    read_records,
    record_name,
    valid,
    write_record,
)
from pfedfda.paper.suites import Need, Record, Suite, differences
from pfedfda.report import PaperCell, PaperRow, PaperTable, write_report
from pfedfda.runs import ClientStates, EngineConfig, is_complete, load_run, write_class_counts
from pfedfda.runs.config import Config, write_config
from pfedfda.runs.layout import CLIENTS
from pfedfda.runs.statistics import mean_interval

TIMED_CLIENTS = 10


@dataclass(frozen=True)
class Job:
    """A run to be made.

    Parameters
    ----------
    need
        What it is for.
    config
        Its settings.
    folder
        Where it is or will be.
    """

    need: Need
    config: Config
    folder: Path


@dataclass(frozen=True)
class Reproduction:
    """What came out of a suite.

    Parameters
    ----------
    table
        The paper's numbers beside ours.
    page
        The report.
    stopped
        Why runs stopped early, a sentence each.
    records
        What the table is made from.
    """

    table: PaperTable
    page: Path
    stopped: list[str]
    records: list[Record]


def reproduce(
    suite: Suite,
    jobs: Sequence[Job],
    rows: Sequence[str],
    columns: Sequence[str],
    output: Path,
    results: Path,
    observer: Observer,
) -> Reproduction:
    """Make the runs that are not complete yet, and return the table.

    A run that diverges is told in the table, and the others go on.

    Parameters
    ----------
    suite, rows, columns
        What to show.
    jobs
        The runs, from `plan`.
    output
        The folder for runs.
    results
        The folder for the records of the runs.
    observer
        Is told about the progress.
    """
    for job in jobs:
        refuse_links(inside(output, "reproduced", job.folder.name))
    refuse_links(inside(output, suite.key))
    for path in results.glob("*.json"):
        refuse_link(path)
    stopped, records = [], []
    for number, job in enumerate(jobs, start=1):
        name = job.folder.name
        if not is_complete(job.folder):
            observer.say(f"Run {number} of {len(jobs)}: {name}")
            try:
                _run(job, observer)
            except InterruptedRunError as error:
                raise InterruptedRunError(f"{error} To go on: the same command again.") from error
            except RunStoppedError as error:
                stopped.append(f"{name}: {error}")
                observer.say(stopped[-1])
        record = _record(job)
        if record is not None:
            write_record(results, job.need, record)
            records.append(record)
    table = paper_table(suite, rows, columns, records)
    runs = [job.folder for job in jobs if (job.folder / "summary.json").exists()]
    page = write_report(runs, output / suite.key, title=_title(suite), suite=table)
    return Reproduction(table, page, stopped, records)


def plan(
    suite: Suite,
    rows: Sequence[str],
    columns: Sequence[str],
    rounds: int | None,
    seeds: Sequence[int],
    engine: EngineConfig,
    data_dir: Path | None,
    output: Path,
    observer: Observer,
) -> list[Job]:
    """Return the runs that these cells need, with their settings and folders."""
    jobs = []
    for need in suite.needs(rows, columns):
        for seed in seeds:
            config = replace(need.config(rounds, seed), engine=engine)
            if data_dir is not None:
                federation = replace(config.federation, data_dir=data_dir)
                config = replace(config, federation=federation)
            config = _with_clients_that_exist(config, observer)
            name = f"{record_name(need, config.schedule.rounds, seed)}-{_digest(config)}"
            jobs.append(Job(need, config, output / "reproduced" / name))
    return jobs


def _digest(config: Config) -> str:
    """Return what tells a run from others: the same run has the same folder, whoever asks for it.

    However the folder of the data is written, it is the same one; a method's file may change.
    """
    data_dir = data_folder(config.federation.data_dir)
    federation = replace(config.federation, data_dir=data_dir and data_dir.resolve())
    text = write_config(replace(config, federation=federation, engine=EngineConfig()))
    files = [Path(name) for name in config.methods if name.endswith(".py")]
    content = [text.encode(), *(file.read_bytes() for file in files)]
    return hashlib.sha256(b"".join(content)).hexdigest()[:8]


def _with_clients_that_exist(config: Config, observer: Observer) -> Config:
    """Take all writers where a local copy has fewer than the paper's thousand."""
    federation = config.federation
    if federation.partition != "group" or federation.clients is None:
        return config
    everyone = replace(federation, clients=None)
    there = len(prepare(everyone, progress=observer.preparing))
    return replace(config, federation=everyone) if there < federation.clients else config


def _run(job: Job, observer: Observer) -> None:
    federation = prepare(job.config.federation, progress=observer.preparing)
    task = make_task(job.config, federation)
    (method,) = job.config.methods.values()
    try:
        make_folders(job.folder)
        write_class_counts(federation, job.folder)
    except OSError as error:
        raise InputError(f"The results cannot be written to {job.folder} ({error}).") from error
    with LocalEngine(federation, task, job.config.engine) as engine, one_thread():
        run_rounds(method, job.config, engine, job.folder, observer)


def _record(job: Job) -> Record | None:
    """Return the record of a run, None if it stopped before it was evaluated."""
    if not (job.folder / CLIENTS).exists():
        return None
    return make_record(job.need, job.config, load_run(job.folder))


def paper_table(
    suite: Suite, rows: Sequence[str], columns: Sequence[str], records: Iterable[Record]
) -> PaperTable:
    """Return a suite's table, filled with what the records have."""
    records = list(records)
    notes: dict[str, list[str]] = {}
    filled = []
    for row in rows:
        cells = []
        for column in columns:
            shown = suite.shown(row, column)
            found = matching(shown.need, records)
            values = [value for record in found if (value := shown.read(record)) is not None]
            for record in found:
                for note in differences(shown.need, record):
                    notes.setdefault(note, []).append(f"{row} on {column}")
            counted = {record["seed"] for record in found}
            for record in valid(shown.need, records):
                if record["seed"] not in counted:
                    seed, last = record["seed"], record["rounds"]
                    note = f"seed {seed} ended after round {last} and is left out"
                    notes.setdefault(note, []).append(f"{row} on {column}")
            if len(found) > 1:
                notes.setdefault(f"a mean over {len(found)} seeds", []).append(f"{row} on {column}")
            published = suite.published and suite.published.find(suite.row_of(row), column)
            deviations = [std for _, std in values if std is not None]
            ours = mean_interval([mean for mean, _ in values]) if values else None
            cells.append(
                PaperCell(
                    paper_mean=published.mean if published else None,
                    paper_std=published.std if published else None,
                    ours_mean=ours.mean if ours else None,
                    ours_std=float(np.mean(deviations)) if deviations else None,
                    clients=found[0]["federation"]["clients"] if found else None,
                    seeds=len(values),
                    low=ours.low if ours else None,
                    high=ours.high if ours else None,
                )
            )
        filled.append(PaperRow(row, cells))
    everywhere = len(rows) * len(columns)
    sentences = [
        f"{note[0].upper()}{note[1:]}: "
        + ("all cells" if len(set(cells)) == everywhere else ", ".join(dict.fromkeys(cells)))
        + "."
        for note, cells in notes.items()
    ]
    headings = [
        f"{column} ({unit})" if (unit := _unit(suite, column)) else column for column in columns
    ]
    return PaperTable(_title(suite), headings, filled, sentences, suite.digits)


def _unit(suite: Suite, column: str) -> str:
    unit = suite.published.units.get(column, "") if suite.published else ""
    return unit if unit in ("%", "s", "min") else ""


def _title(suite: Suite) -> str:
    kind, number = suite.key[:-1], suite.key[-1]
    return f"{kind.capitalize()} {number}: {suite.title}"


def estimates(jobs: Sequence[Job], observer: Observer) -> dict[str, float]:
    """Return about how many seconds each run that is not complete yet takes, by its folder."""
    waiting = [job for job in jobs if not is_complete(job.folder)]
    seconds = {}
    for number, job in enumerate(waiting, start=1):
        observer.say(f"Timing a round, {number} of {len(waiting)}: {job.folder.name}")
        seconds[job.folder.name] = estimate(job, observer)
    return seconds


def estimate(job: Job, observer: Observer) -> float:
    """Return about how many seconds a run takes, by timing one round and a few evaluations."""
    federation = prepare(job.config.federation, progress=observer.preparing)
    schedule = job.config.schedule
    (method,) = job.config.methods.values()
    task = make_task(job.config, federation)
    everybody = schedule.trained_clients(len(federation))
    participants = draw_participants(
        everybody, schedule.participation, schedule.seed, 1, last_round=0
    )
    some = _spread_over_sizes(federation, everybody)
    with (
        tempfile.TemporaryDirectory(prefix="pfedfda-") as folder,
        LocalEngine(federation, task, job.config.engine) as engine,
        one_thread(),
    ):
        states = ClientStates(Path(folder))
        state = method.init(task)
        train = Step("train", method, 1, states)
        evaluate = replace(train, kind="evaluate")
        list(engine.run(evaluate, state, some[:2]))  # starts the workers
        start = time.perf_counter()
        outcomes = engine.run(train, state, participants)
        state = method.aggregate(state, (o.update for o in outcomes if o.update is not None))
        trained = time.perf_counter()
        list(engine.run(evaluate, state, some))
        evaluated = time.perf_counter()
    a_round = (trained - start) / len(participants)
    an_evaluation = (evaluated - trained) / len(some) * everybody
    usual = schedule.participation * everybody * a_round
    evaluations = sum(schedule.evaluates(r) for r in range(1, schedule.rounds + 1))
    return (schedule.rounds - 1) * usual + everybody * a_round + evaluations * an_evaluation


def _spread_over_sizes(federation: Federation, everybody: int) -> list[int]:
    """Return a few clients, from the smallest to the largest."""
    order = np.argsort(federation.train_sizes[:everybody], kind="stable")
    places = np.linspace(0, everybody - 1, min(everybody, TIMED_CLIENTS)).round().astype(int)
    return [int(order[place]) for place in places]


def tables_of_records(folder: Path, suites: Iterable[Suite]) -> list[tuple[Suite, PaperTable]]:
    """Return the tables of all suites for which a folder has records, without empty columns."""
    records = read_records(folder)
    tables = []
    for suite in suites:
        rows = _rows_with_records(suite, records)
        columns = [
            column
            for column in _columns_with_records(suite, records)
            if any(matching(suite.shown(row, column).need, records) for row in rows)
        ]
        if columns:
            tables.append((suite, paper_table(suite, rows, columns, records)))
    return tables


def _rows_with_records(suite: Suite, records: Sequence[Record]) -> list[str]:
    """Return the suite's rows, and those of presets that the records have besides."""
    rows = list(suite.rows)
    for record in records:
        method = record["need"]["method"]
        betas = record["need"]["hyperparameters"].get("betas")
        extra = f"{method}/{betas}" if suite.key == "table5" and betas else method
        if suite.row_of(extra) in suite.rows and extra not in rows:
            try:
                need = suite.shown(extra, suite.columns[0]).need
            except InputError:
                continue
            if need not in suite.needs(rows, suite.columns[:1]):
                rows.append(extra)
    return [
        row
        for row in rows
        if any(
            matching(suite.shown(row, column).need, records)
            for column in _columns_with_records(suite, records)
        )
    ]


def _columns_with_records(suite: Suite, records: Sequence[Record]) -> list[str]:
    """Return the suite's columns, and federations that were run for it though not in the paper.

    Only for the ablation and the figure of β: elsewhere a federation belongs to another table.
    """
    others = []
    for record in records:
        of_ablation = suite.key == "table5" and "betas" in record["need"]["hyperparameters"]
        if of_ablation or (suite.key == "figure2" and len(record["betas"]) > 1):
            others.append(record["need"]["federation"])
    return list(dict.fromkeys([*suite.columns, *sorted(others)]))
