"""The round loop over sites that fail, lie, leave and come back."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import pfedfda
from pfedfda import InputError, RunStoppedError
from pfedfda.experiment.observers import Observer
from pfedfda.experiment.personal import load_finished

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from flwr.app import Message, MetricRecord, RecordDict

from pfedfda.flower.app_settings import read_run_config
from pfedfda.flower.client_app import app
from pfedfda.flower.exchange import Sites
from pfedfda.flower.server_app import serve
from pfedfda.flower.wire import pack, tensors_of
from pfedfda.runs.config import read_config
from tests.flower.grids import FakeGrid
from tests.power import Disk

RUN: dict[str, Any] = {
    "method": "fedrep",
    "source": "digits",
    "clients": 3,
    "train-fraction": 0.05,
    "rounds": 3,
    "participation": 1.0,
    "eval-every": 0,
    "checkpoint-every": 1,
    "epochs": 1,
    "min-nodes": 3,
    "wait": 0.2,
    "timeout": 0.2,
    "name": "run",
}


def three_sites(tmp_path: Path) -> FakeGrid:
    sites = str(tmp_path / "sites")
    names = ["vilnius", "kaunas", "klaipeda"]
    nodes = {
        n + 1: {"name": name, "partition-id": n, "state-dir": sites} for n, name in enumerate(names)
    }
    return FakeGrid(app, nodes)


def go(grid: FakeGrid, tmp_path: Path, **changes: Any) -> pfedfda.RunResult:
    run_config = (
        RUN | {"output": str(tmp_path)} | {k.replace("_", "-"): v for k, v in changes.items()}
    )
    return serve(grid, read_run_config(run_config), Observer(), poll=0.01)


def failures(folder: Path) -> list[dict[str, Any]]:
    path = folder / "failures.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_what_a_method_keeps_never_goes_up(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    result = go(grid, tmp_path)
    assert read_config(result.folder / "config.toml").training.batch_size == 50  # published data
    sent = [m for m in grid.sent_up if m.has_content() and m.content.array_records]
    assert len(sent) == 9
    for message in sent:
        assert all(name.startswith("body.") for name in tensors_of(message.content))
    kept = load_file(next((tmp_path / "sites" / "kaunas").glob("*/states/*/*/000003.safetensors")))
    assert set(kept) == {"head.weight", "head.bias"}


def test_every_site_gets_its_personal_model(tmp_path: Path) -> None:
    result = go(three_sites(tmp_path), tmp_path)
    models = sorted((tmp_path / "sites").glob("*/*/model"))
    assert [model.parts[-3] for model in models] == ["kaunas", "klaipeda", "vilnius"]
    accuracy = {
        row.split(",")[1]: float(row.split(",")[5])
        for row in (result.folder / "clients.csv").read_text().splitlines()[1:]
    }
    federation = pfedfda.prepare(read_run_config(RUN).config.federation)
    for number, name in enumerate(["vilnius", "kaunas", "klaipeda"]):
        (folder,) = (tmp_path / "sites" / name).glob("*/model")
        data = federation.client(number)
        images = torch.from_numpy(np.array(data.test_inputs)).permute(0, 3, 1, 2) * (2 / 255) - 1
        model = pfedfda.load_model(folder)
        found = model(images).argmax(1).numpy()
        named = [federation.class_names[label] for label in found]
        assert model.predict(data.test_inputs) == named
        assert (found == data.test_labels).mean() == pytest.approx(accuracy[name])


def test_what_server_and_sites_keep_is_on_their_disks(tmp_path: Path) -> None:
    """A power cut right after the end takes nothing away."""
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    with disk.watched():
        go(three_sites(tmp_path / "disk"), tmp_path / "disk")
    disk.cut(len(disk.log), "lost", 0, tmp_path / "after")
    here, after = (
        {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in (disk.root, tmp_path / "after")
    )
    assert {name for name in here if "safetensors" in name or "json" in name} <= set(after)
    assert all(after[name] == content for name, content in here.items() if name in after)


def test_a_run_with_links_does_not_go_on(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    folder = go(grid, tmp_path).folder
    (folder / "summary.json").unlink()
    (folder / "clients.csv").rename(tmp_path / "precious.csv")
    content = (tmp_path / "precious.csv").read_bytes()
    (folder / "clients.csv").symlink_to(tmp_path / "precious.csv")
    with pytest.raises(InputError, match=r"clients.csv is a symbolic link"):
        go(grid, tmp_path, resume=str(folder))
    assert (tmp_path / "precious.csv").read_bytes() == content


def swap(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Any:
    """Return what a lying site does to its updates."""

    def tamper(message: Message, reply: Message) -> Message:
        if not reply.content.array_records:
            return reply
        content = pack(change(tensors_of(reply.content)))
        content["metrics"] = reply.content.metric_records["metrics"]
        return Message(content, reply_to=message)

    return tamper


def replaced(content: Callable[[Message], RecordDict]) -> Any:
    return lambda message, reply: Message(content(reply), reply_to=message)


def only_updates(tamper: Any) -> Any:
    return lambda message, reply: (
        tamper(message, reply) if message.metadata.message_type == "train" else reply
    )


LIES = {
    "not finite": swap(lambda t: {name: x * float("nan") for name, x in t.items()}),
    "that nobody asked for": swap(lambda t: t | {"extra": torch.ones(3)}),
    "is missing": swap(lambda t: dict(list(t.items())[1:])),
    "instead of": swap(lambda t: {name: x.double() for name, x in t.items()}),
    "holds no tensors": replaced(lambda r: RecordDict({"metrics": r.content["metrics"]})),
    "holds no metrics": replaced(lambda r: RecordDict({"arrays": r.content["arrays"]})),
    "'weight' is not finite": replaced(
        lambda r: RecordDict(
            {"arrays": r.content["arrays"], "metrics": MetricRecord({"weight": float("nan")})}
        )
    ),
    "weight is -3": replaced(
        lambda r: RecordDict(
            {"arrays": r.content["arrays"], "metrics": MetricRecord({"weight": -3.0})}
        )
    ),
    "tired": replaced(lambda r: pack(settings={"failure": "I am \x1b[31m\ntired"})),
}


@pytest.mark.parametrize("said", LIES)
def test_a_site_that_sends_rubbish_is_left_out_and_named(said: str, tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    grid.tamper[2] = only_updates(LIES[said])
    result = go(grid, tmp_path, rounds=2)
    lines = failures(result.folder)
    assert [(line["round"], line["name"]) for line in lines] == [(1, "kaunas"), (2, "kaunas")]
    for line in lines:
        assert said in line["reason"]
        assert line["reason"].isprintable()
    assert result.summary["status"] == "complete"


def with_numbers(step: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return what a site does that reports other numbers than it has found."""

    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != step:
            return reply
        content = reply.content
        content["metrics"] = MetricRecord(change(dict(content.metric_records["metrics"])))
        return Message(content, reply_to=message)

    return tamper


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def assert_plain_files(folder: Path) -> None:
    """Every JSON file is one by the standard, and no table has a column twice."""
    for path in folder.rglob("*.json*"):
        for text in (
            path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        ):
            json.loads(text, parse_constant=refuse_constant)
    columns = (folder / "clients.csv").read_text().splitlines()[0].split(",")
    assert len(set(columns)) == len(columns) < 20


