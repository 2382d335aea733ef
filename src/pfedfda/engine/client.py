"""What happens at one client, in whatever process it runs."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pfedfda.data import ClientData
from pfedfda.engine.base import Step, StepKind, num_bytes
from pfedfda.errors import DivergedRunError, PfedfdaError
from pfedfda.methods import Client, Method, Samples, Task, Tensors, to_input
from pfedfda.runs import Mistake, Outcome, PredictionCounts
from pfedfda.seeding import torch_generator

EVALUATION_BATCH = 500
MOST_MISTAKES = 3  # that a client names, so that no client fills the sheet of all


def client_step(
    kind: StepKind, method: Method, client: Client, message: Tensors, test: Samples | None = None
) -> Outcome:
    """Train a client, or personalise and test it.

    Parameters
    ----------
    kind
        Which of the two.
    method
        The method.
    client
        The client. After training, ``client.state`` is what it keeps.
    message
        What the server sent it.
    test
        Its test samples.
    """
    if kind == "train":
        update = replace(method.train(client, message), client_id=client.client_id)
        refuse_unsavable("update", update.tensors)
        refuse_unsavable("own state", client.state)
        for name, tensor in client.state.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise FloatingPointError(f"its own tensor {name} is not finite")
        return Outcome(
            client.client_id,
            update=update,
            metrics=update.metrics,
            seconds=client.seconds,
            bytes_down=num_bytes(message),
            bytes_up=num_bytes(update.tensors),
        )
    personal = method.personalize(client, message)
    outcome = Outcome(
        client.client_id, metrics=personal.metrics, seconds=client.seconds, personal=personal
    )
    if test is None:
        return outcome
    found = score(personal.model, test)
    return replace(
        outcome,
        correct=found.correct,
        tested=len(test.labels),
        loss=found.loss,
        predictions=found.predictions,
        mistakes=found.mistakes,
    )


class ClientRunner:
    """Plays one client after the other, with one scratch model.

    Parameters
    ----------
    task
        Settings shared by the server and all clients.
    device
        Where the networks run.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task = task
        self.device = device
        self.model = task.build_model().to(device)
        self._initial = {name: t.clone() for name, t in self.model.state_dict().items()}

    def run(
        self, step: Step, client_id: int, data: ClientData, receive: Callable[[], Tensors]
    ) -> Outcome:
        """Do a client's part in a step.

        Whatever goes wrong at a client is its outcome; only what is wrong with the run is raised.

        Parameters
        ----------
        step
            What to do.
        client_id
            Who does it.
        data
            Its samples.
        receive
            Returns the message of the server.
        """
        try:
            message = receive()
            client, test = self._load(step, client_id, data)
            with seeded(client.generator, self.device):
                outcome = client_step(step.kind, step.method, client, message, test)
            if step.kind == "train" and client.state:
                step.states.save(client_id, step.round, client.state)
            return outcome
        except DivergedRunError:
            failure = "its training loss is not finite"
            return Outcome(client_id, failure=failure, trace=traceback.format_exc())
        except PfedfdaError:
            raise
        except Exception as error:
            failure = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return Outcome(client_id, failure=failure, trace=traceback.format_exc())

    def client(
        self,
        client_id: int,
        round_number: int,
        samples: Samples,
        state: Tensors,
        generator: torch.Generator,
    ) -> Client:
        """Return a client at work with the scratch model."""
        self._reset_model()
        return Client(
            client_id=client_id,
            round=round_number,
            task=self.task,
            samples=samples,
            state=state,
            model=self.model,
            generator=generator,
        )

    def samples(self, inputs: NDArray[Any], labels: NDArray[np.int64]) -> Samples:
        """Return samples on the device."""
        # The copy takes the slice out of the mapped file, which is read-only.
        return Samples(
            torch.from_numpy(np.array(inputs)).to(self.device),
            torch.from_numpy(np.array(labels)).to(self.device),
        )

    def _reset_model(self) -> None:
        """Give the scratch model its initial weights again, whatever the last client left in it.

        Which client was the last one depends on the number of workers. A method that forgets to
        load something must not, so that its results do not either. It takes less than a thousandth
        of the time of training.
        """
        self.model.load_state_dict(self._initial)
        self.model.zero_grad()
        self.model.train().requires_grad_(True)

    def _load(self, step: Step, client_id: int, data: ClientData) -> tuple[Client, Samples | None]:
        """Return a client with its training samples and its state, and its test samples."""
        if step.view is not None:
            data = step.view.of(client_id, data)
        # The kind is part of the generator's name: evaluating draws nothing that training sees.
        client = self.client(
            client_id,
            step.round,
            self.samples(data.train_inputs, data.train_labels),
            step.states.load(client_id, before=step.round + (step.kind == "evaluate")),
            torch_generator(step.kind, self.task.seed, step.round, client_id),
        )
        if step.kind == "train":
            return client, None
        return client, self.samples(data.test_inputs, data.test_labels)


