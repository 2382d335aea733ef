"""What the paper's text says about its figures.

The figures are images, and none of their values is in the text: what can be compared is what the
paper states about them in words.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedFigure:
    """A figure of the paper.

    Parameters
    ----------
    key, number
        ``figure2`` and 2.
    caption
        What it shows, in a few words.
    federations
        The columns, keyed as in the tables, that it was drawn from.
    stated
        What the text says that it shows.
    """

    key: str
    number: int
    caption: str
    federations: tuple[str, ...]
    stated: tuple[str, ...]


FIGURES: dict[str, PublishedFigure] = {
    figure.key: figure
    for figure in (
        PublishedFigure(
            "figure2",
            2,
            "The clients' β by the corruption of their images",
            ("cifar10-s@100",),
            (
                "Clients with clean images have smaller β than corrupted ones.",
                "Corruptions with larger β, contrast among them, are often the harder ones of "
                "Table 4.",
            ),
        ),
        PublishedFigure(
            "figure3",
            3,
            "Samples by client and class under Dirichlet(0.1) and Dirichlet(0.5)",
            ("cifar10-dir0.1@100", "cifar10@100"),
            ("The partition with the larger α is less heterogeneous.",),
        ),
        PublishedFigure(
            "figure4",
            4,
            "Accuracy of FedAvgFT and pFedFDA by the number of local epochs E",
            ("cifar100@100", "cifar100-s@25"),
            (
                "pFedFDA is ahead of FedAvgFT at every E.",
                "Both level off after E = 5.",
                "pFedFDA learns faster, and is far ahead at E = 1.",
            ),
        ),
    )
}
"""The figures with results, by key; Figure 1 is a sketch of the method."""
