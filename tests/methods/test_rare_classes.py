"""``min_class_count``: what is sent about classes does not depend on samples of rare ones.

On features of a frozen body nothing but statistics of samples can carry them to the server, besides
a head that is trained. So whatever is no head must stay as it is when such samples are others.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pfedfda
from pfedfda.cli import main
from pfedfda.data import FederationConfig
from pfedfda.errors import InputError
from pfedfda.methods import Client, Method, Samples, Task, Tensors, Update, all_methods
from pfedfda.methods.base import TrainingConfig
from pfedfda.methods.fed3r import Fed3R
from pfedfda.methods.pfedfda import PFedFDA
from pfedfda.methods.rare_classes import rare_classes
from pfedfda.models import ModelConfig
from tests.methods.toy import TASK as CNN_TASK
from tests.methods.toy import make_client as make_cnn_client
from tests.methods.toy import same, snapshot

CLASSES, DIMENSION, LEAST = 5, 6, 5
TASK = Task(
    ModelConfig("linear"),
    (DIMENSION,),
    CLASSES,
    num_clients=3,
    training=TrainingConfig(epochs=3, batch_size=8, lr=0.05),
    input_type="float32",
    rounds=3,
    min_class_count=LEAST,
)
ALL = replace(TASK, min_class_count=1)
# At client 0, classes 2 and 3 are rare, and class 4 is absent.
LABELS = {
    0: [0] * 12 + [1] * 11 + [2] * 4 + [3],
    1: [1] * 13 + [2] * 14 + [3] * 10 + [0] * 2,
    2: [4] * 12 + [0] * 10 + [2],
}
METHODS: dict[str, Method] = {
    **{name: method() for name, method in all_methods().items()},
    "all epochs": PFedFDA(features="all", drop_last=True),
    "accumulated": PFedFDA(statistics="accumulated"),
    "two betas": PFedFDA(statistics="interpolated", betas="multiple"),
    "fixed ridge": Fed3R(ridge=0.7),
}
EVERY_METHOD = pytest.mark.parametrize("name", METHODS)
SEND_STATISTICS = {
    "pfedfda", "pfedfda-paper", "pfedfda-pooled", "pfedfda-released", "pfedfda-levels",
    "all epochs", "accumulated", "two betas", "fixed ridge",
    "fedncm", "fedcgs", "fed3r", "fedcof", "fedproto", "fedpac",
}  # fmt: skip
# Single numbers, or a vector, of all samples together: no statistics of classes.
OF_ALL_SAMPLES = {"fedas": "fisher", "feddbe": "consensus"}
STATISTICS = pytest.mark.parametrize("name", sorted(SEND_STATISTICS))


def samples_of(client_id: int, labels: list[int], rare: int = 0) -> Samples:
    """Return samples near the means of their classes; `rare` draws the rare classes' anew."""
    generator = torch.Generator().manual_seed(client_id)
    means = 4 * torch.eye(CLASSES, DIMENSION)
    inputs = means[labels] + 0.5 * torch.randn(len(labels), DIMENSION, generator=generator)
    held = torch.tensor(labels)
    others = torch.randn(len(labels), DIMENSION, generator=generator.manual_seed(100 + rare))
    drawn = rare_classes(held, TASK)[held] & bool(rare)
    return Samples(torch.where(drawn[:, None], 20 * others, inputs), held)


def make_client(
    client_id: int = 0, task: Task = TASK, round_number: int = 1, rare: int = 0
) -> Client:
    return Client(
        client_id=client_id,
        round=round_number,
        task=task,
        samples=samples_of(client_id, LABELS[client_id], rare),
        state={},
        model=task.build_model(),
        generator=torch.Generator().manual_seed(client_id + 10 * round_number),
    )


def without_rare(client: Client) -> Client:
    """Return the client as it would be without the samples of its rare classes."""
    kept = ~rare_classes(client.samples.labels, TASK)[client.samples.labels]
    return replace(client, samples=Samples(*(t[kept] for t in client.samples)), task=ALL)


def train(method: Method, client: Client, state: Tensors) -> Update:
    update = method.train(client, method.message(state, client.client_id))
    return replace(update, client_id=client.client_id)


def about_classes(update: Update) -> Tensors:
    """Return what an update says besides trained weights."""
    return {n: t for n, t in update.tensors.items() if n.split(".")[0] not in ("body", "head")}


