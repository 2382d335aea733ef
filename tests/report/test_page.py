import csv
import json
import math
import re
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from pfedfda import FederationConfig, run
from pfedfda.data import Federation
from pfedfda.errors import InputError
from pfedfda.report import PaperCell, PaperRow, PaperTable, charts, svg, write_report
from pfedfda.report.groups import read_groups
from pfedfda.report.page import render
from pfedfda.report.ranks import ranks_over
from pfedfda.report.svg import Drawing
from pfedfda.runs import ClassCounts, write_class_counts
from pfedfda.runs.statistics import paired_difference
from tests.report.fake_runs import change_summary, write_comparison, write_run

EVIL = "<script>alert(1)</script>\"'&"
VOID = {"meta", "input", "br", "img"}
SYMBOLS = ("circle", "square", "triangle", "down", "diamond", "cross", "plus")


class Reader(HTMLParser):
    """Reads a page, and checks that every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def count(self, tag: str, **attributes: str) -> int:
        return sum(
            t == tag and all(a.get(k.rstrip("_")) == v for k, v in attributes.items())
            for t, a in self.seen
        )

    @property
    def text(self) -> str:
        return " ".join(self.words)


def page_of(*folders: Path, suite: PaperTable | None = None) -> Reader:
    return Reader(render(read_groups(folders), folders[0], "a title", suite))


def test_report_is_written_with_its_figures(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "all", ["local", "pfedfda"], beta=True)
    path = write_report([folder], tmp_path / "report")
    assert path == tmp_path / "report" / "report.html"
    page = Reader(path.read_text())
    assert page.text.count("2 methods on digits") == 2  # title and heading
    for name in ("accuracy-by-round", "accuracy-by-client", "beta", "time", "bytes-by-round"):
        with Image.open(path.parent / "figures" / f"{name}.png") as image:
            assert image.size[0] > 500
        assert "<svg" in (path.parent / "figures" / f"{name}.svg").read_text()
    before = {p.name: p.read_bytes() for p in path.parent.rglob("*.*")}
    write_report([folder], tmp_path / "report")  # the same runs give the same bytes
    assert before == {p.name: p.read_bytes() for p in path.parent.rglob("*.*")}


def test_clients_keep_their_own_accuracies_where_one_is_missing(tmp_path: Path) -> None:
    """A client that could not be evaluated is not in the file of its run."""
    folder = write_comparison(tmp_path / "all", ["local", "pfedfda"])
    files = [folder / method / "clients.csv" for method in ("local", "pfedfda")]
    rows = [list(csv.DictReader(file.read_text().splitlines())) for file in files]
    expected = {
        row["name"]: [f"{float(r[place]['accuracy']):.2f}" for r in rows]
        for place, row in enumerate(rows[0])
    }
    for file, missing in zip(files, (1, 4), strict=True):
        lines = file.read_text().splitlines(keepends=True)
        name = rows[0][missing]["name"]
        expected[name][files.index(file)] = "–"
        file.write_text("".join(lines[: missing + 1] + lines[missing + 2 :]))
    path = write_report([folder], tmp_path / "report")
    table = path.read_text().split("<summary>Every client</summary>")[1].split("</table>")[0]
    found = {
        re.search(r'<th scope="row">(.*?)</th>', row)[1]: re.findall(r">([^<>]*)</td>", row)[-2:]
        for row in table.split("<tbody>")[1].split("</tr>")[:-1]
    }
    assert list(found) == list(expected)
    assert found == expected


def test_seconds_may_be_unknown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    change_summary(folder, seconds={"train": 3.0})
    assert "Time by component" in page_of(folder).text


def test_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "all", ["local", "pfedfda"])
    page = page_of(folder)
    for tag, attributes in page.seen:
        assert tag not in ("link", "img", "iframe", "image")
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert "://" not in str(attributes.get("href", ""))
        assert tag != "use" or attributes["href"] in [f"#{name}" for name in SYMBOLS]
    assert "url(" not in page.text
    assert "@import" not in page.text


def test_numbers_of_the_summary_are_in_the_table(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "all", ["local", "pfedfda"])
    page = page_of(folder)
    for method in ("local", "pfedfda"):
        summary = json.loads((folder / method / "summary.json").read_text())
        assert page.count("td", **{"data-v": repr(summary["mean_accuracy"])}) == 1
        assert f"{summary['mean_accuracy']:.3f}" in page.text


def test_names_from_files_are_never_markup(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "a<b>&",
        EVIL,
        beta=True,
        shifted=True,
        new_clients=True,
        source=EVIL,
        names=EVIL + "{}",
    )
    change_summary(
        folder,
        status="stopped",
        reason=EVIL,
        machine={"date": EVIL, "system": EVIL, "python": EVIL},
        seconds={"total": 2.0, EVIL: 1.0, "clients": {EVIL: 1.0}},
    )
    for path in ("clients.csv", "new_clients.csv"):
        text = (folder / path).read_text()
        (folder / path).write_text(text.replace("shot_noise", "<script>x</script>"))
    counts = {"class_names": [EVIL, "b"], "names": [EVIL] * 12, "counts": [[1, 2]] * 12}
    (folder / "federation.json").write_text(json.dumps(counts))
    suite = PaperTable(EVIL, [EVIL], [PaperRow(EVIL, [PaperCell(0.5, 0.1, 0.6, 0.1)])], [EVIL])
    text = write_report([folder], tmp_path / "report", title=EVIL, suite=suite).read_text()
    page = Reader(text)
    assert page.count("script") == 1
    assert page.count("svg", class_="chart") > 5
    assert re.findall(r"<script>(.{12})", text, re.DOTALL) == ['"use strict"']
    for name in ("title", "aria-label"):  # nothing has broken out of an attribute
        values = [a[name] for _, a in page.seen if name in a]
        assert all("<script" not in value or EVIL[:9] in value for value in values if value)


def test_names_that_cannot_be_printed_do_no_harm(tmp_path: Path) -> None:
    odd = "a\x00b\x1b[31m\ud800$\\frac{\u4e2d\n"
    folder = write_run(tmp_path / "run")
    change_summary(folder, method=odd, reason=odd, status=odd, seconds={"total": 1.0, odd: 1.0})
    counts = {"class_names": [odd], "names": [odd], "counts": [[3]]}
    (folder / "federation.json").write_text(json.dumps(counts))
    page = Reader(write_report([folder], tmp_path).read_text())
    assert "a\ufffdb\ufffd[31m\ufffd$\\frac{\u4e2d\ufffd" in page.text


def test_stopped_run_without_evaluation(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=1)
    (folder / "metrics.jsonl").unlink()
    (folder / "clients.csv").unlink()
    gone = ("mean_accuracy", "std_accuracy", "weighted_accuracy", "worst_tenth_accuracy")
    change_summary(folder, status="stopped", reason="It was interrupted.", **dict.fromkeys(gone))
    page = Reader(write_report([folder], tmp_path).read_text())
    assert "no evaluation yet" in page.text
    assert "stopped after 1 round: It was interrupted." in page.text


@pytest.mark.parametrize("clients", [1, 450])
def test_one_round_and_few_or_many_clients(tmp_path: Path, clients: int) -> None:
    folder = write_run(tmp_path / "run", rounds=1, clients=clients, beta=True)
    page = Reader(write_report([folder], tmp_path).read_text())
    assert f"over {clients} client" in page.text
    assert ("250 more clients" in page.text) == (clients == 450)


def test_undefined_numbers_are_shown_as_dashes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", beta=True)
    for name in ("summary.json", "metrics.jsonl"):
        text = re.sub(r'(accuracy": )[0-9.]+', r"\1NaN", (folder / name).read_text())
        (folder / name).write_text(text)
    text = re.sub(r",0\.[0-9]+", ",nan", (folder / "clients.csv").read_text())
    (folder / "clients.csv").write_text(text)
    page = Reader(write_report([folder], tmp_path).read_text())
    assert "nan" not in [word.lower() for word in page.words]
    assert page.count("td", **{"data-v": ""}) >= 4


def test_comparison_keeps_its_order_and_names_what_is_missing(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "all", ["pfedfda", "apfl", "local"])
    (folder / "apfl" / "summary.json").unlink()
    (group,) = read_groups([folder])
    assert [run.method for run in group.runs] == ["pfedfda", "local"]
    assert group.unfinished == ["APFL"]
    assert "APFL has no results yet." in page_of(folder).text


def test_runs_on_different_federations_do_not_share_a_plot(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / source, source=source) for source in ("cifar10", "digits")]
    groups = read_groups(folders)
    assert [group.heading for group in groups] == ["cifar10", "digits"]
    page = page_of(*folders)
    assert page.count("figure", id="g0-accuracy") == page.count("figure", id="g1-accuracy") == 1
    assert "pFedFDA on 2 federations" in write_report(folders, tmp_path).read_text()
    assert (tmp_path / "figures" / "2-time.png").exists()


def test_two_runs_of_a_method_get_different_labels(tmp_path: Path) -> None:
    seeds = [write_run(tmp_path / f"s{seed}", seed=seed) for seed in (0, 1)]
    (group,) = read_groups(seeds)
    assert [entry.label for entry in group.entries] == ["pFedFDA"]
    for label in ("pFedFDA, seed 0", "pFedFDA, seed 1"):
        assert page_of(*seeds).text.count(label) == 2  # a row, and the files
    again = write_run(tmp_path / "again", seed=1)
    (group,) = read_groups([*seeds, again])
    assert [entry.label for entry in group.entries] == ["pFedFDA, seeds 0, 1", "pFedFDA, seed 1"]


def seeds_of(folder: Path, means: dict[str, list[float]]) -> list[Path]:
    """Write a run for each mean, seeds from 0 on."""
    folders = []
    for method, of_method in means.items():
        for seed, mean in enumerate(of_method):
            folders.append(write_run(folder / f"{method}-{seed}", method, seed=seed))
            change_summary(folders[-1], mean_accuracy=mean, worst_tenth_accuracy=mean / 2)
    return folders


def test_the_headline_is_the_mean_over_seeds(tmp_path: Path) -> None:
    """One lucky seed of a method does not make it the best."""
    means = {"local": [0.5, 0.52, 0.9], "pfedfda": [0.7, 0.71, 0.72]}
    folders = seeds_of(tmp_path, means)
    page = page_of(*folders)
    text = re.sub(r"\s+", " ", page.text)
    assert "0.710 mean test accuracy of pFedFDA, the highest of 2 methods" in text
    assert "over 12 clients and 3 seeds after 4 rounds" in text
    assert "+0.070 over Local, next" in text
    assert "0.355 worst tenth" in text
    html = render(read_groups(folders), tmp_path, "a title")
    table, rest = html.split("</table>", 1)
    assert table.count("<tr") == 3  # a heading and two methods
    assert table.count('<td class="n" data-v="3.0">3</td>') == 2  # seeds
    assert f'<td class="n best" data-v="{statistics.fmean(means["pfedfda"])!r}">0.710' in table
    every_run = rest.split("<summary>Every run</summary>")[1].split("</table>")[0]
    for method in ("Local", "pFedFDA"):
        for seed in range(3):
            assert f"{method}, seed {seed}</th>" in every_run


def test_the_headline_says_whether_the_lead_is_beyond_chance(tmp_path: Path) -> None:
    """The statistics on the page are those of the clients' files."""
    folders = [
        write_run(tmp_path / f"{method}-{seed}", method, seed=seed)
        for method in ("local", "pfedfda")
        for seed in range(3)
    ]
    (group,) = read_groups(folders)
    assert group.statistics is not None
    (pair,) = group.statistics.pairs
    accuracies = [
        [[client.accuracy for client in run.clients] for run in entry.runs]
        for entry in sorted(group.entries, key=lambda entry: entry.label != pair.first)
    ]
    assert pair.difference == paired_difference(*accuracies)
    text = re.sub(r"\s+", " ", page_of(*folders).text)
    assert "95 % interval over seeds" in text
    verdict = "beyond chance" if pair.difference.p <= 0.05 else "not beyond chance"
    assert f"{verdict} is the lead over {pair.second}" in text
    alone = re.sub(r"\s+", " ", page_of(folders[0], folders[3]).text)
    assert "chance" not in alone  # one seed says nothing about it


