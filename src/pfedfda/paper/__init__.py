"""The paper as data: its tables, the settings behind them, and what can be computed without a run.

`published_table` returns the numbers of a table as printed, `table_settings` and
`federation_settings` what to run for it, `paper_loads` recounts the table of communication, and
`simulate_theorem` measures what Theorem 1 bounds.
"""

from pfedfda.paper.communication import CommunicationLoad, communication_load, paper_loads
from pfedfda.paper.published import TABLES, PublishedCell, PublishedTable, published_table
from pfedfda.paper.published_figures import FIGURES, PublishedFigure
from pfedfda.paper.settings import (
    METHOD_SETTINGS,
    TableSettings,
    federation_settings,
    table_settings,
)
from pfedfda.paper.theorem import TheoremRow, simulate_theorem

__all__ = [
    "FIGURES",
    "METHOD_SETTINGS",
    "TABLES",
    "CommunicationLoad",
    "PublishedCell",
    "PublishedFigure",
    "PublishedTable",
    "TableSettings",
    "TheoremRow",
    "communication_load",
    "federation_settings",
    "paper_loads",
    "published_table",
    "simulate_theorem",
    "table_settings",
]
