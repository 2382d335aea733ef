"""Secure aggregation over messages: what goes up, and sites that drop out in every stage."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pfedfda
from pfedfda import InputError, RunStoppedError
from pfedfda.engine import client as engine_client
from pfedfda.experiment import rounds
from pfedfda.experiment.observers import Observer

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Context, Message, RecordDict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from pfedfda.flower.app_settings import read_run_config
from pfedfda.flower.client_app import app
from pfedfda.flower.secure_site import STATE
from pfedfda.flower.server_app import serve
from pfedfda.flower.wire import FAILURE, pack, settings_of, tensors_of
from tests.experiment.files import final_state
from tests.flower.grids import FakeGrid, over_the_wire
from tests.methods.toy import same

CLIENTS = 4
RUN: dict[str, Any] = {
    "source": "digits",
    "clients": CLIENTS,
    "train_fraction": 0.05,
    "rounds": 3,
    "participation": 1.0,
    "eval_every": 0,
    "checkpoint_every": 1,
    "epochs": 1,
    "secure_aggregation": True,
    "max_failures": 1.0,
}
STAGES = ("query.secure_keys", "query.secure_shares", "train", "query.secure_unmask")


class Killed(BaseException):
    """The server ends at once."""


class Told(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def make_grid(tmp_path: Path) -> FakeGrid:
    sites = str(tmp_path / "sites")
    return FakeGrid(app, {n + 1: {"partition-id": n, "state-dir": sites} for n in range(CLIENTS)})


def go(
    grid: FakeGrid, tmp_path: Path, observer: Observer | None = None, **changes: Any
) -> pfedfda.RunResult:
    run_config = {
        **RUN,
        "method": "ditto",
        "min-nodes": CLIENTS,
        "wait": 0.2,
        "timeout": 0.5,
        "output": str(tmp_path),
        "name": "run",
        **changes,
    }
    return serve(grid, read_run_config(run_config), observer or Told(), poll=0.01)


def failures(folder: Path) -> list[dict[str, Any]]:
    path = folder / "failures.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def fails_in(grid: FakeGrid, node: int, stage: str, round_number: int) -> None:
    """Let a node answer with a failure in one stage of one round."""

    def tamper(message: Message, reply: Message) -> Message:
        mine = message.metadata.message_type == stage
        if mine and message.metadata.group_id == str(round_number):
            return Message(pack(settings={FAILURE: "the power is gone"}), reply_to=message)
        return reply

    grid.tamper[node] = tamper


def fail_locally(monkeypatch: pytest.MonkeyPatch, clients: set[int], round_number: int) -> None:
    """Let clients of the local engine fail in a round."""
    run = engine_client.ClientRunner.run

    def failing(self: Any, step: Any, client_id: int, *rest: Any) -> Any:
        outcome = run(self, step, client_id, *rest)
        if step.kind == "train" and client_id in clients and step.round == round_number:
            return replace(outcome, update=None, failure="the power is gone")
        return outcome

    monkeypatch.setattr(engine_client.ClientRunner, "run", failing)


def test_nothing_goes_up_but_masked_sums_keys_and_shares(tmp_path: Path) -> None:
    grid = make_grid(tmp_path)
    go(grid, tmp_path, rounds=1)
    kinds = Counter(kind for _, kind in grid.asked)
    assert kinds == dict.fromkeys(("query", *STAGES, "evaluate"), CLIENTS)
    sent: dict[str, list[RecordDict]] = {}
    for message in grid.sent_up:
        sent.setdefault(message.metadata.message_type, []).append(message.content)
    for content in sent["train"]:
        assert set(content) == {"arrays"}  # no loss, no weight, no seconds
        ((name, masked),) = tensors_of(content).items()
        assert name == "masked"
        assert masked.dtype == torch.int64
        # Words of 64 bits that are small nowhere: half of them have each of the highest bits set.
        assert 0.4 < float((masked < 0).double().mean()) < 0.6
        assert 0.4 < float(((masked >> 62) & 1).double().mean()) < 0.6
    fields = {
        "query.secure_keys": {"masks.clients", "masks.bytes", "shares.clients", "shares.bytes"},
        "query.secure_shares": {"secrets.clients", "secrets.bytes"},
        "query.secure_unmask": {"shares.clients", "shares.bytes"},
    }
    for kind, names in fields.items():
        for content in sent[kind]:
            assert set(content) == {"settings"}
            assert set(settings_of(content)) == names


def test_masks_are_new_in_every_run(tmp_path: Path) -> None:
    seen = []
    for name in ("one", "two"):
        grid = make_grid(tmp_path / name)
        result = go(grid, tmp_path / name, rounds=1)
        vectors = [
            tensors_of(m.content)["masked"]
            for m in grid.sent_up
            if m.metadata.message_type == "train"
        ]
        seen.append((final_state(result.folder), vectors))
    (first, masked), (second, others) = seen
    assert same(first, second)
    for one, other in zip(masked, others, strict=True):
        assert float((one == other).double().mean()) < 1e-3


@pytest.mark.parametrize("stage", STAGES[:3])
def test_a_site_that_drops_out_is_left_out_and_named(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of the others is that of a simulation in which the same client fails, to the bit."""
    grid = make_grid(tmp_path)
    fails_in(grid, 3, stage, 2)
    result = go(grid, tmp_path)
    assert [(line["round"], line["client"]) for line in failures(result.folder)] == [(2, 2)]
    assert "the power is gone" in failures(result.folder)[0]["reason"]
    assert "abandoned_rounds" not in result.summary
    fail_locally(monkeypatch, {2}, 2)
    local = pfedfda.run("ditto", output=tmp_path, name="local", workers=0, quiet=True, **RUN)
    assert same(final_state(result.folder), final_state(local.folder))


