"""Run folders with numbers out of the air, for tests of the report."""

import csv
import json
import random
from pathlib import Path
from typing import Any

CORRUPTIONS = ("fog", "frost", "shot_noise")


def write_run(
    folder: Path,
    method: str = "pfedfda",
    *,
    rounds: int = 4,
    clients: int = 12,
    beta: bool = False,
    shifted: bool = False,
    new_clients: bool = False,
    seed: int = 0,
    source: str = "digits",
    names: str = "client {}",
) -> Path:
    """Write a complete run, evaluated after every round, and return its folder."""
    chance = random.Random(f"{method}{seed}")
    folder.mkdir(parents=True)
    lines = [
        f'[federation]\nsource = {json.dumps(source)}\nalpha = 0.3\npartition = "auto"',
        f"[schedule]\nrounds = {rounds}\nparticipation = 0.3\neval_every = 1\nseed = {seed}",
        f"[training]\nlr = 0.01\n[methods.{json.dumps(method)}]\nmu = 1.0\n",
    ]
    (folder / "config.toml").write_text("\n".join(lines))
    accuracies: dict[str, float] = {}
    with (folder / "metrics.jsonl").open("w") as file:
        for number in range(1, rounds + 1):
            mean = 0.9 - chance.uniform(0.3, 0.6) / number
            accuracies = {
                "mean_accuracy": mean,
                "std_accuracy": 0.1,
                "weighted_accuracy": mean + 0.02,
                "worst_tenth_accuracy": mean / 2,
            }
            so_far = {"bytes_up": number * 10**6, "bytes_down": number * 2 * 10**6}
            line = {"round": number, **accuracies, **so_far, "seconds": number * 1.5}
            file.write(json.dumps(line) + "\n")
    with (folder / "clients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        shift = ["corruption", "severity"] if shifted else []
        columns = ["client", "name", "train_samples", "test_samples", "classes", *shift]
        writer.writerow([*columns, "accuracy", *(["beta"] if beta else [])])
        for client in range(clients):
            bad = shifted and client < clients // 2
            place = [CORRUPTIONS[client % 3] if bad else "", client % 5 + 1 if bad else 0]
            row = [client, names.format(client), 20 + client, 10, 3, *(place if shifted else [])]
            row += [chance.randint(0, 10) / 10, *([chance.random()] if beta else [])]
            writer.writerow(row)
    if new_clients:
        rows = [[c, k, 10, chance.random()] for k in ("clean", "shot_noise") for c in range(3)]
        with (folder / "new_clients.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["client", "condition", "test_samples", "accuracy"], *rows])
    summary: dict[str, Any] = {
        "method": method,
        "status": "complete",
        "rounds": rounds,
        **accuracies,
        "bytes_up": rounds * 10**6,
        "bytes_down": rounds * 2 * 10**6,
        "bytes_up_per_round": 1e6,
        "bytes_down_per_round": 2e6,
        "seconds": {"total": 6.5, "train": 5.0, "evaluate": 1.0, "clients": {"network": 9.0}},
        "machine": {"date": "2026-01-02", "cores": 2, "python": "3.11"},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_comparison(folder: Path, methods: list[str], **options: Any) -> Path:
    """Write a folder with a run for each method."""
    for method in methods:
        write_run(folder / method, method, **options)
    tables = "".join(f"[methods.{json.dumps(method)}]\n" for method in methods)
    (folder / "config.toml").write_text(f'[federation]\nsource = "digits"\n{tables}')
    return folder


def change_summary(folder: Path, **values: Any) -> None:
    """Change entries of ``summary.json``; None takes one away."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in summary.items() if v is not None}))
