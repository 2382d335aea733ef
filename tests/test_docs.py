"""What the documentation shows is run."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pfedfda import FederationConfig, compare, run
from pfedfda.cli import COMMANDS, main, parsing
from pfedfda.cli.compare import DEMO
from pfedfda.cli.run_options import SettingsCommand
from pfedfda.data import prepare
from pfedfda.experiment import Config
from pfedfda.methods import all_methods, find_method
from pfedfda.runs.config import read_config
from tests.conftest import write_image
from tests.experiment.files import final_state
from tests.methods.toy import TASK, make_client, same

ROOT = Path(__file__).parent.parent
FIRST_PAGES = ("README.md", "docs/start.md", "docs/python.md")
# Pages whose programs are run by a test of this file; tests/test_tutorials.py runs the tutorials.
RUN_HERE = {
    "own-data-and-models.md", "pfedfda.md", "python.md", "results.md", "start.md", "statistics.md",
    "tune.md", "use-a-model.md", "write-a-method.md",
}  # fmt: skip


def load_tool(name: str) -> ModuleType:
    """Import a script of the folder tools."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def python_blocks(path: Path) -> list[str]:
    """Return the Python examples of a page, without those marked as not to be run."""
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.fixture
def example_methods(tmp_path: Path):
    names = ("myprox", "myper")
    blocks = python_blocks(ROOT / "docs" / "write-a-method.md")
    for name, block in zip(names, blocks, strict=True):
        (tmp_path / f"{name}.py").write_text(block)
    return [tmp_path / f"{name}.py" for name in names]


@pytest.fixture
def myprox(example_methods: list[Path]) -> Path:
    return example_methods[0]


