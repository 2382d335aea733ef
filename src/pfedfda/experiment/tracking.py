"""Numbers of a run for TensorBoard, as event files in the folder of the run."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from pfedfda.experiment.observers import Observer
from pfedfda.files import inside, make_folders
from pfedfda.methods import Method
from pfedfda.runs.accuracy import ACCURACIES, Accuracy

FOLDER = "tensorboard"
LOSSES = ("test_loss", "train_loss")


def tracker(name: str) -> Observer:
    """Return the observer that writes for a program.

    Parameters
    ----------
    name
        ``tensorboard``, or ``none``.
    """
    return TensorBoardObserver() if name == "tensorboard" else Observer()


class TensorBoardObserver(Observer):
    """Writes event files; ``tensorboard --logdir runs`` shows them while the run goes on.

    The training loss is there for every round, everything else for the evaluated ones. A run that
    goes on writes another file, which takes back what came after its checkpoint. TensorBoard's own
    writer has a thread, and the engine forks, which must not happen while another thread holds a
    lock; this one writes at once.
    """

    def __init__(self) -> None:
        self.folder = Path()
        self.file: BinaryIO | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finished()

    def opened(self, folder: Path) -> None:
        """Remember the folder of the run."""
        self.folder = inside(folder, FOLDER)

    def started(self, method: Method, rounds: int, done: int = 0) -> None:
        """Begin a file."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        make_folders(self.folder)
        number = sum(1 for _ in self.folder.iterdir())
        self.file = (self.folder / f"events.out.tfevents.{time.time():.0f}.{number}").open("xb")
        self._write(file_version="brain.Event:2")
        self._write(step=done + 1, session_log=SessionLog(status=SessionLog.START))

    def trained(self, round_number: int, train_loss: float | None) -> None:
        """Write the training loss."""
        if train_loss is not None:
            self._scalars(round_number, {"loss/train_loss": train_loss})

    def recorded(self, line: Mapping[str, float]) -> None:
        """Write the numbers of an evaluation."""
        numbers = {
            f"{_group(name)}/{name}": value
            for name, value in line.items()
            if name not in ("round", "train_loss", "clients")
        }
        self._scalars(int(line["round"]), numbers)

    def evaluated(self, round_number: int, accuracy: Accuracy, train_loss: float | None) -> None:
        """Write the training loss."""
        self.trained(round_number, train_loss)

    def finished(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def _scalars(self, round_number: int, numbers: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        self._write(step=round_number, summary=Summary(value=values))

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self.file is not None
        event = Event(wall_time=time.time(), **content)
        RecordWriter(self.file).write(event.SerializeToString())
        self.file.flush()


def _group(name: str) -> str:
    """Return under which heading TensorBoard shows a number."""
    if name in ACCURACIES:
        return "accuracy"
    if name in LOSSES:
        return "loss"
    return "quality" if name.startswith(("pooled_", "mean_")) else "cost"