def federations_with(tmp_path: Path, means: list[dict[str, float]]) -> list[Path]:
    """Return comparisons on as many federations, with these mean accuracies."""
    folders = []
    for number, of_federation in enumerate(means):
        folder = write_comparison(tmp_path / f"f{number}", list(of_federation))
        for method, mean in of_federation.items():
            change_summary(folder / method, mean_accuracy=mean)
            config = folder / method / "config.toml"
            text = config.read_text()
            config.write_text(text.replace("[federation]", f"[federation]\nsize = {number}"))
        folders.append(folder)
    return folders


def test_ranks_over_federations(tmp_path: Path) -> None:
    means = [{"local": 0.5, "fedavg": 0.6 + 0.2 * (n == 0), "pfedfda": 0.7} for n in range(4)]
    folders = federations_with(tmp_path, means)
    groups = read_groups(folders)
    assert len(groups) == 4
    ranks = ranks_over(groups)
    assert ranks is not None
    assert [entry.label for entry in ranks.entries] == ["pFedFDA", "FedAvg", "Local"]
    assert list(ranks.ranks) == [1.25, 1.75, 3.0]
    assert ranks.cliques == [(1.25, 1.75), (1.75, 3.0)]
    folder = tmp_path / "report"
    page = write_report(folders, folder).read_text()
    assert "Ranks over federations" in page
    assert "mean rank 1.25" in page
    assert (folder / "figures" / "ranks.svg").exists()
    assert ranks_over(groups[:1]) is None


