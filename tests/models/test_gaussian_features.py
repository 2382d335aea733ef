"""Features where they are nearest to Gaussian: the same tensors, another last activation."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import skew
from torch import Tensor, nn

from pfedfda.data import Preprocessing
from pfedfda.errors import InputError
from pfedfda.inference import load_model, save_model
from pfedfda.inference.classifier import PersonalClassifier
from pfedfda.models import Model, ModelConfig, build_model, gaussian_model
from pfedfda.models.networks import SignedRoot

SHAPES = {
    "emnist-cnn": (28, 28, 1),
    "cifar-cnn": (32, 32, 3),
    "mlp": (8, 8, 1),
}


def built(name: str, shape: tuple[int, ...]) -> Model:
    return build_model(ModelConfig(name), shape, 5, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SHAPES)
def test_the_activation_of_gaussian_features_gives_the_plain_ones(name: str) -> None:
    height, width, channels = SHAPES[name]
    model = built(name, SHAPES[name])
    images = torch.rand(6, channels, height, width, generator=torch.Generator().manual_seed(0))
    before, after = gaussian_model(model).body(images), model.body(images)
    assert bool((before < 0).any())
    assert torch.equal(F.leaky_relu(before), after)


def test_pooled_features_get_a_root_that_takes_their_skewness() -> None:
    model = built("resnet18", (32, 32, 3))
    images = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        before, after = gaussian_model(model).body(images), model.body(images)
    assert torch.equal(SignedRoot()(after), before)
    clients = torch.distributions.Gamma(0.7, 1.0).sample((4000,)).numpy()
    assert abs(skew(SignedRoot()(torch.from_numpy(clients)).numpy())) < 0.5 * skew(clients)


def test_the_root_has_a_finite_slope_everywhere() -> None:
    values = torch.tensor([-2.0, -1e-6, 0.0, 1e-6, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(SignedRoot(), values[[0, 1, 3, 4]])
    SignedRoot()(values).sum().backward()
    assert values.grad is not None
    assert bool(torch.isfinite(values.grad).all())
    found = SignedRoot()(values.detach())
    assert bool((found.diff() > 0).all())
    assert torch.equal(found, -found.flip(0))


@pytest.mark.parametrize("name", [*SHAPES, "resnet18"])
def test_the_tensors_are_the_same_and_the_given_model_stays(name: str) -> None:
    model = built(name, SHAPES.get(name, (32, 32, 3)))
    changed = gaussian_model(model)
    ours, theirs = model.state_dict(keep_vars=True), changed.state_dict(keep_vars=True)
    assert list(ours) == list(theirs)
    assert all(theirs[key] is tensor for key, tensor in ours.items())
    assert not model.is_gaussian
    assert changed.is_gaussian
    assert gaussian_model(changed).is_gaussian
    assert copy.deepcopy(changed).is_gaussian


class Own(nn.Module):
    """A body of a user: what comes last has the name that is looked for."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 7)
        self.activation = nn.Tanh()

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.activation(self.linear(inputs.flatten(1)))
        return features


def test_an_own_body_says_what_takes_the_place_of_its_activation() -> None:
    torch.manual_seed(0)
    plain, marked = Own(4), Own(4)
    model = Model(plain, 7, 3)
    assert gaussian_model(model) is model
    marked.gaussian_activation = nn.Identity()
    changed = gaussian_model(Model(marked, 7, 3))
    inputs = torch.randn(5, 4)
    assert torch.equal(changed.body(inputs), marked.linear(inputs))
    assert torch.equal(marked(inputs), marked.linear(inputs).tanh())


def test_a_saved_model_keeps_its_features(tmp_path: Path) -> None:
    images = torch.rand(3, 3, 32, 32)
    for choose in (lambda model: model, gaussian_model):
        model = choose(built("cifar-cnn", (32, 32, 3)))
        names = tuple("abcde")
        config, shape = ModelConfig("cifar-cnn"), (32, 32, 3)
        preprocessing = Preprocessing("uint8", shape)
        saved = PersonalClassifier(model, names, config, shape, "uint8", preprocessing)
        folder = tmp_path / str(model.is_gaussian)
        folder.mkdir()
        save_model(folder, saved)
        loaded = load_model(folder)
        assert loaded.network.is_gaussian == model.is_gaussian
        assert torch.equal(loaded(images), saved(images))


def test_gaussian_features_of_a_body_without_them_are_refused(tmp_path: Path) -> None:
    config, shape = ModelConfig("linear"), (4,)
    model = build_model(config, shape, 2, 0, "float32")
    saved = PersonalClassifier(
        model, ("a", "b"), config, shape, "float32", Preprocessing("float32", shape)
    )
    save_model(tmp_path, saved)
    path = tmp_path / "model.json"
    path.write_text(path.read_text().replace('features": false', 'features": true'))
    with pytest.raises(InputError, match="does not say where its features are nearest"):
        load_model(tmp_path)
