import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from pfedfda import FederationConfig, InputError, RunStoppedError, compare, load_run, run
from pfedfda.cli import main
from pfedfda.experiment.config import read_config
from pfedfda.experiment.rounds import draw_participants
from pfedfda.methods import Client, Tensors, Update
from pfedfda.methods.ditto import Ditto
from pfedfda.methods.fedavg import FedAvg, FedAvgFT
from pfedfda.methods.local import Local
from pfedfda.methods.pfedme import PFedMe
from tests.experiment.files import comparable_files, final_state


def test_participation_is_bernoulli() -> None:
    draws = [
        draw_participants(100, 0.3, seed=0, round_number=r, last_round=999) for r in range(300)
    ]
    sizes = torch.tensor([len(d) for d in draws], dtype=torch.float64)
    # Binomial(100, 0.3): mean 30, standard deviation 4.58; 300 draws, so five standard errors.
    assert abs(sizes.mean().item() - 30) < 5 * 4.58 / 300**0.5
    assert 3.5 < sizes.std().item() < 5.7
    taken = torch.bincount(torch.tensor([c for draw in draws for c in draw]), minlength=100)
    assert taken.min() > 50  # 90 expected for each client, standard deviation 7.9
    assert taken.max() < 130


def test_somebody_always_takes_part_and_everybody_at_the_end() -> None:
    draws = [draw_participants(5, 1e-9, 0, r, last_round=101) for r in range(1, 101)]
    assert {len(d) for d in draws} == {1}
    assert {d[0] for d in draws} == set(range(5))
    assert draw_participants(5, 1e-9, 0, 101, last_round=101) == [0, 1, 2, 3, 4]


