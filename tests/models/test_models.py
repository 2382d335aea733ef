import pytest
import torch
import torch.nn.functional as F

from pfedfda.errors import InputError
from pfedfda.models import ModelConfig, build_model, default_model, model_tensors
from pfedfda.models.networks import CifarCNN, GroupScaleNorm


@pytest.mark.parametrize(
    ("name", "shape", "classes", "backbone", "classifier"),
    [  # the paper's table of communication loads
        ("emnist-cnn", (28, 28, 1), 62, 115_776, 7_998),
        ("cifar-cnn", (32, 32, 3), 100, 106_400, 12_900),
        ("resnet18", (64, 64, 3), 200, 11_167_212, 102_600),
    ],
)
def test_parameter_counts_of_the_paper(
    name: str, shape: tuple[int, int, int], classes: int, backbone: int, classifier: int
) -> None:
    model = build_model(ModelConfig(name), shape, classes, seed=0)  # type: ignore[arg-type]
    assert sum(p.numel() for p in model.body.parameters()) == backbone
    assert sum(p.numel() for p in model.head.parameters()) == classifier


@pytest.mark.parametrize("name", ["emnist-cnn", "cifar-cnn", "resnet18"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [28, 32, 40, 64])
def test_any_size_and_colour(name: str, channels: int, size: int) -> None:
    model = build_model(ModelConfig(name), (size, size, channels), 7, seed=0)  # type: ignore[arg-type]
    images = torch.rand(2, channels, size, size)
    features = model.body(images)
    assert features.shape == (2, model.body.feature_dim)
    assert model(images).shape == (2, 7)
    assert torch.equal(model(images), model.head(features))


def test_pooling_before_the_activation_changes_nothing() -> None:
    torch.manual_seed(0)
    body = CifarCNN(32, 32, 3)
    images = torch.rand(4, 3, 32, 32) * 2 - 1
    x = images
    for convolution in (body.conv1, body.conv2, body.conv3):
        x = F.max_pool2d(F.leaky_relu(convolution(x)), 2)
    expected = F.leaky_relu(body.linear(x.flatten(1)))
    torch.testing.assert_close(body(images), expected)


def test_group_norm_equals_torch_at_the_start_and_shares_the_scale_in_a_group() -> None:
    x = torch.randn(3, 64, 5, 5)
    norm = GroupScaleNorm(64)
    torch.testing.assert_close(norm(x), torch.nn.GroupNorm(2, 64)(x))
    with torch.no_grad():
        norm.weight[1] = 3.0
        norm.bias[1] = -1.0
    plain = torch.nn.GroupNorm(2, 64)(x)
    torch.testing.assert_close(norm(x)[:, :32], plain[:, :32])
    torch.testing.assert_close(norm(x)[:, 32:], 3 * plain[:, 32:] - 1)


def test_same_seed_same_weights_and_no_global_state() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = model_tensors(build_model(ModelConfig(), (28, 28, 1), 10, seed=3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    second = model_tensors(build_model(ModelConfig(), (28, 28, 1), 10, seed=3))
    other = model_tensors(build_model(ModelConfig(), (28, 28, 1), 10, seed=4))
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert not torch.equal(first["body.conv1.weight"], other["body.conv1.weight"])


def test_he_weights_have_their_variance() -> None:
    model = build_model(ModelConfig(init="he"), (28, 28, 1), 10, seed=0)
    weight = model.body.linear.weight
    assert weight.std().item() == pytest.approx((2 / weight.shape[1]) ** 0.5, rel=0.02)
    assert not model.body.linear.bias.any()


def test_tensors_are_named_by_part_and_plain() -> None:
    tensors = model_tensors(build_model(ModelConfig(), (32, 32, 3), 10, seed=0))
    assert {name.split(".")[0] for name in tensors} == {"body", "head"}
    assert all(t.is_contiguous() for t in tensors.values())


def test_default_model_follows_the_image_size() -> None:
    assert default_model(28, 28) == "emnist-cnn"
    assert default_model(32, 32) == "cifar-cnn"
    assert default_model(64, 64) == "resnet18"


def test_too_small_images_are_refused() -> None:
    with pytest.raises(InputError, match="8×8 are too small for the model emnist-cnn"):
        build_model(ModelConfig(), (8, 8, 1), 10, seed=0)