def a_round(method: Method, clients: list[Client], state: Tensors) -> Tensors:
    updates = [train(method, client, state) for client in clients]
    for update in updates:
        assert method.fault(update) is None
    return method.aggregate(state, updates)


def updates_in_three_rounds(method: Method, task: Task, rare: int) -> list[Tensors]:
    """Return what client 0 sends besides weights, with the samples of its rare classes drawn anew.

    From the second round on the server knows all clients' statistics, of their ordinary samples;
    the third is the last, in which pFedFDA may train nothing and validates.
    """
    state = method.init(task)
    sent = []
    for number in (1, 2, 3):
        client = make_client(0, task, number, rare)
        sent.append(about_classes(train(method, client, state)))
        others = [make_client(i, task, number) for i in LABELS]
        state = a_round(method, others, state)
    return sent


@EVERY_METHOD
def test_what_is_sent_does_not_depend_on_samples_of_rare_classes(name: str) -> None:
    pairs = [updates_in_three_rounds(METHODS[name], TASK, rare) for rare in (1, 2)]
    for first, second in zip(*pairs, strict=True):
        for tensors in (first, second):
            tensors.pop(OF_ALL_SAMPLES.get(name, ""), None)
        assert same(first, second)


@EVERY_METHOD
def test_by_default_it_does(name: str) -> None:
    """The test above can fail; and these are all the methods that send statistics of classes."""
    pairs = [updates_in_three_rounds(METHODS[name], ALL, rare) for rare in (1, 2)]
    differs = not all(same(*both) for both in zip(*pairs, strict=True))
    assert differs == (name in SEND_STATISTICS or name in OF_ALL_SAMPLES)


@EVERY_METHOD
def test_without_rare_classes_nothing_changes(name: str) -> None:
    """To the bit, with a body that is trained."""
    labels = [0] * 6 + [1] * 7 + [3] * 12
    sent = []
    for least in (1, 3):  # Fed3R has two folds
        task = replace(CNN_TASK, min_class_count=least)
        client = make_cnn_client(labels, task=task)
        sent.append(snapshot(train(METHODS[name], client, METHODS[name].init(task)).tensors))
    assert same(*sent)


def shared_statistics(state: Tensors) -> Tensors:
    """Return what of a server's state is about classes."""
    names = ("means", "covariance", "prototypes", "known", "seen", "weight", "bias")
    return {name: tensor.double() for name, tensor in state.items() if name in names}


@pytest.mark.parametrize(
    "method",
    [
        PFedFDA(keep=0.0),
        PFedFDA(statistics="accumulated"),
        *(METHODS[n] for n in ("fedncm", "fedcgs", "fixed ridge", "fedcof", "fedproto", "fedpac")),
    ],
    ids=lambda method: f"{method.name}-{getattr(method, 'statistics', '')}",
)
def test_the_server_forms_what_it_would_without_these_samples(method: Method) -> None:
    """Its statistics are those of clients that do not have them at all."""
    clients = [make_client(i) for i in LABELS]
    with_rare = a_round(method, clients, method.init(TASK))
    without = a_round(method, [without_rare(make_client(i)) for i in LABELS], method.init(ALL))
    assert shared_statistics(with_rare)
    for name, tensor in shared_statistics(without).items():
        torch.testing.assert_close(with_rare[name].double(), tensor, rtol=1e-5, atol=1e-5)


@STATISTICS
def test_where_all_classes_are_rare_nothing_is_learned_about_them(name: str) -> None:
    """And nothing breaks: the next round has the statistics of the start."""
    method, task = METHODS[name], replace(TASK, min_class_count=1000)
    state = method.init(task)
    after = a_round(method, [make_client(i, task) for i in LABELS], state)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())
    before = shared_statistics(state)
    assert before
    for key, tensor in before.items():
        torch.testing.assert_close(after[key].double(), tensor)


def accuracy(method: Method, client: Client, state: Tensors, label: int) -> float:
    """Return the share of a client's samples of a class that its own model names."""
    personal = method.personalize(client, method.message(state, client.client_id))
    samples = client.samples
    with torch.no_grad():
        named = personal.model(samples.inputs[samples.labels == label]).argmax(1)
    return float((named == label).double().mean())


