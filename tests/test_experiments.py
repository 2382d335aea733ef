import csv
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments import choose_default
from experiments.class_counts import count
from experiments.pfedfda_variants import PFedFDAVariants
from experiments.search import make_method, read_settings
from experiments.serve_otherwise import serve
from experiments.spoiled_clients import GREY, spoil

import pfedfda
from pfedfda.data import Federation, FederationConfig
from pfedfda.errors import InputError
from pfedfda.gaussian import estimate_statistics, unpack_symmetric
from pfedfda.methods import Method, all_methods, find_method, registry, to_input
from pfedfda.methods.fedavg import FedAvgFT
from pfedfda.methods.pfedme import PFedMe
from pfedfda.runs.config import make_config
from tests.methods.features import LABELS, assert_estimated_from
from tests.methods.toy import TASK, make_client, parameters_of, same

ROOT = Path(__file__).parents[1]


def load(monkeypatch: pytest.MonkeyPatch, name: str) -> Method:
    monkeypatch.setattr(registry, "_registry", all_methods())  # it is forgotten afterwards
    return registry.load_method_file(ROOT / "experiments" / name)()


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
    np.save(tmp_path / "inputs.npy", np.zeros((7, 2, 2, 1), np.uint8))
    (tmp_path / "index.json").write_text('{"train": [3], "test": [4], "type": "uint8"}')
    assert count(Federation(tmp_path), 0) == (2, 0.75, 0.5)


@pytest.mark.parametrize("what", ["labels", "images"])
@pytest.mark.parametrize("test_only", [False, True])
def test_only_corrupted_clients_are_spoiled(tmp_path: Path, what: str, test_only: bool) -> None:
    sizes = {"train": [20, 20], "test": [20, 20], "type": "uint8"}
    sizes["attributes"] = {"corruption": ["", "fog"]}
    (tmp_path / "index.json").write_text(json.dumps(sizes))
    labels, images = np.arange(80), np.full((80, 2, 2, 1), 7, np.uint8)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "inputs.npy", images)
    spoil(Federation(tmp_path), what, test_only)
    after = {
        "labels": np.load(tmp_path / "labels.npy"),
        "images": np.load(tmp_path / "inputs.npy"),
    }
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


@pytest.mark.parametrize(
    ("which", "rows"),
    [
        ("all", slice(0, 22)),
        ("first", slice(0, 11)),
        ("last", slice(11, 22)),
        ("before", slice(0, 11)),
        ("after", slice(22, 33)),
    ],
)
def test_variants_estimate_from_other_features(which: str, rows: slice) -> None:
    assert_estimated_from(PFedFDAVariants(ridge=0.25, features=which), rows)


