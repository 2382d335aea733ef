"""Progress in a notebook: a bar in the cell that runs."""

import html
import sys
import time
from collections.abc import Callable
from typing import Any

from pfedfda.errors import printable
from pfedfda.experiment.observers import Observer
from pfedfda.methods import Method
from pfedfda.runs.accuracy import Accuracy

SECONDS_PER_DRAWING = 0.25  # a browser on the other side of a network redraws it


def in_notebook() -> bool:
    """Tell whether this program is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class Drawing:
    """HTML as IPython displays it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_html_(self) -> str:
        return self.text


class NotebookObserver(Observer):
    """Draws a progress bar for each method, and for each step of the preparation.

    Parameters
    ----------
    display
        IPython's function of this name: with ``display_id=True`` it returns a handle whose
        ``update`` draws anew.
    """

    def __init__(self, display: Callable[..., Any] | None = None) -> None:
        if display is None:
            from IPython import display as ipython

            display = ipython.display
        self.display: Callable[..., Any] = display
        self.handles: dict[str, Any] = {}
        self.last = 0.0
        self.title, self.note = "", ""
        self.rounds, self.done, self.first, self.start = 0, 0.0, 0.0, 0.0

    def _draw(self, title: str, done: float, total: float, note: str, now: bool = False) -> None:
        new = title not in self.handles
        if not (new or now) and time.monotonic() - self.last < SECONDS_PER_DRAWING:
            return
        drawing = Drawing(
            f'<div style="font-family:monospace">{html.escape(printable(title))} '
            f'<progress max="{total:g}" value="{done:g}"></progress> {html.escape(note)}</div>'
        )
        if new:
            self.handles[title] = self.display(drawing, display_id=True)
        elif self.handles[title] is not None:
            self.handles[title].update(drawing)
        self.last = time.monotonic()

    def say(self, text: str) -> None:
        """Print the text into the cell."""
        for line in text.split("\n"):
            print(printable(line))

    def preparing(self, step: str, done: int, total: int) -> None:
        """Draw a bar for this step."""
        self._draw(step, done, total, f"{done:,} of {total:,}", now=done == total)

    def started(self, method: Method, rounds: int, done: int = 0) -> None:
        """Draw a bar for the method."""
        self.title, self.note, self.rounds = method.title, "", rounds
        self.done = self.first = float(done)
        self.start = time.monotonic()
        self.handles.pop(self.title, None)  # of an earlier run
        self._draw_method(now=True)

    def _draw_method(self, now: bool = False) -> None:
        passed = time.monotonic() - self.start
        steps = self.done - self.first
        left = f", about {passed / steps * (self.rounds - self.done):.0f} s left" if steps else ""
        note = f"{int(self.done + 1e-6)}/{self.rounds} rounds, {passed:.0f} s{left}{self.note}"
        self._draw(self.title, self.done, self.rounds, note, now)

    def progressed(self, fraction: float) -> None:
        """Move the bar."""
        self.done += fraction
        self._draw_method()

    def evaluated(self, round_number: int, accuracy: Accuracy, train_loss: float | None) -> None:
        """Show the accuracy behind the bar."""
        self.done = float(round_number)
        self.note = f", accuracy {accuracy.mean_accuracy:.3f} ± {accuracy.std_accuracy:.3f}"
        self._draw_method(now=True)

    def finished(self) -> None:
        """Draw the full bar."""
        self._draw_method(now=True)