SAID_OF_UPDATES = {
    "its weight is 1000; it must be above 0 and at most": {"weight": 1000.0},
    "its weight is 1.7e+308; it must": {"weight": 1.7e308},
    "its train_loss is 1.7e+308": {"metric.train_loss": 1.7e308},
    "'metric.train_loss' is not finite": {"metric.train_loss": float("inf")},
    "21 numbers": {f"metric.number_{n}": 1.0 for n in range(20)},
    "'a,b', which is not a plain name": {"metric.a,b": 1.0},
    "its seconds for 'network' are 1.7e+308": {"seconds.network": 1.7e308},
    "its seconds for 'less' are -1": {"seconds.less": -1.0},
    "'a b', which is not a plain name": {"seconds.a b": 1.0},
}


@pytest.mark.parametrize("said", SAID_OF_UPDATES)
def test_a_site_that_lies_in_numbers_is_left_out_and_named(said: str, tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    grid.tamper[2] = with_numbers("train", lambda found: found | SAID_OF_UPDATES[said])
    result = go(grid, tmp_path, rounds=2)
    assert result.summary["status"] == "complete"
    lines = failures(result.folder)
    assert [(line["step"], line["name"]) for line in lines] == [("train", "kaunas")] * 2
    assert all(said in line["reason"] for line in lines)
    assert_plain_files(result.folder)


SAID_OF_TESTS: dict[str, dict[str, Any]] = {
    "9 of 3 test samples as correct": {"correct": 9.0, "tested": 3.0},
    "of 1000 test samples as correct, and has": {"correct": 700.0, "tested": 1000.0},
    "-1 of 3 test samples": {"correct": -1.0, "tested": 3.0},
    "0 of 0 test samples": {"correct": 0.0, "tested": 0.0},
    "its test result cannot be read": {"correct": 1.5},
    "'loss' is not finite": {"loss": float("inf")},
    "'metric.beta' is not finite": {"metric.beta": float("nan")},
    "its test loss is 1.7e+308": {"loss": 1.7e308},
    "its test loss is -3": {"loss": -3.0},
    "'accuracy', which is another column": {"metric.accuracy": 1.0},
    "'client', which is another column": {"metric.client": 7.0},
    "'corruption', which is another column": {"metric.corruption": 7.0},
    "'=HYPERLINK()', which is not a plain name": {"metric.=HYPERLINK()": 1.0},
    "25 numbers": {f"metric.number_{n}": 1.0 for n in range(25)},
}


@pytest.mark.parametrize("said", SAID_OF_TESTS)
def test_a_test_result_that_cannot_be_is_left_out(said: str, tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    grid.tamper[2] = with_numbers("evaluate", lambda found: found | SAID_OF_TESTS[said])
    result = go(grid, tmp_path, rounds=1, shift="paper")
    (line,) = failures(result.folder)
    assert (line["step"], line["name"]) == ("evaluate", "kaunas")
    assert said in line["reason"]
    assert result.summary["evaluated_clients"] == 2
    assert_plain_files(result.folder)


@pytest.mark.parametrize("missing", ["correct", "tested", "loss"])
def test_a_test_result_with_a_gap_is_left_out(missing: str, tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    grid.tamper[2] = with_numbers(
        "evaluate", lambda found: {name: v for name, v in found.items() if name != missing}
    )
    result = go(grid, tmp_path, rounds=1)
    assert [(line["step"], line["name"]) for line in failures(result.folder)] == [
        ("evaluate", "kaunas")
    ]
    assert result.summary["evaluated_clients"] == 2


def test_seconds_of_ever_new_names_do_not_pile_up(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    names = (f"seconds.name_{n}" for n in range(10**6))
    grid.tamper[2] = with_numbers(
        "train", lambda found: {next(names): 0.1 for _ in range(15)} | found
    )
    result = go(grid, tmp_path, rounds=9)
    assert len(result.summary["seconds"]["clients"]) <= 100
    assert result.summary["seconds"]["clients"]["network"] > 0


@pytest.mark.parametrize("lie", ["covariance", "counts"])
def test_a_site_cannot_poison_the_gaussians(lie: str, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tensors | {lie: -tensors[lie]}

    grid = three_sites(tmp_path)
    grid.tamper[2] = only_updates(swap(spoil))
    result = go(grid, tmp_path, method="pfedfda", rounds=2)
    lines = failures(result.folder)
    assert [(line["round"], line["name"]) for line in lines] == [(1, "kaunas"), (2, "kaunas")]
    assert all(lie in line["reason"] for line in lines)


def test_training_that_diverges_at_a_site_leaves_that_site_out(tmp_path: Path) -> None:
    """The site says so itself; the message that makes it diverge is its own doing."""
    grid = three_sites(tmp_path)
    real = grid.app

    def steep(message: Message, context: Any) -> Message:
        if context.node_id == 2 and message.metadata.message_type == "train":
            message.content.config_records["settings"]["training.lr"] = 1e30
        return real(message, context)

    grid.app = steep  # type: ignore[assignment]
    result = go(grid, tmp_path, method="fedavg", rounds=2, batch_size=2)
    lines = failures(result.folder)
    assert [(line["round"], line["name"]) for line in lines] == [(1, "kaunas"), (2, "kaunas")]
    assert {line["reason"] for line in lines} == {"its training loss is not finite"}
    assert result.summary["status"] == "complete"


def test_silent_and_absent_sites_are_left_out_of_the_round(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)

    class Watch(Observer):
        def say(self, text: str) -> None:
            if "round 1" in text:  # after the silence of round 1, the site is gone
                del grid.nodes[2]

    def silence_after_description(message: Message, reply: Message) -> Message:
        grid.silent.add(2)
        return reply

    grid.tamper[2] = silence_after_description
    config = read_run_config(RUN | {"output": str(tmp_path)})
    result = serve(grid, config, Watch(), poll=0.01)
    reasons = [line["reason"] for line in failures(result.folder)]
    assert reasons[0].startswith("it did not answer within")
    assert set(reasons[1:]) == {"it is not connected"}
    assert len(reasons) == 4  # three rounds and the evaluation
    assert result.summary["evaluated_clients"] == 2


class Hanging(Observer):
    """Lets some sites fall silent and answer again after some rounds."""

    def __init__(self, grid: FakeGrid, nodes: set[int], after: int, until: int) -> None:
        self.grid, self.nodes, self.after, self.until = grid, nodes, after, until

    def trained(self, round_number: int, train_loss: float | None) -> None:
        if round_number == self.after:
            self.grid.silent |= self.nodes
        if round_number == self.until:
            self.grid.wake(*self.nodes)


def test_a_hanging_site_is_waited_for_twice_and_takes_part_again_when_it_answers(
    tmp_path: Path,
) -> None:
    grid = three_sites(tmp_path)
    settings = RUN | {"output": str(tmp_path), "rounds": 9, "timeout": 0.5}
    result = serve(grid, read_run_config(settings), Hanging(grid, {2}, 1, 6), poll=0.01)
    lines = failures(result.folder)
    assert {line["name"] for line in lines} == {"kaunas"}
    # It is silent from the second round on, and answers in the sixth, which the seventh hears.
    assert [line["round"] for line in lines] == [2, 3, 4, 5, 6]
    assert all("did not answer within 0.5 s" in line["reason"] for line in lines[:2])
    assert {line["reason"] for line in lines[2:]} == {
        "it has let several questions pass, and takes part again when it answers"
    }
    work = [node for node, kind in grid.asked if kind != "query"]
    assert work.count(2) == 9 - 3 + 1  # three rounds without, and the evaluation
    assert work.count(1) == work.count(3) == 9 + 1


def test_a_silent_site_keeps_its_name(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)

    class Impostor(Hanging):
        def trained(self, round_number: int, train_loss: float | None) -> None:
            super().trained(round_number, train_loss)
            if round_number == 3:
                del grid.nodes[3]  # somebody is missing, so that newcomers are asked
                grid.nodes[0] = grid.nodes[2]

    settings = RUN | {"output": str(tmp_path), "rounds": 6}
    serve(grid, read_run_config(settings), Impostor(grid, {2}, 1, 99), poll=0.01)
    assert {kind for node, kind in grid.asked if node == 0} == {"query"}


def test_rounds_do_not_pass_while_nobody_answers(tmp_path: Path) -> None:
    """A server that has lost all its sites waits for them instead of using up its rounds."""
    grid = three_sites(tmp_path)

    class Lost(Hanging):
        said: ClassVar[list[str]] = []

        def say(self, text: str) -> None:
            self.said.append(text)

    looked: list[int] = []
    node_ids = grid.get_node_ids

    def look() -> Any:
        silent = sum(line["round"] == 4 for line in failures(tmp_path / "run"))
        looked.append(silent)
        if "No site answers" in " ".join(Lost.said) and looked.count(looked[-1]) > 20:
            grid.wake(1, 2, 3)
        return node_ids()

    grid.get_node_ids = look  # type: ignore[method-assign]
    settings = RUN | {"output": str(tmp_path), "rounds": 20, "timeout": 0.5, "max-failures": 1.0}
    result = serve(grid, read_run_config(settings), Lost(grid, {1, 2, 3}, 2, 99), poll=0.001)
    assert {line["round"] for line in failures(result.folder)} == {3, 4}
    assert Lost.said.count("No site answers; waiting for one for up to 0.5 s.") == 1


def test_a_run_without_any_site_stops_and_can_go_on(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    settings = RUN | {"output": str(tmp_path), "rounds": 9, "max-failures": 1.0}
    with pytest.raises(
        RunStoppedError, match=r"No site of the run has answered for 0.2 s\. 4 of 9"
    ):
        serve(grid, read_run_config(settings), Hanging(grid, {1, 2, 3}, 2, 99), poll=0.01)
    grid.wake(1, 2, 3)
    assert go(grid, tmp_path, resume=str(tmp_path / "run")).summary["status"] == "complete"
    assert {line["round"] for line in failures(tmp_path / "run")} == {3, 4}


def test_a_node_that_does_not_describe_itself_is_waited_for_once(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    grid.silent.add(3)
    sites = Sites(grid, read_run_config(RUN).config, timeout=1.0, poll=0.01)
    start = time.monotonic()
    sites.refresh(patience=0)
    once = time.monotonic()
    assert once - start > 1.0
    for _ in range(3):
        sites.refresh(patience=0)
    assert time.monotonic() - once < 0.5
    assert [site.name for site in sites.described.values()] == ["vilnius", "kaunas"]
    grid.wake(3)
    sites.refresh(patience=0)
    assert sites.node_of("klaipeda") == 3


def test_a_site_comes_back_under_another_number_with_what_it_kept(tmp_path: Path) -> None:
    straight = go(three_sites(tmp_path / "a"), tmp_path / "a", rounds=4)
    grid = three_sites(tmp_path / "b")

    class Renumber(Observer):
        """After every round all nodes are new to Flower."""

        def progressed(self, fraction: float) -> None:
            grid.nodes = {node + 10: config for node, config in grid.nodes.items()}

    config = read_run_config(RUN | {"output": str(tmp_path / "b"), "rounds": 4})
    restarted = serve(grid, config, Renumber(), poll=0.01)
    assert failures(restarted.folder) == []
    assert_same_end(restarted.folder, straight.folder)


def assert_same_end(folder: Path, other: Path) -> None:
    found, expected = load_finished(folder).state, load_finished(other).state
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)
    assert (folder / "clients.csv").read_text() == (other / "clients.csv").read_text()


@pytest.mark.parametrize("checkpoint_every", [1, 3])
def test_a_resumed_run_ends_like_one_that_was_never_stopped(
    tmp_path: Path, checkpoint_every: int
) -> None:
    settings = {"rounds": 4, "checkpoint_every": checkpoint_every}
    straight = go(three_sites(tmp_path / "a"), tmp_path / "a", **settings)
    grid = three_sites(tmp_path / "b")
    pushed = grid.push_messages

    def broken(messages: Any) -> Any:
        if len(grid.asked) == 3 + 3 * 3 + 1:  # in the midst of the fourth round
            raise SystemError("the machine of the server is gone")
        return pushed(messages)

    grid.push_messages = broken  # type: ignore[method-assign]
    with pytest.raises(SystemError):
        go(grid, tmp_path / "b", **settings)
    grid.push_messages = pushed  # type: ignore[method-assign]
    folder = tmp_path / "b" / "run"
    resumed = go(grid, tmp_path / "b", resume=str(folder), **settings)
    assert resumed.folder == folder
    assert_same_end(folder, straight.folder)
    again = go(grid, tmp_path / "b", resume=str(folder), **settings)
    assert again.summary == resumed.summary


def test_the_loss_of_the_superlink_stops_the_run_with_a_sentence(tmp_path: Path) -> None:
    import httpx

    grid = three_sites(tmp_path)
    pulled = grid.pull_messages

    def broken(message_ids: Any) -> Any:
        if len(grid.asked) > 7:
            raise httpx.ConnectError("refused")
        return pulled(message_ids)

    grid.pull_messages = broken  # type: ignore[method-assign]
    with pytest.raises(RunStoppedError, match="The SuperLink does not answer.*resume="):
        go(grid, tmp_path)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"


def test_an_answer_that_flower_cannot_read_breaks_no_other(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    pulled = grid.pull_messages

    def first_of_training(message_ids: Any) -> Any:
        if list(message_ids) == ["message-4"]:
            raise ValueError("children are missing")
        return pulled(message_ids)

    grid.pull_messages = first_of_training  # type: ignore[method-assign]
    result = go(grid, tmp_path, rounds=1)
    assert [line["reason"] for line in failures(result.folder)] == [
        "its answer cannot be read (ValueError)"
    ]


def test_too_few_sites_are_refused(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    del grid.nodes[3]
    with pytest.raises(InputError, match="2 of 3 sites were there"):
        go(grid, tmp_path)


@pytest.mark.parametrize("number", [0, 9])
def test_a_second_node_cannot_take_the_name_of_the_first(number: int, tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    grid.nodes[number] = grid.nodes[1]
    seen = iter([[1, 2]])
    grid.get_node_ids = lambda: next(seen, list(grid.nodes))  # type: ignore[method-assign]
    said: list[str] = []

    class Ears(Observer):
        def say(self, text: str) -> None:
            said.append(text)

    serve(grid, read_run_config(RUN | {"output": str(tmp_path), "rounds": 1}), Ears(), poll=0.01)
    why = "a site of this name is connected already"
    assert f"Site vilnius (node {number}) cannot take part: {why}" in said
    assert {node for node, kind in grid.asked if kind != "query"} == {1, 2, 3}


@pytest.mark.parametrize("number", [0, 9])
def test_two_nodes_that_come_with_one_name_at_once_are_both_refused(
    number: int, tmp_path: Path
) -> None:
    """Nobody can tell which of them is the site, least of all from their numbers."""
    grid = three_sites(tmp_path)
    grid.nodes[number] = grid.nodes[2]
    said: list[str] = []

    class Ears(Observer):
        def say(self, text: str) -> None:
            said.append(text)

    settings = RUN | {"output": str(tmp_path), "rounds": 1, "min-nodes": 2}
    result = serve(grid, read_run_config(settings), Ears(), poll=0.01)
    both = sorted([2, number])
    for node in both:
        assert f"Site kaunas (node {node}) cannot take part: 2 nodes have this name" in said
    assert {node for node, kind in grid.asked if kind != "query"} == {1, 3}
    assert [
        site["name"] for site in json.loads((result.folder / "roster.json").read_text())["sites"]
    ] == ["vilnius", "klaipeda"]


@pytest.mark.parametrize("number", [0, 9])
def test_a_connected_site_keeps_its_name(number: int, tmp_path: Path) -> None:
    """Also when the SuperLink loses sight of all nodes for a moment."""
    grid = three_sites(tmp_path)
    everybody = dict(grid.nodes)

    class Flicker(Observer):
        def say(self, text: str) -> None:
            if "3 sites" in text or "No site answers" in text:
                grid.nodes = {**everybody, number: everybody[2]}

        def progressed(self, fraction: float) -> None:
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == 3:  # after the first round
                grid.nodes = {}

    settings = RUN | {"output": str(tmp_path), "rounds": 4}
    serve(grid, read_run_config(settings), Flicker(), poll=0.01)
    assert (number, "query") in grid.asked
    assert {node for node, kind in grid.asked if kind != "query"} == {1, 2, 3}


def test_newcomers_are_not_asked_while_nobody_is_missing(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)

    class Join(Observer):
        def progressed(self, fraction: float) -> None:
            grid.nodes[77] = {"partition-id": 0, "name": "late", "state-dir": str(tmp_path)}

    serve(grid, read_run_config(RUN | {"output": str(tmp_path)}), Join(), poll=0.01)
    assert 77 not in {node for node, _ in grid.asked}


def write_images(folder: Path, classes: dict[str, int], grey: bool = True) -> Path:
    random = np.random.default_rng(len(classes))
    for name, brightness in classes.items():
        (folder / name).mkdir(parents=True)
        for n in range(10):
            shape = (28, 28) if grey else (28, 28, 3)
            pixels = random.integers(0, 50, shape) + brightness
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{n}.png")
    return folder


def test_sites_with_images_of_their_own(tmp_path: Path) -> None:
    both = write_images(tmp_path / "k", {"dark": 10, "light": 200})
    some = write_images(tmp_path / "v", {"light": 200})
    sites = str(tmp_path / "sites")
    nodes = {
        1: {"name": "kaunas", "data": str(both), "state-dir": sites},
        2: {"name": "vilnius", "data": str(some), "state-dir": sites},
    }
    settings = {"min_nodes": 2, "train_fraction": 1.0, "rounds": 2, "lr": 0.05, "epochs": 5}
    with pytest.raises(InputError, match="list all classes in class-names"):
        go(FakeGrid(app, dict(nodes)), tmp_path, **settings)
    result = go(FakeGrid(app, nodes), tmp_path, class_names="light, dark", **settings)
    rows = (result.folder / "clients.csv").read_text().splitlines()
    assert [row.split(",")[:5] for row in rows[1:]] == [
        ["0", "kaunas", "16", "4", "2"],
        ["1", "vilnius", "8", "2", "1"],
    ]
    assert result.mean_accuracy == 1.0
    chosen = read_config(result.folder / "config.toml")  # by what the sites told of their sizes
    assert (chosen.training.batch_size, chosen.model.model) == (10, "emnist-cnn")
    (folder,) = (tmp_path / "sites" / "kaunas").glob("*/model")
    assert json.loads((folder / "model.json").read_text())["class_names"] == ["light", "dark"]
    light = torch.full((1, 1, 28, 28), 225 * 2 / 255 - 1)
    model = pfedfda.load_model(folder)
    assert int(model(light).argmax()) == 0
    # Photos of any size, as the site has them.
    assert model.predict(both / "light") == ["light"] * 10
    assert model.predict(Image.new("RGB", (300, 200), (15, 15, 15))) == ["dark"]


def test_a_site_without_its_images_says_so(tmp_path: Path) -> None:
    grid = three_sites(tmp_path)
    grid.nodes[3] = {"name": "klaipeda", "data": str(tmp_path / "nowhere")}
    said: list[str] = []

    class Ears(Observer):
        def say(self, text: str) -> None:
            said.append(text)

    with pytest.raises(InputError, match="2 of 3 sites"):
        serve(grid, read_run_config(RUN | {"output": str(tmp_path)}), Ears(), poll=0.01)
    assert len(said) == 1
    assert said[0].startswith("Site klaipeda (node 3) cannot take part: ")