def played(method: Method, among: list[int]) -> tuple[Client, Tensors]:
    """Return client 0 with what it keeps, and the server's state after three rounds."""
    state, kept = method.init(TASK), {}
    client = make_client()
    for number in (1, 2, 3):
        clients = [replace(make_client(i, TASK, number), state=kept.get(i, {})) for i in among]
        state = a_round(method, clients, state)
        kept = {client.client_id: client.state for client in clients}
    return replace(client, state=kept[0], model=TASK.build_model()), state


@STATISTICS
def test_a_client_knows_a_class_that_is_rare_with_it_alone(name: str) -> None:
    client, state = played(METHODS[name], [0, 1, 2])
    for label in (2, 3):
        assert accuracy(METHODS[name], client, state, label) == 1.0


@pytest.mark.parametrize("name", ["pfedfda", "pfedfda-levels", "pfedfda-paper", "fedproto"])
def test_a_client_knows_a_class_that_is_rare_everywhere(name: str) -> None:
    """From its own samples; a head in closed form has what the clients sent, and cannot."""
    client, state = played(METHODS[name], [0])
    assert accuracy(METHODS[name], client, state, 2) == 1.0


def test_training_free_heads_do_not_know_a_class_that_is_rare_everywhere() -> None:
    """What docs/privacy.md says of them."""
    for name in ("fedncm", "fedcgs", "fed3r", "fedcof"):
        client, state = played(METHODS[name], [0])
        assert accuracy(METHODS[name], client, state, 2) == 0.0
        assert accuracy(METHODS[name], client, state, 0) == 1.0


def test_a_fold_has_enough_samples_of_every_class_that_it_tells_of() -> None:
    """The sums of a fold are of fewer samples than those of the client."""
    method = Fed3R(folds=3)
    update = train(method, make_client(), method.init(TASK))
    counts = update.tensors["counts"]
    assert counts.shape == (3, CLASSES)
    assert bool(((counts == 0) | (counts >= LEAST)).all())
    assert bool((counts == 0).any(0)[:2].any())  # twelve samples in three folds are four each


def test_batches_that_are_left_out_do_not_make_a_class_rare_unseen() -> None:
    """Samples that training left out do not count: five of which one was seen are one."""
    method = PFedFDA(drop_last=True)
    task = replace(TASK, training=replace(TASK.training, batch_size=20))
    client = replace(make_client(0, task), samples=samples_of(0, [0] * 20 + [1] * 5))
    update = train(method, client, method.init(task))
    means = update.tensors["means"]
    own = client.samples.inputs[client.samples.labels == 1]
    assert update.tensors["counts"][1] == 0
    assert torch.equal(means[1], method.init(task)["means"][1])
    assert float((own - means[1]).norm(dim=1).min()) > 0.1


@pytest.mark.parametrize(("labels", "least", "rare"), [
    ([0, 0, 1], 1, []),
    ([0, 0, 1], 2, [1]),
    ([0, 0, 1], 3, [0, 1]),
    ([], 5, []),
])  # fmt: skip
def test_rare_classes(labels: list[int], least: int, rare: list[int]) -> None:
    held: Tensor = torch.tensor(labels, dtype=torch.int64)
    found = rare_classes(held, replace(TASK, min_class_count=least))
    assert found.nonzero().flatten().tolist() == rare


@pytest.mark.parametrize("value", ["0", "-5", "2.5", "many"])
def test_bad_values_are_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--min-class-count", value]) == 2
    error = capsys.readouterr().err
    assert "min-class-count" in error
    assert error.count("\n") == 1


def test_a_count_that_nobody_reaches_is_refused(tmp_path: Path) -> None:
    federation = FederationConfig(partition="client-dirichlet", clients=3, samples=8)
    with pytest.raises(InputError, match=r"min-class-count is 9, and no client has more than \d "):
        pfedfda.run("fedncm", federation, min_class_count=9, output=tmp_path, quiet=True)


def test_a_run_with_rare_classes_completes_and_says_so_in_its_settings(tmp_path: Path) -> None:
    federation = FederationConfig(partition="client-dirichlet", clients=4, samples=20)
    result = pfedfda.run(
        "pfedfda", federation, min_class_count=4, rounds=2, workers=0, output=tmp_path, quiet=True
    )
    assert result.summary["status"] == "complete"
    assert result.summary["failures"] == 0
    assert "min_class_count = 4" in (result.folder / "config.toml").read_text()
