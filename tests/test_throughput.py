"""The benchmark of whole rounds runs, at a tiny size."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_throughput_runs() -> None:
    words = "--quick --models emnist-cnn --images 7 --clients 2 --workers 2 --repeats 1"
    command = [sys.executable, "benchmarks/throughput.py", *words.split(), "--epochs", "1"]
    done = subprocess.run(
        [*command, "--seconds", "0.05", "--no-start"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    for line in ("bare step, same batch sizes", "fedavg", "pfedfda-paper", "batches", "server"):
        assert f"| {line}" in done.stdout
