"""A federation on Flower ends with its report, and says how good predictions are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pfedfda

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from flwr.app import Context, MetricRecord, RecordDict

from pfedfda.flower import server_app
from pfedfda.flower.client_app import app
from pfedfda.flower.predictions import prediction_lists, read_predictions
from pfedfda.flower.wire import MalformedError, lists_of, metrics_of, pack
from pfedfda.runs import PredictionCounts, read_run
from tests.flower.grids import FakeGrid
from tests.flower.test_parity import SETTINGS, on_flower

NAMES = ("vilnius", "kaunas", "klaipeda", "alytus")
COUNTS = PredictionCounts.of(
    np.array([0, 1, 1, 2]), np.array([0, 1, 0, 2]), np.array([0.1, 0.7, 0.33333333, 1.0]), 0.7
)


def four_sites(tmp_path: Path) -> FakeGrid:
    sites = str(tmp_path / "sites")
    return FakeGrid(
        app,
        {n: {"partition-id": n, "name": name, "state-dir": sites} for n, name in enumerate(NAMES)},
    )


def test_a_run_ends_with_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {**SETTINGS, "method": "fedavg", "min-nodes": 4, "output": str(tmp_path), "rounds": 2}
    context = Context(1, 1, {}, RecordDict(), words)
    server_app.app(four_sites(tmp_path), context)
    lines = capsys.readouterr().err.splitlines()
    folder = tmp_path / "federation-fedavg"
    assert lines[-2] == f"The results are in {folder}"
    assert lines[-1] == f"report: {folder / 'report.html'}"
    page = (folder / "report.html").read_text()
    assert "Calibration" in page
    assert all(name in page for name in NAMES)
    assert all(" over 4 sites, " in line for line in lines if ", accuracy " in line)


def test_no_image_and_no_single_sample_leaves_a_site(tmp_path: Path) -> None:
    """An answer to an evaluation is numbers, and as long as there are cells and bins."""
    grid = four_sites(tmp_path)
    words = {**SETTINGS, "method": "fedavg", "min-nodes": 4, "output": str(tmp_path), "rounds": 1}
    server_app.app(grid, Context(1, 1, {}, RecordDict(), words))
    answers = [m for m in grid.sent_up if m.metadata.message_type == "evaluate"]
    assert len(answers) == 4
    for message in answers:
        assert not message.content.array_records
        assert not message.content.config_records
        lists = lists_of(message.content)
        assert sorted(lists) == [
            "predictions.cells",
            "predictions.confidence",
            "predictions.correct",
            "predictions.samples",
        ]
        assert len(lists["predictions.cells"]) <= 3 * 10 * 10
    assert not list((tmp_path / "federation-fedavg").glob("mistakes*"))


def test_predictions_are_those_of_a_local_run(tmp_path: Path) -> None:
    local = pfedfda.run("pfedfda", output=tmp_path, name="local", workers=0, quiet=True, **SETTINGS)
    flower = on_flower(tmp_path, "pfedfda")
    assert flower.summary["predictions"] == local.summary["predictions"]
    assert read_run(flower.folder).predictions == read_run(local.folder).predictions


def test_counts_come_back_as_they_were() -> None:
    content = pack(metrics={"squared_error": 0.7}, lists=prediction_lists(COUNTS))
    assert read_predictions(lists_of(content), metrics_of(content), 4) == COUNTS


def change(**lists: Any) -> RecordDict:
    content = pack(metrics={"squared_error": 0.7}, lists=prediction_lists(COUNTS))
    record = dict(content.metric_records["metrics"])
    for name, values in lists.items():
        record[f"predictions.{name}"] = values
    return RecordDict({"metrics": MetricRecord({n: v for n, v in record.items() if v is not None})})


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"cells": None}, "is missing"),
        ({"samples": None}, "is missing"),
        ({"cells": [0, 0]}, "cannot be read"),
        ({"cells": [0.5, 0.0, 1.0]}, "cannot be read"),
        ({"cells": [0, 0, 1] * 5}, "cannot be read"),  # more cells than samples
        ({"cells": [0, 0, 1, 0, 0, 2]}, "twice"),
        ({"samples": [1, 2]}, "cannot be read"),
        ({"samples": [0.5] * 15}, "cannot be read"),
        ({"confidence": [float("nan")] * 15}, "not finite"),
        ({"confidence": 3.0}, "is missing"),
    ],
)
def test_counts_that_are_none_are_refused(lists: dict[str, Any], said: str) -> None:
    content = change(**lists)
    with pytest.raises(MalformedError, match=said):
        read_predictions(lists_of(content), metrics_of(content), 4)


def test_a_site_that_lies_about_its_predictions_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = four_sites(tmp_path)

    def lie(message: Any, reply: Any) -> Any:
        if message.metadata.message_type == "evaluate":
            record = reply.content.metric_records["metrics"]
            record["predictions.samples"] = [n + 1 for n in record["predictions.samples"]]
        return reply

    grid.tamper[1] = lie
    words = {**SETTINGS, "method": "fedavg", "min-nodes": 4, "output": str(tmp_path), "rounds": 1}
    server_app.app(grid, Context(1, 1, {}, RecordDict(), words))
    said = capsys.readouterr().err
    assert "site kaunas is left out of the evaluate step of round 1: its counts" in said
    assert " over 3 of 4 sites, " in said