def test_total_scatter_is_the_covariance_of_the_union() -> None:
    task = replace(TASK, training=replace(TASK.training, epochs=1, lr=1e-12))
    method = PFedFDAVariants(ridge=0.0, scatter="total", features="before")
    state = method.init(task)
    groups = [[0, 0, 1, 2] * 5, [0, 1, 1, 1, 2] * 4]  # of one size, so that n - 1 is the same
    clients = [make_client(labels, i, task=task) for i, labels in enumerate(groups)]
    updates = [method.train(client, method.message(state, 0)) for client in clients]
    after = method.aggregate(state, updates)
    body = task.build_model().body
    parts = [body(to_input(c.samples.inputs)).detach().double() for c in clients]
    features, labels = torch.cat(parts), torch.tensor([*groups[0], *groups[1]])

    def scatter(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        means = torch.stack([features[labels == c].mean(0) for c in range(3)])
        return (features - means[labels]).T @ (features - means[labels])

    inside = sum(scatter(f, torch.tensor(y)) for f, y in zip(parts, groups, strict=True))
    expected = inside / 38 + (scatter(features, labels) - inside) / 40
    covariance = unpack_symmetric(after["covariance"]).double()
    torch.testing.assert_close(covariance, expected, rtol=1e-4, atol=1e-7)


def test_estimated_start_is_a_round_of_statistics_without_training() -> None:
    method = PFedFDAVariants(ridge=0.2, initial_means="estimated")
    state = method.init(TASK)
    client = make_client(LABELS)
    update = method.train(client, method.message(state, 0))
    body = {name: t for name, t in TASK.initial_tensors().items() if name.startswith("body")}
    assert all(torch.equal(update.tensors[name], t) for name, t in body.items())
    assert "train_loss" not in update.metrics
    after = method.aggregate(state, [update])
    features = TASK.build_model().body(to_input(client.samples.inputs)).detach()
    for c in range(3):
        expected = features[client.samples.labels == c].mean(0)
        torch.testing.assert_close(after["means"][c], expected, rtol=1e-4, atol=1e-5)
    trained = method.train(replace(make_client(LABELS), round=2), method.message(after, 0))
    assert trained.metrics["train_loss"] > 0
    assert not any(torch.equal(trained.tensors[name], t) for name, t in body.items())


def test_relative_ridge_does_not_depend_on_the_scale_of_features() -> None:
    method = PFedFDAVariants(ridge=0.5, relative_ridge=True, initial_means="estimated")
    covariances = []
    for scale in (1.0, 100.0):
        message = method.message(method.init(TASK), 0)
        for name in ("body.linear.weight", "body.linear.bias"):
            message[name] = scale * message[name]
        update = method.train(make_client(LABELS), message)
        covariances.append(unpack_symmetric(update.tensors["covariance"]) / scale**2)
    torch.testing.assert_close(covariances[0], covariances[1], rtol=1e-4, atol=1e-9)
    smallest = torch.linalg.eigvalsh(covariances[0].double())[0]  # 11 samples: it is the ridge
    mean_variance = covariances[0].diagonal().mean() / 1.5
    assert float(smallest) == pytest.approx(0.5 * float(mean_variance), rel=1e-3)


def test_a_relative_ridge_holds_when_a_client_adapts_too() -> None:
    """Without interpolation: the classifier's weights are those of an estimate with that ridge."""
    features = TASK.build_model().body(to_input(make_client(LABELS).samples.inputs)).detach()
    own = estimate_statistics(features, torch.tensor(LABELS), 4)
    unit = float(own.covariance.diagonal().mean())
    relative = PFedFDAVariants(ridge=0.5, relative_ridge=True, betas="none")
    absolute = PFedFDAVariants(ridge=0.5 * unit, betas="none")
    message = relative.message(relative.init(TASK), 0)
    heads = [
        parameters_of(method.personalize(make_client(LABELS), message).model.head)
        for method in (relative, absolute)
    ]
    assert same(*heads)


def test_variants_have_the_defaults_of_the_preset_they_differ_from() -> None:
    preset = asdict(find_method("pfedfda-pooled")())
    assert preset.items() <= asdict(PFedFDAVariants()).items()
    for words in ([], ["ridge=0.03", "features=first"]):
        method, others = make_method("pfedfda-pooled", read_settings([*words, "init=he"]))
        assert method.name == "pfedfda-pooled"
        assert others == {"init": "he"}


def test_every_row_of_the_search_can_be_run_again() -> None:
    with (ROOT / "results" / "search.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 40
    for row in rows:
        method, others = make_method(row["method"], read_settings(row["settings"].split()))
        make_config({method.name: method}, row["dataset"], **others)


@pytest.mark.parametrize("option", [{"initial_means": "estimated"}, {"scatter": "total"}])
def test_variants_of_pooled_statistics_are_refused_with_interpolated_ones(
    option: dict[str, str],
) -> None:
    with pytest.raises(InputError, match="Only pooled statistics"):
        PFedFDAVariants(statistics="interpolated", **option)


def chosen(scores: dict[str, list[float]]) -> dict[choose_default.Key, choose_default.Record]:
    """Return records of the first step: a score for each federation, equal for the others."""
    records = {}
    for place, name in enumerate(choose_default.FEDERATIONS):
        rounds = choose_default.rounds_of(name, 1)
        for candidate in choose_default.CANDIDATES:
            score = scores.get(candidate, [0.5] * 8)[place]
            key = (name, candidate, rounds, 0)
            records[key] = {"mean_accuracy": score, "worst_tenth_accuracy": 0.1}
    return records


def test_the_rule_ranks_by_federations_and_prefers_fewer_changes() -> None:
    candidates = list(choose_default.CANDIDATES)
    assert choose_default.first_step({})[1] == []
    assert choose_default.first_step(chosen({}))[1] == candidates  # all equal
    scores = {"levels": [0.9] * 4 + [0.1] * 4, "before": [0.6] * 8}
    text, order = choose_default.first_step(chosen(scores))
    assert order[0] == "before"  # a steady gain beats a large one that is not
    assert "| before | 0.6000 (0.100)" in text


def test_the_rule_compares_the_last_with_the_default_in_pairs() -> None:
    generator = np.random.default_rng(0)
    records = {}
    for seed in choose_default.SEEDS:
        accuracies = generator.uniform(0.3, 0.9, 50)
        for name in choose_default.LONG:
            for candidate, gain in ((choose_default.TODAY, 0.0), ("levels", 0.02)):
                record = {"accuracies": (accuracies + gain).tolist()}
                records[name, candidate, 200, seed] = record
    text = choose_default.second_step(records, [choose_default.TODAY, "levels"])
    row = next(line for line in text.splitlines() if line.startswith("| levels | CIFAR10-S"))
    assert "+0.0200 ± 0.0000" in row
    assert "+0.020 ± 0.000" in row