def test_participation_is_the_same_for_every_method(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    comparison = compare(
        ["fedavg", "fedavg-ft"],
        tiny_config,
        rounds=3,
        eval_every=1,
        workers=0,
        output=tmp_path,
        quiet=True,
    )
    first, second = ([m["participants"] for m in r.metrics] for r in comparison.results)
    assert first == second
    # Fine-tuning happens on copies, so both train the same global model.
    states = [
        (r.folder / "checkpoint" / "server-000003.safetensors").read_bytes()
        for r in comparison.results
    ]
    assert states[0] == states[1]


def test_what_a_run_leaves(tiny_config: FederationConfig, tmp_path: Path) -> None:
    result = run(
        FedAvgFT(fine_tune_epochs=1),
        tiny_config,
        rounds=4,
        eval_every=2,
        workers=1,
        output=tmp_path,
        quiet=True,
    )
    assert result.folder == tmp_path / "digits-fedavg-ft"
    lines = [json.loads(x) for x in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [2, 4]
    assert lines == result.metrics
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["status"] == "complete"
    for name in ("mean", "std", "weighted", "worst_tenth"):
        assert summary[f"{name}_accuracy"] == lines[-1][f"{name}_accuracy"]
    assert summary["bytes_up_per_round"] * 4 == summary["bytes_up"] > 0
    assert summary["seconds"]["clients"]["network"] > 0
    rows = list(csv.DictReader((result.folder / "clients.csv").read_text().splitlines()))
    assert [int(row["client"]) for row in rows] == list(range(6))
    assert {int(row["train_samples"]) for row in rows} == {8}
    mean = sum(float(row["accuracy"]) for row in rows) / 6
    assert mean == pytest.approx(summary["mean_accuracy"])
    manifest = json.loads((result.folder / "checkpoint" / "manifest.json").read_text())
    assert manifest["round"] == 4
    assert manifest["about"]["hyperparameters"] == {"fine_tune_epochs": 1}
    assert load_run(result.folder) == result


@dataclass(frozen=True)
class Unbounded(FedAvg):
    """FedAvg with a hyper-parameter that is infinite."""

    name: ClassVar[str] = "unbounded"
    bound: float = float("inf")


def test_an_infinite_hyper_parameter_leaves_plain_json(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    result = run(Unbounded(), tiny_config, rounds=1, workers=0, output=tmp_path, quiet=True)
    manifest = (result.folder / "checkpoint" / "manifest.json").read_text()
    assert json.loads(manifest)["about"]["hyperparameters"] == {"bound": "inf"}


def test_config_of_a_run_gives_the_run_again(tiny_config: FederationConfig, tmp_path: Path) -> None:
    first = run(
        FedAvgFT(fine_tune_epochs=2), tiny_config, rounds=2, workers=0, output=tmp_path, quiet=True
    )
    config = read_config(first.folder / "config.toml")
    again = run(
        config.methods["fedavg-ft"],
        config.federation,
        rounds=config.schedule.rounds,
        workers=1,
        output=tmp_path,
        quiet=True,
    )
    assert again.folder == tmp_path / "digits-fedavg-ft-2"
    assert comparable_files(first.folder) == comparable_files(again.folder)


def test_seed_changes_the_run(tiny_config: FederationConfig, tmp_path: Path) -> None:
    states = [
        run("fedavg", tiny_config, rounds=1, seed=s, workers=0, output=tmp_path, quiet=True).folder
        for s in (0, 1)
    ]
    tensors = [final_state(folder) for folder in states]
    assert not torch.equal(tensors[0]["head.weight"], tensors[1]["head.weight"])


def test_personal_state_is_kept_for_those_who_took_part(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    result = run("local", tiny_config, rounds=2, workers=2, output=tmp_path, quiet=True)
    clients = sorted((result.folder / "checkpoint" / "clients").rglob("*.safetensors"))
    assert [p.parent.name for p in clients] == [f"{c:06d}" for c in range(6)]
    assert {p.stem for p in clients} == {"000002"}  # of the last round, in which all took part
    assert (result.summary["bytes_up"], result.summary["bytes_down"]) == (0, 0)


@dataclass(frozen=True)
class Interrupted(Local):
    """Local training in whose third round the user interrupts."""

    name: ClassVar[str] = "interrupted"

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        if client.round == 3 and client.client_id >= 3:
            raise KeyboardInterrupt
        return update


def test_a_run_that_breaks_off_leaves_its_complete_rounds(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    settings = {"participation": 1.0, "eval_every": 1, "workers": 0, "quiet": True}
    with pytest.raises(RunStoppedError, match="2 of 5 rounds are complete") as caught:
        run(Interrupted(), tiny_config, rounds=5, output=tmp_path / "broken", **settings)
    assert "\n" not in str(caught.value)
    broken = tmp_path / "broken" / "digits-interrupted"
    assert f"pfedfda run --resume {broken}" in str(caught.value)
    summary = json.loads((broken / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("stopped", 2)
    whole = run("local", tiny_config, rounds=2, output=tmp_path / "whole", **settings).folder
    assert (broken / "clients.csv").read_bytes() == (whole / "clients.csv").read_bytes()
    for path in (whole / "checkpoint" / "clients").rglob("*.safetensors"):
        assert (broken / path.relative_to(whole)).read_bytes() == path.read_bytes()


def test_divergence_is_said_plainly(tiny_config: FederationConfig, tmp_path: Path) -> None:
    with pytest.raises(RunStoppedError, match="diverged.*smaller --lr") as caught:
        run("fedavg", tiny_config, rounds=9, lr=1e6, workers=0, output=tmp_path, quiet=True)
    assert "To go on" not in str(caught.value)  # it would only diverge again


@pytest.mark.parametrize("workers", [0, 1])
def test_a_comparison_goes_on_without_a_method_that_diverges(
    workers: int, tiny_config: FederationConfig, tmp_path: Path
) -> None:
    wild = PFedMe(personal_lr=1e6)
    settings = {"rounds": 2, "workers": workers, "quiet": True}
    comparison = compare(["local", wild, "fedavg"], tiny_config, output=tmp_path, **settings)
    assert [result.method for result in comparison.results] == ["local", "fedavg"]
    assert len(comparison.stopped) == 1
    assert comparison.stopped[0].startswith("pFedMe: ")
    alone = run("fedavg", tiny_config, output=tmp_path / "alone", **settings)
    assert alone.mean_accuracy == comparison.results[1].mean_accuracy
    table = (comparison.folder / "comparison.csv").read_text()
    assert [line.split(",")[0] for line in table.splitlines()[1:]] == ["local", "fedavg"]


def test_folders_never_collide(tiny_config: FederationConfig, tmp_path: Path) -> None:
    settings = {"rounds": 1, "workers": 0, "output": tmp_path, "quiet": True}
    folders = [run("local", tiny_config, **settings).folder.name for _ in range(3)]
    assert folders == ["digits-local", "digits-local-2", "digits-local-3"]
    run("local", tiny_config, name="mine", **settings)
    with pytest.raises(InputError, match=r"mine is there already"):
        run("local", tiny_config, name="mine", **settings)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        run("local", tiny_config, rounds=1, workers=0, output=blocked, quiet=True)


def test_comparison_table(tiny_config: FederationConfig, tmp_path: Path) -> None:
    comparison = compare(
        [Local(), "fedavg"], tiny_config, rounds=1, workers=1, output=tmp_path, quiet=True
    )
    text = str(comparison)
    assert "local" in text
    assert "fedavg" in text
    assert f"{comparison.results[1].mean_accuracy:.3f}" in text
    rows = list(csv.DictReader((comparison.folder / "comparison.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == ["local", "fedavg"]
    assert float(rows[0]["mean_accuracy"]) == comparison.results[0].mean_accuracy
    assert list(read_config(comparison.folder / "config.toml").methods) == ["local", "fedavg"]


def test_a_lost_line_of_the_table_comes_back(tmp_path: Path) -> None:
    """A kill between the end of the last run and its line loses nothing."""
    words = ["compare", "--methods", "local", "fedavg", "--rounds", "1", "--workers", "0"]
    words += ["--partition", "client-dirichlet", "--clients", "6", "--samples", "8", "--quiet"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    table = tmp_path / "digits-compare" / "comparison.csv"
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    assert main(["compare", "--resume", str(table.parent), "--quiet"]) == 0
    assert table.read_text() == whole


def test_a_comparison_has_each_method_once(tiny_config: FederationConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ditto is there twice with different"):
        compare([Ditto(mu=0.1), Ditto(mu=1.0)], tiny_config, rounds=1, output=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_comparison_that_stops_shows_what_it_has(
    tiny_config: FederationConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"participation": 1.0, "workers": 0, "output": tmp_path}
    with pytest.raises(RunStoppedError, match="2 of 4 rounds"):
        compare(["fedavg", Interrupted()], tiny_config, rounds=4, **settings)
    assert "│ fedavg" in capsys.readouterr().err
    rows = (tmp_path / "digits-compare" / "comparison.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["method", "fedavg"]


def test_run_wants_one_method(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Exactly one method"):
        run("all", output=tmp_path)


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a finished run"):
        load_run(tmp_path)


def test_fedavg_learns_the_digits(tmp_path: Path) -> None:
    """A sanity check against chance: ten clients with all digits between them."""
    config = FederationConfig(clients=10, partition="iid")
    result = run(
        FedAvg(), config, rounds=6, participation=1.0, lr=0.03, batch_size=10, epochs=2,
        output=tmp_path, quiet=True,
    )  # fmt: skip
    assert result.mean_accuracy > 0.85


def test_new_clients_never_train_and_are_evaluated_at_the_end(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    def go(workers: int) -> Path:
        return run(
            "local", tiny_config, rounds=3, new_clients=0.5, workers=workers,
            output=tmp_path / str(workers), quiet=True,
        ).folder  # fmt: skip

    folder = go(0)
    clients = (folder / "checkpoint" / "clients").rglob("*.safetensors")
    trained = sorted(p.parent.name for p in clients)
    assert trained == ["000000", "000001", "000002"]
    rows = list(csv.DictReader((folder / "clients.csv").read_text().splitlines()))
    assert [int(row["client"]) for row in rows] == [0, 1, 2]
    rows = list(csv.DictReader((folder / "new_clients.csv").read_text().splitlines()))
    assert {int(row["client"]) for row in rows} == {3, 4, 5}
    assert len({row["condition"] for row in rows}) == 11
    summary = json.loads((folder / "summary.json").read_text())
    clean = [float(row["accuracy"]) for row in rows if row["condition"] == "clean"]
    assert summary["new_clients"]["clean"]["mean_accuracy"] == pytest.approx(sum(clean) / 3)
    assert comparable_files(folder) == comparable_files(go(2))
    with pytest.raises(InputError, match="new-clients is 1"):
        run("local", tiny_config, new_clients=1.0, output=tmp_path)


def test_shifted_clients_are_named_in_the_results(tmp_path: Path) -> None:
    federation = FederationConfig(clients=6, alpha=5.0, shift="paper")
    folder = run("fedavg", federation, rounds=1, workers=0, output=tmp_path, quiet=True).folder
    assert folder.name == "digits-s-fedavg"
    rows = list(csv.DictReader((folder / "clients.csv").read_text().splitlines()))
    assert [row["corruption"] for row in rows[:3]] == [
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
    ]
    assert [row["severity"] for row in rows[3:]] == ["0", "0", "0"]
