"""``pfedfda methods``."""

import dataclasses

from rich.table import Table

from pfedfda.methods import Task, all_methods, dry_run
from pfedfda.methods.space import declared_space
from pfedfda.methods.traffic import parts
from pfedfda.models import ModelConfig
from pfedfda.runs.comparison import plain_console


@dataclasses.dataclass(frozen=True)
class MethodsCommand:
    """List the methods and their hyper-parameters."""

    def execute(self) -> int:
        """Print a table."""
        table = Table()
        for heading in ("method", "what it does", "hyper-parameters", "paper"):
            table.add_column(heading, overflow="fold")
        task = Task(ModelConfig(), (28, 28, 1), num_classes=10, num_clients=2)
        for name, method in all_methods().items():
            summary = (method.__doc__ or "").strip().split("\n")[0]
            sent = parts(dry_run(method(), task, method().init(task)).up)
            summary += f"\nSends {', '.join(sent) or 'nothing'}."
            spaces = declared_space(method)
            fields = [
                f"{f.name.replace('_', '-')} {f.default}"
                + (f"  (tune: {spaces[f.name]})" if f.name in spaces else "")
                for f in dataclasses.fields(method)
            ]
            table.add_row(name, summary, "\n".join(fields), method.paper)
        plain_console().print(table)
        return 0


command = MethodsCommand
