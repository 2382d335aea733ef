"""Predictions: every form of sample gives what the same sample gave in training."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import pfedfda
from pfedfda import FederationConfig, InputError, PersonalClassifier, export_models, load_model, run
from pfedfda.cli import main
from pfedfda.data import Preprocessing
from pfedfda.data.decoding import decode_all
from pfedfda.methods import to_input
from pfedfda.models import ModelConfig, build_model
from tests.conftest import write_image
from tests.inference.conftest import QUICK
from tests.inference.programs import BACKBONE, BODY, write_program
from tests.inference.test_exported_models import raw_federation


@pytest.fixture(scope="module")
def folder(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a client of the digits."""
    (one,) = export_models(digits_run, [1], output=tmp_path_factory.mktemp("models"))
    return one.path


@pytest.fixture(scope="module")
def model(folder: Path) -> PersonalClassifier:
    return load_model(folder)


@pytest.fixture(scope="module")
def table_model(vectors_run: Path) -> PersonalClassifier:
    """A model for a table with the columns a, b and colour, which is one of two words."""
    network = build_model(ModelConfig("linear"), (4,), 2, 0, "float32")
    columns = ("a", "b", "colour=red", "colour=blue")
    raw = Preprocessing("float32", (4,), columns)
    config = ModelConfig("linear")
    return PersonalClassifier(network, ("no", "yes"), config, (4,), "float32", raw)


@pytest.fixture(scope="module")
def images(digits_run: Path) -> NDArray[np.uint8]:
    return np.asarray(raw_federation(digits_run).client(0).test_inputs)[:7]


def test_probabilities_are_the_softmax_of_the_head(
    model: PersonalClassifier, images: NDArray[np.uint8]
) -> None:
    logits = model(to_input(torch.from_numpy(np.array(images)))).double()
    expected = (logits - logits.logsumexp(dim=1, keepdim=True)).exp().numpy()
    np.testing.assert_allclose(model.predict_proba(images), expected, atol=1e-6)
    names = [model.class_names[k] for k in expected.argmax(axis=1)]
    assert model.predict(images) == names


def test_pfedfda_s_probabilities_are_the_gaussian_posterior() -> None:
    """For one linear feature and a head made of Gaussians, Bayes' rule by scipy gives the same."""
    from scipy.stats import multivariate_normal

    from pfedfda.gaussian import GaussianStatistics, bayes_classifier

    random = np.random.default_rng(0)
    means, root = random.normal(size=(3, 2)), random.normal(size=(2, 2))
    covariance, priors = root @ root.T + np.eye(2), np.array([0.2, 0.5, 0.3])
    statistics = GaussianStatistics(torch.tensor(means), torch.tensor(covariance))
    head = bayes_classifier(statistics, torch.tensor(priors))
    network = build_model(ModelConfig("linear"), (2,), 3, 0, "float32")
    with torch.no_grad():
        network.head.weight.copy_(head.weight)
        network.head.bias.copy_(head.bias)
    raw, config = Preprocessing("float32", (2,)), ModelConfig("linear")
    model = PersonalClassifier(network, tuple("abc"), config, (2,), "float32", raw)
    X = random.normal(size=(5, 2))
    joint = np.stack(
        [p * multivariate_normal(m, covariance).pdf(X) for p, m in zip(priors, means, strict=True)],
        axis=1,
    )
    posterior = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), posterior, atol=1e-5)


def test_every_form_of_an_image_is_the_same_image(
    model: PersonalClassifier, images: NDArray[np.uint8], tmp_path: Path
) -> None:
    expected = model.predict_proba(images)
    pictures = [Image.fromarray(image[..., 0]) for image in images]
    paths = [tmp_path / "folder" / f"{number}.png" for number in range(len(images))]
    (tmp_path / "folder").mkdir()
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    np.savez(tmp_path / "a.npz", images=images)
    np.save(tmp_path / "b.npy", images)
    forms: list[Any] = [
        tmp_path / "folder",
        str(tmp_path / "folder"),
        paths,
        [str(path) for path in paths],
        pictures,
        images[..., 0],
        list(images),
        tmp_path / "a.npz",
        tmp_path / "b.npy",
        torch.from_numpy(np.array(images)),
        [paths[0], pictures[1], images[2:4], *paths[4:]],
        [picture.convert("RGB") for picture in pictures],
        [picture.convert("RGBA") for picture in pictures],
        [picture.convert("P") for picture in pictures],
        np.repeat(images, 3, axis=3),
        np.concatenate([np.repeat(images, 3, axis=3), np.full_like(images, 255)], axis=3),
    ]
    for form in forms:
        np.testing.assert_array_equal(model.predict_proba(form), expected)
    alone = model.predict_proba(images[3:4])
    np.testing.assert_allclose(alone, expected[3:4], atol=1e-5)  # another order of sums
    for form in (paths[3], str(paths[3]), pictures[3], images[3], images[3, ..., 0]):
        np.testing.assert_array_equal(model.predict_proba(form), alone)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "I;16", "1", "CMYK"])
