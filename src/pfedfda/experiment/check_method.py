"""Checking that a method keeps the contract: for ``pfedfda check-method``, and for the tests.

Most checks compare what two plays of a tiny federation send, keep and compute: one as usual, and
one in which something is different that must not matter.
"""

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pfedfda.data import FederationConfig
from pfedfda.errors import DivergedRunError
from pfedfda.experiment.api import run
from pfedfda.experiment.toy import (
    LABELS,
    NEWCOMER,
    TASK,
    Play,
    difference,
    logits,
    make_client,
    snapshot,
)
from pfedfda.machine import one_thread
from pfedfda.methods import Method, Personal, Tensors
from pfedfda.methods.base import add, cached_initial_tensors

TINY = FederationConfig(partition="client-dirichlet", clients=6, samples=8, alpha=0.5)
CheckFunction = Callable[[Method], None]
CHECKS: list[CheckFunction] = []


class ContractError(Exception):
    """What a method did that the contract rules out; the text is a sentence without its stop."""


@dataclass(frozen=True)
class Finding:
    """What came of a check.

    Parameters
    ----------
    title
        What the contract asks for.
    remedy
        How to mend a method that does not do it.
    violation
        What was found, None if all is well.
    """

    title: str
    remedy: str
    violation: str | None

    def __str__(self) -> str:
        if self.violation is None:
            return f"ok      {self.title}"
        return f"failed  {self.title} But: {self.violation}. {self.remedy}"


def check_method(method: Method) -> Iterator[Finding]:
    """Check one clause of the contract after the other.

    Parameters
    ----------
    method
        The method, with its hyper-parameters.
    """
    return (find(check, method) for check in CHECKS)


def find(check: CheckFunction, method: Method) -> Finding:
    """Return what a check finds; its docstring says what it asks for, and how to mend a method."""
    title, _, remedy = (check.__doc__ or "").partition("\n")
    violation = None
    try:
        with one_thread():
            check(method)
    except ContractError as error:
        violation = str(error)
    except Exception as error:  # there is no saying what a user's method raises
        violation = _of_exception(error)
    finally:
        cached_initial_tensors.cache_clear()  # the method may have changed them
    return Finding(title, " ".join(remedy.split()), violation)


def _of_exception(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__} was raised ({text})"


def _check(function: CheckFunction) -> CheckFunction:
    """Add a function to the checks."""
    CHECKS.append(function)
    return function


def _compare(first: Play, second: Play, otherwise: str) -> None:
    """Raise if two plays differ."""
    for what in first.left:
        if (name := difference(first.left[what], second.left[what])) is not None:
            raise ContractError(f"{otherwise} {what} differs in {name!r}")


@_check
def describes_itself(method: Method) -> None:
    """Describe the method.

    Make it a frozen dataclass with a docstring and the class attributes name, title, paper and
    year.
    """
    for attribute in ("name", "title", "paper", "year"):
        if not hasattr(method, attribute) or getattr(method, attribute) == "":
            raise ContractError(f"it has no {attribute}")
    if not (vars(type(method)).get("__doc__") or "").strip():
        raise ContractError("its class has no docstring")
    if "__init__" not in vars(type(method)):  # without the decorator it has its base's
        raise ContractError("its class is no dataclass")


@_check
def tensors_can_be_sent(method: Method) -> None:
    """Send and keep flat dictionaries of finite CPU tensors.

    model_tensors(model) returns such copies of a model's weights, part(tensors, 'body') some of
    them.
    """
    state = method.init(TASK)
    client = make_client(LABELS[0])
    message = method.message(state, 0)
    update = method.train(client, message)
    after = method.aggregate(state, iter([replace(update, client_id=0)]))
    for what, tensors in {
        "the initial state": state,
        "a message": message,
        "an update": update.tensors,
        "client.state": client.state,
        "the state after a round": after,
    }.items():
        _refuse_odd_tensors(what, tensors)


