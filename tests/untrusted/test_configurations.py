"""Configuration files of others: they work or are refused, and they run no program."""

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pfedfda.cli import main
from pfedfda.errors import InputError
from pfedfda.runs.config import GROUPS, read_config
from tests.untrusted.refusals import is_refused

pytestmark = pytest.mark.timeout(120)
IN_ONE_FOLDER = [HealthCheck.function_scoped_fixture]

NUMBERS = ["0", "1", "-1", "2", "3", "1000000000000", str(10**30), "0x" + "f" * 5000, "9" * 5000]
NUMBERS += ["0.5", "nan", "inf", "-inf", "1e-300", "1e308", "1e999"]
STRINGS = ["", "digits", "..", "../../x", "/", "/dev/zero", "~nobody/x", "a/" * 300, "x" * 5000]
STRINGS += [
    "x.npz",
    "hub:../..",
    "hub:a/b",
    "folder:",
    "iid",
    "paper",
    "cuda:99",
    "meta",
    "\0",
    "é",
]
OTHERS = ["true", "[]", "[[[1]]]", "{a = {b = 1}}", "1979-05-27", "07:32:00"]

values = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from([json.dumps(text) for text in STRINGS]),
    st.sampled_from(OTHERS),
)
field_names = [name for group in GROUPS.values() for name in group.__dataclass_fields__]
keys = st.one_of(st.sampled_from(field_names), st.text(string.ascii_letters, min_size=1))
method_names = st.sampled_from(
    [
        "fedavg",
        "ditto",
        "pfedfda",
        "all",
        "",
        "../x.py",
        "/dev/null.py",
        "x" * 300 + ".py",
        "a\0.py",
    ]
)


@st.composite
def toml_files(draw: st.DrawFn) -> str:
    """Return proper TOML with all kinds of settings, most of them wrong."""
    lines = []
    names = draw(st.lists(st.sampled_from([*GROUPS, "nonsense"]), unique=True, max_size=3))
    for name in names:
        lines.append(f"[{name}]")
        known = list(GROUPS[name].__dataclass_fields__) if name in GROUPS else field_names
        chosen = draw(st.lists(st.one_of(st.sampled_from(known), keys), unique=True, max_size=2))
        lines += [f"{key} = {draw(values)}" for key in chosen]
    for name in draw(st.lists(method_names, unique=True, max_size=2)):
        lines.append(f"[methods.{json.dumps(name)}]")
        fields = ("mu", "fine_tune_epochs", "classifier", "beta")
        chosen = draw(st.lists(st.sampled_from(fields), unique=True, max_size=2))
        lines += [f"{key} = {draw(values)}" for key in chosen]
    return "\n".join(lines)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@settings(suppress_health_check=IN_ONE_FOLDER)
