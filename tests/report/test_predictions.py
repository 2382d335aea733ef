"""Calibration and confusion on the page: what is drawn, and what is left out."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedfda.report import write_report
from pfedfda.report.groups import read_groups
from pfedfda.report.predictions import (
    MOST_CROSSED,
    MOST_NAMED,
    MOST_PAIRS,
    confusion,
    recall_by_class,
    reliability,
)
from pfedfda.runs import PooledCounts, PredictionCounts
from tests.report.fake_runs import change_summary, write_comparison, write_run


def predictions(classes: int, samples: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Return tables of made-up predictions, of which about half are right."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, samples)
    guesses = random.integers(0, classes, samples)
    predicted = np.where(random.random(samples) < 0.5, labels, guesses)
    pooled = PooledCounts(classes)
    pooled.add(PredictionCounts.of(labels, predicted, random.random(samples), 1.0))
    return pooled.tables([f"class {n}" for n in range(classes)])


def entries(folder: Path, classes: int, methods: tuple[str, ...] = ("fedavg", "pfedfda")) -> Any:
    write_comparison(folder, list(methods))
    for seed, method in enumerate(methods):
        change_summary(folder / method, predictions=predictions(classes, seed=seed))
    return read_groups([folder])[0].entries


def test_a_point_is_the_accuracy_at_its_confidence(tmp_path: Path) -> None:
    known = entries(tmp_path / "runs", 5)
    bins = known[0].first.summary["predictions"]["bins"]
    series = reliability(known).series[0]
    confidence, correct, samples = (
        np.array(bins[name]) for name in ("confidence", "correct", "samples")
    )
    assert series.xs == pytest.approx(confidence / samples)
    assert series.ys == pytest.approx(correct / samples)


def test_bins_of_few_samples_are_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    pooled = PooledCounts(2)
    confidences = np.array([0.55] * 199 + [0.95])
    zeros = np.zeros(200, dtype=np.int64)
    pooled.add(PredictionCounts.of(zeros, zeros, confidences, 1.0))
    change_summary(folder, predictions=pooled.tables(["cat", "dog"]))
    (series,) = reliability(read_groups([folder])[0].entries).series
    assert series.xs == pytest.approx([0.55])


def test_recall_is_the_share_of_the_diagonal(tmp_path: Path) -> None:
    known = entries(tmp_path / "runs", 6)
    crossed = np.array(known[1].first.summary["predictions"]["confusion"])
    series = recall_by_class(known).series[1]
    assert series.xs == pytest.approx(np.diag(crossed) / crossed.sum(1))
    table = confusion(known[1])
    assert table is not None
    texts = [[cell.text for cell in row.cells] for row in table.bodies[0]]
    assert [[int(text or 0) for text in row[1:-1]] for row in texts] == crossed.tolist()


def test_of_many_classes_the_worst_pairs_are_listed(tmp_path: Path) -> None:
    known = entries(tmp_path / "runs", MOST_CROSSED + 1)
    crossed = np.array(known[0].first.summary["predictions"]["confusion"])
    np.fill_diagonal(crossed, 0)
    table = confusion(known[0])
    assert table is not None
    counts = [int(row.cells[2].text) for row in table.bodies[0]]
    assert counts == sorted(crossed.ravel(), reverse=True)[:MOST_PAIRS]


@pytest.mark.parametrize("classes", [2, MOST_NAMED, MOST_NAMED + 1, 250])
def test_a_page_of_any_number_of_classes_is_written(classes: int, tmp_path: Path) -> None:
    entries(tmp_path / "runs", classes)
    page = write_report([tmp_path / "runs"], tmp_path / "report").read_text()
    assert "Calibration" in page
    assert ("Confusion of classes" in page) is (classes <= 200)
    for name in ("reliability", "recall-by-class"):
        ET.parse(tmp_path / "report" / "figures" / f"{name}.svg")


def test_seeds_are_added_up(tmp_path: Path) -> None:
    for seed in range(2):
        folder = write_run(tmp_path / f"s{seed}", seed=seed)
        change_summary(folder, predictions=predictions(4, samples=100 + seed, seed=seed))
    (entry,) = read_groups([tmp_path / "s0", tmp_path / "s1"])[0].entries
    assert entry.predictions is not None
    assert sum(entry.predictions.tested) == 201
    both = [run.summary["predictions"]["confusion"] for run in entry.runs]
    assert entry.predictions.confusion == np.sum(both, axis=0).tolist()
    # If one of the seeds is of an earlier version, there is nothing to add up.
    change_summary(tmp_path / "s1", predictions=None)
    (entry,) = read_groups([tmp_path / "s0", tmp_path / "s1"])[0].entries
    assert entry.predictions is None


def test_the_smallest_error_is_the_best(tmp_path: Path) -> None:
    write_comparison(tmp_path, ["fedavg", "pfedfda"])
    for method, error in {"fedavg": 0.1, "pfedfda": 0.2}.items():
        change_summary(tmp_path / method, pooled_ece=error, test_loss=1e29 * error)
    page = write_report([tmp_path], tmp_path).read_text()
    assert 'class="n best" data-v="0.1">0.100' in page
    assert 'data-v="0.2">0.200' in page
    assert ">1e28<" in page  # and not thirty digits
