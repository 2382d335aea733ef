"""The pool alone: it knows nothing of clients."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pfedfda.engine.pool import Lost, Pool


class Squares:
    """Squares its items times a factor; some items end the process or are slow."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.factor = 0

    def __call__(self) -> "Squares":
        return self

    def prepare(self, common: int) -> None:
        self.factor = common

    def handle(self, item: int) -> Any:
        if item == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 17:
            return ValueError("seventeen")
        if item == 5:
            time.sleep(0.2)
        return self.factor * item**2

    def close(self) -> None:
        if self.folder is not None:
            (self.folder / str(os.getpid())).touch()


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("window", [1, 100])
def test_answers_come_in_the_order_of_the_items(size: int, window: int) -> None:
    pool = Pool(size, Squares(), fork=True)
    items = [5, 1, 9, 2, 8, 3]
    try:
        for common in (1, 7):  # the workers stay
            assert list(pool.run(common, items, window)) == [common * item**2 for item in items]
        assert len(pool.workers) == size
    finally:
        pool.close()
    assert pool.workers == []


def test_an_item_that_no_worker_survives_is_lost_and_the_others_are_not() -> None:
    pool = Pool(2, Squares(), fork=True)
    try:
        answers = list(pool.run(1, [1, 13, 2, 3], window=10))
        assert [answers[0], *answers[2:]] == [1, 4, 9]
        assert isinstance(answers[1], Lost)
        assert "SIGKILL" in answers[1].reason
        assert list(pool.run(1, [4], window=10)) == [16]
    finally:
        pool.close()


def test_an_exception_as_an_answer_ends_the_batch_and_the_workers() -> None:
    pool = Pool(2, Squares(), fork=True)
    with pytest.raises(ValueError, match="seventeen"):
        list(pool.run(1, [1, 17, 2], window=10))
    assert pool.workers == []
    assert list(pool.run(1, [3], window=10)) == [9]  # new ones start
    pool.close()


def test_workers_clean_up_when_they_are_let_go(tmp_path: Path) -> None:
    pool = Pool(2, Squares(tmp_path), fork=True)
    list(pool.run(1, range(1, 5), window=10))
    pids = {worker.process.pid for worker in pool.workers}
    pool.close()
    assert {int(file.name) for file in tmp_path.iterdir()} == pids
