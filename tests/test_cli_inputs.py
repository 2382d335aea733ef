"""Bad tables, arrays, models and backbones on the command line: one sentence each."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pfedfda.cli import main
from pfedfda.models import factories
from tests.conftest import write_image
from tests.data import wine

TINY = "tests.models.tiny_backbones"
TEXT = ["--source", "texts.csv", "--text-column", "text", "--clients", "2"]
WINE = ["--source", "wine.csv", "--clients", "3"]
PROGRAM = "def net(shape):\n    import torch\n    return torch.nn.Flatten()\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all kinds of files; no program has been named yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(factories, "_named", set())
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "bomb.csv.gz").write_bytes(1000 * gzip.compress(b"0,1\n" * 2**16))
    pickled = np.array([{}] * 4)
    np.savez(tmp_path / "pickled.npz", X=pickled, y=np.arange(4) % 2)
    np.savez(tmp_path / "inf.npz", X=np.full((4, 2), np.inf), y=np.arange(4) % 2)
    np.savez(tmp_path / "grid.npz", X=np.eye(40, 12).reshape(40, 3, 4), y=np.arange(40) % 2)
    np.savez(tmp_path / "tokens.npz", X=np.ones((40, 6), dtype=int), y=np.arange(40) % 2)
    save_file({"layer.weight": torch.zeros(3, 5)}, tmp_path / "other.safetensors")
    wine.write_csv(tmp_path / "wine.csv", wine.columns())
    for split in ("train", "val"):
        for number in range(6):
            write_image(tmp_path / "splits" / split / str(number % 2) / f"{number}.png", number)
    return tmp_path


ROWS = "".join(f"{n},{n % 2}\n" for n in range(20))
FILES = {
    "nan.csv": f"a,y\n{ROWS}nan,1\n",
    "inf.csv": f"a,y\n{ROWS}inf,1\n",
    "short.csv": f"a,y\n{ROWS}3\n",
    "no_label.csv": f"a,b\n{ROWS}",
    "twice.csv": f"y,y\n{ROWS}",
    "empty.csv": "",
    "words.csv": "a,y\nx,0\nz,1\n",
    "heading.csv": "a,y\n",
    "one_class.csv": "a,y\n" + "".join(f"{n},0\n" for n in range(20)),
    "texts.csv": "text,y\n" + "".join(f"word {n},{n % 2}\n" for n in range(20)),
    "net.py": PROGRAM,
    "model.toml": '[model]\nmodel = "net.py:net"\n',
    "backbone.toml": '[federation]\nbackbone = "net.py:net"\n',
    "broken.py": "this is no program\n",
    "bad.safetensors": "no tensors",
}

BAD_INPUT: list[tuple[list[str], str]] = [
    (["--source", "nan.csv"], "The column 'a' of the table nan.csv has no value in line 22"),
    (["--source", "inf.csv"], "'inf' in line 22, which is not a finite number"),
    (["--source", "inf.npz"], "Sample 0 of the source has a value that is not finite"),
    (["--source", "short.csv"], "Line 22 of the table short.csv has 1 cells"),
    (["--source", "no_label.csv"], "name it with --label-column; the columns are 'a, b'"),
    (["--source", "no_label.csv", "--label-column", "c"], "has no column 'c' (--label-column)"),
    (["--source", "twice.csv"], "two columns called 'y'"),
    (["--source", "empty.csv"], "The table empty.csv is empty"),
    (["--source", "heading.csv"], "The table heading.csv has no rows"),
    (["--source", "one_class.csv", "--clients", "2"], "All samples belong to one class"),
    (["--source", "words.csv"], "with --one-hot"),
    (["--source", "bomb.csv.gz"], "unpack it yourself"),
    (["--source", "pickled.npz"], "cannot be read as an .npz of plain arrays"),
    (["--source", "absent.csv"], "There is no file absent.csv"),
    (["--source", "grid.npz", "--clients", "2"], "no built-in model for 3×4 numbers"),
    (["--source", "tokens.npz", "--clients", "2"], "no built-in model for 6 indices"),
    (["--source", "wine.csv", "--shift", "paper"], "Only images can be corrupted"),
    (["--source", "wine.csv", "--image-size", "32"], "holds no images: drop --image-size"),
    (["--source", "wine.csv", "--splits", "merge"], "has no use for --splits"),
    ([*WINE, "--model", "cifar-cnn"], "takes images, and the inputs are 13"),
    (["--source", "digits", "--one-hot"], "'digits' has no use for --one-hot"),
    (["--source", "splits"], "with --splits merge, or keep them as clients with --splits clients"),
    (TEXT, "Texts need a backbone"),
    (["--weights", "other.safetensors"], "The weights other.safetensors fit nothing"),
    (["--weights", "bad.safetensors"], "The weights bad.safetensors cannot be read"),
    (["--weights", "absent.safetensors"], "The weights absent.safetensors cannot be read"),
    (["--model", "no_such_package.nets:net"], "needs a package that is missing"),
    (["--model", "absent.py:net"], "There is no file absent.py"),
    (["--model", "net.py:nets"], "net.py has no function 'nets'"),
    (["--model", "broken.py:net"], "broken.py cannot be loaded (SyntaxError"),
    (["--model", f"{TINY}:wrong_axes"], "cannot be made for inputs of shape (1, 28, 28)"),
    (["--model", "torch.nn:Conv2d"], "cannot be made for inputs of shape (1, 28, 28)"),
    (["--model", "net.py:"], "does not name a function"),
    (["--config", "model.toml"], "name it on the command line too, with --model net.py:net"),
    (["--config", "backbone.toml"], "name it on the command line too, with --backbone net.py:net"),
    (["--backbone", "no_such_package.nets:net"], "needs a package that is missing"),
    (["--backbone", "no-such-name"], "Unknown backbone 'no-such-name'"),
    (["--backbone", f"{TINY}:wrong_axes"], "for 16 inputs; expected a tensor (16, features)"),
    (["--backbone", f"{TINY}:images", "--feature-dims", "25"], "feature-dims is 25"),
    (["--feature-dims", "5"], "feature-dims and feature-transform need a backbone"),
    (["--backbone-size", "64"], "backbone-size, feature-dims"),
    (["--feature-transform", "sqrt"], "feature-transform need a backbone"),
    ([*WINE, "--backbone", f"{TINY}:texts"], "fails on the inputs"),
]


@pytest.mark.parametrize(
    ("words", "message"), BAD_INPUT, ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else ""
)
def test_bad_input_is_one_sentence(
    words: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refusal(["run", *words, "--workers", "0"], message, capsys)
    assert not (place / "runs").exists()


def check_refusal(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    # What is said of steps that have been done comes before.
    assert sum(line.startswith("pfedfda: ") for line in lines) == 1, lines
    assert lines[-1].startswith("pfedfda: ")
    assert message in lines[-1]


@pytest.mark.parametrize("words", [WINE, ["--source", "splits", "--splits", "clients"], TEXT])
def test_a_backbone_takes_what_it_says(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    run = ["run", *words, "--backbone", "efficientnet-lite0", "--workers", "0", "--rounds", "1"]
    if "splits" in words:
        assert main([*run, "--quiet"]) == 0
    else:
        found = "texts" if words is TEXT else "numbers"
        check_refusal(run, f"takes images, and the inputs are {found}", capsys)


def quick(*words: str) -> list[str]:
    return ["run", "--workers", "0", "--rounds", "1", "--epochs", "1", *words]


def test_a_client_of_one_class_takes_part() -> None:
    rows = "".join(f"{n},{0 if n < 20 else n % 3},{n // 20}\n" for n in range(60))
    Path("clients.csv").write_text("a,y,client\n" + rows)
    for method in ("pfedfda", "fedpac", "fedrod"):
        assert main(quick("--source", "clients.csv", "--method", method, "--quiet")) == 0


def test_settings_with_a_program_work_once_the_user_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = quick("--source", "wine.csv", "--clients", "3", "--model", "net.py:net", "--quiet")
    assert main(words) == 0
    folder = capsys.readouterr().out.strip()
    factories._named.clear()  # another day
    config = ["run", "--config", f"{folder}/config.toml", "--workers", "0"]
    message = "name it on the command line too, with --model net.py:net"
    check_refusal(config, message, capsys)
    check_refusal(["personalize", folder, "--source", "wine.csv"], message, capsys)
    named = ["--model", "net.py:net"]
    assert main(["personalize", folder, "--source", "wine.csv", *named]) == 0
    factories._named.clear()
    assert main([*config, "--model=net.py:net", "--quiet"]) == 0


def test_a_stopped_run_says_which_programs_to_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfedfda.methods.fedavg import FedAvg

    train = FedAvg.train

    def interrupt(self: FedAvg, client: Any, message: Any) -> Any:
        if client.round == 2:
            raise KeyboardInterrupt
        return train(self, client, message)

    monkeypatch.setattr(FedAvg, "train", interrupt)
    words = ["--source", "grid.npz", "--clients", "2", "--model", "net.py:net"]
    assert main(quick(*words, "--rounds", "3", "--backbone", f"{TINY}:flattened")) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"--model net.py:net --backbone {TINY}:flattened" in last
    monkeypatch.setattr(FedAvg, "train", train)
    factories._named.clear()
    again = last.partition("To go on: pfedfda ")[2].split()
    check_refusal(again[:3], "name it on the command line too", capsys)
    assert main([*again, "--quiet"]) == 0


def test_unreadable_images_are_counted_where_the_user_looks(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for client in ("anna", "ben"):
        for number in range(8):
            write_image(place / "pets" / client / str(number % 2) / f"{number}.png", number)
        (place / "pets" / client / "0" / "bad.png").write_bytes(b"no image")
    check_refusal(quick("--source", "pets"), "bad.png cannot be decoded", capsys)
    skip = ["--source", "pets", "--skip-unreadable"]
    assert main(["data", "show", *skip]) == 0
    assert "2 left out because unreadable" in " ".join(capsys.readouterr().out.split())
    assert main(quick(*skip)) == 0
    assert "2 left out because unreadable" in capsys.readouterr().err


@pytest.mark.parametrize("choice", ["merge", "clients"])
def test_splits_are_what_the_user_says(choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "show", "--source", "splits", "--splits", choice, "--clients", "2"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert ("train" in out and "val" in out) == (choice == "clients"), out


def test_show_tables_and_features(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", *WINE]) == 0
    out = capsys.readouterr().out
    assert "13 numbers per sample" in " ".join(out.split())
    assert out.splitlines()[-1] == "figures/wine/classes.png"
    words = ["--source", "splits", "--splits", "clients", "--backbone", f"{TINY}:images"]
    assert main(["data", "show", *words]) == 0
    assert "24 numbers per sample" in " ".join(capsys.readouterr().out.split())
    assert main(["data", "show", *TEXT]) == 0
    assert "texts" in capsys.readouterr().out
