"""Observers of one's own, TensorBoard, and notebooks."""

import html.parser
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pfedfda
from pfedfda import FederationConfig, Observer, compare, resume, run
from pfedfda.errors import InputError, RunStoppedError
from pfedfda.experiment.notebook import NotebookObserver, in_notebook
from pfedfda.experiment.observers import Observers, PlainObserver, choose_observer
from pfedfda.methods import Method
from pfedfda.methods.local import Local
from pfedfda.runs.accuracy import Accuracy

FEDERATION = FederationConfig(partition="client-dirichlet", clients=4, samples=8)
ACCURACY = Accuracy.of([1, 2], [2, 2])


class Diary(Observer):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.lines: list[dict[str, float]] = []
        self.folders: list[Path] = []

    def __enter__(self) -> "Diary":
        self.events.append("enter")
        return self

    def __exit__(self, *error: object) -> None:
        self.events.append("exit" if error[0] is None else "exit after an error")

    def opened(self, folder: Path) -> None:
        self.folders.append(folder)

    def started(self, method: Method, rounds: int, done: int = 0) -> None:
        self.events.append(f"{method.name} from {done} to {rounds}")

    def trained(self, round_number: int, train_loss: float | None) -> None:
        self.events.append(f"trained {round_number}")

    def recorded(self, line: Mapping[str, float]) -> None:
        self.lines.append(dict(line))

    def evaluated(self, round_number: int, accuracy: Accuracy, train_loss: float | None) -> None:
        self.events.append(f"evaluated {round_number}")

    def finished(self) -> None:
        self.events.append("finished")


def small(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "eval_every": 2,
        "workers": 0,
        "output": tmp_path,
        "quiet": True,
    } | settings


def test_an_observer_hears_a_run(tmp_path: Path) -> None:
    diary = Diary()
    result = run("fedavg", FEDERATION, observer=diary, **small(tmp_path))
    assert diary.events == [
        "enter", "fedavg from 0 to 3", "trained 1", "evaluated 2", "evaluated 3", "finished",
        "exit",
    ]  # fmt: skip
    assert diary.folders == [result.folder]
    clients = {"evaluated_clients": 4, "clients": 4}
    assert diary.lines == [line | clients for line in result.metrics]


def test_an_observer_changes_nothing(tmp_path: Path) -> None:
    folders = [
        run("pfedfda", FEDERATION, **watching, **small(tmp_path)).folder
        for watching in ({}, {"observer": Diary(), "track": "tensorboard"})
    ]
    tables = [(folder / "clients.csv").read_bytes() for folder in folders]
    assert tables[0] == tables[1]


def test_an_observer_hears_a_comparison_and_is_entered_once(tmp_path: Path) -> None:
    diary = Diary()
    compare(["local", "fedavg"], FEDERATION, observer=diary, **small(tmp_path, rounds=1))
    assert diary.events == [
        "enter", "local from 0 to 1", "evaluated 1", "finished",
        "fedavg from 0 to 1", "evaluated 1", "finished", "exit",
    ]  # fmt: skip


class Unplugged(Diary):
    def trained(self, round_number: int, train_loss: float | None) -> None:
        raise ConnectionError("the logger has gone")


def test_what_an_observer_raises_ends_the_run_which_can_go_on(tmp_path: Path) -> None:
    watching = Unplugged()
    words = small(tmp_path, rounds=4, checkpoint_every=1)
    with pytest.raises((ConnectionError, RunStoppedError), match="the logger has gone"):
        run("fedavg", FEDERATION, observer=watching, **words)
    assert watching.events[-1] == "exit after an error"
    diary = Diary()
    result = resume(watching.folders[0], workers=0, quiet=True, observer=diary)
    assert result.summary["status"] == "complete"
    assert diary.events[1] == "fedavg from 0 to 4"


def test_what_is_no_observer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"observer is 'wandb'; it must be an instance of"):
        run("fedavg", FEDERATION, observer="wandb", **small(tmp_path))


def test_several_observers_hear_the_same() -> None:
    """Every method of an observer is passed on, and whoever was entered is left again."""
    names = [n for n in vars(Observer) if not n.startswith("_")]
    assert set(names) <= set(vars(Observers))
    first, second = Diary(), Diary()
    with Observers([first, second]) as both:
        both.opened(Path("x"))
        both.started(Local(), 2)
        both.trained(1, 0.5)
        both.recorded({"round": 2})
        both.evaluated(2, ACCURACY, None)
        both.finished()
    assert first.events == second.events
    assert len(first.events) == 6

    class Broken(Observer):
        def __enter__(self) -> Observer:
            raise ConnectionError

    diary = Diary()
    with pytest.raises(ConnectionError), Observers([diary, Broken()]):
        pass
    assert diary.events == ["enter", "exit after an error"]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard itself reads from the event files of a run."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_the_numbers_of_the_run(tmp_path: Path) -> None:
    result = run("fedavg", FEDERATION, track="tensorboard", **small(tmp_path))
    found = scalars(result.folder / "tensorboard")
    for tag in ("accuracy/mean_accuracy", "quality/pooled_ece", "loss/test_loss", "cost/bytes_up"):
        name = tag.partition("/")[2]
        expected = [(int(line["round"]), line[name]) for line in result.metrics]
        assert [step for step, _ in found[tag]] == [step for step, _ in expected], tag
        assert [v for _, v in found[tag]] == pytest.approx([v for _, v in expected], rel=1e-6)
    assert [step for step, _ in found["loss/train_loss"]] == [1, 2, 3]


