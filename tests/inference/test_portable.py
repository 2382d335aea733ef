"""ONNX files and programs of torch: they give what the model gives, and need nothing of ours."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pfedfda import FederationConfig, InputError, PersonalClassifier, export_models, load_model, run
from pfedfda.cli import main
from pfedfda.data import Preprocessing
from pfedfda.experiment.exporting import convert_model
from pfedfda.inference.portable import OPSET, TOLERANCE
from pfedfda.models import ModelConfig, build_model
from pfedfda.models.factories import allow
from tests.inference.conftest import QUICK
from tests.inference.programs import SLY, write_program
from tests.inference.test_exported_models import raw_federation

onnx = pytest.importorskip("onnx", reason="not installed: pip install 'pfedfda[export]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'pfedfda[export]'")

ALONE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pfedfda":
            raise ImportError("there is no pfedfda here")
sys.meta_path.insert(0, Missing())
import json, numpy, torch
try:
    import pfedfda
except ImportError:
    pass
else:
    raise SystemExit("pfedfda can be imported")
extra = {"pfedfda.json": ""}
program = torch.export.load(sys.argv[1], extra_files=extra).module()
samples = torch.from_numpy(numpy.load(sys.argv[2]))
logits, probabilities = program(samples)
torch.testing.assert_close(logits.softmax(1), probabilities)
torch.testing.assert_close(program(samples[:1])[1], probabilities[:1])
numpy.save(sys.argv[3], probabilities.detach().numpy())
print(json.dumps(json.loads(extra["pfedfda.json"])["class_names"]))
"""


def by_onnx(path: Path, samples: NDArray[Any]) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Return what ONNX Runtime makes of samples, and the metadata of the file."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    logits, probabilities = session.run(None, {"inputs": samples})
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax = exponents / exponents.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(softmax, probabilities, atol=1e-6)
    metadata = session.get_modelmeta().custom_metadata_map
    return probabilities, {name: json.loads(text) for name, text in metadata.items()}


def by_program(path: Path, samples: NDArray[Any]) -> tuple[NDArray[np.float32], list[str]]:
    """Return what a fresh process without this package makes of samples, and the class names."""
    given, found = path.with_suffix(".in.npy"), path.with_suffix(".out.npy")
    np.save(given, samples)
    words = [sys.executable, "-c", ALONE, str(path), str(given), str(found)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    return np.load(found), json.loads(done.stdout)


def check(folder: Path, output: Path, **programs: str) -> None:
    """Compare both formats with the model on the test samples of every client."""
    federation = raw_federation(folder)
    samples = np.concatenate([federation.client(c).test_inputs for c in range(len(federation))])
    for kind in ("folder", "onnx", "program"):
        export_models(folder, [0], format=kind, output=output)  # type: ignore[arg-type]
    name = next(path for path in output.iterdir() if path.is_dir())
    expected = load_model(name, **programs).predict_proba(samples)
    found, metadata = by_onnx(output / f"{name.name}.onnx", samples)
    assert np.abs(found - expected).max() < TOLERANCE
    assert tuple(metadata["class_names"]) == federation.class_names
    assert metadata["input_shape"] == list(federation.input_shape)
    found, class_names = by_program(output / f"{name.name}.pt2", samples)
    assert np.abs(found - expected).max() < TOLERANCE
    assert tuple(class_names) == federation.class_names


def test_digits(digits_run: Path, tmp_path: Path) -> None:
    check(digits_run, tmp_path)


def test_standardised_numbers(vectors_run: Path, tmp_path: Path) -> None:
    check(vectors_run, tmp_path)


def test_a_backbone_and_its_map(backbone_run: tuple[Path, str], tmp_path: Path) -> None:
    folder, spec = backbone_run
    check(folder, tmp_path, backbone=spec)


def test_batch_norm(norm_run: tuple[Path, str], tmp_path: Path) -> None:
    folder, spec = norm_run
    check(folder, tmp_path, model=spec)


def test_a_pretrained_backbone(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="pip install 'pfedfda[backbones]'")
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (24, 40, 40, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(24) % 2)
    federation = FederationConfig(str(tmp_path / "a.npz"), clients=2, backbone="efficientnet-lite0")
    folder = run("pfedfda", federation, rounds=1, output=tmp_path, **QUICK).folder
    check(folder, tmp_path / "models")


@pytest.mark.real_data
def test_cifar(data_folder: Path, tmp_path: Path) -> None:
    federation = FederationConfig("cifar10", data_dir=data_folder, clients=100, train_samples=20)
    folder = run(
        "pfedfda", federation, rounds=1, participation=0.02, output=tmp_path, **QUICK
    ).folder
    check(folder, tmp_path / "models")


@pytest.mark.parametrize("name", ["resnet18", "linear"])
def test_other_networks(name: str, tmp_path: Path) -> None:
    shape, kind = ((64, 64, 3), "uint8") if name == "resnet18" else ((6,), "float32")
    network = build_model(ModelConfig(name), shape, 3, 0, kind)  # type: ignore[arg-type]
    raw = Preprocessing(kind, shape)
    model = PersonalClassifier(network, tuple("abc"), ModelConfig(name), shape, kind, raw)  # type: ignore[arg-type]
    for format in ("onnx", "program"):
        one = convert_model(model, tmp_path / "m", format)  # type: ignore[arg-type]
        assert one.difference is not None
        assert one.difference.largest < TOLERANCE


def test_the_file_says_its_opset_and_nothing_of_this_machine(
    digits_run: Path, tmp_path: Path
) -> None:
    for kind in ("onnx", "program"):
        export_models(digits_run, [0], format=kind, output=tmp_path)  # type: ignore[arg-type]
    model = onnx.load(tmp_path / "0.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", OPSET)]
    first = [value.type.tensor_type.shape.dim[0].dim_param for value in model.graph.input]
    assert first == ["batch"]
    places = [str(Path(__file__).parents[2]), sys.prefix, str(digits_run)]
    for path in (tmp_path / "0.onnx", tmp_path / "0.pt2"):
        content = path.read_bytes()
        assert [place for place in places if place.encode() in content] == []


