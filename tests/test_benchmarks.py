import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.class_counts import count
from benchmarks.serve_otherwise import serve
from benchmarks.spoiled_clients import GREY, spoil

import pfedfda
from pfedfda.data import Federation, FederationConfig
from pfedfda.errors import InputError
from pfedfda.methods import Method, all_methods, registry
from pfedfda.methods.fedavg import FedAvgFT
from pfedfda.methods.pfedme import PFedMe
from tests.methods.toy import TASK, make_client, parameters_of, same

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_the_scale_benchmark_measures_every_size() -> None:
    """Ditto's clients keep tensors on disk, so it goes through all that the benchmark has."""
    words = ["benchmarks/scale.py", "--quick", "--methods", "ditto"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| d")]
    assert [(row[0].strip(), row[1].strip()) for row in rows] == [("ditto", "20"), ("ditto", "200")]
    for row in rows:
        seconds, main, worker, _ = (float(cell.split()[0]) for cell in row[2:])
        assert seconds > 0
        assert main > 10
        assert worker > 10


def load(monkeypatch: pytest.MonkeyPatch, name: str) -> Method:
    monkeypatch.setattr(registry, "_registry", all_methods())  # it is forgotten afterwards
    return registry.load_method_file(ROOT / "benchmarks" / name)()


def test_whole_batches_only_differ_where_one_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    method = load(monkeypatch, "drop_last.py")
    ordinary = all_methods()["fedavg-ft"]()
    start = TASK.initial_tensors()  # batches have 5 samples
    for labels, equal in (([0, 1, 2, 3, 0], True), ([0, 1, 2, 3, 0, 1, 2], False)):
        sent, usual = (m.train(make_client(labels), start).tensors for m in (method, ordinary))
        assert same(sent, usual) == equal


def test_pfedme_that_serves_w_trains_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    method = load(monkeypatch, "pfedme_w.py")
    start, labels = TASK.initial_tensors(), [0, 1, 2, 3, 0, 1, 2]
    client, ordinary = make_client(labels), make_client(labels)
    sent = method.train(client, start).tensors
    assert same(sent, PFedMe().train(ordinary, start).tensors)
    assert not same(sent, ordinary.state)  # θ is another model
    newcomer = make_client(labels)
    for served in (method.personalize(client, start), method.personalize(newcomer, start)):
        tensors = {n: t.contiguous() for n, t in parameters_of(served.model).items()}
        assert same(tensors, sent)
    assert not newcomer.state


def test_serving_a_run_in_its_own_way_gives_its_own_accuracy(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    """FedAvgFT keeps nothing at its clients, so its run ends with what is served here."""
    run = pfedfda.run(
        "fedavg-ft", tiny_config, rounds=3, workers=0, output=tmp_path, name="run", quiet=True
    )
    accuracies = serve(run.folder, ["fedavg", "fedavg-ft"])
    assert np.mean(accuracies["fedavg-ft"]) == pytest.approx(run.mean_accuracy)
    assert np.mean(accuracies["fedavg"]) != pytest.approx(run.mean_accuracy)


def test_ways_to_serve_may_have_settings_of_their_own(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    """Fine-tuning for no epoch is FedAvg, and the run's own settings hold where none are given."""
    method = FedAvgFT(fine_tune_epochs=2)
    run = pfedfda.run(
        method, tiny_config, rounds=2, workers=0, output=tmp_path, name="run", quiet=True
    )
    ways = ["fedavg", "fedavg-ft", "fedavg-ft fine_tune_epochs=0", "fedavg-ft fine_tune_epochs=2"]
    shared, own, none, two = serve(run.folder, ways).values()
    assert none == shared
    assert own == two != shared
    with pytest.raises(InputError, match="fine_tune_epoch"):
        serve(run.folder, ["fedavg-ft fine_tune_epoch=1"])


def test_class_counts_of_a_client_by_hand(tmp_path: Path) -> None:
    labels = np.array([2, 0, 0, 0, 1, 2, 0])  # three for training, four for the test
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "images.npy", np.zeros((7, 2, 2, 1), np.uint8))
    (tmp_path / "index.json").write_text('{"train": [3], "test": [4]}')
    assert count(Federation(tmp_path), 0) == (2, 0.75, 0.5)


@pytest.mark.parametrize("what", ["labels", "images"])
@pytest.mark.parametrize("test_only", [False, True])
def test_only_corrupted_clients_are_spoiled(tmp_path: Path, what: str, test_only: bool) -> None:
    sizes = {"train": [20, 20], "test": [20, 20], "attributes": {"corruption": ["", "fog"]}}
    (tmp_path / "index.json").write_text(json.dumps(sizes))
    labels, images = np.arange(80), np.full((80, 2, 2, 1), 7, np.uint8)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "images.npy", images)
    spoil(Federation(tmp_path), what, test_only)
    after = {name: np.load(tmp_path / f"{name}.npy") for name in ("labels", "images")}
    first = 60 if test_only else 40  # clients follow each other, training before test samples
    untouched = "images" if what == "labels" else "labels"
    assert np.array_equal(after[untouched], {"labels": labels, "images": images}[untouched])
    if what == "labels":
        assert np.array_equal(after["labels"][:first], labels[:first])
        for part in range(first, 80, 20):
            assert sorted(after["labels"][part : part + 20]) == list(range(part, part + 20))
            assert not np.array_equal(after["labels"][part : part + 20], labels[part : part + 20])
    else:
        assert (after["images"][:first] == 7).all()
        assert (after["images"][first:] == GREY).all()


def test_the_combination_benchmark_compares_with_the_optimum() -> None:
    words = ["benchmarks/combination.py", "--clients", "40", "--partners", "20"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[-1].split("|")[1:-1]
    assert (row[0].strip(), row[1].strip()) == ("40", "20")
    assert -1e-9 <= float(row[4]) <= float(row[5]) < 0.1
