"""Names and titles that come from outside reach the terminal as text and nothing else."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from pfedfda.cli import main
from pfedfda.data import Federation, FederationConfig, prepare
from pfedfda.errors import printable
from pfedfda.experiment.observers import PlainObserver, TerminalObserver
from pfedfda.methods.local import Local
from pfedfda.report import PaperCell, PaperRow, PaperTable
from pfedfda.report.federation import clients_table, summary_table
from pfedfda.report.paper_table import build_paper_table
from pfedfda.runs.accuracy import Accuracy
from pfedfda.runs.comparison import (
    build_new_clients_table,
    build_table,
    comparison_table,
    plain_console,
)
from tests.conftest import write_image

EVIL = "[/bold]:fire:[red]\x1b[31m\x1b]8;;http://x\x07\r"
HARMLESS = "[/bold]:fire:[red]\ufffd[31m\ufffd]8;;http://x\ufffd\ufffd"
SUMMARY = {
    "method": EVIL,
    "mean_accuracy": 0.5,
    "std_accuracy": 0.1,
    "weighted_accuracy": 0.5,
    "worst_tenth_accuracy": 0.2,
    "seconds": {"total": 1.0},
    "bytes_up_per_round": 1.0,
    "bytes_down_per_round": 1.0,
    "new_clients": {EVIL: {"mean_accuracy": 0.5, "std_accuracy": 0.1}},
}


@dataclass(frozen=True)
class Evil(Local):
    title: ClassVar[str] = EVIL


def test_text_is_printable_or_replaced() -> None:
    assert printable("Zürich 中 🩺 a\xa0b") == "Zürich 中 🩺 a\xa0b"
    assert printable("a\x1b[2Jb\n\t\x00\x9b\u202e\udcff") == "a\ufffd[2Jb" + "\ufffd" * 6
    assert printable(Path("a") / "b") == "a/b"


def evil_folder(folder: Path) -> Path:
    for client in (EVIL.replace("/", ""), "ben", "cleo"):
        for number in range(10):
            name = ("cat", "dog")[number % 2]
            write_image(folder / client / name / f"{number}.png", 20 * number)
    return folder


def printed(*tables: object) -> str:
    console = plain_console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    for table in tables:
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_tables_show_names_as_they_are() -> None:
    cells = [PaperCell(0.5, 0.1, 0.6, 0.1)]
    paper = PaperTable(EVIL, [EVIL], [PaperRow(EVIL, cells)])
    text = printed(
        build_table([SUMMARY]), build_new_clients_table([SUMMARY]), build_paper_table(paper)
    )
    assert text.count(HARMLESS) == 6
    assert "\x1b" not in text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[3m", "")
    assert HARMLESS[:20] in comparison_table([SUMMARY])  # it is not wide


def test_a_federation_of_strange_folders_is_shown(tmp_path: Path) -> None:
    source = str(evil_folder(tmp_path / "photos"))
    federation = prepare(FederationConfig(source=source), cache=tmp_path)
    text = printed(summary_table(federation), clients_table(federation))
    assert "[bold]:fire:[red]" in text
    assert "\x1b]8" not in text


def test_errors_and_paths_are_printable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["report", "a\x1b[31m\nb"], ["run", "--source", "./a\x1b[31m\nb"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "\x1b" not in said
    tiny = ["--partition", "client-dirichlet", "--clients", "3", "--samples", "8", "--workers", "0"]
    output = ["--output", "a\x1b[31m", "--rounds", "1", "--method", "local"]
    assert main(["run", *tiny, *output]) == 0
    out = capsys.readouterr()
    assert "\x1b" not in out.out + out.err
    assert out.out.splitlines()[-1] == "a\ufffd[31m/digits-local"
    assert main(["report", "a\x1b[31m/digits-local", "--title", "[bold"]) == 0
    assert capsys.readouterr().out == "a\ufffd[31m/digits-local/report.html\n"
    assert "<h1>[bold</h1>" in Path("a\x1b[31m/digits-local/report.html").read_text()


def test_progress_shows_titles_as_they_are() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=200)
    with TerminalObserver(console) as observer:
        observer.preparing(EVIL, 1, 2)
        observer.say(f"{EVIL}\nof two lines")
        observer.started(Evil(), 3)
        observer.progressed(1.0)
        observer.evaluated(1, Accuracy.of([1], [2]), 0.5)
        observer.finished()
    text = stream.getvalue()
    assert f"{HARMLESS}\nof two lines" in text
    assert "\x1b[31m" not in text
    assert "\x1b]8" not in text
    assert text.count("[/bold]:fire:[red]") >= 2


def test_plain_lines_show_titles_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    observer = PlainObserver()
    observer.preparing(EVIL, 1, 2)
    observer.say(f"{EVIL}\nof two lines")
    observer.started(Evil(), 3)
    observer.evaluated(1, Accuracy.of([1], [2]), 0.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:3] == [HARMLESS, "of two lines"]
    assert all(HARMLESS in line for line in (lines[0], lines[3]))


def test_clients_with_names_are_listed(tmp_path: Path, tiny: Federation) -> None:
    source = str(evil_folder(tmp_path / "photos"))
    federation = prepare(FederationConfig(source=source), cache=tmp_path)
    text = printed(clients_table(federation))
    assert "ben" in text
    assert "cleo" in text
    assert clients_table(tiny) is None  # its clients have nothing but numbers
