"""Tables that a spreadsheet may open: text in them is never a formula."""

import csv
from pathlib import Path

import pytest

from pfedfda import FederationConfig, run
from pfedfda.files import csv_text
from pfedfda.runs import read_run, write_csv
from tests.conftest import write_image

FORMULAS = ["=HYPERLINK(1)", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''+1"]
PLAIN = ["anna", "a=b", "", "'quoted'", "O'Neil", "1-2", "中"]


def test_text_is_no_formula_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_csv(path, ["name", "=metric"], [[name, -0.5] for name in (*FORMULAS, *PLAIN)])
    with path.open(newline="") as file:
        (_, metric), *rows = list(csv.reader(file))
    assert metric == "'=metric"
    assert not any(name.startswith(("=", "+", "-", "@", "\t", "\r")) for name, _ in rows)
    assert [name for name, _ in rows[len(FORMULAS) :]] == PLAIN
    assert [csv_text(name) for name, _ in rows] == [*FORMULAS, *PLAIN]
    assert {value for _, value in rows} == {"-0.5"}  # a number stays a number


@pytest.mark.parametrize("site", ["=HYPERLINK(1)", "@home", "'-1", "a\u2028b"])
def test_sites_keep_their_names_in_the_report(site: str, tmp_path: Path) -> None:
    for client in (site, "ben", "cleo"):
        for number in range(10):
            name = ("cat", "dog")[number % 2]
            write_image(tmp_path / "photos" / client / name / f"{number}.png", 20 * number)
    federation = FederationConfig(source=str(tmp_path / "photos"))
    result = run("local", federation, rounds=1, output=tmp_path, workers=0, quiet=True)
    names = {client.name for client in read_run(result.folder).clients}
    assert names == {site.replace("\u2028", "\ufffd"), "ben", "cleo"}
