"""The sheet of confident mistakes: which images it shows, and when there is none."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfedfda import FederationConfig, RunResult, prepare, resume, run
from pfedfda.errors import InputError
from pfedfda.report import write_report
from pfedfda.runs.config import read_config
from pfedfda.runs.mistakes import LARGEST_SIDE, read_mistakes
from tests.conftest import write_image

FEDERATION = FederationConfig(clients=6, alpha=0.5, train_fraction=0.2)


def short(tmp_path: Path, **settings: object) -> RunResult:
    words = {"rounds": 2, "eval_every": 0, "output": tmp_path, "quiet": True, **settings}
    return run("fedavg", FEDERATION, **words)


def test_each_picture_is_a_test_image_of_its_client_and_class(tmp_path: Path) -> None:
    found = read_mistakes(short(tmp_path).folder)
    assert 6 <= len(found) <= 18  # three of each client
    assert [m.confidence for m in found] == sorted((m.confidence for m in found), reverse=True)
    federation = prepare(FEDERATION)
    for mistake in found:
        data = federation.client(int(mistake.client))
        picture = np.array(Image.open(io.BytesIO(mistake.png)))
        labels = [
            str(federation.class_names[label])
            for image, label in zip(data.test_inputs, data.test_labels, strict=True)
            if np.array_equal(image[..., 0], picture)
        ]
        assert labels == [mistake.true]
        assert mistake.true != mistake.predicted


def test_the_page_holds_them_and_says_so(tmp_path: Path) -> None:
    folder = short(tmp_path).folder
    page = write_report([folder], tmp_path / "report").read_text()
    first = read_mistakes(folder)[0]
    assert f"data:image/png;base64,{base64.b64encode(first.png).decode()}" in page
    assert "The images are part of this page" in page
    assert "img-src data:;" in page


def test_workers_make_no_difference(tmp_path: Path) -> None:
    files = [
        (short(tmp_path / str(n), workers=n).folder / "mistakes.json").read_bytes() for n in (0, 2)
    ]
    assert files[0] == files[1]


def test_none_are_kept_if_none_are_wanted(tmp_path: Path) -> None:
    folder = short(tmp_path, mistakes=0).folder
    assert not (folder / "mistakes.json").exists()
    assert "<img" not in write_report([folder], tmp_path / "report").read_text()
    # Nor when the run is taken up, which reads its settings from its folder.
    assert read_config(folder / "config.toml").output.mistakes == 0
    (folder / "summary.json").unlink()
    resume(folder, quiet=True)
    assert not (folder / "mistakes.json").exists()


@pytest.mark.parametrize("number", [-1, 201])
def test_a_strange_number_of_mistakes_is_refused(number: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"mistakes is {number}; it must lie between 0 and 200"):
        short(tmp_path, mistakes=number)


def test_large_colour_images_are_made_small(tmp_path: Path) -> None:
    for client in ("anna", "ben"):
        for number in range(20):
            folder = tmp_path / "photos" / client / ("cat", "dog")[number % 2]
            write_image(folder / f"{number}.png", 7 * number, size=(90, 90), mode="RGB")
    federation = FederationConfig(source=str(tmp_path / "photos"), image_size=90)
    result = run("fedavg", federation, rounds=1, epochs=1, output=tmp_path, quiet=True)
    found = read_mistakes(result.folder)
    assert found
    for mistake in found:
        picture = Image.open(io.BytesIO(mistake.png))
        assert picture.mode == "RGB"
        assert picture.size == (LARGEST_SIDE, LARGEST_SIDE)


def test_inputs_that_are_no_images_have_no_pictures(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(40, 5)).astype(np.float32)
    np.savez(tmp_path / "a.npz", X=X, y=random.integers(0, 3, 40))
    federation = FederationConfig(source=str(tmp_path / "a.npz"), clients=2, partition="iid")
    result = run("fedavg", federation, rounds=1, model="linear", output=tmp_path, quiet=True)
    assert result.predictions is not None
    assert not (result.folder / "mistakes.json").exists()
