"""The tables of the page on differential privacy say what the table of runs says."""

import csv
import re
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parent.parent
METHODS = {"pfedfda": "pFedFDA", "fedcgs": "FedCGS", "fedavg": "FedAvg"}


def test_accuracies_are_means_over_seeds_of_the_runs() -> None:
    with (ROOT / "results" / "privacy.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["judged_on"] == "test"]
    text = (ROOT / "docs" / "differential-privacy.md").read_text()
    expected: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(line["set"] for line in lines):
        for method in dict.fromkeys(line["method"] for line in lines if line["set"] == name):
            for epsilon in dict.fromkeys(x["epsilon"] for x in lines if x["set"] == name):
                found = [
                    line["mean_accuracy"]
                    for line in lines
                    if (line["set"], line["method"], line["epsilon"]) == (name, method, epsilon)
                ]
                mean = "diverged" if "diverged" in found else f"{fmean(map(float, found)):.3f}"
                expected.setdefault((name, METHODS[method]), []).append(mean)
    rows = {}
    for place, method, *cells in re.findall(r"^\| (\w+) \| (\w+) \|(.*)\|$", text, re.MULTILINE):
        if method not in METHODS.values():  # a heading
            continue
        rows[place, method] = [cell.strip() for cell in "|".join(cells).split("|")]
    assert rows
    assert {key: [c for c in cells if c] for key, cells in rows.items()} == expected
