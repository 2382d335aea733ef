import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from pfedfda import (
    FederationConfig,
    InputError,
    RunStoppedError,
    compare,
    load_model,
    personalize,
    run,
)
from pfedfda.cli import main
from pfedfda.data import open_source
from pfedfda.methods import to_input
from tests.conftest import write_image
from tests.experiment.files import final_state


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pFedFDA run on the digits."""
    federation = FederationConfig(clients=20, alpha=0.5)
    output = tmp_path_factory.mktemp("runs")
    return run("pfedfda", federation, rounds=6, batch_size=10, output=output, quiet=True).folder


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 120 digits of four classes, inverted: a client with a shift of its own."""
    folder = tmp_path_factory.mktemp("newcomer") / "inverted"
    digits = open_source("digits").load()
    chosen = np.flatnonzero(np.isin(digits.labels, [1, 3, 4, 7]))[:120]
    for row in chosen:
        path = folder / str(digits.labels[row]) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(255 - digits.inputs[row, ..., 0]).save(path)
    return folder


def test_a_new_client_gets_a_model_without_training(finished: Path, newcomer: Path) -> None:
    result = personalize(finished, str(newcomer))
    assert (result.fitted, result.held_out) == (96, 24)
    assert 0 <= result.metrics["beta"] <= 1
    assert result.accuracy is not None
    assert result.shared_accuracy is not None
    # Inverted images are far from what the federation saw, so the own Gaussians must help.
    assert result.accuracy > result.shared_accuracy + 0.2
    state = final_state(finished)
    body = {f"body.{n}": t for n, t in result.model.network.body.state_dict().items()}
    assert all(torch.equal(body[name], state[name]) for name in body)


def test_the_written_model_is_the_model(finished: Path, newcomer: Path) -> None:
    result = personalize(finished, str(newcomer), seed=3)
    model = load_model(result.folder)
    images = to_input(torch.from_numpy(open_source(str(newcomer)).load().inputs))
    torch.testing.assert_close(model(images), result.model(images))
    description = json.loads((result.folder / "model.json").read_text())
    assert description["class_names"] == [str(d) for d in range(10)]
    assert description["model"] == "emnist-cnn"
    assert description["about"]["beta"] == result.metrics["beta"]
    # It is an ordinary network: the file holds a body and a linear head, nothing else.
    names = load_file(result.folder / "model.safetensors").keys()
    assert {name.split(".")[0] for name in names} == {"body", "head"}


def test_same_seed_same_model(finished: Path, newcomer: Path) -> None:
    first, second = (personalize(finished, str(newcomer), seed=5) for _ in range(2))
    assert first.folder != second.folder
    files = [(r.folder / "model.safetensors").read_bytes() for r in (first, second)]
    assert files[0] == files[1]


def test_all_images_can_be_used_for_fitting(finished: Path, newcomer: Path, tmp_path: Path) -> None:
    result = personalize(finished, str(newcomer), test_share=0.0, output=tmp_path / "mine")
    assert (result.fitted, result.held_out, result.accuracy) == (120, 0, None)
    assert load_model(tmp_path / "mine") is not None


def test_colour_images_fit_a_grey_run(finished: Path, tmp_path: Path) -> None:
    for number in range(6):
        write_image(tmp_path / "few" / str(number % 2) / f"{number}.png", number, (50, 40), "RGB")
    assert personalize(finished, str(tmp_path / "few")).fitted == 5


def test_every_method_can_personalise(tmp_path: Path, newcomer: Path) -> None:
    federation = FederationConfig(partition="client-dirichlet", clients=4, samples=8)
    comparison = compare(
        ["local", "fedavg-ft"], federation, rounds=1, workers=0, output=tmp_path, quiet=True
    )
    local, tuned = (personalize(r.folder, str(newcomer)) for r in comparison.results)
    assert local.shared_accuracy is None
    assert tuned.shared_accuracy is not None
    with pytest.raises(InputError, match="name the folder of one method"):
        personalize(comparison.folder, str(newcomer))


def test_command_line(
    finished: Path, newcomer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["personalize", str(finished), "--source", str(newcomer), "--output"]
    assert main([*words, str(tmp_path / "model")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fitted to 96 images in")
    assert "beta 0." in lines[0] or "beta 1." in lines[0]
    assert lines[1].startswith("accuracy on 24 held-out images")
    assert lines[2].startswith("accuracy of the model that all clients share")
    assert lines[3] == str(tmp_path / "model")


def test_bad_input(finished: Path, newcomer: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run"):
        personalize(tmp_path, str(newcomer))
    write_image(tmp_path / "zoo" / "zebra" / "1.png")
    with pytest.raises(InputError, match="does not know the class 'zebra'"):
        personalize(finished, str(tmp_path / "zoo"))
    write_image(tmp_path / "two" / "anna" / "1" / "1.png")
    with pytest.raises(InputError, match="the samples of 1 clients"):
        personalize(finished, str(tmp_path / "two"))
    with pytest.raises(InputError, match="test-share"):
        personalize(finished, str(newcomer), test_share=1.0)
    for taken in (tmp_path / "zoo", tmp_path / "zoo" / "zebra" / "1.png"):
        with pytest.raises(InputError, match="choose another --output"):
            personalize(finished, str(newcomer), output=taken)
    images = np.zeros((4, 20, 30), dtype=np.uint8)
    np.savez(tmp_path / "odd.npz", images=images, labels=np.array([0, 1, 0, 1]))
    assert personalize(finished, str(tmp_path / "odd.npz")).fitted == 3  # scaled to fit


@pytest.mark.parametrize(
    ("participation", "rounds", "said"),
    [(1.0, 0, "no complete round yet"), (1e-9, 1, "No client of the run .* could be trained")],
)
def test_a_run_that_has_learned_nothing_is_refused(
    participation: float, rounds: int, said: str, tmp_path: Path, newcomer: Path
) -> None:
    """Nobody could be trained; one client alone in a round does not end the run, all do."""
    federation = FederationConfig(clients=3, partition="client-dirichlet", samples=8)
    with pytest.raises(RunStoppedError):
        run(
            "fedavg", federation, rounds=2, participation=participation, lr=1e30, workers=0,
            output=tmp_path, name="run", quiet=True,
        )  # fmt: skip
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == rounds
    with pytest.raises(InputError, match=said):
        personalize(tmp_path / "run", str(newcomer))


def test_not_a_model(tmp_path: Path, finished: Path, newcomer: Path) -> None:
    with pytest.raises(InputError, match="does not hold a model"):
        load_model(tmp_path)
    folder = personalize(finished, str(newcomer), output=tmp_path / "m").folder
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="does not hold a model"):
        load_model(folder)
