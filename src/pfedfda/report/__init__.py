"""Reports: they read result files and nothing else."""

from pfedfda.report.page import write_report
from pfedfda.report.paper_table import PaperCell, PaperRow, PaperTable

__all__ = ["PaperCell", "PaperRow", "PaperTable", "write_report"]
