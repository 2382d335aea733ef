import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from pfedfda.errors import InputError
from pfedfda.methods import TrainingConfig, batches, cross_entropy, sgd, to_input
from pfedfda.methods.training import MomentumSGD
from tests.methods.toy import TASK, make_client, parameters_of, same


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
def test_optimizer_is_that_of_torch_to_the_bit(momentum: float, weight_decay: float) -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(20, 30)) for _ in range(3)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    first = MomentumSGD(ours, lr=0.01, momentum=momentum, weight_decay=weight_decay)
    second = torch.optim.SGD(
        theirs, lr=0.01, momentum=momentum, weight_decay=weight_decay, foreach=False
    )
    for _ in range(10):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(20, 30)
            other.grad = one.grad.clone()
        first.step()
        second.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_shortening_is_that_of_torch_to_the_bit(max_norm: float) -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(n, 30)) for n in (1, 7, 20)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    for one, other in zip(ours, theirs, strict=True):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    MomentumSGD(ours, lr=0.01, momentum=0.5, weight_decay=5e-4, max_norm=max_norm).step()
    torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.optim.SGD(theirs, lr=0.01, momentum=0.5, weight_decay=5e-4, foreach=False).step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("trained", "frozen"), [("body", "head"), ("head", "body")])
def test_what_is_not_trained_does_not_move_by_one_bit(trained: str, frozen: str) -> None:
    client = make_client([0, 1, 2, 3, 0, 1, 2])
    before = {part: parameters_of(getattr(client.model, part)) for part in (trained, frozen)}
    sgd(client, getattr(client.model, trained).parameters(), cross_entropy(client.model), epochs=3)
    assert same(parameters_of(getattr(client.model, frozen)), before[frozen])
    assert not same(parameters_of(getattr(client.model, trained)), before[trained])
    assert all(p.grad is None for p in client.model.parameters())


def test_an_epoch_sees_every_sample_once() -> None:
    client = make_client(list(range(4)) * 3)
    rows = torch.cat([batch.rows for batch in batches(client)])
    assert sorted(rows.tolist()) == list(range(12))
    sizes = [len(batch.labels) for batch in batches(client)]
    assert sizes == [5, 5, 2]  # the incomplete batch is used too
    orders = [torch.cat([b.rows for b in batches(client)]).tolist() for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    for batch in batches(client):
        assert torch.equal(batch.labels, client.samples.labels[batch.rows])
        assert torch.equal(batch.inputs, to_input(client.samples.inputs)[batch.rows])


def test_input_is_scaled_and_channels_last() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 2, 1).expand(2, 4, 2, 3)
    x = to_input(images.contiguous())
    assert x.shape == (2, 3, 4, 2)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert (x.min().item(), x.max().item()) == (-1, 1)


def test_mean_loss_is_the_mean() -> None:
    """With a learning rate of almost zero the mean loss is that of the fixed model."""
    client = make_client([0, 1, 2, 3, 0, 1, 2])
    mean = sgd(client, client.model.parameters(), cross_entropy(client.model), lr=1e-12)
    logits = client.model(to_input(client.samples.inputs))
    expected = torch.nn.functional.cross_entropy(logits, client.samples.labels).item()
    assert mean == pytest.approx(expected, rel=1e-4)
    assert client.seconds["network"] > 0


def test_long_gradients_are_shortened() -> None:
    """One step without momentum and decay moves by lr times the limit, and no further."""
    task = replace(
        TASK, training=TrainingConfig(epochs=1, batch_size=9, lr=0.5, momentum=0, weight_decay=0)
    )

    def moved(max_norm: float) -> float:
        client = make_client([0, 1, 2, 3], task=task)
        before = parameters_of(client.model)
        sgd(client, client.model.parameters(), cross_entropy(client.model), max_norm=max_norm)
        after = parameters_of(client.model)
        return math.sqrt(sum(float((after[n] - before[n]).square().sum()) for n in after))

    assert moved(0.01) == pytest.approx(0.005, rel=1e-3)
    assert moved(1e6) == pytest.approx(moved(0.0))


def test_low_precision_trains_nearly_the_same() -> None:
    """In a process of its own: some virtual machines announce matrix units that do not work."""
    program = """if True:
        import torch
        from dataclasses import replace
        from pfedfda.methods import TrainingConfig, cross_entropy, sgd
        from tests.methods.toy import TASK, make_client, parameters_of
        after = {}
        for precision in ("float32", "bfloat16"):
            training = replace(TASK.training, precision=precision, epochs=3)
            client = make_client([0, 1, 2, 3, 0, 1, 2], task=replace(TASK, training=training))
            kinds = set()
            for layer in (client.model.body.conv1, client.model.body, client.model):
                layer.register_forward_hook(lambda _, __, out: kinds.add(out.dtype))
            before = parameters_of(client.model)
            sgd(client, client.model.parameters(), cross_entropy(client.model))
            assert kinds == {torch.float32, getattr(torch, precision)}
            after[precision] = parameters_of(client.model)
        def flat(tensors):
            assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
            return torch.cat([tensor.flatten() for tensor in tensors.values()])
        moved, rough = (flat(after[p]) - flat(before) for p in ("float32", "bfloat16"))
        assert 0 < (moved - rough).norm() < 0.1 * moved.norm()
    """
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200, env=environment)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("lr", 0.0),
        ("lr", math.nan),
        ("momentum", 1.0),
        ("weight_decay", -1.0),
        ("precision", "float16"),
    ],
)
def test_bad_settings(field: str, value: float | str) -> None:
    with pytest.raises(InputError, match="must|choose"):
        TrainingConfig(**{field: value})  # type: ignore[arg-type]
