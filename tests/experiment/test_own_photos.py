"""From a folder of photos as people have them to a model that is of use."""

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pfedfda import FederationConfig, compare, load_run, resume, run
from pfedfda.cli import main
from pfedfda.data import federation_from_arrays
from pfedfda.experiment.observers import Observer
from pfedfda.experiment.tally import doubt
from pfedfda.methods import Task
from pfedfda.models import ModelConfig
from pfedfda.models.backbones import available_backbones
from pfedfda.runs.config import read_config

SITES = ("clinic", "school", "station")
SHAPES = ("disc", "frame", "cross", "stripes")
PER_SITE_AND_CLASS = 12
Captured = pytest.CaptureFixture[str]
TASK = Task(ModelConfig("cifar-cnn"), (64, 64, 3), 4, 3)


def draw(shape: str, rng: np.random.Generator, grey: bool) -> Image.Image:
    """Draw a shape somewhere on a noisy ground, in colours and sizes of any kind."""
    width, height = (int(n) for n in rng.integers(64, 161, size=2))
    ground = rng.integers(0, 110) + rng.integers(0, 30, size=(height, width, 3))
    image = Image.fromarray(ground.astype(np.uint8))
    pen = ImageDraw.Draw(image)
    colour = tuple(int(n) for n in rng.integers(150, 256, size=3))
    half = min(width, height) * rng.uniform(0.28, 0.4)
    x, y = width / 2 + rng.uniform(-6, 6), height / 2 + rng.uniform(-6, 6)
    box = (x - half, y - half, x + half, y + half)
    if shape == "disc":
        pen.ellipse(box, fill=colour)
    elif shape == "frame":
        pen.rectangle(box, outline=colour, width=int(half / 3))
    elif shape == "cross":
        pen.line((x - half, y, x + half, y), fill=colour, width=int(half / 3))
        pen.line((x, y - half, x, y + half), fill=colour, width=int(half / 3))
    else:
        for place in np.linspace(-half, half, 5):
            pen.line((x + place, y - half, x + place, y + half), fill=colour, width=int(half / 5))
    return image.convert("L") if grey else image


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of four shapes at three sites: mixed sizes, some grey, one broken; and a text."""
    folder = tmp_path_factory.mktemp("own") / "photos"
    rng = np.random.default_rng(1)
    for site in SITES:
        for shape in SHAPES:
            place = folder / site / shape
            place.mkdir(parents=True)
            for number in range(PER_SITE_AND_CLASS):
                image = draw(shape, rng, grey=number % 3 == 0)
                image.save(place / f"{number}.{('jpg', 'png')[number % 2]}")
    (folder / "notes.txt").write_text("ask the station for more crosses")
    whole = (folder / "clinic" / "disc" / "0.jpg").read_bytes()
    (folder / "clinic" / "disc" / "broken.jpg").write_bytes(whole[: len(whole) // 3])
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_the_first_command_to_a_model(photos: Path, here: Path, capsys: Captured) -> None:
    source = ["--source", str(photos)]
    assert main(["data", "show", str(photos)]) != 0
    assert f"not a federation: --source {photos}" in capsys.readouterr().err
    assert main(["run", "--method", "pfedfda", *source]) != 0
    refused = capsys.readouterr().err
    assert "broken.jpg cannot be decoded" in refused
    assert "--skip-unreadable" in refused
    assert refused.count("broken.jpg") == 1

    assert main(["data", "show", *source, "--skip-unreadable"]) == 0
    assert "3 clients, 4 classes, 64×64 colour" in capsys.readouterr().out.replace("\n", " ")

    words = ["--rounds", "6", "--participation", "1", "--workers", "0", "--skip-unreadable"]
    assert main(["run", "--method", "pfedfda", *source, *words]) == 0
    captured = capsys.readouterr()
    assert "; 1 left out because unreadable" in captured.err
    assert "Chosen for your data: --batch-size 10" in captured.err
    assert "--model cifar-cnn" in captured.err
    assert "few to train a network on: --backbone efficientnet-lite0" in captured.err
    assert "hardly learned" not in captured.err
    folder = here / "runs" / "photos-pfedfda"
    assert captured.out.splitlines()[-1] == "runs/photos-pfedfda"
    assert load_run(folder).mean_accuracy > 0.5

    config = read_config(folder / "config.toml")
    assert (config.training.batch_size, config.model.model) == (10, "cifar-cnn")


@pytest.mark.skipif(
    "efficientnet-lite0" not in available_backbones(), reason="needs pfedfda[backbones]"
)
def test_a_pretrained_backbone_on_the_same_photos(
    photos: Path, here: Path, capsys: Captured
) -> None:
    words = ["--source", str(photos), "--skip-unreadable", "--backbone", "efficientnet-lite0"]
    words += ["--backbone-size", "96", "--method", "pfedfda", "--rounds", "5", "--workers", "0"]
    assert main(["run", *words]) == 0
    said = capsys.readouterr().err
    assert "; 1 left out because unreadable" in said
    assert "Chosen for your data: --batch-size 10" in said
    assert "few to train" not in said
    assert "hardly learned" not in said
    assert load_run(here / "runs" / "photos-pfedfda").mean_accuracy > 0.7


def test_published_data_are_told_nothing_of_that(
    tiny_config: FederationConfig, tmp_path: Path, capsys: Captured
) -> None:
    result = run("fedavg", tiny_config, rounds=1, workers=0, output=tmp_path)
    said = capsys.readouterr().err
    assert "Chosen" not in said
    assert "backbone efficientnet" not in said
    config = read_config(result.folder / "config.toml")
    assert (config.training.batch_size, config.model.model) == (50, "auto")


def test_a_comparison_that_was_stopped_is_found_with_what_it_chose(
    photos: Path, tmp_path: Path, capsys: Captured
) -> None:
    federation = FederationConfig(source=str(photos), skip_unreadable=True)
    settings = {"rounds": 1, "epochs": 1, "workers": 0, "output": tmp_path}
    first = compare(["local", "fedavg"], federation, **settings)
    summary = first.results[1].folder / "summary.json"
    whole = summary.read_text()
    summary.unlink()
    second = compare(["local", "fedavg"], federation, **settings)
    assert second.folder == first.folder
    assert "Going on with" in capsys.readouterr().err
    assert second.results[1].summary["mean_accuracy"] == load_run(summary.parent).mean_accuracy
    assert f'"mean_accuracy": {second.results[1].mean_accuracy}' in whole


class Stopping(Observer):
    """Interrupts the run after the first round."""

    def trained(self, round_number: int, train_loss: float | None) -> None:
        raise KeyboardInterrupt


def test_a_run_is_stopped_or_repeated_with_what_it_chose(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfedfda.errors import RunStoppedError
    from pfedfda.experiment import api
    from pfedfda.runs import choices

    federation = FederationConfig(source=str(photos), skip_unreadable=True)
    settings = {"rounds": 2, "epochs": 1, "workers": 0, "quiet": True, "output": tmp_path}
    whole = run("fedavg", federation, name="whole", **settings)
    with monkeypatch.context() as patch:
        patch.setattr(api, "choose_observer", lambda quiet: Stopping())
        with pytest.raises(RunStoppedError):
            run("fedavg", federation, name="stopped", **settings)
    # Other rules, such as those of a later version, change nothing.
    monkeypatch.setattr(choices, "SMALLEST_BATCH", 25)
    monkeypatch.setattr(choices, "RESNET_SAMPLES", 0)
    resumed = resume(tmp_path / "stopped", workers=0, quiet=True)
    written = str(whole.folder / "config.toml")
    words = ["--config", written, "--output", str(tmp_path), "--name", "again", "--quiet"]
    assert main(["run", *words]) == 0
    for other in (resumed, load_run(tmp_path / "again")):
        assert other.summary["train_loss"] == whole.summary["train_loss"]
        assert other.summary["test_loss"] == whole.summary["test_loss"]
        assert (other.folder / "config.toml").read_text() == Path(written).read_text()


def doubts(method: str, federation: FederationConfig, folder: Path, capsys: Captured) -> list[str]:
    """Run a method with steps so short that the network stays what it was; return the doubts."""
    settings = {"rounds": 1, "epochs": 1, "workers": 0, "output": folder, "lr": 1e-9}
    run(method, federation, **settings)
    return [line for line in capsys.readouterr().err.splitlines() if "hardly learned" in line]


@pytest.mark.parametrize("method", ["fedavg", "local", "fedrep", "ditto"])
def test_a_run_that_learns_nothing_says_so_once(
    method: str, photos: Path, tmp_path: Path, capsys: Captured
) -> None:
    federation = FederationConfig(source=str(photos), skip_unreadable=True, train_share=0.5)
    assert len(doubts(method, federation, tmp_path, capsys)) == 1


def test_pfedfda_learns_something_from_random_features(
    photos: Path, tmp_path: Path, capsys: Captured
) -> None:
    """Its Gaussians are fitted to what the initial network gives; from noise there is no help."""
    federation = FederationConfig(source=str(photos), skip_unreadable=True, train_share=0.5)
    assert doubts("pfedfda", federation, tmp_path, capsys) == []
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(240, 32, 32, 3), dtype=np.uint8)
    labels = rng.permutation(np.arange(240) % 4)
    noise = federation_from_arrays(images, labels, clients=3, partition="iid")
    assert len(doubts("pfedfda", noise, tmp_path, capsys)) == 1


def test_when_there_is_doubt() -> None:
    chance = {"train_loss": math.log(4), "weighted_accuracy": 0.25}
    said = doubt(chance, 60, TASK)
    assert "its training loss is 1.39, and guessing among 4 classes has 1.39" in said
    assert "a larger --lr" in said
    assert "--backbone" in said
    assert "a smaller --lr" in doubt(chance | {"train_loss": 9.0}, 60, TASK)
    assert doubt(chance | {"train_loss": 1.2}, 60, TASK) == ""  # it has learned something
    assert doubt({"weighted_accuracy": 0.25}, 60, TASK) == ""  # a method without a loss
    assert doubt(chance | {"train_loss": 0.0}, 60, TASK) == ""
    # 0.37 is right by luck as often as one time in forty with 60 samples, and never with 6,000.
    assert doubt(chance | {"weighted_accuracy": 0.35}, 60, TASK) != ""
    assert doubt(chance | {"weighted_accuracy": 0.35}, 6000, TASK) == ""
