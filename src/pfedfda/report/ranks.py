"""Mean ranks of methods over several federations: the critical-difference diagram."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfedfda.report.groups import Entry, Group
from pfedfda.report.text import number
from pfedfda.runs.statistics import cliques, critical_difference, friedman, mean_ranks

LOW, HIGH = 25.0, 75.0  # where the first and the last rank lie, in per cent of the width
TOP, STEP, ROW = 44.0, 7.0, 24.0  # pixels: of the axis, between cliques, and between methods


@dataclass(frozen=True)
class Ranks:
    """A critical-difference diagram, after Demšar.

    Parameters
    ----------
    entries, ranks
        The methods from the lowest mean rank, the best, to the highest.
    critical
        By how much two mean ranks must differ for the difference to be beyond chance (Nemenyi).
    p
        That of Friedman's test that all methods are equal.
    federations
        Their number.
    """

    entries: Sequence[Entry]
    ranks: Sequence[float]
    critical: float
    p: float
    federations: int

    @property
    def name(self) -> str:
        """A sentence for people who cannot see it."""
        places = zip(self.entries, self.ranks, strict=True)
        return "mean ranks: " + ", ".join(f"{entry.label} {number(r, 2)}" for entry, r in places)

    @property
    def cliques(self) -> list[tuple[float, float]]:
        """The groups of methods that do not differ, from their lowest to their highest rank."""
        return cliques(self.ranks, self.critical)

    @property
    def ticks(self) -> range:
        """All ranks that there are."""
        return range(1, len(self.ranks) + 1)

    def place(self, rank: float) -> float:
        """Return where a rank lies, in per cent of the width."""
        return LOW + (HIGH - LOW) * (rank - 1) / max(len(self.ranks) - 1, 1)

    @property
    def rows(self) -> list[tuple[Entry, float, float, bool]]:
        """Each method with its rank, the height of its line in pixels, and whether it is left.

        The better half is on the left, the best on top; the worst is on top of the other half.
        """
        half = (len(self.ranks) + 1) // 2
        first = TOP + STEP * (len(self.cliques) + 1) + ROW
        left = [first + ROW * place for place in range(half)]
        right = [first + ROW * place for place in range(len(self.ranks) - half)][::-1]
        heights = [*left, *right]
        return [
            (entry, rank, heights[place], place < half)
            for place, (entry, rank) in enumerate(zip(self.entries, self.ranks, strict=True))
        ]

    @property
    def height(self) -> float:
        """The height of the diagram in pixels."""
        return max(height for _, _, height, _ in self.rows) + 8

    @property
    def bars(self) -> list[tuple[float, float, float]]:
        """The bar of each clique: its two ranks and its height in pixels."""
        return [(*ends, TOP + STEP * (n + 1)) for n, ends in enumerate(self.cliques)]


def ranks_over(groups: Sequence[Group]) -> Ranks | None:
    """Return the ranks of the methods that all federations have, None if they say nothing.

    Parameters
    ----------
    groups
        The runs by federation; the mean accuracy, over seeds if there are several, is ranked.
    """
    if len(groups) < 2:
        return None
    scores = [
        {e.label: mean for e in group.entries if (mean := e.number("mean_accuracy")) is not None}
        for group in groups
    ]
    labels = [label for label in scores[0] if all(label in of_group for of_group in scores)]
    if len(labels) < 2:
        return None
    table = [[of_group[label] for label in labels] for of_group in scores]
    ranks = dict(zip(labels, mean_ranks(table), strict=True))
    entries = {entry.label: entry for entry in groups[0].entries}
    order = sorted(labels, key=lambda label: ranks[label])
    return Ranks(
        [entries[label] for label in order],
        [ranks[label] for label in order],
        critical_difference(len(labels), len(groups)),
        friedman(table),
        len(groups),
    )
