"""``pfedfda methods``."""

import dataclasses

from rich.table import Table

from pfedfda.engine.base import num_bytes
from pfedfda.methods import Method, Task, all_methods, dry_run
from pfedfda.methods.space import declared_space
from pfedfda.methods.traffic import parts
from pfedfda.models import ModelConfig
from pfedfda.runs.comparison import plain_console

GROUPS = {False: "Methods that train", True: "Training-free methods: one round is enough"}


@dataclasses.dataclass(frozen=True)
class MethodsCommand:
    """List the methods and their hyper-parameters."""

    def execute(self) -> int:
        """Print a table of methods that train, and one of those that do not."""
        for training_free, title in GROUPS.items():
            table = Table(title=title, title_justify="left")
            for heading in ("method", "what it does", "an update", "hyper-parameters", "paper"):
                table.add_column(heading, overflow="fold")
            for name, method in all_methods().items():
                if method.training_free == training_free:
                    spaces = declared_space(method)
                    options = [
                        f"{f.name.replace('_', '-')} {f.default}"
                        + (f"  (tune: {spaces[f.name]})" if f.name in spaces else "")
                        for f in dataclasses.fields(method)
                    ]
                    summary = (method.__doc__ or "").strip().split("\n")[0]
                    update = describe_update(method())
                    table.add_row(name, summary, update, "\n".join(options), method.paper)
            plain_console().print(table)
        return 0


def describe_update(method: Method) -> str:
    """Return what a client sends with the default model, whether it is a sum, what it reveals."""
    task = Task(ModelConfig(), (28, 28, 1), num_classes=10, num_clients=2)
    up = dry_run(method, task, method.init(task)).up
    if not up:
        return "Sends nothing."
    size = num_bytes(up) / 1e6
    lines = [f"Sends {', '.join(parts(up))} ({size:.2f} MB)."]
    lines.append("Only the sum is needed." if method.additive else "Each is looked at.")
    lines.append(f"Reveals {method.reveals}.")
    return "\n".join(lines)


command = MethodsCommand