def test_a_run_that_goes_on_goes_on_in_tensorboard(tmp_path: Path) -> None:
    """Rounds after the checkpoint are there once."""
    whole = run("fedavg", FEDERATION, track="tensorboard", **small(tmp_path, rounds=6))

    class Stop(Observer):
        def trained(self, round_number: int, train_loss: float | None) -> None:
            if round_number == 5:
                raise KeyboardInterrupt

    with pytest.raises(RunStoppedError):
        run("fedavg", FEDERATION, track="tensorboard", observer=Stop(), name="stopped",
            **small(tmp_path, rounds=6, checkpoint_every=1))  # fmt: skip
    folder = resume(tmp_path / "stopped", workers=0, quiet=True).folder
    assert len(list((folder / "tensorboard").iterdir())) == 2
    first, second = (scalars(f / "tensorboard") for f in (whole.folder, folder))
    assert first["accuracy/mean_accuracy"] == second["accuracy/mean_accuracy"]
    assert first["loss/train_loss"] == second["loss/train_loss"]


def test_tracking_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfedfda.runs.output_config.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"not installed: pip install 'pfedfda\[track\]'"):
        run("fedavg", FEDERATION, track="tensorboard", **small(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tensorbord.*'none' or 'tensorboard'"):
        run("fedavg", FEDERATION, track="tensorbord", **small(tmp_path))


@pytest.mark.parametrize(("evaluated", "text"), [(5, " over 5 sites,"), (3, " over 3 of 5 sites,")])
def test_lines_say_over_how_many_sites(
    evaluated: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    observer = PlainObserver("sites")
    observer.started(Local(), 2)
    observer.progressed(1.0)
    observer.recorded({"round": 1, "evaluated_clients": evaluated, "clients": 5})
    observer.evaluated(1, ACCURACY, 0.5)
    assert f"accuracy 0.750 ± 0.250{text}" in capsys.readouterr().err


class Cell:
    """A cell of a notebook: what is displayed, by the order of its places."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, drawing: Any, display_id: bool) -> Any:
        assert display_id
        self.shown.append(drawing._repr_html_())
        place = len(self.shown) - 1
        return SimpleNamespace(update=lambda new: self.shown.__setitem__(place, new._repr_html_()))


def test_a_notebook_has_a_bar_for_each_method(tmp_path: Path) -> None:
    cell = Cell()
    diary = NotebookObserver(cell.display)
    compare(["local", "fedavg"], FEDERATION, observer=diary, **small(tmp_path, rounds=2))
    bars = [text for text in cell.shown if "rounds" in text]
    assert len(bars) == 2
    assert "Local <progress" in bars[0]
    for bar in bars:
        assert 'max="2" value="2"' in bar
        assert "accuracy 0." in bar


def test_names_in_a_notebook_are_text() -> None:
    class Evil(Local):
        title = "<script>"  # type: ignore[misc]

    cell = Cell()
    NotebookObserver(cell.display).started(Evil(), 2)
    assert "<script>" not in cell.shown[0]


def test_a_notebook_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    shells = {"terminal": SimpleNamespace(), "notebook": SimpleNamespace(kernel=1), "none": None}
    for name, shell in shells.items():
        ipython = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        assert in_notebook() is (name == "notebook")
    monkeypatch.setitem(
        sys.modules,
        "IPython",
        SimpleNamespace(
            get_ipython=lambda: shells["notebook"], display=SimpleNamespace(display=Cell().display)
        ),
    )
    assert isinstance(choose_observer(quiet=False), NotebookObserver)
    assert type(choose_observer(quiet=True)) is Observer


class Balanced(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_results_show_themselves_in_a_notebook(tmp_path: Path) -> None:
    result = run("fedavg", FEDERATION, **small(tmp_path))
    words = Balanced(result._repr_html_()).words
    assert "fedavg" in words
    assert f"{result.mean_accuracy:.3f}" in words
    assert str(result.folder) in words
    evil = replace(result, method="<img src=x onerror=alert(1)>\x1b")
    assert "<img" not in evil._repr_html_()
    assert "\x1b" not in evil._repr_html_()
    comparison = pfedfda.Comparison(tmp_path, [result, evil])
    assert Balanced(comparison._repr_html_()).words.count(f"{result.mean_accuracy:.3f}") >= 2
    stopped = replace(result, summary={"method": "fedavg", "status": "stopped"})
    assert "fedavg" in Balanced(stopped._repr_html_()).words
    assert json.loads((result.folder / "summary.json").read_text()) == result.summary