def test_the_same_model_gives_the_same_bytes(digits_run: Path, tmp_path: Path) -> None:
    for name in "ab":
        export_models(digits_run, [2], format="onnx", output=tmp_path / name)
    assert (tmp_path / "a" / "2.onnx").read_bytes() == (tmp_path / "b" / "2.onnx").read_bytes()


def sly_model(tmp_path: Path) -> PersonalClassifier:
    """A model whose way depends on its inputs, which no exporter can follow."""
    spec = write_program(tmp_path, "sly", SLY)
    allow(spec)
    network = build_model(ModelConfig(spec), (3,), 2, 0, "float32")
    raw = Preprocessing("float32", (3,))
    return PersonalClassifier(network, ("a", "b"), ModelConfig(spec), (3,), "float32", raw)


def test_what_cannot_be_exported_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = sly_model(tmp_path)
    for format in ("onnx", "program"):
        with pytest.raises(InputError, match=r"sly.py:net cannot be exported .*data") as refused:
            convert_model(model, tmp_path / "m", format)  # type: ignore[arg-type]
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 600
    assert [path for path in tmp_path.iterdir() if path.name.startswith("m")] == []


def test_a_file_that_differs_is_not_written(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison can fail: here the graph forgets the scale of images."""
    monkeypatch.setattr(
        "pfedfda.inference.portable.to_input", lambda x: x.permute(0, 3, 1, 2) / 255
    )
    for format in ("onnx", "program"):
        with pytest.raises(InputError, match="gives other probabilities, by up to"):
            export_models(digits_run, [0], format=format, output=tmp_path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_text_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pfedfda.models.backbones import Backbone

    network = build_model(ModelConfig("linear"), (4,), 2, 0, "float32")
    raw = Preprocessing("text", (), backbone="transformers:x")
    stub = Backbone("transformers:x", torch.nn.Identity(), list, "texts", {}, 1, "its tokenizer")
    monkeypatch.setattr(Preprocessing, "open_backbone", lambda self: stub)
    model = PersonalClassifier(network, ("a", "b"), ModelConfig("linear"), (4,), "float32", raw)
    with pytest.raises(InputError, match="because its tokenizer is not part of its network"):
        convert_model(model, tmp_path / "m", "onnx")


def test_a_model_folder_in_another_format(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_models(digits_run, [0], output=tmp_path)
    assert main(["export", str(tmp_path / "0"), "--format", "onnx"]) == 0
    assert str(tmp_path / "0.onnx") in capsys.readouterr().out
    samples = np.asarray(raw_federation(digits_run).client(1).test_inputs)
    found, _ = by_onnx(tmp_path / "0.onnx", samples)
    expected = load_model(tmp_path / "0").predict_proba(samples)
    assert np.abs(found - expected).max() < TOLERANCE