def _refuse_odd_tensors(what: str, tensors: object) -> None:
    if not isinstance(tensors, dict):
        raise ContractError(f"{what} is a {type(tensors).__name__} and not a dictionary")
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise ContractError(f"{what} has a name that is not text, {name!r}")
        if not isinstance(tensor, Tensor):
            raise ContractError(f"{name!r} of {what} is a {type(tensor).__name__} and not a tensor")
        for wrong, fault in (
            (tensor.device.type != "cpu", f"is on {tensor.device}"),
            (tensor.requires_grad, "requires a gradient"),
            (not tensor.is_contiguous(), "is not contiguous in memory"),
            (not bool(torch.isfinite(tensor).all()), "is not finite"),
        ):
            if wrong:
                raise ContractError(f"{name!r} of {what} {fault}")


@_check
def names_are_stable(method: Method) -> None:
    """Keep names, shapes and types of tensors from round to round.

    aggregate returns all tensors that init returns, and every client sends the same ones.
    """
    play = Play(method)
    for kind in ("the state", "the message", "the update"):
        kinds = {
            what: {name: (t.shape, t.dtype) for name, t in tensors.items()}
            for what, tensors in play.left.items()
            if what.startswith((kind, kind.replace("the ", "the initial ")))
        }
        first, *others = kinds
        for other in others:
            for name in sorted(kinds[first].keys() | kinds[other].keys()):
                if kinds[first].get(name) != kinds[other].get(name):
                    raise ContractError(f"{name!r} is not the same in {first} and in {other}")


@_check
def updates_add_up(method: Method) -> None:
    """Aggregate by a sum, or say that this is not possible.

    Override contribution and finish; a method that must see single updates overrides aggregate
    and has the class attribute additive = False.
    """
    if not method.additive:
        return
    state = method.init(TASK)
    updates = [
        replace(method.train(make_client(LABELS[i], i), method.message(state, i)), client_id=i)
        for i in range(2)
    ]
    total: Tensors = {}
    for update in updates:
        add(total, method.contribution(update))
    one, other = method.finish(state, total), method.aggregate(state, iter(updates))
    if (name := difference(one, other)) is not None:
        raise ContractError(f"aggregate and the sum of contributions differ in {name!r}")


@_check
def arguments_stay(method: Method) -> None:
    """Change nothing that message, train and aggregate are given.

    Work on copies: tensor.clone(), or an operation whose name does not end in an underscore.
    """
    state = method.init(TASK)
    initial = snapshot(state)
    message = method.message(state, 0)
    _refuse_change("message changes the state", initial, state)
    client, received = make_client(LABELS[0]), snapshot(message)
    update = replace(method.train(client, message), client_id=0)
    _refuse_change("train changes the message", received, message)
    _refuse_change("train changes the state of the server", initial, state)
    sent = snapshot(update.tensors)
    method.aggregate(state, iter([update]))
    _refuse_change("aggregate changes the old state", initial, state)
    _refuse_change("aggregate changes an update", sent, update.tensors)


def _refuse_change(what: str, before: Tensors, after: Tensors) -> None:
    if (name := difference(before, after)) is not None:
        raise ContractError(f"{what} ({name!r})")


@_check
def personalizing_changes_nothing(method: Method) -> None:
    """Change neither the message nor client.state in personalize.

    Load copies into client.model and train that; only train may assign to client.state.
    """
    state = method.init(TASK)
    client = make_client(LABELS[0])
    update = replace(method.train(client, method.message(state, 0)), client_id=0)
    state = method.aggregate(state, iter([update]))
    message = method.message(state, 0)
    before, received, kept = snapshot(state), snapshot(message), snapshot(client.state)
    served = make_client(LABELS[0], state=client.state, purpose="evaluate")
    method.personalize(served, message)
    _refuse_change("the message is changed", received, message)
    _refuse_change("the state of the server is changed", before, state)
    _refuse_change("client.state is changed", kept, served.state)
    _refuse_change("client.state is changed", kept, client.state)


@_check
def everybody_has_a_model(method: Method) -> None:
    """Return a Personal from personalize, for new clients too, with finite outputs.

    return Personal(client.model); a client that has never trained has an empty client.state.
    """
    state = method.init(TASK)
    for client_id in (0, NEWCOMER):
        client = make_client(LABELS[0], client_id, purpose="evaluate")
        personal = method.personalize(client, method.message(state, client_id))
        whose = "a new client" if client_id == NEWCOMER else "a client that has never trained"
        if not isinstance(personal, Personal):
            raise ContractError(f"it returns a {type(personal).__name__} for {whose}")
        if not bool(torch.isfinite(logits(personal.model)).all()):
            raise ContractError(f"the model of {whose} has outputs that are not finite")


