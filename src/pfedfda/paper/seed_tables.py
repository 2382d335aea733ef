"""What the records of several seeds say: the methods of a federation, compared over seeds."""

from collections.abc import Iterable, Sequence

from pfedfda.paper.records import matching, need_of
from pfedfda.paper.suites import Record, Suite
from pfedfda.runs import ACCURACIES
from pfedfda.runs.seed_table import SeedRun, SeedTable


def seed_run(record: Record) -> SeedRun:
    """Return what the statistics need of a record; old ones lack the counts of clients."""
    counts = record.get("by_client", {"client": [], "tested": [], "correct": []})
    columns = (counts[name] for name in ("client", "correct", "tested"))
    return SeedRun(
        seed=record["seed"],
        accuracies={name: record[name] for name in ACCURACIES},
        clients={str(client): n / size for client, n, size in zip(*columns, strict=True)},
    )


def seed_tables(
    suite: Suite, rows: Sequence[str], columns: Sequence[str], records: Iterable[Record]
) -> dict[str, SeedTable]:
    """Return for each column the rows with several seeds, compared; columns without have none.

    Parameters
    ----------
    suite, rows, columns
        What to show.
    records
        The records of runs.
    """
    records = list(records)
    tables = {}
    for column in columns:
        methods = {row: matching(suite.shown(row, column).need, records) for row in rows}
        table = _table({row: found for row, found in methods.items() if len(found) > 1})
        if table is not None:
            tables[column] = table
    return tables


def federation_tables(records: Sequence[Record]) -> dict[str, SeedTable]:
    """Return for each federation its methods with several seeds, compared."""
    found: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        need = need_of(record)
        if not need.hyperparameters and not need.settings:
            of_federation = found.setdefault(need.federation, {})
            of_federation.setdefault(need.method, []).append(record)
    tables = {}
    for federation, methods in sorted(found.items()):
        table = _table({name: of for name, of in methods.items() if len(of) > 1})
        if table is not None:
            tables[federation] = table
    return tables


def _table(methods: dict[str, list[Record]]) -> SeedTable | None:
    """Return the table of methods; runs that differ in their clients are not compared."""
    if not methods:
        return None
    return SeedTable({name: [seed_run(r) for r in records] for name, records in methods.items()})