@given(content=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_bytes_are_a_configuration_or_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    is_refused(read_config, file)


@settings(max_examples=300, suppress_health_check=IN_ONE_FOLDER)
@given(content=toml_files())
def test_any_toml_is_a_configuration_or_refused(file: Path, content: str) -> None:
    file.write_text(content)
    is_refused(read_config, file)


@pytest.mark.parametrize(
    "content",
    [
        "a = " + "[" * 100_000,
        "a" + ".a" * 50_000 + " = 1",
        "[schedule]\nrounds = " + "9" * 100_000,
        "[schedule]\nrounds = 0x" + "f" * 100_000,
        "[schedule]\nrounds = 1000000000000000000000000000000",
        "[schedule]\nrounds = 2000000",
        "[schedule]\nmax_update_norm = 0x" + "f" * 5000,
        "[federation]\nclients = {a = 0x" + "f" * 5000 + "}",
        "[engine]\nworkers = 100000",
        '[output]\nname = "../elsewhere"',
        '[output]\nname = "a\\u0000b"',
        "x" * 5000 + " = 1",
        "[methods]\nfedavg = 3",
        "#" * 2**21,
    ],
    ids=lambda content: content[:30],
)
def test_monstrous_settings_are_refused(file: Path, content: str) -> None:
    file.write_text(content)
    assert is_refused(read_config, file)


def test_a_device_is_no_configuration() -> None:
    assert is_refused(read_config, Path("/dev/zero"))


# What may stand in a run that must stay tiny: eight clients, a round, one process.
TINY = """
[federation]
clients = 4
partition = "client-dirichlet"
samples = 4
[schedule]
rounds = 1
[training]
epochs = 1
[engine]
workers = 0
"""


def with_setting(group: str, line: str) -> str:
    return TINY.replace(f"[{group}]\n", f"[{group}]\n{line}\n")


ODD_SETTINGS: list[tuple[str, str]] = [
    ("federation", f"{key} = {value}")
    for key, values in {
        "source": ['"~nobody/x"', '"/dev/null"', '"."', '"\\u0000"', '"x.npz"', f'"{"x" * 300}"'],
        "data_dir": ['"~nobody"', '"/nowhere"', f'"{"x" * 300}"'],
        "shift_table": ['"/dev/zero"', '"/nowhere"', '"."'],
        "image_size": ["-1", "1000000000000"],
        "alpha": ["1e-300", "1e308", "nan"],
        "partition_seed": ["4294967295", "4294967296", "-1"],
        "train_share": ["0.0000001", "0.9999999"],
        "min_samples": ["1000000000000"],
    }.items()
    for value in values
]
ODD_SETTINGS += [
    ("schedule", f"{key} = {value}")
    for key, values in {
        "participation": ["1e-300", "nan"],
        "seed": ["-9223372036854775807", "9223372036854775807"],
        "new_clients": ["0.999999"],
        "max_update_norm": ["1e-300"],
        "eval_every": ["9223372036854775807"],
    }.items()
    for value in values
]
ODD_SETTINGS += [
    ("training", "batch_size = 9223372036854775807"),
    ("training", "lr = 1e308"),
    ("training", "weight_decay = 1e308"),
    ("engine", 'device = "cuda:99999999999999999999"'),
    ("engine", 'device = "meta"'),
    ("engine", 'device = ""'),
]


@pytest.mark.parametrize(("group", "line"), ODD_SETTINGS, ids=lambda text: text[:40])
def test_a_run_with_an_odd_setting_works_or_is_refused(
    file: Path, group: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(with_setting(group, line))
    output = file.parent / "runs"
    code = main(["run", "--config", str(file), "--output", str(output), "--quiet"])
    said = capsys.readouterr().err
    assert code in (0, 1, 2)
    assert code == 0 or said.startswith("pfedfda: ")
    assert "Traceback" not in said


PROGRAM = """
from pathlib import Path
Path({marker!r}).touch()
from pfedfda.methods import register
from pfedfda.methods.fedavg import FedAvg
@register
class Mine(FedAvg):
    name = "mine-of-somebody"
"""


@pytest.fixture
def program(tmp_path: Path) -> tuple[Path, Path]:
    """A file with a method, and the file that it makes when it is run."""
    path, marker = tmp_path / "theirs.py", tmp_path / "was-run"
    path.write_text(PROGRAM.format(marker=str(marker)))
    return path, marker


def test_settings_run_no_program(file: Path, program: tuple[Path, Path]) -> None:
    path, marker = program
    file.write_text(f'[methods."{path}"]\n')
    with pytest.raises(InputError, match=r"name that file on the command line too"):
        read_config(file)
    assert main(["run", "--config", str(file)]) == 2
    assert not marker.exists()


def test_a_program_that_the_user_names_too_is_run(file: Path, program: tuple[Path, Path]) -> None:
    path, marker = program
    file.write_text(f'{TINY}[methods."{path}"]\n')
    words = ["run", "--config", str(file), "--method", str(path), "--quiet"]
    assert main([*words, "--output", str(file.parent / "runs"), "--name", "one"]) == 0
    assert marker.exists()
    # Going on with the run takes the same two words.
    folder = file.parent / "runs" / "one"
    assert main(["run", "--resume", str(folder), "--method", str(path), "--quiet"]) == 0


SHIFT_TABLES: list[tuple[str, Callable[[Path], Any]]] = [
    ("bytes", lambda path: path.write_bytes(b"\xff\xfe\x00")),
    ("a long field", lambda path: path.write_text("client,corruption,severity\n" + "9" * 200_000)),
    ("a long number", lambda path: path.write_text("client,corruption,severity\n" + "9" * 5000)),
    ("a quote", lambda path: path.write_text('client,corruption,severity\n0,"frost\n')),
    ("no columns", lambda path: path.write_text("\n\n1,2,3\n")),
    ("a folder", lambda path: path.mkdir()),
    ("a loop", lambda path: path.symlink_to(path)),
    ("a device", lambda path: path.symlink_to("/dev/zero")),
    ("too large", lambda path: path.write_bytes(b"0,frost,1\n" * 2_000_000)),
]


@pytest.mark.parametrize(("what", "make"), SHIFT_TABLES, ids=[name for name, _ in SHIFT_TABLES])
def test_a_broken_shift_table_is_refused(
    file: Path, what: str, make: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    table = file.parent / "table.csv"
    make(table)
    file.write_text(with_setting("federation", f'shift_table = "{table}"'))
    assert main(["run", "--config", str(file), "--quiet"]) == 2
    assert "table.csv" in capsys.readouterr().err
