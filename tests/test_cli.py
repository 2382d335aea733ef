import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import pfedfda
from pfedfda.cli import COMMANDS, main
from pfedfda.cli.compare import DEMO
from pfedfda.experiment import load_run
from pfedfda.runs.config import read_config
from tests.conftest import write_image

TINY = ["--partition", "client-dirichlet", "--clients", "6", "--samples", "8", "--workers", "0"]


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """Start the command line as a user does, in a process of its own."""
    code = "import sys; from pfedfda.cli import main; sys.exit(main())"
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=cwd, stdout=pipe, stderr=pipe, text=True
    )


def start_endless(method: str, cwd: Path) -> tuple[subprocess.Popen[str], Path, list[str]]:
    """Start a run; return it with its folder and its workers once it has evaluated a round."""
    words = [*TINY[:-1], "2", "--method", method, "--rounds", "100000", "--eval-every", "1"]
    process = start("run", *words, cwd=cwd)
    folder = cwd / "runs" / f"digits-{method}"
    deadline = time.monotonic() + 60
    while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    return process, folder, children


def test_run_and_run_again_from_its_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", str(tmp_path)]
    words = ["--method", "fedavg-ft", "--fedavg-ft.fine-tune-epochs", "1", "--rounds", "2"]
    assert main(["run", *TINY, *words, *output]) == 0
    printed = capsys.readouterr()
    folder = Path(printed.out.splitlines()[-1])
    assert "mean ± std" in printed.out
    assert "round 2/2" in printed.err  # plain lines, because this is no terminal
    assert read_config(folder / "config.toml").methods["fedavg-ft"].fine_tune_epochs == 1

    config = ["--config", str(folder / "config.toml")]
    assert main(["run", *config, "--quiet", *output]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    again = Path(printed.out.strip())
    assert load_run(again).mean_accuracy == load_run(str(folder)).mean_accuracy

    assert main(["run", *config, "--quiet", "--rounds", "1", *output]) == 0
    shorter = Path(capsys.readouterr().out.strip())
    assert load_run(shorter).summary["rounds"] == 1
    assert read_config(shorter / "config.toml").methods["fedavg-ft"].fine_tune_epochs == 1


def test_validation_is_not_called_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, "--method", "fedavg", "--rounds", "1", "--epochs", "1"]
    for share, judged, other in (("0", "Test", "validation"), ("0.5", "Validation", "test")):
        folder = tmp_path / judged
        words += ["--validation-share", share, "--output", str(folder), "--name", "run"]
        assert main(["run", *words]) == 0
        assert f"{judged} accuracy after the last round" in capsys.readouterr().out
        assert main(["report", str(folder / "run")]) == 0
        page = next(folder.rglob("report.html")).read_text()
        assert f"{judged} accuracy of all clients" in page
        assert f"accuracy over all {judged.lower()} samples" in page
        assert (f" {judged.lower()} samples" in page) != (f" {other} samples" in page)
        assert f"mean {judged.lower()} accuracy of FedAvg" in page