@_check
def small_clients_train(method: Method) -> None:
    """Give finite numbers for clients with one class, one sample or few samples.

    Look for divisions by the number of samples of a class, and for logarithms of 0.
    """
    state = method.init(TASK)
    for labels in ([1, 1, 1], [2], [0, 1, 2, 3, 0, 1]):
        client = make_client(labels)
        update = replace(method.train(client, method.message(state, 0)), client_id=0)
        after = method.aggregate(state, iter([update]))
        served = make_client(labels, state=client.state, purpose="evaluate")
        personal = method.personalize(served, method.message(after, 0))
        for what, tensors in {
            "the update": update.tensors,
            "client.state": client.state,
            "the state of the server": after,
            "the personal model": {"logits": logits(personal.model)},
        }.items():
            for name, tensor in tensors.items():
                if not bool(torch.isfinite(tensor).all()):
                    raise ContractError(f"{name!r} of {what} is not finite for the labels {labels}")


@_check
def scratch_model_is_loaded(method: Method) -> None:
    """Depend on no weights that client.model happens to hold.

    Load all that you use: load(client.model, message | client.state), and for a part that a
    client does not have yet client.task.initial_tensors(). What you return are copies, as of
    model_tensors(client.model).
    """
    ordinary = Play(method)
    try:
        poisoned = Play(method, poisoned=True)
    except DivergedRunError as error:
        raise ContractError("with NaN in it the training loss is not finite") from error
    except Exception as error:
        raise ContractError(f"with NaN in it {_of_exception(error)}") from error
    _compare(ordinary, poisoned, "with NaN in it")


@_check
def seed_decides(method: Method) -> None:
    """Give the same bits for the same seed.

    Use client.generator for every random decision, and torch_generator(name, task.seed) of
    pfedfda.seeding at the server.
    """
    with _global_randomness(1):
        first = Play(method)
    with _global_randomness(2):
        second = Play(method)
    _compare(first, second, "when repeated")


@contextmanager
def _global_randomness(seed: int) -> Iterator[None]:
    """Seed the generators that a method must not use, and put them back afterwards."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002


@_check
def tensors_survive_files(method: Method) -> None:
    """Lose nothing when tensors are written to files and read again.

    Keep all that a later round needs in the state of the server or in client.state.
    """
    _compare(Play(method), Play(method, saved=True), "after that")


@_check
def evaluation_changes_nothing(method: Method) -> None:
    """Leave training as it is when clients are evaluated.

    Nothing that train reads may be written by personalize: no attributes, no global variables.
    """
    with tempfile.TemporaryDirectory() as folder:
        often, never = (_run(method, Path(folder), eval_every=every) for every in (1, 0))
    del often["metrics.jsonl"], never["metrics.jsonl"]
    _compare_files(often, never, "with an evaluation after every round")


@_check
def workers_do_not_matter(method: Method) -> None:
    """Give the same bits for any number of workers.

    Keep nothing in attributes or global variables: other clients of the round may be in other
    processes.
    """
    with tempfile.TemporaryDirectory() as folder:
        alone, two = (_run(method, Path(folder), workers=workers) for workers in (0, 2))
    _compare_files(alone, two, "with two workers")


def _run(method: Method, folder: Path, workers: int = 0, eval_every: int = 2) -> dict[str, bytes]:
    """Run a method on a tiny federation; return the files that hold results."""
    small = {"rounds": 3, "participation": 0.5, "batch_size": 4, "max_failures": 0.0}
    options = small | {"workers": workers, "eval_every": eval_every}
    result = run(method, TINY, **options, output=folder, quiet=True)
    files = {
        str(path.relative_to(result.folder)): path.read_bytes()
        for path in sorted(result.folder.rglob("*"))
        if path.suffix == ".safetensors" or path.name == "clients.csv"
    }
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in result.metrics]
    return files | {"metrics.jsonl": json.dumps(lines).encode()}


def _compare_files(first: dict[str, bytes], second: dict[str, bytes], otherwise: str) -> None:
    for name in [*first, *second]:
        if first.get(name) != second.get(name):
            raise ContractError(f"{otherwise} the run has another {name}")
