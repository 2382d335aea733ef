"""Lines for logs and pipes: often enough to see that a run is alive."""

import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pfedfda.experiment import observers
from pfedfda.experiment.observers import PlainObserver
from pfedfda.methods.local import Local
from pfedfda.runs.accuracy import Accuracy

Advance = Callable[[float], None]
ACCURACY = Accuracy.of([1], [2])


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Advance:
    """Stop the clock; it goes on by as many seconds as the test says."""
    now = [1000.0]

    def forward(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=lambda: now[0])
    monkeypatch.setattr(observers, "time", clock)
    return forward


def follow(
    observer: PlainObserver, rounds: range, clients: int, advance: Advance, seconds: float
) -> None:
    """Go through rounds without evaluation, each client taking some seconds."""
    for number in rounds:
        for _ in range(clients):
            advance(seconds)
            observer.progressed(1 / clients)
        observer.trained(number, 2.5)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_fast_rounds_have_a_line_in_ten(
    capsys: pytest.CaptureFixture[str], advance: Advance
) -> None:
    observer = PlainObserver()
    observer.started(Local(), 100)
    follow(observer, range(1, 36), 4, advance, 0.01)
    lines = lines_of(capsys)
    assert [re.search(r"round (\d+)/100", line)[1] for line in lines] == ["10", "20", "30"]  # type: ignore[index]
    assert lines[1] == "Local: round 20/100, training loss 2.500, 1 s, about 3 s left"


def test_slow_rounds_have_a_line_in_ten_seconds(
    capsys: pytest.CaptureFixture[str], advance: Advance
) -> None:
    observer = PlainObserver()
    observer.started(Local(), 10, 2)  # taken up after round 2
    follow(observer, range(3, 5), 8, advance, 4.0)
    lines = lines_of(capsys)
    assert len(lines) == 64 // 12  # a client takes 4 s, so a line comes after 12
    assert lines[0] == "Local: round 3/10, 12 s, about 244 s left"  # no loss is known yet
    assert lines[2] == "Local: round 4/10, training loss 2.500, 36 s, about 220 s left"


def test_an_evaluation_counts_as_a_line(
    capsys: pytest.CaptureFixture[str], advance: Advance
) -> None:
    observer = PlainObserver()
    observer.started(Local(), 30)
    follow(observer, range(1, 10), 2, advance, 0.1)
    observer.progressed(1.0)
    observer.evaluated(10, ACCURACY, None)
    follow(observer, range(11, 20), 2, advance, 0.1)
    lines = lines_of(capsys)
    assert len(lines) == 1
    assert "accuracy 0.500" in lines[0]
    assert "loss" not in lines[0]  # nobody reported one


def test_a_long_evaluation_is_told_of(capsys: pytest.CaptureFixture[str], advance: Advance) -> None:
    observer = PlainObserver()
    observer.started(Local(), 1)
    for _ in range(100):
        advance(1.0)
        observer.progressed(0.01)
    assert len(lines_of(capsys)) == 10


def test_a_long_preparation_is_told_of(
    capsys: pytest.CaptureFixture[str], advance: Advance
) -> None:
    observer = PlainObserver()
    for done in range(31):
        observer.preparing("decoding", done, 3000)
        advance(1.0)
    observer.preparing("writing", 0, 10)
    assert lines_of(capsys) == [
        "preparing the federation: decoding",
        "preparing the federation: decoding, 10 of 3,000",
        "preparing the federation: decoding, 20 of 3,000",
        "preparing the federation: decoding, 30 of 3,000",
        "preparing the federation: writing",
    ]