def test_a_photo_is_cropped_and_scaled_as_in_training(
    model: PersonalClassifier, mode: str, tmp_path: Path
) -> None:
    ending = "tif" if mode == "CMYK" else "png"
    if mode == "I;16":
        ramp = np.add.outer(np.arange(90), np.arange(70)).astype(np.uint16) * 400
        Image.fromarray(ramp).save(tmp_path / "photo.png")
    else:
        write_image(tmp_path / f"photo.{ending}", 3, (70, 90), mode)
    path = tmp_path / f"photo.{ending}"
    trained_on = decode_all([(str(path), path)], 28, colour=False)
    expected = model.predict_proba(trained_on)
    np.testing.assert_array_equal(model.predict_proba(path), expected)
    with Image.open(path) as photo:
        np.testing.assert_array_equal(model.predict_proba(photo), expected)


def test_images_that_are_not_square_keep_their_aspect(tmp_path: Path) -> None:
    """A source of arrays may have such; a photo is then cropped to their aspect."""
    network = build_model(ModelConfig("emnist-cnn"), (20, 30, 1), 2, 0)
    raw, config = Preprocessing("uint8", (20, 30, 1)), ModelConfig("emnist-cnn")
    model = PersonalClassifier(network, ("a", "b"), config, (20, 30, 1), "uint8", raw)
    image = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    framed = np.zeros((40, 30), dtype=np.uint8)
    framed[10:30] = image  # what lies above and below is cropped
    Image.fromarray(framed).save(tmp_path / "framed.png")
    np.testing.assert_array_equal(
        model.predict_proba(tmp_path / "framed.png"), model.predict_proba(image)
    )


