"""Features of frozen backbones: what is computed, kept, and done with them."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import nn

from pfedfda.data import FederationConfig, default_cache, federation_from_arrays, prepare
from pfedfda.data import features as module
from pfedfda.data.features import FeatureMap, extract_features, fit_feature_map
from pfedfda.data.preparing import _training_slices
from pfedfda.errors import InputError
from pfedfda.models.backbones import Backbone, open_backbone
from tests.data import wine
from tests.data.test_from_arrays import TEXTS

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (150, 12, 12, 1), dtype=np.uint8)
TINY = "tests.models.tiny_backbones"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "PART", 32)
    monkeypatch.setenv("PFEDFDA_CACHE", str(tmp_path / "cache"))


def counting(seen: list[int], spec: str = f"{TINY}:images") -> Backbone:
    """Return a backbone that notes how many inputs it has been given."""
    backbone = open_backbone(spec, None)
    original = backbone.prepare
    return replace(backbone, prepare=lambda batch: seen.append(len(batch)) or original(batch))


def extract(backbone: Backbone, cache: Path, inputs: NDArray[Any] = IMAGES) -> NDArray[np.float32]:
    return np.array(extract_features(backbone, inputs, "fingerprint", cache))


def test_features_are_those_of_the_network_in_evaluation(tmp_path: Path) -> None:
    backbone = open_backbone(f"{TINY}:images", None)
    before = {name: tensor.clone() for name, tensor in backbone.module.state_dict().items()}
    features = extract(backbone, tmp_path)
    with torch.no_grad():
        pixels = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 255
        expected = backbone.module.eval()(pixels).numpy()
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)
    for name, tensor in backbone.module.state_dict().items():
        assert torch.equal(tensor, before[name]), name  # batch norm has not moved


def test_any_number_of_threads_gives_the_same_bits(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(extract(open_backbone(f"{TINY}:images", None), tmp_path / str(count)))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert results[0].tobytes() == results[1].tobytes()


def killed_after(batches: int, cache: Path) -> None:
    """Extract in a process that is killed in the middle."""
    pid = os.fork()
    if pid == 0:
        backbone = open_backbone(f"{TINY}:images", None)
        original, left = backbone.prepare, [batches]

        def prepare(batch: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(batch)

        torch.set_num_threads(1)
        extract(replace(backbone, prepare=prepare), cache)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_a_killed_extraction_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = extract(open_backbone(f"{TINY}:images", None), tmp_path / "whole")
    for batches in (7, 2, 0):  # of 16 images; five parts of two batches each
        killed_after(batches, tmp_path / "killed")
    assert len(list(tmp_path.glob("killed/features/*.parts/*.npy"))) == 4
    seen: list[int] = []
    done: list[tuple[int, int]] = []
    features = extract_features(
        counting(seen), IMAGES, "fingerprint", tmp_path / "killed", lambda *at: done.append(at)
    )
    assert sum(seen) == 150 - 4 * 32
    assert done == [(150, 150)]
    assert features.tobytes() == whole.tobytes()
    assert not list(tmp_path.glob("killed/features/*.parts"))
    assert extract(counting(seen), tmp_path / "killed").tobytes() == whole.tobytes()
    assert sum(seen) == 150 - 4 * 32  # nothing more: it was all there


def test_a_changed_byte_in_the_cache_is_noticed(tmp_path: Path) -> None:
    backbone = open_backbone(f"{TINY}:images", None)
    whole = extract(backbone, tmp_path)
    (path,) = tmp_path.glob("features/*/features.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert extract(backbone, tmp_path).tobytes() == whole.tobytes()


def test_a_process_that_was_faster_is_no_error(tmp_path: Path) -> None:
    backbone = open_backbone(f"{TINY}:images", None)
    seen: list[int] = []
    slow = counting(seen)
    original = slow.prepare

    def prepare(batch: Any) -> Any:
        if len(seen) == 7:  # the other one finishes in between, and tidies up
            extract(backbone, tmp_path)
        return original(batch)

    result = extract(replace(slow, prepare=prepare), tmp_path)
    assert result.tobytes() == extract(backbone, tmp_path / "alone").tobytes()
    assert not list(tmp_path.glob("features/*.parts"))


def names(cache: Path) -> set[str]:
    return {path.name for path in (cache / "features").iterdir()}


def test_the_key_is_made_of_weights_preparation_and_inputs(tmp_path: Path) -> None:
    backbone = open_backbone(f"{TINY}:images", None)
    extract(backbone, tmp_path)
    extract(open_backbone(f"{TINY}:images", None), tmp_path)
    assert len(names(tmp_path)) == 1
    with torch.no_grad():
        next(iter(backbone.module.parameters()))[0, 0, 0, 0] += 1e-3
    extract(backbone, tmp_path)
    backbone.module[1].running_mean[0] += 1  # type: ignore[index]
    extract(backbone, tmp_path)
    extract(open_backbone(f"{TINY}:images", 16), tmp_path)
    extract(replace(backbone, about={"program": "another"}), tmp_path)
    extract_features(backbone, IMAGES, "other inputs", tmp_path)
    assert len(names(tmp_path)) == 6


def images(**settings: Any) -> FederationConfig:
    return federation_from_arrays(
        IMAGES, np.arange(150) % 3, np.arange(150) % 5, backbone=f"{TINY}:images", **settings
    )


def test_a_federation_is_made_anew_only_where_it_differs() -> None:
    folders = [
        prepare(images(**settings)).folder
        for settings in (
            {}, {"backbone_size": 16}, {"feature_dims": 4}, {"feature_transform": "sqrt"},
            {"standardize": False}, {"backbone_size": 24, "feature_dims": 4},
        )
    ]  # fmt: skip
    assert len(set(folders)) == 6
    # Only the sizes need passes of the network of their own.
    assert len(names(default_cache())) == 3
    assert prepare(images()).folder == folders[0]


def raw_and_mapped(**settings: Any) -> tuple[NDArray[np.float32], NDArray[np.float32], list[slice]]:
    """Return a federation's features as the backbone gives them, those mapped, and the training."""
    raw, mapped = (prepare(images(**s)) for s in ({"standardize": False}, settings))
    train = _training_slices(raw.train_sizes, raw.test_sizes)
    assert sum(s.stop - s.start for s in train) == raw.train_sizes.sum()
    return raw.inputs, mapped.inputs, train