def test_only_seeds_of_the_same_settings_are_one_row(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    folders += [write_run(tmp_path / f"b{seed}", seed=seed) for seed in (0, 1)]
    for folder in folders[2:]:
        text = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(text.replace("mu = 1.0", "mu = 2.0"))
    again = write_run(tmp_path / "again", seed=1)
    stopped = write_run(tmp_path / "stopped", seed=2, rounds=3)
    change_summary(stopped, status="stopped", reason="It was interrupted.")
    (group,) = read_groups([*folders, again, stopped])
    entries = group.entries
    assert [entry.seeds for entry in entries] == [2, 2, 1, 1]
    assert len({entry.label for entry in entries}) == 4
    means = [run.mean_accuracy for run in entries[0].runs]
    assert entries[0].number("mean_accuracy") == statistics.fmean(means)
    assert entries[2].label == f"pFedFDA, {tmp_path.name}/again"


def test_one_seed_looks_as_it_did(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "all", ["local", "pfedfda"])
    page = page_of(folder)
    assert "Every run" not in page.text
    assert "seeds" not in page.text
    assert page.count("path", class_="range") == 0


def curve(folder: Path, column: str = "mean_accuracy") -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[column] for line in lines]


def test_seeds_of_a_method_are_one_line_with_their_range(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{method}-{seed}", method, seed=seed, beta=method == "pfedfda")
        for method in ("local", "pfedfda")
        for seed in (0, 1, 2)
    ]
    (group,) = read_groups(folders)
    chart = charts.accuracy_by_round(group.entries, "mean")
    assert [series.label for series in chart.series] == ["Local", "pFedFDA"]
    seeds = [curve(folder) for folder in folders[:3]]
    assert chart.series[0].ys == [statistics.fmean(values) for values in zip(*seeds, strict=True)]
    ranges = [(min(values), max(values)) for values in zip(*seeds, strict=True)]
    assert chart.series[0].ranges == ranges
    page = page_of(*folders)
    views = 3 * 2  # accuracies, and what they are plotted over
    assert page.count("path", class_="range") == 2 * views
    rows = [list(csv.DictReader((f / "clients.csv").read_text().splitlines())) for f in folders[3:]]
    for column in ("accuracy", "beta"):
        for client, entry in zip(zip(*rows, strict=True), group.entries[1].clients, strict=True):
            value = entry.accuracy if column == "accuracy" else entry.betas["beta"]
            assert value == pytest.approx(statistics.fmean(float(row[column]) for row in client))
    assert re.search(r"seeds\W+0, 1, 2", page.text)