def test_who_does_not_help_to_unmask_is_in_the_sum_all_the_same(tmp_path: Path) -> None:
    grid = make_grid(tmp_path)
    fails_in(grid, 3, "query.secure_unmask", 2)
    result = go(grid, tmp_path)
    assert failures(result.folder) == []
    other = go(make_grid(tmp_path / "other"), tmp_path / "other")
    assert same(final_state(result.folder), final_state(other.folder))


@pytest.mark.parametrize(
    ("stage", "did"),
    list(zip(STAGES, ("sent keys", "shared their secrets", "contributed", "helped"), strict=True)),
)
def test_too_few_sites_in_any_stage_abandon_the_round(stage: str, did: str, tmp_path: Path) -> None:
    grid, told = make_grid(tmp_path), Told()
    for node in (1, 3):
        fails_in(grid, node, stage, 2)
    result = go(grid, tmp_path, told)
    assert result.summary["status"] == "complete"
    assert result.summary["abandoned_rounds"] == [2]
    (said,) = [line for line in told.lines if "abandoned" in line]
    assert f"round 2 is abandoned: 2 of 4 clients {did}" in said
    assert "secure-threshold needs 3 (the power is gone)" in said
    assert {(line["round"], line["client"]) for line in failures(result.folder)} == {(2, 0), (2, 2)}


def test_an_abandoned_round_is_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = make_grid(tmp_path)
    for node in (1, 3):
        fails_in(grid, node, "train", 2)
    result = go(grid, tmp_path)
    fail_locally(monkeypatch, {0, 2}, 2)
    local = pfedfda.run("ditto", output=tmp_path, name="local", workers=0, quiet=True, **RUN)
    assert local.summary["abandoned_rounds"] == [2]
    assert same(final_state(result.folder), final_state(local.folder))


def test_a_site_that_hangs_counts_as_one_that_dropped_out(tmp_path: Path) -> None:
    grid = make_grid(tmp_path)
    push = grid.push_messages

    def hang(messages: Any) -> Any:
        batch = list(messages)
        for message in batch:
            training = message.metadata.message_type == "train"
            if training and message.metadata.group_id == "2" and message.metadata.dst_node_id == 4:
                grid.silent.add(4)
        return push(batch)

    grid.push_messages = hang  # type: ignore[method-assign]
    result = go(grid, tmp_path, rounds=2)
    assert "abandoned_rounds" not in result.summary
    reasons = {line["round"]: line["reason"] for line in failures(result.folder)}
    assert "did not answer within 0.5 s" in reasons[2]


