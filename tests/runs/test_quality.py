"""Balanced accuracy, calibration and confusion: against scikit-learn and closed forms."""

import csv
import io
import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    log_loss,
    recall_score,
)

from pfedfda import FederationConfig, run
from pfedfda.engine.client import MOST_MISTAKES, score
from pfedfda.methods import Samples
from pfedfda.runs import QUALITIES, PooledCounts, PredictionCounts, read_run
from pfedfda.runs.quality import BINS, MOST_CLASSES_CROSSED, calibration_error, read_predictions

CLASSES = 7


class Recall(torch.nn.Module):
    """A model whose inputs are the logits."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


def draw(seed: int, samples: int, classes: int = CLASSES) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=generator)
    return logits, torch.randint(classes, (samples,), generator=generator)


@pytest.mark.parametrize("samples", [1, 3, 40, 1200])  # fewer and more than the batch
def test_a_clients_numbers_are_scikit_learns(samples: int) -> None:
    logits, labels = draw(samples, samples)
    found = score(Recall(), Samples(logits, labels))
    predicted, truth = logits.argmax(1).numpy(), labels.numpy()
    probabilities = logits.double().softmax(1).numpy()
    measures = found.predictions.measures(found.loss)
    # It warns of classes that are predicted and not there, which is what is meant.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = balanced_accuracy_score(truth, predicted)
    assert measures["balanced_accuracy"] == pytest.approx(expected)
    loss = log_loss(truth, probabilities, labels=range(CLASSES))
    assert measures["nll"] == pytest.approx(loss, rel=1e-5)
    squares = np.square(probabilities - np.eye(CLASSES)[truth]).sum(1)
    assert measures["brier"] == pytest.approx(squares.mean(), rel=1e-5)
    assert found.predictions.fault(samples, found.correct, CLASSES) is None


def test_sums_over_clients_are_those_of_all_samples() -> None:
    parts = [draw(seed, 5 + 9 * seed) for seed in range(12)]
    pooled, counts = PooledCounts(CLASSES), []
    for logits, labels in parts:
        counts.append(score(Recall(), Samples(logits, labels)).predictions)
        pooled.add(counts[-1])
    logits, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    predicted, truth = logits.argmax(1).numpy(), labels.numpy()
    tables = pooled.tables([f"class {n}" for n in range(CLASSES)])
    assert tables["confusion"] == confusion_matrix(truth, predicted).tolist()
    assert tables["recall"] == pytest.approx(recall_score(truth, predicted, average=None))
    together = score(Recall(), Samples(logits, labels)).predictions
    quality = pooled.quality()
    assert quality.pooled_balanced_accuracy == pytest.approx(
        balanced_accuracy_score(truth, predicted)
    )
    assert quality.pooled_ece == pytest.approx(calibration_error(together.bins))
    assert quality.pooled_brier == pytest.approx(together.squared_error / len(labels), rel=1e-6)
    mean = np.mean([c.balanced_accuracy for c in counts])
    assert quality.mean_balanced_accuracy == pytest.approx(mean)


def test_a_class_without_samples_has_no_recall() -> None:
    pooled = PooledCounts(3)
    pooled.add(count([0, 0, 2], [0, 1, 2], [0.9, 0.9, 0.9]))
    assert pooled.tables(["a", "b", "c"])["recall"] == [0.5, None, 1.0]
    assert pooled.quality().pooled_balanced_accuracy == 0.75


def count(labels: list[int], predicted: list[int], confidences: list[float]) -> PredictionCounts:
    return PredictionCounts.of(
        np.array(labels), np.array(predicted), np.array(confidences, dtype=np.float64), 0.5
    )


def test_always_sure_and_half_right_is_wrong_by_a_half() -> None:
    counts = count([0, 1, 0, 1], [0, 0, 0, 0], [1.0] * 4)
    assert calibration_error(counts.bins) == 0.5
    assert counts.bins[-1] == (4, 2, 4.0)


def test_confidence_that_comes_true_is_no_error() -> None:
    """Four of five at 0.8, one of two at 0.5."""
    counts = count([0] * 7, [0, 0, 0, 0, 1, 0, 1], [0.8] * 5 + [0.5] * 2)
    assert calibration_error(counts.bins) == pytest.approx(0, abs=1e-15)


def test_the_error_is_weighted_by_samples() -> None:
    """Three samples that are off by 0.1 and one that is off by 0.4."""
    counts = count([0, 0, 0, 0], [0, 0, 0, 1], [0.9, 0.9, 0.9, 0.4])
    assert calibration_error(counts.bins) == pytest.approx((3 * 0.1 + 0.4) / 4)


def test_errors_of_opposite_sign_cancel_within_a_bin_only() -> None:
    near, far = (0.95, 0.96), (0.5, 0.95)
    assert calibration_error(count([0, 0], [0, 1], list(near)).bins) == pytest.approx(0.91 / 2)
    expected = (abs(1 - far[0]) + abs(0 - far[1])) / 2
    assert calibration_error(count([0, 0], [0, 1], list(far)).bins) == pytest.approx(expected)


@pytest.mark.parametrize("k", range(1, BINS + 1))
def test_bins_are_closed_above(k: int) -> None:
    edge = k / BINS
    filled = [n for n, b in enumerate(count([0], [0], [edge - 1e-9]).bins) if b[0]]
    assert filled == [k - 1]
    above = [n for n, b in enumerate(count([0], [0], [min(edge + 1e-9, 1.0)]).bins) if b[0]]
    assert above == [min(k, BINS - 1)]


def test_an_undefined_confidence_breaks_nothing() -> None:
    """The loss of such a client is not finite, which is why it is left out."""
    found = score(Recall(), Samples(torch.full((3, 2), math.nan), torch.tensor([0, 1, 1])))
    assert math.isnan(found.loss)
    assert found.predictions.tested == 3


def test_mistakes_are_the_most_confident_ones() -> None:
    logits, labels = draw(1, 700)
    found = score(Recall(), Samples(logits, labels))
    probabilities = logits.softmax(1)
    predicted = logits.argmax(1)
    wrong = [n for n in range(700) if predicted[n] != labels[n]]
    wrong.sort(key=lambda n: -float(probabilities[n].max()))
    assert [m.sample for m in found.mistakes] == wrong[:MOST_MISTAKES]
    for mistake in found.mistakes:
        assert mistake.true == labels[mistake.sample] != mistake.predicted
        assert mistake.confidence == pytest.approx(float(probabilities[mistake.sample].max()))


def test_many_classes_are_not_crossed() -> None:
    few, many = PooledCounts(MOST_CLASSES_CROSSED), PooledCounts(100_000)
    for pooled in (few, many):
        pooled.add(count([0, 199], [0, 7], [0.5, 0.6]))
        assert pooled.quality().pooled_balanced_accuracy == 0.5
    assert many.confusion is None
    names = [str(n) for n in range(100_000)]
    read = read_predictions(json.loads(json.dumps(many.tables(names))))
    assert read.confusion is None
    assert read.hits[0] == 1
    assert sum(read.tested) == 2


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    federation = FederationConfig(clients=5, alpha=0.3, train_fraction=0.3)
    folder = tmp_path_factory.mktemp("runs")
    return run("fedavg-ft", federation, rounds=2, eval_every=1, output=folder, quiet=True).folder


def test_files_agree_with_one_another(result: Path) -> None:
    found = read_run(result)
    rows = list(csv.DictReader(io.StringIO((result / "clients.csv").read_text())))
    assert list(rows[0])[5:10] == ["accuracy", "balanced_accuracy", "nll", "brier", "ece"]
    sizes = [int(row["test_samples"]) for row in rows]
    for column, number in {"nll": "test_loss", "brier": "pooled_brier"}.items():
        weighted = np.average([float(row[column]) for row in rows], weights=sizes)
        assert found.number(number) == pytest.approx(weighted), column
    mean = np.mean([float(row["balanced_accuracy"]) for row in rows])
    assert found.number("mean_balanced_accuracy") == pytest.approx(mean)
    assert found.predictions is not None
    assert found.predictions.confusion is not None
    crossed = np.array(found.predictions.confusion)
    assert crossed.sum() == sum(sizes)
    assert np.trace(crossed) / crossed.sum() == found.number("weighted_accuracy")
    assert [b[0] for b in found.predictions.bins] == [
        *found.summary["predictions"]["bins"]["samples"]
    ]
    assert found.clients[0].quality["ece"] == float(rows[0]["ece"])
    last = found.metrics[-1]
    assert {name: last[name] for name in QUALITIES} == {n: found.summary[n] for n in QUALITIES}
    assert "predictions" not in last  # tables are not for logs


def test_a_run_without_these_numbers_is_still_a_run(result: Path, tmp_path: Path) -> None:
    """As earlier versions have left them."""
    from pfedfda import load_run
    from pfedfda.report import write_report

    new = {*QUALITIES, "predictions"}
    for name in ("config.toml", "federation.json"):
        (tmp_path / name).write_bytes((result / name).read_bytes())
    summary = json.loads((result / "summary.json").read_text())
    kept = {name: value for name, value in summary.items() if name not in new}
    (tmp_path / "summary.json").write_text(json.dumps(kept))
    lines = map(json.loads, (result / "metrics.jsonl").read_text().splitlines())
    old = [{name: v for name, v in line.items() if name not in new} for line in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    rows = list(csv.reader(io.StringIO((result / "clients.csv").read_text())))
    with (tmp_path / "clients.csv").open("w", newline="") as file:
        csv.writer(file).writerows([*row[:6], *row[10:]] for row in rows)
    found = load_run(tmp_path)
    assert found.predictions is None
    assert found.clients[0].quality == {}
    assert found.clients[0].accuracy == read_run(result).clients[0].accuracy
    page = write_report([tmp_path], tmp_path).read_text()
    assert "Calibration" not in page
    assert "<th>balanced" not in page
    # Beside a new run the columns are there, with dashes.
    both = write_report([tmp_path, result], tmp_path / "both").read_text()
    assert "Calibration" in both
    assert "–" in both