def test_the_example_methods_keep_the_contract(
    example_methods: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for path in example_methods:
        assert main(["check-method", str(path)]) == 0, capsys.readouterr().out


def test_myper_without_its_first_head_is_found(
    example_methods: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the page says of leaving out a line."""
    path = example_methods[1]
    right = 'head = client.state or part(client.task.initial_tensors(), "head")'
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, "head = client.state"))
    assert main(["check-method", str(path)]) == 1
    (failed,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("failed")]
    assert "client.model" in failed
    assert "initial_tensors" in failed


def test_the_example_method_runs_from_the_command_line(
    myprox: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "run", "--method", str(myprox), "--myprox.mu", "0.5", "--rounds", "1", "--quiet",
        "--clients", "6", "--partition", "client-dirichlet", "--samples", "8",
        "--output", str(tmp_path),
    ]  # fmt: skip
    assert main(words) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder.name == "digits-myprox"
    # Its config.toml names the file, so it can be run again.
    config = ["--config", str(folder / "config.toml"), "--output", str(tmp_path)]
    assert main(["run", *config, "--quiet"]) == 0
    again = Path(capsys.readouterr().out.strip())
    states = [final_state(f) for f in (folder, again)]
    assert same(*states)


def test_the_example_method_runs_in_fresh_processes(
    myprox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfedfda.engine.local.sys.platform", "darwin")
    federation = FederationConfig(partition="client-dirichlet", clients=3, samples=8)
    result = run(str(myprox), federation, rounds=1, workers=1, output=tmp_path, quiet=True)
    assert result.summary["status"] == "complete"


def test_the_example_method_is_what_it_says(myprox: Path, tmp_path: Path) -> None:
    method = find_method(str(myprox))
    labels = [0, 1, 2, 3, 0, 1]
    start = TASK.initial_tensors()
    plain = find_method("fedavg")().train(make_client(labels), start).tensors

    def distance(mu: float) -> float:
        after = method(mu=mu).train(make_client(labels), start).tensors  # type: ignore[call-arg]
        return sum(float((after[n] - start[n]).square().sum()) for n in start)

    zero = method(mu=0.0).train(make_client(labels), start).tensors  # type: ignore[call-arg]
    for name in plain:
        torch.testing.assert_close(zero[name], plain[name])
    assert distance(10.0) < distance(0.1) < distance(0.0)


def test_readme_python_runs(tmp_path: Path) -> None:
    """The lines of the README and of the first steps, without any guard, made shorter."""
    blocks = [b for p in FIRST_PAGES for b in python_blocks(ROOT / p)]
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        shorter = re.sub(r"rounds=\d+", "rounds=1", block)
        assert shorter != block
        path = tmp_path / f"readme{number}.py"
        path.write_text(shorter)
        done = subprocess.run(
            [sys.executable, path.name], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert "runs/" in done.stdout


def test_the_way_from_photos_to_predictions_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands and programs of the page, two of them where pfedfda cannot be imported."""
    pytest.importorskip("onnxruntime", reason="not installed: pip install 'pfedfda[export]'")
    page = (ROOT / "docs" / "use-a-model.md").read_text()
    monkeypatch.chdir(tmp_path)
    for number in range(48):
        client, label = ("anna", "ben")[number % 2], ("cat", "dog")[number // 24]
        write_image(Path("photos", client, label, f"{number}.png"), 8 * number, (40, 30), "RGB")
    for number in (1, 2):
        write_image(Path("new-photos", f"{number}.png"), 20 * number, (64, 48), "RGBA")
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    export = re.search(r"`pfedfda (export .* --format onnx)`:", page)
    assert export
    words = [line.removeprefix("pfedfda ").split() for line in commands.splitlines()]
    onnx = export[1].split()
    for command in (*words, onnx, [*onnx[:-1], "program"]):
        assert main(command) == 0, command
    ours, by_onnx, by_torch = python_blocks(ROOT / "docs" / "use-a-model.md")
    absent = "import sys\nsys.modules['pfedfda'] = None\n"  # importing it is an error
    printed = []
    for program in (ours, absent + by_onnx, absent + by_torch):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    first = capsys.readouterr().out.splitlines()[-4:]
    (row,) = [line for line in first if line.startswith("new-photos/1.png,")]
    name, probability = printed[1].split()
    assert name == row.split(",")[1]
    assert abs(float(probability) - float(row.split(",")[2])) < 1e-4
    assert f"['{name}'" in printed[0]
    assert printed[2].strip() == "torch.Size([5, 2])"


def test_the_example_observer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(ROOT / "docs" / "results.md")
    exec(block, {})
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert "'method': 'fedavg'" in first
    assert [line.split()[0] for line in lines] == ["1", "2"]
    assert last == "finished"


def test_every_page_with_programs_is_run() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md") if python_blocks(path)}
    assert pages == RUN_HERE | {name for name in pages if name.startswith("tutorial-")}


def test_the_tables_of_the_demo_are_those_of_its_file() -> None:
    script = load_tool("write_demo")
    for page in script.PAGES:
        assert page.read_text() == script.with_table(page)
        assert page.read_text().count("| pFedFDA | 0.") == 1


def test_the_tables_of_attacks_are_those_of_their_file() -> None:
    script = load_tool("write_attacks")
    text = script.PAGE.read_text()
    assert text == script.with_tables(text)
    for federation in script.TABLES.values():
        rows = script.table(federation).splitlines()[2:]
        assert len(rows) == len(script.rows_of(federation))
        assert all(row in text for row in rows)
    assert text.count("| FedAvg | 20 %, sign flip x10 | ") == len(script.TABLES)


def test_the_picture_of_the_demo_is_drawn_from_its_runs(tmp_path: Path) -> None:
    script = load_tool("write_demo")
    federation = FederationConfig(partition="client-dirichlet", clients=3, samples=8)
    done = compare(
        ["local", "fedavg"], federation, rounds=1, workers=0, output=tmp_path, quiet=True
    )
    script.draw(done.folder, tmp_path / "demo.svg")
    drawn = (tmp_path / "demo.svg").read_text()
    assert "<svg" in drawn
    assert (ROOT / "docs" / "figures" / "demo.svg").stat().st_size < 300_000


def test_the_estimator_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = python_blocks(ROOT / "docs" / "pfedfda.md")
    exec(block, {})
    assert capsys.readouterr().out.startswith("0.")


def test_the_examples_with_own_data_and_models_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "own-data-and-models.md"
    names: dict[str, object] = {"__name__": "page"}
    for block in python_blocks(page):
        first = block.splitlines()[0]
        if first.endswith(".py"):  # is to be a file
            Path(first.removeprefix("# ")).write_text(block)
        else:
            exec(block, names)
    assert len([r for r in (tmp_path / "runs").iterdir() if (r / "summary.json").exists()]) == 3
    with_backbone = next(c for c in page.read_text().splitlines() if "my_backbone.py:" in c)
    words = with_backbone.removeprefix("pfedfda ").split()
    assert main([*words, "--clients", "5", "--quiet"]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(("page", "shown"), [("statistics", "local"), ("tune", "Ditto")])
def test_the_examples_of_seeds_and_tuning_run(
    page: str,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(ROOT / "docs" / f"{page}.md")
    exec(block, {})
    assert shown in capsys.readouterr().out


def test_the_table_of_presets_is_true() -> None:
    """Numbers in the table are the presets' defaults."""
    page = (ROOT / "docs" / "pfedfda.md").read_text()
    presets = [find_method(f"pfedfda{end}")() for end in ("", "-pooled", "-paper", "-released")]
    for field in ("ridge", "prior-smoothing", "shrinkage"):
        row = re.search(rf"^\| `{field}`.*$", page, re.MULTILINE)
        assert row, field
        cells = [cell.strip() for cell in row[0].split("|")[2:6]]
        values = [getattr(preset, field.replace("-", "_")) for preset in presets]
        assert [float(cell) for cell in cells] == values, field


def test_commands_in_the_pages_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command parses, and its federation can be prepared where data is there."""
    configs: list[Config] = []

    def load(name: str, words: list[str]) -> parsing.Commands:
        command = load_command(name, words)
        for kind in command.values() if isinstance(command, dict) else [command]:
            monkeypatch.setattr(kind, "execute", accept)
        return command

    def accept(command: parsing.Command) -> int:
        if isinstance(command, SettingsCommand):
            configs.append(command.settings())
        return 0

    load_command = parsing._load
    monkeypatch.setattr(parsing, "_load", load)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    commands = [
        c for p in pages for c in re.findall(r"^pfedfda (.*)$", p.read_text(), re.MULTILINE)
    ]
    assert len(commands) >= 20
    for command in commands:
        words = command.split("#")[0].split()
        needs_a_file = any(w.endswith((".py", ".toml")) or w == "--resume" for w in words)
        if words[0] in COMMANDS and not needs_a_file:
            assert main(words) == 0, command
    assert len(configs) >= 5
    for config in configs:
        if config.federation.source == "digits" and config.federation.backbone is None:
            prepare(config.federation)


def test_the_page_of_results_says_what_the_results_say() -> None:
    """docs/reproduction.md and the README's table are what the script writes, to the byte."""
    script = load_tool("write_reproduction")
    assert (ROOT / "docs" / "reproduction.md").read_text() == script.page(ROOT / "results")
    readme = (ROOT / "README.md").read_text()
    assert readme == script.with_headline(readme, ROOT / "results")


def test_demo_configuration_is_quick_enough_to_be_one(tmp_path: Path) -> None:
    """The demo's federation exists and has the many small clients it promises."""
    config = read_config(DEMO)
    federation = prepare(config.federation, cache=tmp_path)
    assert len(federation) >= 40
    assert federation.train_sizes.max() < 50
    assert len(config.methods) == 12  # not every method there is: that would take twice as long
    schedule = config.schedule
    points = [number for number in range(1, schedule.rounds + 1) if schedule.evaluates(number)]
    assert len(points) >= 5  # of the learning curves


def test_the_files_of_the_method_have_what_the_page_says() -> None:
    """From the equation to the file: each function of the table is defined in its file."""
    page = (ROOT / "docs" / "pfedfda.md").read_text()
    table = page[page.index("| step | function | file |") :].split("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) >= 8
    for row in rows:
        _, _, functions, files, _ = row.split("|")
        texts = [(ROOT / path).read_text() for path in re.findall(r"`([^`]+)`", files)]
        for name in re.findall(r"`([^`]+)`", functions):
            assert any(f"def {name}(" in text for text in texts), row


def test_run_accepts_a_federation_of_the_users_images(tmp_path: Path) -> None:
    from tests.conftest import write_image

    for client in ("anna", "ben", "cleo"):
        for number in range(10):
            folder = tmp_path / "photos" / client / ("cat", "dog")[number % 2]
            write_image(folder / f"{number}.jpg", number * 20, size=(40, 32), mode="RGB")
    federation = FederationConfig(source=str(tmp_path / "photos"))
    result = run("fedavg-ft", federation, rounds=1, output=tmp_path, workers=0, quiet=True)
    rows = (result.folder / "clients.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == ["anna", "ben", "cleo"]


def test_the_tables_of_the_page_on_privacy_are_true() -> None:
    """What methods send and say of themselves, and what the records have."""
    script = load_tool("write_privacy")
    page = script.PAGE.read_text()
    assert page == script.page()
    names = [n for row in script.updates().splitlines()[2:] for n in row.split("|")[1].split(",")]
    assert sorted(name.strip() for name in names) == sorted(f"`{name}`" for name in all_methods())
    singles = {row["min_class_count"]: row for row in script.read(script.LEAK)[::5]}
    assert singles["1"]["identified"] == singles["1"]["sent"] == singles["1"]["classes"]
    assert singles["5"]["identified"] == singles["5"]["sent"] == "0"
