"""``pfedfda methods``."""

import dataclasses

from rich.table import Table

from pfedfda.methods import all_methods
from pfedfda.report.table import plain_console


@dataclasses.dataclass(frozen=True)
class MethodsCommand:
    """List the methods and their hyper-parameters."""

    def execute(self) -> int:
        """Print a table."""
        table = Table()
        for heading in ("method", "what it does", "hyper-parameters", "paper"):
            table.add_column(heading, overflow="fold")
        for name, method in all_methods().items():
            summary = (method.__doc__ or "").strip().split("\n")[0]
            fields = [f"{f.name.replace('_', '-')} {f.default}" for f in dataclasses.fields(method)]
            table.add_row(name, summary, "\n".join(fields), method.paper)
        plain_console().print(table)
        return 0


command = MethodsCommand