def test_class_folders_and_hidden_files(model: PersonalClassifier, tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", ".hidden/3.png"):
        write_image(tmp_path / name)
    (tmp_path / "notes.md").write_text("not an image")
    assert len(model.predict(tmp_path)) == 3


def test_numbers_in_every_form(vectors_run: Path, tmp_path: Path) -> None:
    (one,) = export_models(vectors_run, ["anna"], output=tmp_path / "models")
    model = load_model(one.path)
    X = np.asarray(raw_federation(vectors_run).client(0).test_inputs)
    expected = model.predict_proba(X)
    np.savez(tmp_path / "a.npz", X=X)
    for form in (X.tolist(), X.astype(np.float64), tmp_path / "a.npz", list(X)):
        np.testing.assert_array_equal(model.predict_proba(form), expected)
    for form in (X[2], X[2].tolist()):
        np.testing.assert_allclose(model.predict_proba(form), expected[2:3], atol=1e-6)
    with pytest.raises(InputError, match=r"shape \(2, 3\); the model takes 4 numbers per sample"):
        model.predict(np.zeros((2, 3)))
    with pytest.raises(InputError, match="Sample 1 of the array has a value that is not finite"):
        model.predict([[0, 0, 0, 0], [0, np.nan, 0, 0]])


def test_tables_by_the_names_of_columns(table_model: PersonalClassifier, tmp_path: Path) -> None:
    expected = table_model.predict_proba([[1, 2, 1, 0], [3, 4, 0, 1]])
    tables = {
        "as-trained.csv": "a,b,colour\n1,2,red\n3,4,blue\n",
        "another-order.tsv": "colour\tb\ta\nred\t2\t1\nblue\t4\t3\n",
        "more-columns.csv": "id;a;b;label;colour\nx;1;2;yes;red\ny;3;4;;blue\n",
        "numbers.csv": "colour=blue,a,b,colour=red\n0,1,2,1\n1,3,4,0\n",
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
        np.testing.assert_array_equal(table_model.predict_proba(tmp_path / name), expected)
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(tmp_path / "another-order.tsv", sep="\t")
    np.testing.assert_array_equal(table_model.predict_proba(frame), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,colour\n1,red\n", "it lacks 'b'"),
        ("x,y\n1,2\n", "no column that the model was trained on, such as 'a'; it has 'x, y'"),
        ("a,b,colour\n1,2,green\n", "it also has 'colour=green'"),
        ("a,b,colour\n1,two,red\n", "'two'"),
        ("a,b,colour\n1,,red\n", "has no value in line 2"),
    ],
)
def test_a_table_with_other_columns_is_refused(
    table_model: PersonalClassifier, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        table_model.predict(tmp_path / "t.csv")
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def text_model() -> PersonalClassifier:
    """A model of texts whose backbone counts letters; long texts are 'long'."""
    spec = pfedfda.models.factories.name_callable(counting)
    backbone = pfedfda.models.backbones.open_backbone(spec, None)
    key = json.loads(json.dumps(backbone.key()))
    network = build_model(ModelConfig("linear"), (2,), 2, 0, "float32")
    with torch.no_grad():
        network.head.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        network.head.bias.copy_(torch.tensor([10.0, -10.0]))
    raw = Preprocessing("text", (), backbone=spec, backbone_key=key, text_column="words")
    config = ModelConfig("linear")
    return PersonalClassifier(network, ("short", "long"), config, (2,), "float32", raw)


def counting() -> Any:
    def prepare(texts: list[str]) -> torch.Tensor:
        return torch.tensor([[float(len(text)), 1.0] for text in texts])

    return torch.nn.Identity(), prepare


def test_texts_in_every_form(text_model: PersonalClassifier, tmp_path: Path) -> None:
    texts = ["hi", "a rather long sentence", "no"]
    expected = ["short", "long", "short"]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n\n")
    (tmp_path / "a.csv").write_text("number,words\n" + "".join(f"1,{t}\n" for t in texts))
    (tmp_path / "b.csv").write_text("text,other\n" + "".join(f"{t},1\n" for t in texts))
    (tmp_path / "c.csv").write_text("one\n" + "".join(f"{t}\n" for t in texts))
    for form in (texts, tuple(texts), np.array(texts), *(tmp_path / f"{n}" for n in ("a.txt",))):
        assert text_model.predict(form) == expected
    for name in "abc":
        assert text_model.predict(tmp_path / f"{name}.csv") == expected
    assert text_model.predict("hi") == ["short"]
    with pytest.raises(InputError, match="an image; the model takes texts"):
        text_model.predict(Image.new("L", (3, 3)))
    with pytest.raises(InputError, match="Text 1 is empty"):
        text_model.predict(" ")
    (tmp_path / "d.csv").write_text("a,b\nx,y\n")
    with pytest.raises(InputError, match="has no column 'text'"):
        text_model.predict(tmp_path / "d.csv")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((2, 28, 28)), "holds float64; expected uint8 images"),
        (np.zeros((2, 2, 28, 28, 1), dtype=np.uint8), r"shape \(2, 2, 28, 28, 1\)"),
        ("absent.png", "There is no file or folder absent.png"),
        ([], "The list holds no samples"),
        (Image.new("1", (30_000, 3_000)), "30000×3000 pixels; at most"),
    ],
)
def test_what_is_no_image_is_refused(
    model: PersonalClassifier, samples: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.predict(samples)


def test_programs_are_run_only_if_they_are_named(tmp_path: Path) -> None:
    """A model of somebody else brings no program along that would be run."""
    trace = f"import pathlib; pathlib.Path({str(tmp_path / 'trace')!r}).touch()\n"
    body = write_program(tmp_path / "a", "planted_body", trace + BODY)
    backbone = write_program(tmp_path / "a", "planted_backbone", trace + BACKBONE)
    settings = QUICK | {"rounds": 1, "output": tmp_path / "runs"}
    pfedfda.models.factories.allow(body)
    pfedfda.models.factories.allow(backbone)
    first = run("fedavg", FederationConfig(clients=2), model=body, **settings).folder
    federation = FederationConfig(clients=2, backbone=backbone, backbone_size=32)
    second = run("fedavg", federation, **settings).folder
    models = [export_models(f, [0], output=f / "m")[0].path for f in (first, second)]
    pfedfda.models.factories._named -= {body, backbone}
    (tmp_path / "trace").unlink()
    with pytest.raises(InputError, match=r"body of the model is the program .* with --model"):
        load_model(models[0])
    write_image(tmp_path / "1.png")
    with pytest.raises(InputError, match=r"backbone .* is a program, .* with --backbone"):
        load_model(models[1]).predict(tmp_path / "1.png")
    assert not (tmp_path / "trace").exists()
    # On another machine the file may lie elsewhere; it is the user who says where.
    moved = write_program(tmp_path / "b", "moved", trace + BODY)
    assert len(load_model(models[0], model=moved).predict(tmp_path / "1.png")) == 1
    again = load_model(models[1], backbone=backbone)
    assert len(again.predict(tmp_path / "1.png")) == 1
    other = write_program(tmp_path / "b", "other", BACKBONE.replace("seed(0)", "seed(1)"))
    with pytest.raises(InputError, match="is not the one that the model was trained with"):
        load_model(models[1], backbone=other).predict(tmp_path / "1.png")


def test_a_model_of_another_version(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "m")
    about = json.loads((folder / "model.json").read_text())
    (tmp_path / "m" / "model.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(InputError, match="its format is 99, and this version of pfedfda reads 1"):
        load_model(tmp_path / "m")


def test_a_model_from_before_there_was_preprocessing(
    folder: Path, model: PersonalClassifier, images: NDArray[np.uint8], tmp_path: Path
) -> None:
    for name in ("model.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    about = json.loads((folder / "model.json").read_text())
    del about["precision"]
    (tmp_path / "model.json").write_text(json.dumps(about))
    assert load_model(tmp_path).predict(images) == model.predict(images)


def test_preprocessing_for_another_network_is_refused(
    model: PersonalClassifier, tmp_path: Path
) -> None:
    other = replace(model, preprocessing=Preprocessing("float32", (5,)))
    pfedfda.inference.save_model(tmp_path, other)
    with pytest.raises(InputError, match="does not give what its network takes"):
        load_model(tmp_path)


def test_command_line(
    folder: Path, model: PersonalClassifier, images: NDArray[np.uint8], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for number, image in enumerate(images):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.fromarray(image[..., 0]).save(tmp_path / "photos" / f"{number}.png")
    words = ["predict", str(folder), str(tmp_path / "photos"), "--top", "3"]
    expected = model.predict_proba(images)
    assert main(words) == 0  # this is no terminal
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["class"] for row in rows] == model.predict(images)
    for row, probabilities in zip(rows, expected, strict=True):
        best = sorted(probabilities.tolist(), reverse=True)[:3]
        found = [float(row[name]) for name in ("probability", "probability_2", "probability_3")]
        np.testing.assert_allclose(found, best, rtol=1e-5)
    assert main([*words, "--format", "jsonl", "--output", str(tmp_path / "out")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line["class"] for line in lines] == model.predict(images)
    assert [len(line["next"]) for line in lines] == [2] * len(images)
    capsys.readouterr()
    assert main([*words[:3], "--format", "table"]) == 0
    table = capsys.readouterr().out
    assert "probability" in table
    assert f"{tmp_path / 'photos' / '0.png'}" in table
    assert main([*words, "--top", "99"]) == 0
    assert "class_10" in capsys.readouterr().out


def test_cells_are_no_formulas(
    model: PersonalClassifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sly = replace(model, class_names=("=1+1\x1b[2J",) * 10)
    pfedfda.inference.save_model(tmp_path, sly)
    write_image(tmp_path / "1.png")
    for format in ("csv", "table", "jsonl"):
        assert main(["predict", str(tmp_path), str(tmp_path / "1.png"), "--format", format]) == 0
        printed = capsys.readouterr().out
        assert "\x1b" not in printed
        assert format != "csv" or ",'=1+1" in printed


def test_bad_input_is_one_sentence(
    folder: Path, digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG nothing")
    (tmp_path / "a.txt").write_text("a text\n")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    (tmp_path / "pickle.npy").write_bytes(b"\x93NUMPY\x01\x00nothing")
    (tmp_path / "empty").mkdir()
    cases = [
        (["predict", str(folder), str(tmp_path / "absent.png")], "There is no file or folder"),
        (["predict", str(folder), str(tmp_path / "broken.png")], "cannot be decoded"),
        (["predict", str(folder), str(tmp_path / "a.txt")], "holds texts; the model takes 28×28"),
        (["predict", str(folder), str(tmp_path / "t.csv")], "is a table; the model takes 28×28"),
        (["predict", str(folder), str(tmp_path / "pickle.npy")], "cannot be read as a plain array"),
        (["predict", str(folder), str(tmp_path / "empty")], "holds no images"),
        (["predict", str(digits_run), str(tmp_path)], "is a run and not a model"),
        (["export", str(digits_run), "--client", "me"], "Unknown client 'me': choose from 0, 1,"),
        (["export", str(digits_run), "--client", "9"], "There is no client 9"),
        (["export", str(folder), "--all"], "is one model: drop --client, --all"),
        (["export", str(folder)], "is a model folder already: give --format"),
    ]
    for words, message in cases:
        assert main(words) == 2, words
        printed = capsys.readouterr()
        (line,) = printed.err.splitlines()
        assert line.startswith("pfedfda: ")
        assert message in line
        assert printed.out == ""


def test_a_new_client_by_export(
    digits_run: Path, images: NDArray[np.uint8], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same model as personalize writes, whatever the format."""
    np.savez(tmp_path / "own.npz", images=images, labels=np.arange(len(images)) % 3)
    output = ["--output", str(tmp_path / "out")]
    words = ["export", str(digits_run), "--source", str(tmp_path / "own.npz"), *output]
    assert main([*words, "--format", "program"]) == 0
    assert (tmp_path / "out" / "own.pt2").is_file()
    other = pfedfda.personalize(digits_run, str(tmp_path / "own.npz"), output=tmp_path / "other")
    for name in ("model.safetensors", "preprocessing.json"):
        written = (tmp_path / "out" / "own" / name).read_bytes()
        assert written == (other.folder / name).read_bytes()