def test_a_few_sites_are_points_beside_their_names(tmp_path: Path) -> None:
    """No line joins three sites, and no third of the plot is a worst tenth."""
    folder = write_comparison(tmp_path / "all", ["local", "pfedfda"], clients=3, names="Site {}")
    counts = {"class_names": ["a"], "names": ["Site 0", "Site 1", "Site 2"], "counts": [[9]] * 3}
    (folder / "federation.json").write_text(json.dumps(counts))
    (group,) = read_groups([folder])
    chart = charts.accuracy_by_client(group.entries)
    assert not chart.joined
    assert chart.shaded is None
    assert chart.y.names == ["Site 0", "Site 1", "Site 2"]
    accuracies = [row.accuracy for row in group.runs[0].clients]
    assert chart.series[0].xs == accuracies
    assert charts.bubbles(group.counts).x.names == chart.y.names
    text = render([group], folder, "")
    assert text.count(">Site 1</text>") == 2  # of the accuracies, and of who holds what
    assert "band-name" not in text.split("</style>")[1]
    many = write_comparison(tmp_path / "many", ["local", "pfedfda"], clients=30)
    (group,) = read_groups([many])
    assert charts.accuracy_by_client(group.entries).shaded == (0.5, 3.5, "worst tenth")


@pytest.mark.parametrize("clients", [1, 3, 20, 60, 200])
@pytest.mark.parametrize("classes", [1, 10, 100])
def test_circles_lie_inside_the_plot(clients: int, classes: int) -> None:
    names = [f"site {n}" for n in range(clients)]
    counts = ClassCounts([f"c{n}" for n in range(classes)], names, [[5] * classes] * clients)
    drawing = Drawing(charts.bubbles(counts))
    for width in (svg.NARROW, svg.WIDTH):
        diagonal = math.hypot(width, drawing.height) / math.sqrt(2)
        for point in drawing.series[0].points:
            radius = point.radius * diagonal / 100
            assert radius <= point.y / 100 * drawing.height + 1
            assert radius <= (1 - point.y / 100) * drawing.height + 1
            assert radius <= point.x / 100 * width + svg.MARGIN
            assert radius <= (1 - point.x / 100) * width + svg.MARGIN


