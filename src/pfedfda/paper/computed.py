"""What the paper has and no run is needed for: communication, the partition and the theorem."""

from pathlib import Path

from rich.table import Table

from pfedfda.data import prepare
from pfedfda.experiment.observers import choose_observer
from pfedfda.files import inside
from pfedfda.paper.communication import paper_loads
from pfedfda.paper.published import published_table
from pfedfda.paper.published_figures import FIGURES
from pfedfda.paper.settings import federation_settings
from pfedfda.paper.theorem import simulate_theorem
from pfedfda.report.federation import draw_figures, summary_table
from pfedfda.runs.comparison import plain_console
from pfedfda.runs.config import make_config


def show(key: str, data_dir: Path | None, output: Path) -> int:
    """Print or draw one of them.

    Parameters
    ----------
    key
        table8, figure3 or theorem1.
    data_dir
        The folder with local copies of datasets.
    output
        The folder for figures.
    """
    if key == "table8":
        plain_console().print(_communication())
    elif key == "theorem1":
        plain_console().print(_theorem())
    else:
        _partitions(data_dir, output)
    return 0


def _communication() -> Table:
    published = published_table("table8")
    table = Table(title=f"Table 8: {published.caption}", title_justify="left")
    table.add_column("network", no_wrap=True)
    for column in published.columns:
        table.add_column(column, justify="right", no_wrap=True)
    for load in paper_loads():
        computed = (load.backbone, load.linear, load.gaussian, load.overhead)
        cells = []
        for column, value in zip(published.columns, computed, strict=True):
            printed = published.cell(load.network, column).printed
            decimals = len(printed.partition(".")[2])
            same = f"{value:.{decimals}f}" == printed.lstrip("+")
            cells.append(f"{value:,.{decimals}f}\n{'= paper' if same else f'paper {printed}'}")
        table.add_row(load.network, *cells)
    return table


def _theorem() -> Table:
    table = Table(title="Theorem 1: the measured error against the bound", title_justify="left")
    rows = simulate_theorem()
    for name in vars(rows[0]):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in vars(row).values()]
        table.add_row(*cells)
    return table


def _partitions(data_dir: Path | None, output: Path) -> None:
    for key in FIGURES["figure3"].federations:
        settings = federation_settings(key)
        if data_dir is not None:
            settings["data_dir"] = data_dir
        with choose_observer(quiet=False) as observer:
            federation = prepare(
                make_config({}, **settings).federation, progress=observer.preparing
            )
        print(key)
        plain_console().print(summary_table(federation))
        for path in draw_figures(federation, inside(output, "figure3", key)):
            print(path)
