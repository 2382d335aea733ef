"""Serve the clients of a finished run in the ways of other methods.

The model that a run ends with is personalised as each method does it for a client that has kept
nothing, and tested. For a run of pFedMe this tells what its w is worth by itself, fine-tuned, or as
the clients send it, and so whether the training or the model used explains an accuracy:

    python experiments/serve_otherwise.py runs/pfedme fedavg pfedme experiments/pfedme_w.py

The other methods must be content with what this server sends. A method may come with settings,
which tells what they are worth where they matter only when a client is served:

    python experiments/serve_otherwise.py runs/pfedfda pfedfda "pfedfda betas=multiple folds=5"
"""

import argparse
import shlex
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from pfedfda.data import prepare
from pfedfda.engine import Step
from pfedfda.engine.client import ClientRunner
from pfedfda.errors import PfedfdaError
from pfedfda.experiment.personal import load_finished
from pfedfda.machine import one_thread
from pfedfda.methods import Method, find_method, register
from pfedfda.runs import ClientStates
from pfedfda.runs.config import checked_fields, read_config
from pfedfda_variants import PFedFDAVariants
from search import read_settings


def make_way(text: str, trained: Method) -> Method:
    """Return the method that the text names; that of the run keeps what the text does not set."""
    name, *words = shlex.split(text)
    kind = find_method(name)
    method = trained if kind is type(trained) else kind()
    return replace(method, **checked_fields(kind, read_settings(words), name))


def serve(run: Path, ways: list[str]) -> dict[str, list[float]]:
    """Return the clients' test accuracies, by the text of the way they were served."""
    finished = load_finished(run)
    federation = prepare(read_config(run / "config.toml").federation)
    runner = ClientRunner(finished.task, torch.device("cpu"))
    accuracies = {}
    with one_thread(), tempfile.TemporaryDirectory() as nothing_kept:
        states = ClientStates(Path(nothing_kept))
        for way in ways:
            method = make_way(way, finished.method)
            step = Step("evaluate", method, finished.round, states)
            outcomes = [
                runner.run(
                    step,
                    client,
                    federation.client(client),
                    partial(method.message, finished.state, client),
                )
                for client in track(range(len(federation)), method.title, transient=True)
            ]
            failures = [outcome.failure for outcome in outcomes if outcome.failure]
            if failures:
                raise SystemExit(f"{method.title} cannot serve this run: {failures[0]}")
            accuracies[way] = [outcome.correct / outcome.tested for outcome in outcomes]
    return accuracies


def main() -> None:
    """Print every way's mean and deviation over clients, and its difference from the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("ways", nargs="+", help="names or files of methods, settings behind them")
    options = parser.parse_args()
    register(PFedFDAVariants)  # the search may have kept a run of it
    try:
        accuracies = {
            way: np.array(values) for way, values in serve(options.run, options.ways).items()
        }
    except PfedfdaError as error:
        raise SystemExit(str(error)) from None
    first = accuracies[options.ways[0]]
    for way, values in accuracies.items():
        difference = values - first
        standard_error = difference.std() / len(difference) ** 0.5
        print(
            f"{way}: {values.mean():.3f} ({values.std():.3f}), "
            f"{difference.mean():+.4f} ± {standard_error:.4f} from the first"
        )


if __name__ == "__main__":
    main()
