"""Serve the clients of a finished run in the ways of other methods.

The model that a run ends with is personalised as each method does it for a client that has kept
nothing, and tested. For a run of pFedMe this tells what its w is worth by itself, fine-tuned, or as
the clients send it, and so whether the training or what serves explains an accuracy:

    python benchmarks/serve_otherwise.py runs/pfedme fedavg fedavg-ft pfedme benchmarks/pfedme_w.py

The other methods must be content with a body and a head from the server.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from pfedfda.data import prepare
from pfedfda.engine import one_thread
from pfedfda.engine.runner import Broadcast, ClientRunner
from pfedfda.engine.states import ClientStates
from pfedfda.experiment.config import read_config
from pfedfda.experiment.personal import load_finished
from pfedfda.methods import find_method


def serve(run: Path, names: list[str]) -> dict[str, list[float]]:
    """Return the clients' test accuracies by method; the run's own keeps its hyper-parameters."""
    finished = load_finished(run)
    federation = prepare(read_config(run / "config.toml").federation)
    runner = ClientRunner(federation, finished.task, torch.device("cpu"))
    accuracies = {}
    with one_thread(), tempfile.TemporaryDirectory() as nothing_kept:
        broadcast = Broadcast(
            finished.method, finished.state, finished.round, ClientStates(Path(nothing_kept))
        )
        for name in names:
            kind = find_method(name)
            own = finished.method if kind is type(finished.method) else kind()
            there = replace(broadcast, method=own)
            outcomes = [
                runner.run("evaluate", client, there)
                for client in track(range(len(federation)), own.title, transient=True)
            ]
            failures = [outcome.failure for outcome in outcomes if outcome.failure]
            if failures:
                raise SystemExit(f"{own.title} cannot serve this run: {failures[0]}")
            accuracies[own.name] = [outcome.correct / outcome.tested for outcome in outcomes]
    return accuracies


def main() -> None:
    """Print the mean and the deviation over clients of every way to serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("methods", nargs="+", help="names, or files of methods")
    options = parser.parse_args()
    for name, values in serve(options.run, options.methods).items():
        print(f"{name}: {np.mean(values):.3f} ({np.std(values):.3f})")


if __name__ == "__main__":
    main()
