"""Secure aggregation between real processes on loopback, with TLS, keys and sites that drop out.

Every message starts a process at its site, and a round has four: this takes five minutes and more.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pfedfda
from pfedfda.flower.project import init

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from tests.experiment.files import final_state
from tests.flower.loopback import Loopback, read_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")),
        reason="openssl and ssh-keygen make the certificates and keys, and are not there",
    ),
]

# A site whose configuration says so fails in a round after it has shared its secrets.
DROPOUT = """
from pfedfda.flower.client_app import app as whole
from flwr.clientapp import ClientApp


def drop_out(message, context, call_next):
    settings = message.content.config_records["settings"]
    training = message.metadata.message_type == "train"
    if training and settings["step.round"] == context.node_config.get("drops-out"):
        raise RuntimeError("the power is gone")
    return call_next(message, context)


app = ClientApp(mods=[drop_out])
for action in ("secure_keys", "secure_shares", "secure_unmask", "default"):
    app.query(action)(whole)
app.train()(whole)
app.evaluate()(whole)
"""
SITES = ("vilnius", "kaunas", "klaipeda", "alytus")
SETTINGS: dict[str, Any] = {
    "method": "fedrep",
    "rounds": 3,
    "epochs": 1,
    "train-fraction": 0.1,
    "eval-every": 0,
    "clients": 4,
    "secure-aggregation": True,
}


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    federation = Loopback(tmp_path)
    yield federation
    federation.close()


def test_the_sum_survives_dropouts_and_is_given_up_below_the_threshold(loopback: Loopback) -> None:
    run = loopback.folder / "runs" / "run"
    init(loopback.folder / "project")
    (loopback.folder / "project" / "federation" / "client.py").write_text(DROPOUT)
    loopback.start_link()
    for number, name in enumerate(SITES):
        loopback.make_key(name)
        loopback.flwr("supernode", "register", f"{name}.pub", "loopback")
        loopback.start_node(name, number, "drops-out=2" if name == "kaunas" else "")
    words = [f"{name}={json.dumps(value)}" for name, value in SETTINGS.items()]
    words += [f'output="{run.parent}"', 'name="run"', "min-nodes=4", "timeout=300"]
    words += ["checkpoint-every=1"]
    command = ["run", "project", "loopback", "--stream", "--run-config", " ".join(words)]
    loopback.start("first", "flwr", *command)

    def reached() -> int:
        path = run / "checkpoint" / "manifest.json"
        return int(json.loads(path.read_text())["round"]) if path.exists() else 0

    # Round 1: everybody is there, and the sum is that of a simulation on one machine, to the bit.
    loopback.wait_for(lambda: reached() >= 1, "round 1 is complete", 600)
    first = final_state(run)
    assert reached() == 1
    settings = {name.replace("-", "_"): value for name, value in SETTINGS.items()}
    settings |= {"participation": 1.0, "rounds": 1, "quiet": True, "workers": 0}
    method = settings.pop("method")
    alone = pfedfda.run(method, output=loopback.folder, name="alone", **settings)
    simulated = final_state(alone.folder)
    assert simulated.keys() == first.keys()
    for name, tensor in simulated.items():
        assert torch.equal(first[name], tensor), name

    # Round 2: one site drops out after it has shared its secrets, and the others' sum is found.
    loopback.wait_for(lambda: reached() >= 2, "round 2 is complete", 600)
    second = final_state(run)
    assert any(not torch.equal(first[name], second[name]) for name in first)

    # Round 3: a site is gone for good, and another one too: two of four are too few.
    loopback.kill("kaunas")
    loopback.kill("alytus")
    loopback.wait_for((run / "summary.json").exists, "the run is over", 900)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["abandoned_rounds"] == [3]
    third = final_state(run)
    assert all(torch.equal(second[name], third[name]) for name in second)
    left_out = {
        (line["round"], line["name"])
        for line in read_lines(run / "failures.jsonl")
        if line["step"] == "train"
    }
    assert left_out == {(2, "kaunas"), (3, "kaunas"), (3, "alytus")}
    said = loopback.log("first")
    assert "round 3 is abandoned" in said
    assert "secure-threshold needs 3" in said
    assert not loopback.outside.exists(), loopback.outside.read_text()
