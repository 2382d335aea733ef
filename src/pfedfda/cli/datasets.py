"""``pfedfda datasets``."""

from dataclasses import dataclass

from pfedfda.cli.printing import print_list
from pfedfda.data import FEDERATIONS, PARTITIONS, SOURCES


@dataclass(frozen=True)
class DatasetsCommand:
    """List the sources of images, the partitions and the paper's federations."""

    def execute(self) -> int:
        """Print three tables."""
        federations = {name: text for name, (text, _) in FEDERATIONS.items()}
        for option, what, rows in (
            ("--federation", "the paper's federations", federations),
            ("--source", "where the images come from", SOURCES),
            ("--partition", "who gets what", PARTITIONS),
        ):
            print_list("name", what, rows, option)
        return 0


command = DatasetsCommand
