"""What pFedFDA estimates, checked against the features that come out of the body."""

import torch

from pfedfda.gaussian import unpack_symmetric
from pfedfda.methods import Tensors, Update, to_input
from pfedfda.methods.pfedfda import PFedFDA
from tests.methods.toy import TASK, make_client

LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]  # class 3 is absent


def captured_training(method: PFedFDA) -> tuple[torch.Tensor, torch.Tensor, Update, Tensors]:
    """Train with an ear at the body: return the features that came out of it, and the update."""
    client = make_client(LABELS)
    heard: list[torch.Tensor] = []
    client.model.body.register_forward_hook(lambda _m, _i, out: heard.append(out.detach().clone()))
    batches: list[torch.Tensor] = []
    client.model.body.register_forward_pre_hook(lambda _m, args: batches.append(args[0].clone()))
    state = method.init(TASK)
    update = method.train(client, method.message(state, 0))
    # Find each image again by its pixels, which tells its label.
    inputs = to_input(client.samples.inputs)
    rows = [int((inputs - x).abs().flatten(1).sum(1).argmin()) for b in batches for x in b]
    assert len(heard) == 2 * 3 + (method.features in ("before", "after"))  # batches of 5 out of 11
    return torch.cat(heard).double(), client.samples.labels[rows], update, state


def assert_estimated_from(method: PFedFDA, rows: slice) -> None:
    """Check that what is sent are the plain estimates from these of the features."""
    features, labels, update, state = captured_training(method)
    features, labels = features[rows], labels[rows]
    centred = features.clone()
    for c in range(3):
        mean = features[labels == c].mean(0)
        torch.testing.assert_close(update.tensors["means"][c].double(), mean, rtol=1e-5, atol=1e-6)
        centred[labels == c] -= mean
    torch.testing.assert_close(update.tensors["means"][3], state["means"][3])  # absent
    expected = centred.T @ centred / (len(features) - 1) + method.ridge * torch.eye(128).double()
    sent = unpack_symmetric(update.tensors["covariance"]).double()
    torch.testing.assert_close(sent, expected, rtol=1e-4, atol=1e-6)
    assert update.tensors["counts"].tolist() == [4, 4, 3, 0]