def test_a_place_that_cannot_be_used_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    words = ["--clients", "4", "--figures", str(tmp_path / "file")]
    assert main(["data", "show", *words]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("pfedfda: A file or folder cannot be used (")


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--methods", "local", "fedavg-ft", "--rounds", "1", "--output", str(tmp_path)]
    assert main(["compare", *TINY, *words]) == 0
    out = capsys.readouterr().out
    folder = Path(out.splitlines()[-1])
    assert {p.name for p in folder.iterdir() if p.is_dir()} == {"local", "fedavg-ft", "figures"}
    assert f"report: {folder / 'report.html'}" in out
    summary = json.loads((folder / "local" / "summary.json").read_text())
    assert f"{summary['mean_accuracy']:.3f}" in out


def test_the_demo_needs_no_file_and_other_options_override_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["compare", "--demo", "--methods", "local", "fedavg", "--rounds", "1", "--workers", "0"]
    assert main([*words, "--quiet"]) == 0
    config = read_config(Path(capsys.readouterr().out.strip()) / "config.toml")
    demo = read_config(DEMO)
    assert config.federation == demo.federation
    assert config.training == demo.training
    assert config.schedule == dataclasses.replace(demo.schedule, rounds=1)
    assert list(config.methods) == ["local", "fedavg"]


def test_the_demo_ends_with_what_to_look_at_and_what_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "--demo", "--methods", "local", "--rounds", "1", "--workers", "0"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    *_, page, folder, _, look, command = capsys.readouterr().out.splitlines()
    assert Path(page.removeprefix("report: ")).exists()
    assert Path(folder).is_dir()
    assert "report.html" in look
    program, _, options = command.partition(" compare ")
    assert program.strip() == "python -m pfedfda"  # how these tests are started
    tried = []
    monkeypatch.setattr(
        "pfedfda.cli.compare.run_methods", lambda config, *_: tried.append(config) or 0
    )
    assert main(["compare", *options.split()]) == 0
    assert tried[0].schedule.seeds == (0, 1, 2)


def test_a_method_that_diverges_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--methods", "pfedme", "local", "--pfedme.personal-lr", "1e6"]
    words += ["--train-fraction", "0.1", "--epochs", "1", "--rounds", "1", "--workers", "0"]
    assert main([*words, "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "pFedMe: Training diverged" in printed.err
    assert printed.err.endswith("pfedfda: 1 of 2 methods diverged.\n")
    assert "local" in printed.out
    assert (tmp_path / "digits-compare" / "report.html").exists()


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert "fedavg-ft" in out
    trained, training_free = out.split("Training-free methods")
    assert "fedavg" in trained
    assert "fedcgs" in training_free
    assert "Sends" in trained
    assert "MB" in trained
    assert "Reveals" in trained
    assert main(["datasets"]) == 0
    out = capsys.readouterr().out
    assert "digits" in out
    assert "client-dirichlet" in out


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["run", "--help"], ["compare", "--methods", "local", "-h"]]
)
def test_help_teaches(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "usage: pfedfda" in out
    if words and words[0] != "--help":
        assert "Dirichlet concentration" in out


def bad_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_image(tmp_path / "broken" / "a" / "1.png")
    (tmp_path / "broken" / "a" / "2.png").write_bytes(b"nothing")
    write_image(tmp_path / "holes" / "a" / "1.png")
    (tmp_path / "holes" / "b").mkdir()
    write_image(tmp_path / "lonely" / "a" / "1.png")
    for number in range(30):
        write_image(tmp_path / "same" / "a" / f"{number}.png", number)
    images = np.zeros((4, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "range.npz", images=images, labels=np.array([0, 1, -2, 1]))
    (tmp_path / "bad.toml").write_text("[federation]\nalhpa = 1\n")
    (tmp_path / "two.toml").write_text("[methods.local]\n[methods.fedavg]\n")


BAD_INPUT = [
    (["run", "--method", "fedavgg"], "Unknown method 'fedavgg'"),
    (["compare", "--methods", "fedavg", "nope"], "Unknown method 'nope'"),
    (["run", "--source", "mnits"], "Unknown dataset 'mnits'"),
    (["run", "--alhpa", "1"], "Unknown option '--alhpa'"),
    (["run", "--config", "bad.toml"], "Unknown field in [federation]: 'alhpa'"),
    (["run", "--config", "absent.toml"], "There is no configuration file"),
    (["compare", "--demo", "--config", "two.toml"], "--demo and --config both name settings"),
    (["run", "--demo"], "Unknown option '--demo'"),
    (["run", "--alpha", "0"], "alpha is 0.0"),
    (["run", "--alpha", "-1"], "alpha is -1.0"),
    (["run", "--alpha", "much"], "--alpha: 'much' is not a number."),
    (["run", "--rounds", "many"], "--rounds: 'many' is not a whole number."),
    (["run", "--clients", "many"], "--clients: 'many' is not a whole number."),
    (["run", "--lr", "inf"], "finite and above 0"),
    (["run", "--max-update-norm", "inf"], "max_update_norm is inf; it must be a number."),
    (
        ["run", "--method", "pfedfda", "--pfedfda.ridge", "inf"],
        "ridge is inf; it must be a number.",
    ),
    (["run", "--seed", "9" * 30], "seed is a whole number of more than 64 bits."),
    (["run", "--source", "bad\udcff"], "must be text that UTF-8 can hold."),
    (["run", "--source", "same", "--clients", "2"], "All samples belong to one class, 'a'"),
    (["run", "--name", ""], "not a plain folder name"),
    (["compare", "--methods"], "--methods names no method"),
    (["run", "--config", "two.toml"], "2 methods: choose one with --method"),
    (["run", "--clients", "1", "--new-clients", "0.5"], "none to spare for new-clients"),
    (["reproduce", "table8", "--methods", "fedavg"], "no choice of rows"),
    (["run", "--clients", "5000"], "5000 clients"),
    (["run", "--clients", "900"], "900 clients"),
    (["run", "--participation", "0"], "participation is 0.0"),
    (["run", "--participation", "1.5"], "participation is 1.5"),
    (["run", "--rounds", "0"], "rounds is 0"),
    (["run", "--rounds"], "--rounds"),
    (["run", "--partition", "dirac"], "dirac"),
    (["run", "--source", "empty"], "holds no images"),
    (["run", "--source", "broken"], "2.png cannot be decoded"),
    (["run", "--source", "holes"], "Class 'b' has no samples"),
    (["run", "--source", "lonely"], "samples"),
    (["run", "--source", "./absent"], "There is no folder"),
    (["run", "--source", "range.npz"], "Label -2 is out of range"),
    (["run", "--device", "quantum"], "Unknown device 'quantum'"),
    (["run", "--image-size", "8"], "too small"),
    (["run", "--method", "fedavg-ft", "--fedavg-ft.fine-tune-epochs", "-2"], "fine-tune-epochs"),
    (["fly"], "Unknown command 'fly'"),
    (["methods", "all"], "Unexpected argument 'all'"),
    (["data", "sho"], "Unknown command 'data sho': choose from data show."),
    (["data", "--clients", "4"], "choose from data show"),
    (["data", "show", "--clients", "4", "cifar10"], "first: pfedfda data show cifar10"),
    (["report", "a", "--titel", "b"], "Unknown option '--titel'; 'pfedfda report --help' lists"),
    (["report", "a", "--titel", "b"], "Did you mean '--title'?"),
    (["report", "--title"], "--title needs a value."),
    (["reproduce", "table1", "--seeds", "one"], "--seeds: 'one' is not a whole number."),
    (["run", "--max-failures"], "--max-failures needs a value."),
    (["run", "--pfedfda.rigde", "1", "--method", "pfedfda"], "Did you mean '--pfedfda.ridge'?"),
    # What is missing is said, and a suggestion is one that helps.
    (["run", "--pfedfda.ridge", "1"], "--pfedfda.ridge needs --method pfedfda."),
    (["run", "--pfedfda.ridge=1"], "--pfedfda.ridge needs --method pfedfda."),
    (["compare", "--methods", "local", "--ditto.mu", "1"], "--ditto.mu needs ditto in --methods."),
    (["run", "--method", "pfedFDA"], "Did you mean 'pfedfda'?"),
    (["run", "--method", "FedAVG-FT"], "Did you mean 'fedavg-ft'?"),
    (["run", "--source", "nosuchdir"], "no folder or file of that name"),
    (["run", "--source", "mnits"], "Did you mean 'mnist'?"),
    (["personalize", "nowhere"], "--source is missing"),
    (["personalize", "nowhere", "--source", "same"], "There is no folder nowhere."),
    (["personalize", "same", "--source", "same"], "same is not a run: it has no checkpoint."),
    (["export", "nowhere", "--all"], "There is no folder nowhere."),
    (["export", "same", "--all"], "same is not a run: it has no checkpoint."),
    (["export", "same"], "Which model? Give --client NAME, --all, --shared, or --source"),
    (["export", "same", "--all", "--client", "1"], "Give one of --client, --all and --source."),
    (["export", "same", "--all", "--format", "pickle"], "'pickle' is not among folder, onnx"),
    (["predict"], "MODEL is missing"),
    (["predict", "same"], "FILES are missing"),
    (["predict", "same", "a.png"], "same does not hold a model"),
    (["predict", "same", "a.png", "--top", "0"], "top is 0; it must be at least 1."),
    (["compare", "--seeds", "0", "1", "0"], "The seed 0 is there twice; each counts once."),
    (["run", "--seeds"], "There are 0 seeds; name at least one"),
    (["run", "--seeds", "zero"], "--seeds: 'zero' is not a whole number."),
    (["run", "--partition-seeds", "1"], "partition-seeds needs seeds"),
    (["run", "--seeds", "0", "1", "--partition-seeds", "1"], "1 partition seeds for 2 seeds"),
    (["run", "--seeds", "0", "--partition-seeds", "-1"], "partition-seed is -1"),
    (["reproduce", "table1", "--seeds", "1", "1"], "The seed 1 is there twice"),
    (["reproduce", "table1", "--from-results"], "There is no folder runs/results with records."),
    (["tune", "local", "--trials", "0"], "The number of trials is 0; it must lie between 1 and"),
    (["tune", "nope"], "Unknown method 'nope'"),
    (["tune", "local", "--seeds", "0", "1"], "A search has one seed"),
    (
        ["tune", "ditto", "--space", "mu=1:2"],
        "Unknown name in --space: 'mu': choose from lr, ditto.mu",
    ),
    (["tune", "ditto", "--space", "lr"], "--space 'lr' has no '='"),
    (["tune", "ditto", "--space", "lr=0.1:0.01"], "The bounds are 0.1 and 0.01; the first must"),
    (["tune", "ditto", "--space", "lr=0:1:log"], "on a log scale it must be above 0."),
    (["tune", "ditto", "--space", "lr=1:2:3"], "it must be LOW:HIGH, LOW:HIGH:log, or values"),
    (["tune", "ditto", "--space", "ditto.mu=-1:1"], "--space ditto.mu -1:1: mu is -1.0"),
    (["tune", "ditto", "--space", "ditto.mu=a,b"], "methods.ditto.mu is 'a'; it must be a number."),
    (["tune", "local", "--ditto.mu", "1"], "--ditto.mu needs the method ditto."),
    (["tune", "local", "--clients", "5000"], "5000 clients"),
    (["tune", "--resume", "absent"], "There is no run in absent"),
    (["--tyro-write-completion", "bash"], "--tyro-write-completion SHELL FILE"),
    (["--tyro-print-completion", "ksh"], "Unknown shell 'ksh': choose from bash, zsh, fish."),
]


@pytest.mark.parametrize(
    ("words", "message"), BAD_INPUT, ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else ""
)
def test_bad_input_is_one_sentence(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if not line.startswith("preparing")]
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("pfedfda: ")
    assert message in lines[0]
    assert printed.out == ""
    assert not (tmp_path / "runs").exists()  # refused at the door


def test_no_errno_in_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["personalize", "nowhere", "--source", "x"], ["report", "nowhere"]):
        assert main(words) == 2
        assert "Errno" not in capsys.readouterr().err


def test_help_lists_the_commands_as_they_describe_themselves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The summaries are beside the names, so that help needs no command's module."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    modules = {path.stem for path in Path(pfedfda.cli.__file__).parent.glob("*.py")}
    for name, summary in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", out, re.MULTILINE), name
        assert name.replace("-", "_") in modules
        assert main([name, "--help"]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert f"usage: pfedfda {name}" in told
        assert summary in told, name


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["-V"], []])
def test_help_and_version_need_no_library(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from pfedfda.cli import main; code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'numpy', 'rich', 'tyro'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pfedfda" in done.stdout


def test_the_package_is_a_program(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pfedfda"]
    done = subprocess.run([*words, "--version"], capture_output=True, text=True)
    assert done.stdout == f"pfedfda {pfedfda.__version__}\n"
    done = subprocess.run([*words, "fly"], capture_output=True, text=True)
    assert (done.returncode, done.stderr[:17]) == (2, "pfedfda: Unknown ")


def completions(script: str, line: str) -> set[str]:
    """Return what bash offers behind a line that is being typed."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    program = f"""
        {script}
        COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'
        COMP_POINT=${{#COMP_LINE}}
        function_name=$(complete -p pfedfda | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        $function_name pfedfda "${{COMP_WORDS[COMP_CWORD]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash"], input=program, capture_output=True, text=True, timeout=60)
    return {word.strip() for word in done.stdout.splitlines()}


def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tyro-print-completion", "bash"]) == 0
    script = capsys.readouterr().out
    # By its input: the script is longer than an argument can be.
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert set(COMMANDS) <= completions(script, "pfedfda ")
    assert {"report", "reproduce"} <= completions(script, "pfedfda rep")
    assert "--title" in completions(script, "pfedfda report --t")
    assert "show" in completions(script, "pfedfda data ")
    assert "--pfedfda.ridge" in completions(script, "pfedfda run --pfedfda.r")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_file(shell: str, tmp_path: Path) -> None:
    assert main(["--tyro-write-completion", shell, str(tmp_path / "script")]) == 0
    script = (tmp_path / "script").read_text()
    assert all(name in script for name in (*COMMANDS, "--pfedfda.ridge", "--alpha"))


def test_bad_input_in_a_real_process(tmp_path: Path) -> None:
    process = start("run", "--alpha", "-1", cwd=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors == "pfedfda: The Dirichlet concentration alpha is -1.0; it must be > 0.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_says_where_its_results_are(tmp_path: Path, number: signal.Signals) -> None:
    process, folder, children = start_endless("local", tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    last = errors.strip().splitlines()[-1]
    assert last.startswith("pfedfda: The run was interrupted. ")
    assert "runs/digits-local" in last
    assert "Traceback" not in errors
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert summary["rounds"] >= 1


def test_killed_worker_does_not_end_the_run(tmp_path: Path) -> None:
    process, folder, children = start_endless("fedavg", tmp_path)
    os.kill(int(children[0]), signal.SIGKILL)
    before = len((folder / "metrics.jsonl").read_text().splitlines())
    deadline = time.monotonic() + 60
    while len((folder / "metrics.jsonl").read_text().splitlines()) < before + 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"To go on: pfedfda run --resume {folder.relative_to(tmp_path)}" in errors
    assert "Traceback" not in errors


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    process = start("datasets", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.wait(timeout=60)
    process.stderr.close()