@contextmanager
def seeded(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Seed what layers draw from by themselves, such as dropout, and restore it afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type="cuda"):
        torch.manual_seed(generator.initial_seed())
        yield


def refuse_unsavable(what: str, tensors: Mapping[str, object]) -> None:
    """Raise if tensors cannot be written to a file, which is how they reach another process."""
    storages = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            fault = f"is a {type(tensor).__name__} and not a tensor"
        elif tensor.device.type != "cpu":
            fault = f"is on {tensor.device} and not on the CPU"
        elif not tensor.is_contiguous():
            fault = "is not contiguous in memory"
        elif tensor.numel() and tensor.untyped_storage().data_ptr() in storages:
            fault = "shares its memory with another"
        else:
            storages.add(tensor.untyped_storage().data_ptr())
            continue
        raise TypeError(
            f"the tensor {name} of its {what} {fault}; model_tensors(client.model) returns copies "
            f"that can be sent"
        )


class Score(NamedTuple):
    """What a model makes of labelled samples."""

    correct: int
    """The number of correctly classified samples."""
    loss: float
    """The sum of the cross-entropy."""
    predictions: PredictionCounts
    """What the predictions add up to."""
    mistakes: tuple[Mistake, ...]
    """The most confident mistakes, at most `MOST_MISTAKES`."""


def score(model: nn.Module, samples: Samples) -> Score:
    """Test a model."""
    model.eval()
    hits, losses, labels_of, predicted_of, confidences_of, errors = [], [], [], [], [], []
    with torch.inference_mode():
        for inputs, labels in zip(
            torch.split(samples.inputs, EVALUATION_BATCH),
            torch.split(samples.labels, EVALUATION_BATCH),
            strict=True,
        ):
            logits = model(to_input(inputs))
            predicted = logits.argmax(dim=1)
            hits.append((predicted == labels).sum())
            losses.append(F.cross_entropy(logits, labels, reduction="sum"))
            probabilities = logits.float().softmax(dim=1)
            labels_of.append(labels)
            predicted_of.append(predicted)
            confidences_of.append(probabilities.gather(1, predicted[:, None])[:, 0])
            # The sum of (probability - truth)² over the classes, multiplied out.
            truth = probabilities.gather(1, labels[:, None])[:, 0]
            errors.append((probabilities.square().sum(dim=1) - 2 * truth + 1).sum())
    # An accelerator is asked once, at the end.
    true, predictions, confidences = (
        torch.cat(parts).cpu().numpy() for parts in (labels_of, predicted_of, confidences_of)
    )
    wrong = np.flatnonzero(true != predictions)
    worst = wrong[np.argsort(-confidences[wrong], kind="stable")][:MOST_MISTAKES]
    return Score(
        sum(torch.stack(hits).tolist()),
        sum(torch.stack(losses).tolist()),
        PredictionCounts.of(
            true,
            predictions,
            confidences.astype(np.float64),
            sum(torch.stack(errors).tolist()),
        ),
        tuple(
            Mistake(int(n), int(true[n]), int(predictions[n]), float(confidences[n])) for n in worst
        ),
    )
