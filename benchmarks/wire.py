"""Bytes a round on the wire: pFedFDA and FedAvg with the CIFAR CNN over TLS, on loopback.

    python -m benchmarks.wire

A site talks to the SuperLink through a relay that counts what passes, encryption included. The
images are noise: the number of bytes does not depend on them. Beside the measured bytes stand the
floats that Table 8 of the paper counts.
"""

import json
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.flower.loopback import Loopback

from pfedfda.flower.project import init
from pfedfda.paper.communication import communication_load
from pfedfda.runs import load_run

CLASSES = 100
ROUNDS = 4


class Relay:
    """Forwards connections to a port and counts the bytes."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.up = self.down = 0
        self.lock = threading.Lock()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self.server.accept()
            link = socket.create_connection(("127.0.0.1", self.target))
            for source, sink, is_up in ((client, link, True), (link, client, False)):
                threading.Thread(
                    target=self._forward, args=(source, sink, is_up), daemon=True
                ).start()

    def _forward(self, source: socket.socket, sink: socket.socket, is_up: bool) -> None:
        try:
            while chunk := source.recv(65536):
                with self.lock:
                    if is_up:
                        self.up += len(chunk)
                    else:
                        self.down += len(chunk)
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def noise(path: Path) -> Path:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), 4)
    images = random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    np.savez(path, images=images, labels=labels)
    return path


def measure(
    folder: Path, method: str, more: str = "", others: Sequence[str] = ("other",)
) -> dict[str, float]:
    """Return what one site sends and receives in a round, and how long the round takes.

    Parameters
    ----------
    folder
        For keys, logs, data and results.
    method
        The method.
    more
        Further settings of the run.
    others
        The names of the other sites.
    """
    loopback = Loopback(folder)
    try:
        init(folder / "project")
        data = noise(folder / "noise.npz")
        loopback.start_link()
        relays = {}
        for number, name in enumerate(["watched", *others]):
            loopback.make_key(name)
            loopback.flwr("supernode", "register", f"{name}.pub", "loopback")
            relays[name] = Relay(loopback.port)
            loopback.start_node(name, number, f'data="{data}"', port=relays[name].port)
        relay = relays["watched"]
        settings = (
            f'method="{method}" rounds={ROUNDS} epochs=1 eval-every=0 min-nodes={1 + len(others)} '
            f'name="run" output="{folder}" checkpoint-every=1 {more}'
        )
        words = ["run", "project", "loopback", "--stream", "--run-config", settings]
        loopback.start("run", "flwr", *words)
        seen: dict[int, tuple[float, float, float]] = {}

        def note_rounds() -> bool:
            path = folder / "run" / "checkpoint" / "manifest.json"
            if path.exists():
                reached = int(json.loads(path.read_text())["round"])
                seen.setdefault(reached, (relay.up, relay.down, time.monotonic()))
            return {1, ROUNDS - 1} <= seen.keys()

        # The first round also has the app on the wire, and the last the evaluation.
        loopback.wait_for(note_rounds, "the rounds are complete", 600)
        loopback.wait_for((folder / "run" / "summary.json").exists, "the end", 300)
        rounds = ROUNDS - 2
        up, down, seconds = (
            (last - first) / rounds for first, last in zip(seen[1], seen[ROUNDS - 1], strict=True)
        )
        summary = load_run(folder / "run").summary
        return {
            "up": up,
            "down": down,
            "seconds": seconds,
            "tensors_up": summary["bytes_up_per_round"] / len(relays),
            "tensors_down": summary["bytes_down_per_round"] / len(relays),
        }
    finally:
        loopback.close()


def main() -> None:
    load = communication_load("cifar-cnn", (32, 32, 3), CLASSES)
    counted = {
        "fedavg": load.backbone + load.linear,
        "pfedfda": load.backbone + load.gaussian,
    }
    print(f"{'method':10}{'Table 8':>12}{'tensors up':>12}{'wire up':>12}{'wire down':>12}")
    for method, floats in counted.items():
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), method)
        print(
            f"{method:10}{4 * floats:12,}{found['tensors_up']:12,.0f}"
            f"{found['up']:12,.0f}{found['down']:12,.0f}"
        )


if __name__ == "__main__":
    main()
