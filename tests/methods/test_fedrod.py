import numpy as np
import pytest
import torch

from pfedfda.methods import to_input
from pfedfda.methods.fedrod import FedRoD, _log_counts, balanced_softmax_loss
from tests.methods.steps import DECAY, LR, ONE_STEP, assert_close
from tests.methods.toy import TASK, make_client, parameters_of, same

LABELS = [0, 1, 1, 2, 0, 1, 2]  # class 3 is absent
HEAD = {"personal.weight": torch.randn(4, 128) * 0.1, "personal.bias": torch.randn(4)}


def test_balanced_softmax_is_the_closed_form() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1, 0])
    counts = np.array([7.0, 1.0, 3.0, 2.0])
    ours = balanced_softmax_loss(logits, labels, torch.from_numpy(np.log(counts)))
    weighted = counts * np.exp(logits.numpy())
    posterior = weighted[range(5), labels] / weighted.sum(1)
    assert ours.item() == pytest.approx(-np.log(posterior).mean())


def test_absent_classes_give_finite_loss_and_no_gradient() -> None:
    log_counts = _log_counts(make_client(LABELS))
    logits = torch.randn(4, 4, requires_grad=True)
    loss = balanced_softmax_loss(logits, torch.tensor([0, 1, 2, 0]), log_counts)
    assert torch.isfinite(loss)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(gradient).all()
    assert not gradient[:, 3].any()
    present = balanced_softmax_loss(
        logits[:, :3], torch.tensor([0, 1, 2, 0]), torch.tensor([2.0, 3.0, 2.0]).log()
    )
    torch.testing.assert_close(loss, present)  # as if the class did not exist


def test_the_personal_loss_reaches_neither_body_nor_generic_head() -> None:
    """What is sent does not depend on the personal head, to the bit."""
    start = TASK.initial_tensors()
    without = FedRoD().train(make_client(LABELS), start).tensors
    with_head = FedRoD().train(make_client(LABELS, state=dict(HEAD)), start).tensors
    assert same(without, with_head)


def test_the_personal_head_learns_and_stays() -> None:
    client = make_client(LABELS)
    update = FedRoD().train(client, TASK.initial_tensors())
    assert client.state.keys() == HEAD.keys()
    assert client.state["personal.weight"].abs().sum() > 0
    assert not any(name.startswith("personal") for name in update.tensors)


def test_the_sum_of_logits_serves() -> None:
    start = TASK.initial_tensors()
    model = FedRoD().personalize(make_client(LABELS, state=dict(HEAD)), start).model
    features = torch.randn(6, 128)
    generic = features @ start["head.weight"].T + start["head.bias"]
    own = features @ HEAD["personal.weight"].T + HEAD["personal.bias"]
    torch.testing.assert_close(model.head(features), generic + own, rtol=1e-4, atol=1e-5)
    body = {f"body.{n}": t.contiguous() for n, t in parameters_of(model.body).items()}
    assert_close(body, {n: t for n, t in start.items() if n.startswith("body")})


def test_one_step_by_hand() -> None:
    """The generic part descends the balanced loss, the personal head that of the summed logits."""
    client = make_client(LABELS, state=dict(HEAD), task=ONE_STEP)
    start = ONE_STEP.initial_tensors()
    sent = FedRoD().train(client, start).tensors
    other = make_client(LABELS, task=ONE_STEP)
    features = other.model.body(to_input(other.samples.inputs)).detach()
    labels = other.samples.labels
    shares = np.array([2.0, 3.0, 2.0])

    def head_gradient(logits: torch.Tensor, present: int) -> torch.Tensor:
        posterior = logits[:, :present].softmax(1)
        posterior[torch.arange(len(labels)), labels] -= 1
        return posterior.T @ features / len(labels)

    generic = features @ start["head.weight"].T + start["head.bias"]
    balanced = generic[:, :3] + torch.tensor(np.log(shares), dtype=torch.float32)
    g = torch.cat([head_gradient(balanced, 3), torch.zeros(1, 128)])
    expected = start["head.weight"] - LR * (g + DECAY * start["head.weight"])
    torch.testing.assert_close(sent["head.weight"], expected, rtol=1e-4, atol=1e-6)

    summed = generic + features @ HEAD["personal.weight"].T + HEAD["personal.bias"]
    g = head_gradient(summed, 4)
    expected = HEAD["personal.weight"] - LR * (g + DECAY * HEAD["personal.weight"])
    torch.testing.assert_close(client.state["personal.weight"], expected, rtol=1e-4, atol=1e-6)
