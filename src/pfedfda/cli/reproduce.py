"""``pfedfda reproduce``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from pfedfda.cli import complain
from pfedfda.cli.parsing import Flag
from pfedfda.cli.printing import print_list, print_seed_table
from pfedfda.errors import InputError, printable
from pfedfda.experiment.observers import choose_observer
from pfedfda.paper import computed
from pfedfda.paper.records import read_records
from pfedfda.paper.reproduce import Job, estimates, paper_table, plan, reproduce
from pfedfda.paper.seed_tables import seed_tables
from pfedfda.paper.suites import COMPUTED, SUITES, Record, Suite, find_suite
from pfedfda.report.paper_table import PaperTable, build_paper_table
from pfedfda.runs import EngineConfig
from pfedfda.runs.comparison import plain_console
from pfedfda.runs.seeds import refuse_bad_seeds


@dataclass(frozen=True)
class ReproduceCommand:
    """Run a table or figure of the paper, and print our numbers beside the paper's.

    Runs that are complete are not run again; a suite that was interrupted goes on where it was when
    the same command is given again. Without a suite, all of them are listed.

    Parameters
    ----------
    suite
        table1 to table9, figure2 to figure4, or theorem1.
    methods
        The rows: methods by name (presets such as pfedfda-released too), or what else the rows of
        the table are; by default all of the paper's.
    columns
        The columns by name, e.g. cifar10-s@25 for CIFAR10-S with 25 % of the training samples; by
        default all of the paper's.
    rounds
        The number of rounds, if not the paper's.
    seeds
        A run for each of these seeds; the table has their mean, and below it the methods are
        compared over seeds with intervals and tests.
    from_results
        Make no run: the table of the records that --results has already.
    dry_run
        Only say what would run and about how long it would take, by timing a round of each.
    data_dir
        The folder with local copies of datasets of the Hub; by default what PFEDFDA_DATA names.
    output
        The folder for runs.
    results
        The folder for the small files that the tables are made from; by default results in the
        output folder.
    quiet
        Print nothing but the table and the paths.
    engine
        What runs where.
    """

    suite: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[SUITE]")] = None
    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rounds: int | None = None
    seeds: tuple[int, ...] = (0,)
    from_results: Flag = False
    dry_run: Flag = False
    data_dir: Path | None = None
    output: Path = Path("runs")
    results: Path | None = None
    quiet: Flag = False
    engine: Annotated[EngineConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=EngineConfig)

    def execute(self) -> int:
        """Make the runs that are missing, and print the table."""
        if self.suite is None:
            known = {suite.key: suite.title for suite in SUITES.values()} | COMPUTED
            print_list("suite", "what it shows", dict(sorted(known.items())))
            return 0
        if self.suite in COMPUTED:
            if self.methods or self.columns:
                raise InputError(
                    f"{self.suite} is made whole: it has no choice of rows or columns."
                )
            return computed.show(self.suite, self.data_dir, self.output)
        refuse_bad_seeds(self.seeds, None)
        return self._reproduce(find_suite(self.suite))

    def _reproduce(self, suite: Suite) -> int:
        rows, columns = suite.choose_rows(self.methods), suite.choose_columns(self.columns)
        results = self.results or self.output / "results"
        if self.from_results:
            if not results.is_dir():
                raise InputError(f"There is no folder {results} with records.")
            records = read_records(results)
            _print_tables(suite, paper_table(suite, rows, columns, records), records)
            return 0
        with choose_observer(self.quiet) as observer:
            jobs = plan(
                suite, rows, columns, self.rounds, self.seeds, self.engine,
                self.data_dir, self.output, observer,
            )  # fmt: skip
            if self.dry_run:
                seconds = estimates(jobs, observer)
            else:
                done = reproduce(suite, jobs, rows, columns, self.output, results, observer)
        if self.dry_run:
            _print_estimates(jobs, seconds)
            return 0
        _print_tables(suite, done.table, done.records)
        print(printable(f"report: {done.page}"))
        if done.stopped:
            complain(f"{len(done.stopped)} of {len(jobs)} runs stopped early.")
        return 1 if done.stopped else 0


def _print_tables(suite: Suite, table: PaperTable, records: list[Record]) -> None:
    """Print the paper's numbers beside ours, and of several seeds the methods compared."""
    # A table that is wider than the terminal is printed in full, and wrapped by the terminal.
    built, console = build_paper_table(table), plain_console()
    console.print(built, width=max(console.width, console.measure(built).maximum), crop=False)
    for note in table.notes:
        print(printable(f"- {note}"))
    rows = [row.label for row in table.rows]
    columns = [column.split(" (")[0] for column in table.columns]  # a heading has its unit
    for column, of_column in seed_tables(suite, rows, columns, records).items():
        print_seed_table(of_column, "test", column)


def _print_estimates(jobs: list[Job], seconds: dict[str, float]) -> None:
    names = [job.folder.name for job in jobs]
    texts = {name: "complete" for name in names if name not in seconds}
    texts |= {name: f"about {_duration(value)}" for name, value in seconds.items()}
    print_list("run", "how long", texts)
    print(f"{len(seconds)} of {len(jobs)} runs to make, about {_duration(sum(seconds.values()))}")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


command = ReproduceCommand
