"""A real federation on loopback, with TLS and keys, to which everything happens that may.

Every message starts a process at its site, so this takes two and a half minutes on two cores with
some other work, and more on a busy machine. All facts come from one run.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pfedfda
from pfedfda.flower.project import init

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from tests.flower.loopback import Loopback, read_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")),
        reason="openssl and ssh-keygen make the certificates and keys, and are not there",
    ),
]

# A site may run whatever it likes; this one answers with NaN if its configuration says so.
POISON = """
from flwr.app import ArrayRecord, Array
from flwr.clientapp import ClientApp
from pfedfda.flower import client_app


def poison(message, context, call_next):
    reply = call_next(message, context)
    if context.node_config.get("poison") and reply.has_content():
        for record in reply.content.array_records.values():
            for name, array in list(record.items()):
                record[name] = Array(array.numpy() * float("nan"))
    return reply


app = ClientApp(mods=[poison])
app.query()(client_app.describe)
app.train()(client_app.train)
app.evaluate()(client_app.evaluate)
"""
SETTINGS = (
    'method="fedrep" rounds=4 epochs=1 train-fraction=0.1 eval-every=0 name="run" timeout=200 '
    "min-nodes=3"
)


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    federation = Loopback(tmp_path)
    yield federation
    federation.close()


class Story:
    """A run, and the things that happen to it."""

    def __init__(self, loopback: Loopback) -> None:
        self.loopback = loopback
        self.run = loopback.folder / "runs" / "run"
        init(loopback.folder / "project")
        (loopback.folder / "project" / "federation" / "client.py").write_text(POISON)

    def flwr_run(self, name: str, more: str = "") -> None:
        settings = f'{SETTINGS} output="{self.run.parent}" {more}'
        words = ["run", "project", "loopback", "--stream", "--run-config", settings]
        self.loopback.start(name, "flwr", *words)

    def reached(self) -> int:
        """The round of the last checkpoint."""
        try:
            manifest = json.loads((self.run / "checkpoint" / "manifest.json").read_text())
        except FileNotFoundError:
            return 0
        return int(manifest["round"])

    def failures(self) -> list[dict[str, Any]]:
        return read_lines(self.run / "failures.jsonl")

    def left_out(self, name: str) -> set[int]:
        return {line["round"] for line in self.failures() if line["name"] == name}

    def trained(self, name: str) -> set[int]:
        """The rounds of which a site has its own tensors on its disk."""
        files = (self.loopback.folder / "sites" / name).glob("*/states/*/*/*.safetensors")
        return {int(file.stem) for file in files}

    def is_complete(self) -> bool:
        path = self.run / "summary.json"
        return path.exists() and json.loads(path.read_text())["status"] == "complete"

    def start_again(self, name: str, number: int) -> None:
        """Start a killed node as a supervisor would: until the SuperLink lets it in.

        It does not as long as it believes that the node of this key is still there.
        """

        def is_in() -> bool:
            process = self.loopback.processes.get(name)
            if process is None or process.poll() is not None:
                if process is not None:
                    self.loopback.kill(name)  # what the node has started outlives it by a little
                self.loopback.start_node(name, number)
                return False
            return "SuperNode ID" in log_since(before) or "Receiving" in log_since(before)

        def log_since(length: int) -> str:
            return self.loopback.log(name)[length:]

        before = len(self.loopback.log(name))
        self.loopback.wait_for(is_in, f"{name} is back")


def test_a_federation_survives_what_happens_to_it(loopback: Loopback) -> None:
    story = Story(loopback)
    loopback.start_link()
    for number, name in enumerate(["vilnius", "kaunas", "liar"]):
        loopback.make_key(name)
        loopback.flwr("supernode", "register", f"{name}.pub", "loopback")
        loopback.start_node(name, number, "poison=true" if name == "liar" else "")
    loopback.make_key("stranger")  # and never registered
    loopback.start_node("stranger", 0)
    loopback.start_node("plaintext", 0, tls=False)
    story.flwr_run("first")

    # One node is killed in the midst of the run, which goes on without it: the SuperLink notices
    # within a minute that no heartbeat comes.
    loopback.wait_for(lambda: story.reached() >= 1, "round 1 is complete")
    assert story.trained("kaunas") == {1}
    loopback.kill("kaunas")
    loopback.wait_for(lambda: story.reached() >= 2, "round 2 is complete")
    assert 2 in story.left_out("kaunas")
    assert 2 in story.trained("vilnius")

    # The server is killed, and the node is back when the run goes on.
    loopback.kill("link")
    loopback.kill("first")
    again = story.reached()
    kept = story.trained("kaunas")
    loopback.start_link()
    story.start_again("kaunas", 1)
    story.flwr_run("second", f'resume="{story.run}"')
    loopback.wait_for(story.is_complete, "the run is complete", seconds=400)
    assert story.left_out("kaunas") == set(range(2, again + 1))
    assert kept == {1}
    assert story.trained("kaunas") >= {4}

    # Who sends NaN is left out of every round and named; its test results count.
    assert story.left_out("liar") == {1, 2, 3, 4}
    reasons = {line["reason"] for line in story.failures() if line["name"] == "liar"}
    assert all("is not finite" in reason for reason in reasons)
    summary = json.loads((story.run / "summary.json").read_text())
    assert summary["rounds"] == 4
    assert "evaluated_clients" not in summary
    assert len((story.run / "clients.csv").read_text().splitlines()) == 4

    # Every site has its personal model.
    for name in ("vilnius", "kaunas", "liar"):
        (model,) = (loopback.folder / "sites" / name).glob("*/model")
        assert pfedfda.load_model(model).network.head.out_features == 10

    # Who is not registered, or speaks without encryption, never got in.
    assert not (loopback.folder / "sites" / "stranger").exists()
    assert not (loopback.folder / "sites" / "plaintext").exists()
    assert "SuperNode ID" in loopback.log("vilnius")
    assert "Failed to activate SuperNode" in loopback.log("stranger")
    assert "Connection attempt failed" in loopback.log("plaintext")
    for intruder in ("stranger", "plaintext"):
        assert "SuperNode ID" not in loopback.log(intruder)
    roster = json.loads((story.run / "roster.json").read_text())
    assert {site["name"] for site in roster["sites"]} == {"vilnius", "kaunas", "liar"}
    listing = loopback.flwr("supernode", "list", "loopback")
    assert listing.count("online") == 3

    # Nothing phoned home.
    assert not loopback.outside.exists(), loopback.outside.read_text()