def test_a_wrong_vector_gives_no_sum(tmp_path: Path) -> None:
    """Masks that do not cancel are noticed; a vector of another size is left out."""
    grid, told = make_grid(tmp_path), Told()

    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "train":
            return reply
        masked = tensors_of(reply.content)["masked"]
        wrong = masked[:-1] if message.metadata.group_id == "1" else masked * 3
        return Message(pack({"masked": wrong}), reply_to=message)

    grid.tamper[2] = tamper
    result = go(grid, tmp_path, told)
    (line,) = failures(result.folder)
    assert (line["round"], line["client"]) == (1, 1)
    assert "its masked contribution has shape" in line["reason"]
    assert result.summary["abandoned_rounds"] == [2, 3]
    assert sum("the masks do not cancel" in text for text in told.lines) == 2


def test_checks_are_made_at_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pfedfda.methods import ditto

    train = ditto.Ditto.train

    def spoiled(self: Any, client: Any, message: Any) -> Any:
        update = train(self, client, message)
        if client.client_id == 1 and client.round == 2:
            update.tensors["head.bias"][0] = float("nan")
        if client.client_id == 2 and client.round == 3:
            update.tensors["head.bias"][0] = 9e5
        return update

    monkeypatch.setattr(ditto.Ditto, "train", spoiled)
    result = go(make_grid(tmp_path), tmp_path)
    reasons = {(line["round"], line["client"]): line["reason"] for line in failures(result.folder)}
    assert set(reasons) == {(2, 1), (3, 2)}
    assert "head.bias is not finite" in reasons[2, 1]
    assert "its contribution to head.bias reaches" in reasons[3, 2]
    # As if these sites had not taken part: they keep nothing of these rounds either.
    kept = {
        int(path.parent.name): int(path.stem)
        for path in (tmp_path / "sites").glob("*/*/states/*/*/*.safetensors")
        if int(path.stem) in (2, 3)
    }
    assert kept[2] == 2
    local = pfedfda.run("ditto", output=tmp_path, name="local", workers=0, quiet=True, **RUN)
    assert same(final_state(result.folder), final_state(local.folder))


class Tapped(FakeGrid):
    """A grid that keeps what it sends, and what nodes had in memory then."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent: list[Message] = []
        self.secrets: set[bytes] = set()

    def push_messages(self, messages: Any) -> Any:
        batch = list(messages)
        self.sent += batch
        ids = super().push_messages(batch)
        for kept in self.contexts.values():
            for name, value in dict(kept.get(STATE, {})).items():
                if name.startswith("own."):
                    self.secrets.add(value)
        return ids

    def again(self, node: int, kind: str, context: RecordDict) -> Message:
        """Ask a node once more what it was asked last."""
        (*_, last) = [
            m
            for m in self.sent
            if m.metadata.message_type == kind and m.metadata.dst_node_id == node
        ]
        return self.app(over_the_wire(last), Context(1, node, self.nodes[node], context, {}))


def tapped(tmp_path: Path) -> Tapped:
    return Tapped(app, make_grid(tmp_path).nodes)


def failure_of(reply: Message) -> str:
    return str(settings_of(reply.content)[FAILURE])


def test_secrets_are_in_memory_only_and_gone_after_the_round(tmp_path: Path) -> None:
    grid = tapped(tmp_path)
    go(grid, tmp_path)
    assert len(grid.secrets) == 3 * CLIENTS * RUN["rounds"]  # two keys and a seed, each time new
    assert all(STATE not in kept for kept in grid.contexts.values())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        content = path.read_bytes()
        assert not any(secret in content for secret in grid.secrets), path
    for message in grid.sent_up:
        for value in settings_of(message.content).values() if "settings" in message.content else ():
            if isinstance(value, list):
                assert not grid.secrets & {v for v in value if isinstance(v, bytes)}


def test_a_site_answers_each_question_once(tmp_path: Path) -> None:
    """A second vector under the same masks, or a second set of shares, would tell too much."""
    grid = tapped(tmp_path)
    held: dict[str, RecordDict] = {}

    def tamper(message: Message, reply: Message) -> Message:
        kind = message.metadata.message_type
        held[kind] = RecordDict(dict(grid.contexts[1]))
        return reply

    grid.tamper[1] = tamper
    go(grid, tmp_path, rounds=1)
    after_training, after_unmasking = held["train"], held["query.secure_unmask"]
    said = failure_of(grid.again(1, "train", after_training))
    assert "it has masked a contribution in this round already" in said
    said = failure_of(grid.again(1, "query.secure_shares", after_training))
    assert "it has shared its secrets of this round already" in said
    for kind in STAGES[1:]:
        assert "it has no keys of this round" in failure_of(grid.again(1, kind, after_unmasking))


def test_a_round_that_is_repeated_has_the_same_members_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sums of the same contributions, one without a site, would tell what that site sent."""
    save = rounds.Run._save

    def stopping(self: Any) -> None:
        if self.reached.round == 2:
            raise Killed
        save(self)

    with monkeypatch.context() as patched:
        patched.setattr(rounds.Run, "_save", stopping)
        with pytest.raises(Killed):
            go(make_grid(tmp_path), tmp_path)
    grid, told = make_grid(tmp_path), Told()
    fails_in(grid, 3, "train", 2)  # it was there the first time
    result = go(grid, tmp_path, told, resume=str(tmp_path / "run"))
    assert result.summary["abandoned_rounds"] == [2]
    assert any("it has been added up with others in this round before" in t for t in told.lines)