@pytest.mark.parametrize("transform", ["none", "sqrt"])
@pytest.mark.parametrize("dims", [1, 5, 16])
def test_directions_are_those_of_principal_components(transform: Any, dims: int) -> None:
    raw, mapped, train = raw_and_mapped(feature_dims=dims, feature_transform=transform)
    values = raw.astype(np.float64)
    if transform == "sqrt":
        values = np.sqrt(values)  # behind a ReLU they are not negative
    pooled = np.concatenate([values[part] for part in train])
    pca = PCA(dims, svd_solver="full").fit(pooled)
    projected = pca.transform(values)
    projected /= np.sqrt(pca.transform(pooled).var(axis=0).mean())
    signs = np.sign((projected * mapped).sum(axis=0))  # a direction and its opposite are the same
    np.testing.assert_allclose(mapped, projected * signs, rtol=1e-4, atol=1e-4)
    fitted = fit_feature_map(raw, train, dims, transform)
    assert fitted.explained == pytest.approx(pca.explained_variance_ratio_.sum())
    assert fitted.directions is not None
    overlap = np.linalg.svd(fitted.directions.T @ pca.components_.T, compute_uv=False)
    np.testing.assert_allclose(overlap, 1, atol=1e-9)


def test_all_dimensions_are_centred_and_have_one_scale() -> None:
    raw, mapped, train = raw_and_mapped()
    pooled = np.concatenate([raw[part] for part in train]).astype(np.float64)
    expected = (raw - pooled.mean(0)) / np.sqrt(pooled.var(0).mean())
    np.testing.assert_allclose(mapped, expected, rtol=1e-4, atol=1e-5)


def test_the_power_transform_keeps_the_sign() -> None:
    fitted = FeatureMap("sqrt", np.zeros(3), None, np.ones(1))
    values = np.array([[-4.0, 0.0, 2.25]], dtype=np.float32)
    assert fitted(values).tolist() == [[-2.0, 0.0, 1.5]]


def test_sums_over_clients_are_all_that_counts() -> None:
    """However the samples are dealt, the map is the same."""
    features = RANDOM.normal(3, 2, (60, 4)).astype(np.float32)
    one = fit_feature_map(features, [slice(0, 60)], 3, "sqrt")
    many = fit_feature_map(features, [slice(n, n + 1) for n in range(60)], 3, "sqrt")
    for name, numbers in one.arrays().items():
        np.testing.assert_allclose(numbers, many.arrays()[name], rtol=1e-9, atol=1e-12)


def test_texts_and_numbers_have_features_too() -> None:
    texts = federation_from_arrays(
        TEXTS * 3, [0, 1] * 9, clients=2, partition="iid", backbone=f"{TINY}:texts",
        standardize=False,
    )  # fmt: skip
    federation = prepare(texts)
    assert federation.input_shape == (26,)
    raw = prepare(replace(texts, backbone=None, standardize=True)).inputs
    expected = [[text.count(chr(97 + k)) for k in range(26)] for text in raw.tolist()]
    np.testing.assert_array_equal(federation.inputs, expected)
    config = federation_from_arrays(wine.X, wine.Y, clients=4, backbone=f"{TINY}:numbers")
    assert prepare(config).input_shape == (7,)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("images", {"feature_dims": 25}, "has 24 features, so it must lie between 1 and 24"),
        ("images", {"feature_dims": 0}, "feature-dims is 0"),
        ("images", {"backbone_size": 4}, "between 8 and 1024"),
        ("images", {"feature_dims": 2, "standardize": False}, "drop standardize false"),
        ("wrong_axes", {}, r"returns \(16, 1, 12, 12\) for 16 inputs"),
        ("flat", {}, "the same features for all training samples"),
        ("not_finite", {}, "not finite"),
        ("no_module", {}, "returns 'int'; expected a module"),
        ("broken", {}, "no weights here"),
        ("texts", {}, "fails on the inputs"),
        ("nothing", {}, "has no function 'nothing'"),
    ],
)
def test_bad_backbones_and_settings(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(replace(images(), backbone=f"{TINY}:{name}", **settings))


def test_a_factory_leaves_the_random_numbers_of_torch_alone() -> None:
    torch.manual_seed(1)
    expected = nn.Linear(3, 3).weight
    torch.manual_seed(1)
    open_backbone(f"{TINY}:images", None)
    assert torch.equal(nn.Linear(3, 3).weight, expected)
