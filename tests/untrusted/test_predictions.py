"""Numbers and pictures of predictions in runs of others."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pfedfda.report import write_report
from pfedfda.runs import PooledCounts, PredictionCounts, read_run
from pfedfda.runs.mistakes import read_mistakes
from pfedfda.runs.quality import BINS
from tests.report.fake_runs import change_summary, write_run
from tests.untrusted.refusals import JSON_VALUES, is_refused

IN_ONE_FOLDER = [HealthCheck.function_scoped_fixture]
BIN_ROWS = (*[(0, 0, 0.0)] * (BINS - 1), (4, 3, 3.9))
COUNTS = PredictionCounts({(0, 0): 2, (1, 1): 1, (1, 0): 1}, BIN_ROWS, 0.5)


def tables() -> dict[str, Any]:
    pooled = PooledCounts(2)
    pooled.add(COUNTS)
    return pooled.tables(["cat", "dog"])


def test_tables_that_are_whole_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    change_summary(folder, predictions=tables())
    assert "Calibration" in write_report([folder], folder).read_text()


WRONG: dict[str, dict[str, Any]] = {
    "no classes": {"class_names": []},
    "classes are text": {"class_names": "ab"},
    "too few tested": {"tested": [4]},
    "tested below zero": {"tested": [4, -1]},
    "tested beyond whole numbers": {"tested": [4, 10**400]},
    "a recall of 2": {"recall": [2, 0.5]},
    "a recall in words": {"recall": ["much", 0.5]},
    "no bins": {"bins": None},
    "bins of another number": {"bins": {"samples": [1], "correct": [1], "confidence": [1]}},
    "more correct than samples": {
        "bins": {"samples": [1] * BINS, "correct": [2] * BINS, "confidence": [1] * BINS}
    },
    "a confidence above 1": {
        "bins": {"samples": [1] * BINS, "correct": [1] * BINS, "confidence": [9] * BINS}
    },
    "a matrix of another size": {"confusion": [[1, 2]]},
    "a matrix with text": {"confusion": [["1", "2"], [1, 2]]},
}


@pytest.mark.parametrize("what", WRONG)
def test_tables_that_cannot_be_are_refused(what: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    change_summary(folder, predictions=tables() | WRONG[what])
    assert is_refused(read_run, folder)


@settings(max_examples=100, suppress_health_check=IN_ONE_FOLDER)
@given(name=st.sampled_from(sorted(tables())), value=JSON_VALUES)
def test_strange_tables_are_read_or_refused(tmp_path: Path, name: str, value: Any) -> None:
    folder = tmp_path / "run"
    if not folder.exists():
        write_run(folder)
    change_summary(folder, predictions=tables() | {name: value})
    is_refused(read_run, folder)


LIES: dict[str, dict[str, Any]] = {
    "another class": {"cells": {(0, 0): 2, (2, 1): 1, (1, 1): 1}},
    "a class below zero": {"cells": {(0, 0): 3, (-1, 0): 1}},
    "samples below zero": {"cells": {(0, 0): 4, (1, 1): -1, (1, 0): 1}},
    "too many samples": {"cells": {(0, 0): 2, (1, 1): 1, (1, 0): 2}},
    "too many correct": {"cells": {(0, 0): 2, (1, 1): 2}},
    "bins of other samples": {"bins": (*BIN_ROWS[:-1], (5, 3, 3.9))},
    "a missing bin": {"bins": BIN_ROWS[1:]},
    "more confidence than samples": {"bins": (*BIN_ROWS[:-1], (4, 3, 4.9))},
    "negative confidence": {"bins": (*BIN_ROWS[:-1], (4, 3, -1.0))},
    "a squared error beyond 2": {"squared_error": 8.1},
    "a negative squared error": {"squared_error": -1.0},
}


@pytest.mark.parametrize("what", LIES)
def test_counts_that_cannot_be_have_a_fault(what: str) -> None:
    fields = {"cells": COUNTS.cells, "bins": COUNTS.bins, "squared_error": 0.5}
    assert COUNTS.fault(4, 3, 2) is None
    assert PredictionCounts(**{**fields, **LIES[what]}).fault(4, 3, 2) is not None


def png(width: int = 8, height: int = 8) -> bytes:
    """The beginning of a PNG file, which is all that is looked at."""
    sides = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + sides + b"\x08\0\0\0\0"


def mistake(**changes: Any) -> dict[str, Any]:
    picture = base64.b64encode(png()).decode()
    about = {"client": "anna", "true": "cat", "predicted": "dog", "confidence": 0.5}
    return {**about, "png": picture, **changes}


def test_names_in_mistakes_are_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    row = mistake(client="<script>alert(1)</script>", true="\x1b[31m")
    (folder / "mistakes.json").write_text(json.dumps({"mistakes": [row]}))
    page = write_report([folder], folder).read_text()
    assert "<script>alert" not in page
    assert "\x1b" not in page


BAD_ROWS: dict[str, Any] = {
    "no object": 3,
    "no picture": {"client": "a", "true": "b", "predicted": "c", "confidence": 0.5},
    "a picture that is no text": mistake(png=3),
    "no base64": mistake(png='"><script>'),
    "no PNG": mistake(png=base64.b64encode(b"GIF89a" * 10).decode()),
    "a giant": mistake(png=base64.b64encode(png(10**6, 10**6)).decode()),
    "a wide one": mistake(png=base64.b64encode(png(65, 1)).decode()),
    "an empty one": mistake(png=base64.b64encode(png(0, 0)).decode()),
    "much data": mistake(png=base64.b64encode(png() + bytes(10**6)).decode()),
    "a confidence of 7": mistake(confidence=7),
    "a confidence in words": mistake(confidence="much"),
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_pictures_that_are_none_are_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "mistakes.json").write_text(json.dumps({"mistakes": [mistake()]}))
    assert len(read_mistakes(tmp_path)) == 1
    (tmp_path / "mistakes.json").write_text(json.dumps({"mistakes": [mistake(), BAD_ROWS[what]]}))
    assert is_refused(read_mistakes, tmp_path)


@pytest.mark.parametrize("rows", [None, {}, [mistake()] * 201])
def test_a_strange_list_of_mistakes_is_refused(rows: Any, tmp_path: Path) -> None:
    (tmp_path / "mistakes.json").write_text(json.dumps({"mistakes": rows}))
    assert is_refused(read_mistakes, tmp_path)