def test_a_run_that_goes_on_ends_as_if_it_had_not_been_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(make_grid(tmp_path / "whole"), tmp_path / "whole")
    draw = rounds.draw_participants

    def interrupt(*args: Any) -> list[int]:
        if args[3] == 3:
            raise KeyboardInterrupt
        return draw(*args)

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "draw_participants", interrupt)
        with pytest.raises(RunStoppedError):
            go(make_grid(tmp_path), tmp_path)
    again = go(make_grid(tmp_path), tmp_path, resume=str(tmp_path / "run"))
    assert same(final_state(again.folder), final_state(whole.folder))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "fedpac"}, "looks at the update of each client"),
        ({"secure_threshold": 0.4}, "secure-threshold is 0.4"),
        ({"clients": 2, "min-nodes": 2}, "2 clients are trained; secure aggregation needs"),
    ],
)
def test_what_cannot_work_is_refused_before_a_site_is_asked_to_train(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    grid = make_grid(tmp_path)
    grid.nodes = {n: grid.nodes[n] for n in list(grid.nodes)[: changes.get("clients", CLIENTS)]}
    with pytest.raises(InputError, match=sentence):
        go(grid, tmp_path, **changes)
    assert {kind for _, kind in grid.asked} <= {"query"}
    assert not (tmp_path / "run").exists()


def test_a_step_without_masks_is_refused_where_they_were_announced(tmp_path: Path) -> None:
    """The settings say that the sum is secure, and the message has no round: nothing goes up."""
    grid = tapped(tmp_path)
    go(grid, tmp_path, rounds=1)
    (*_, last) = [m for m in grid.sent if m.metadata.message_type == "train"]
    bare = {n: v for n, v in settings_of(last.content).items() if not n.startswith("secure.")}
    last.content = pack(tensors_of(last.content), settings=bare)
    node = last.metadata.dst_node_id
    reply = app(over_the_wire(last), Context(1, node, grid.nodes[node], RecordDict(), {}))
    assert "The round cannot be read" in failure_of(reply)
    assert set(reply.content) == {"settings"}


def test_a_site_may_insist_on_sums(tmp_path: Path) -> None:
    grid = make_grid(tmp_path)
    grid.nodes[2]["sums-only"] = True
    result = go(grid, tmp_path, secure_aggregation=False)
    reasons = {line["client"]: line["reason"] for line in failures(result.folder)}
    assert list(reasons) == [1]
    assert (
        reasons[1] == "The site 1 shows nothing but sums (sums-only): set secure-aggregation=true."
    )
    secure = go(grid, tmp_path / "secure")
    assert failures(secure.folder) == []


WRONG: list[Any] = ["text", [], [b"x" * 10**5] * CLIENTS, [7] * 3, -1]


@pytest.mark.parametrize("stage", [STAGES[0], STAGES[1], STAGES[3]])
@pytest.mark.parametrize("wrong", [*WRONG, None], ids=lambda wrong: type(wrong).__name__)
def test_answers_that_are_none_drop_their_site_and_stop_nothing(
    stage: str, wrong: Any, tmp_path: Path
) -> None:
    grid, count = make_grid(tmp_path), 0

    def tamper(message: Message, reply: Message) -> Message:
        nonlocal count
        if message.metadata.message_type != stage:
            return reply
        settings = dict(settings_of(reply.content))
        name = list(settings)[count % 2]  # one round the clients, one their bytes
        count += 1
        settings = {} if wrong is None else settings | {name: wrong}
        return Message(pack(settings=settings), reply_to=message)

    grid.tamper[2] = tamper
    result = go(grid, tmp_path, method="fedncm", rounds=2)
    assert count == 2
    assert "abandoned_rounds" not in result.summary
    left_out = {(line["round"], line["client"]) for line in failures(result.folder)}
    assert left_out == (set() if stage == STAGES[3] else {(1, 1), (2, 1)})


@pytest.mark.parametrize("what", ["no key", "another curve", "another kind", "of another"])
def test_keys_that_are_none_drop_their_site(what: str, tmp_path: Path) -> None:
    """Else all others would fail with them."""
    grid, seen = make_grid(tmp_path), list[Any]()

    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "query.secure_keys":
            return reply
        settings = dict(settings_of(reply.content))
        seen.append(settings["masks.bytes"])
        key = {
            "no key": b"-----BEGIN PUBLIC KEY-----",
            "another curve": public_key_to_bytes(
                ec.generate_private_key(ec.SECP256R1()).public_key()
            ),
            "another kind": rsa.generate_private_key(65537, 2048)
            .public_key()
            .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "of another": seen[0][0],
        }[what]
        if message.metadata.dst_node_id == 2:
            settings["masks.bytes"] = [key]
        return Message(pack(settings=settings), reply_to=message)

    grid.tamper |= {1: tamper, 2: tamper}
    result = go(grid, tmp_path, method="fedncm", rounds=1)
    assert len(failures(result.folder)) == 1
    assert "its keys" in failures(result.folder)[0]["reason"]


@pytest.mark.parametrize("what", ["empty", "of another", "changed"])
def test_shares_that_are_wrong_but_well_formed(what: str, tmp_path: Path) -> None:
    """What is not a share of this site is not used; a share that is changed spoils the sum."""
    grid, told = make_grid(tmp_path), Told()

    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "query.secure_unmask":
            return reply
        settings = dict(settings_of(reply.content))
        shares = settings["shares.bytes"]
        assert isinstance(shares, list)
        wrong = {
            "empty": b"",
            "of another": b"\x01" + shares[0][1:],
            "changed": shares[0][:-1] + bytes([shares[0][-1] ^ 1]),
        }[what]
        return Message(
            pack(settings=settings | {"shares.bytes": [wrong, *shares[1:]]}), reply_to=message
        )

    grid.tamper[2] = tamper
    if what != "changed":
        assert "abandoned_rounds" not in go(grid, tmp_path, told, rounds=1).summary
        return
    with pytest.raises(RunStoppedError, match="Every round was abandoned"):
        go(grid, tmp_path, told, rounds=1)
    (said,) = [line for line in told.lines if "is abandoned" in line]
    assert "do not fit together" in said or "do not cancel" in said


def test_a_plain_run_does_not_even_import_it() -> None:
    code = (
        "import sys, pfedfda.flower.client_app, pfedfda.flower.server_app\n"
        "print([n for n in sys.modules if 'flower.secure_' in n or 'flower.masking' in n])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
