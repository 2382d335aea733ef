import pytest
import torch
from torch import nn

from pfedfda.errors import InputError
from pfedfda.gaussian import pack_symmetric
from pfedfda.models import ModelConfig, build_model
from pfedfda.paper import TABLES, CommunicationLoad, communication_load, paper_loads
from pfedfda.paper.communication import MOBILENET_V3_SMALL_BODY, MOBILENET_V3_SMALL_HIDDEN

LOADS = {load.network: load for load in paper_loads()}


@pytest.mark.parametrize("network", TABLES["table8"].rows)
def test_table_8_to_the_printed_digit(network: str) -> None:
    load = LOADS[network]
    counted = {
        "backbone": str(load.backbone),
        "linear": str(load.linear),
        "gaussian": str(load.gaussian),
        "overhead": f"{load.overhead:.3f}",
    }
    published = TABLES["table8"].rows[network]
    assert counted == {column: cell.printed for column, cell in published.items()}


@pytest.mark.parametrize(
    ("network", "shape", "classes"),
    [
        ("emnist-cnn", (28, 28, 1), 62),
        ("cifar-cnn", (32, 32, 3), 100),
        ("resnet18", (64, 64, 3), 200),
    ],
)
def test_loads_are_what_models_hold(
    network: str, shape: tuple[int, int, int], classes: int
) -> None:
    model = build_model(ModelConfig(network), shape, classes, seed=0)  # type: ignore[arg-type]
    load = communication_load(network, shape, classes)
    assert load.backbone == sum(p.numel() for p in model.body.parameters())
    assert load.linear == sum(p.numel() for p in model.head.parameters())
    means = torch.zeros(classes, model.body.feature_dim)
    covariance = pack_symmetric(torch.eye(model.body.feature_dim))
    assert load.gaussian == means.numel() + covariance.numel()


def test_mobilenet_adds_up_to_the_whole_network() -> None:
    layers = nn.Linear(576, 1024), nn.Linear(1024, 1000)
    hidden, last = (sum(p.numel() for p in layer.parameters()) for layer in layers)
    assert hidden == MOBILENET_V3_SMALL_HIDDEN
    assert LOADS["mobilenetv3-small"].linear == hidden + last
    assert MOBILENET_V3_SMALL_BODY + hidden + last == 2_542_856


def test_range_that_the_text_states() -> None:
    overheads = [LOADS[name].overhead for name in ("emnist-cnn", "cifar-cnn", "resnet18")]
    assert int(10 * min(overheads)) / 10 == 1.1
    assert round(max(overheads), 1) == 6.8


def test_gaussians_are_cheaper_only_with_a_hidden_layer_charged_to_the_other_side() -> None:
    """A mean has one number less than a row of a classifier: C of them against d (d + 1) / 2."""
    assert CommunicationLoad("tiny", classes=10, features=4, backbone=100).overhead == 0
    assert CommunicationLoad("tiny", classes=11, features=4, backbone=100).overhead < 0
    load = LOADS["mobilenetv3-small"]
    fair = CommunicationLoad("fair", load.classes, load.features, load.backbone + load.hidden)
    assert load.overhead < 0 < fair.overhead


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(InputError, match=r"Unknown model 'resnet19'.*mean 'resnet18'\?"):
        communication_load("resnet19", (64, 64, 3), 200)
