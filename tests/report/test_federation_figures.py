from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from pfedfda.cli import main
from pfedfda.data import Federation, FederationConfig, prepare
from pfedfda.report.charts import bubbles
from pfedfda.report.federation import class_counts, draw_figures, summary_table
from pfedfda.report.figures import draw_chart
from pfedfda.runs import ClassCounts
from tests.conftest import write_image


def test_counts_are_those_of_the_labels(tiny: Federation) -> None:
    counts = class_counts(tiny)
    assert counts.sum() == len(tiny.labels)
    np.testing.assert_array_equal(counts.sum(0), np.bincount(tiny.labels, minlength=10))
    np.testing.assert_array_equal(counts.sum(1), tiny.train_sizes + tiny.test_sizes)


@pytest.mark.parametrize("clients", [3, 90])
def test_figures_are_drawn_for_small_and_large_federations(clients: int, tmp_path: Path) -> None:
    prepared = prepare(
        FederationConfig(clients=clients, alpha=5.0, shift="paper", min_samples=5), cache=tmp_path
    )
    for path in draw_figures(prepared, tmp_path / "figures"):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 20  # something is on it


def test_data_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "show", "--clients", "8", "--shift", "paper", "--alpha", "1"]) == 0
    out = capsys.readouterr().out
    assert "8 clients" in out
    assert "shot_noise" in out
    for name in ("classes", "images", "corruptions"):
        assert (tmp_path / "figures" / "digits" / f"{name}.png").exists()
    assert main(["data", "show", "cifar99"]) == 2
    assert main(["data", "hide"]) == 2
    assert main(["data"]) == 0


def test_columns_of_the_summary_have_different_names(tiny: Federation) -> None:
    for config in (FederationConfig(clients=20), FederationConfig(clients=20, shift="paper")):
        table = summary_table(prepare(config))
        headings = [column.header for column in table.columns]
        assert len(set(headings)) == len(headings)
        assert "clients" in headings


@pytest.mark.parametrize("clients", [1, 3, 20, 50, 60])
@pytest.mark.parametrize(
    ("classes", "size"),  # as in reports, and as data show draws them
    [(2, (8.0, 4.5)), (100, (8.0, 4.5)), (2, (10.0, 3.0)), (10, (10.0, 4.3)), (40, (10.0, 9.0))],
)
def test_bubbles_lie_inside_the_axes(clients: int, classes: int, size: tuple[float, float]) -> None:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    names = [f"class {c}" for c in range(classes)], [f"client {c}" for c in range(clients)]
    draw_chart(axes, bubbles(ClassCounts(*names, [[7] * classes] * clients)))
    figure.draw_without_rendering()
    (circles,) = axes.collections
    radius = np.sqrt(circles.get_sizes().max()) / 2 * figure.dpi / 72
    places = axes.transData.transform(circles.get_offsets())
    box = axes.get_window_extent()
    assert (places.min(0) - radius > box.min).all()
    assert (places.max(0) + radius < box.max).all()


def test_the_chart_names_clients_that_have_names() -> None:
    axes = Figure().subplots()
    names = ["cat", "dog"], ["north", "south", "a name that is very long"]
    draw_chart(axes, bubbles(ClassCounts(*names, [[7, 7]] * 3)))
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert ticks == ["north", "south", "a name that is very…"]


def test_names_with_dollars_are_drawn_as_they_are(tmp_path: Path) -> None:
    """To the library that draws, what stands between dollars is a formula."""
    for client in (r"$\frac$", "b"):
        for number in range(10):
            write_image(tmp_path / "photos" / client / ("$a_$", "b")[number % 2] / f"{number}.png")
    federation = prepare(FederationConfig(source=str(tmp_path / "photos")))
    assert len(draw_figures(federation, tmp_path / "figures")) == 3