def test_the_network_is_named_even_if_it_was_chosen_automatically(
    tmp_path: Path, tiny_config: FederationConfig
) -> None:
    few = {"rounds": 1, "workers": 0, "quiet": True, "output": tmp_path}
    folder = run("local", tiny_config, **few).folder
    assert "emnist-cnn (chosen for images of 28×28)" in page_of(folder).text
    (folder / "checkpoint" / "manifest.json").write_text('{"about": {"task": 3}}')
    assert "auto, init torch" in page_of(folder).text


def test_paper_numbers_stand_beside_ours(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    cells = [PaperCell(0.5, 0.1, 0.625, 0.2), PaperCell(0.5), PaperCell(None, None, 0.25)]
    suite = PaperTable("Table 1", ["a", "b", "c"], [PaperRow("pFedFDA", cells)], ["Fewer rounds."])
    assert [cell.difference for cell in cells] == [0.125, None, None]
    page = page_of(folder, suite=suite)
    for text in ("0.125", "+0.125", "0.625", "Fewer rounds.", "over 1 of 3 numbers"):
        assert text in page.text
    many = PaperTable("Table 1", list("abcd"), [PaperRow("x", [*cells, PaperCell(0.5, 0, 0.4)])])
    page = page_of(folder, suite=many)
    assert page.count("tr", class_="difference") == 1
    assert "\u22120.100" in page.text
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        PaperTable("Table 1", ["a", "b"], [PaperRow("x", [PaperCell()])])


def test_class_counts_are_those_of_the_training_labels(tiny: Federation, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", clients=len(tiny))
    assert "Who holds what" not in page_of(folder).text
    write_class_counts(tiny, folder)
    (group,) = read_groups([folder])
    assert group.counts is not None
    assert [sum(row) for row in group.counts.counts] == tiny.train_sizes.tolist()
    assert "Who holds what" in page_of(folder).text
    held = sum(count > 0 for row in group.counts.counts for count in row)
    assert page_of(folder).count("circle", class_="bubble") == held


def test_beta_by_corruption_is_the_mean_over_clients(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", beta=True, shifted=True)
    lines = ["client,name,train_samples,corruption,severity,accuracy,beta"]
    lines += ["0,a,5,fog,2,0.5,0.25", "1,b,5,fog,2,0.5,0.75", "2,c,5,,0,0.5,0.125"]
    (folder / "clients.csv").write_text("\n".join(lines))
    page = page_of(folder)
    assert page.count("td", style="--v:0.50", title="2 clients") == 2  # the cell, and the row
    assert page.count("td", style="--v:0.12", title="1 client") == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", None),
        ("summary.json", "{"),
        ("summary.json", "[]"),
        ("summary.json", "[" * 100_000),
        ("summary.json", '{"status": "complete"}'),
        ("summary.json", '{"method": "x", "mean_accuracy": "high"}'),
        ("summary.json", '{"method": "x", "mean_accuracy": true}'),
        ("summary.json", '{"method": "x", "mean_accuracy": 1e300}'),
        ("summary.json", '{"method": "x", "seconds": 3}'),
        ("summary.json", '{"method": "x", "rounds": [1]}'),
        ("config.toml", None),
        ("config.toml", "a = "),
        ("config.toml", "federation = 3"),
        ("config.toml", b"\xff"),
        ("metrics.jsonl", None),
        ("metrics.jsonl", ""),
        ("metrics.jsonl", "{}"),
        ("metrics.jsonl", '{"round": 1}\nnot json'),
        ("clients.csv", None),
        ("clients.csv", "client,name\n1,2\n"),
        ("clients.csv", "client,accuracy\n1\n"),
        ("clients.csv", "client,accuracy\n1,high\n"),
        ("clients.csv", 'client,accuracy\n1,"x'),
        ("new_clients.csv", "client\n1\n"),
        ("federation.json", "{}"),
        ("federation.json", '{"class_names": ["a"], "names": ["x"], "counts": [[-1]]}'),
        ("federation.json", '{"class_names": ["a"], "names": ["x"], "counts": [[1, 2]]}'),
        ("federation.json", '{"class_names": ["a"], "names": ["x"], "counts": [[1], [2]]}'),
    ],
)
def test_broken_files_are_named_in_one_sentence(
    name: str, content: str | bytes | None, tmp_path: Path
) -> None:
    path = write_run(tmp_path / "run") / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=re.escape(str(path))) as caught:
        write_report([path.parent], tmp_path / "report")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report").exists()


def test_a_run_named_twice_is_shown_once(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "all", ["local", "pfedfda"])
    (group,) = read_groups([folder, folder / "pfedfda"])
    assert [entry.label for entry in group.entries] == ["Local", "pFedFDA"]


def test_matplotlib_is_imported_only_to_draw() -> None:
    script = "import sys, pfedfda.report, pfedfda.cli.run; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    for folders in ([], [tmp_path / "nowhere"], [tmp_path]):
        with pytest.raises(InputError):
            write_report(folders, tmp_path / "report")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report([write_run(tmp_path / "run")], tmp_path / "file")
