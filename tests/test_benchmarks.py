import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_combination_benchmark_compares_with_the_optimum() -> None:
    words = ["benchmarks/combination.py", "--clients", "40", "--partners", "20"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[-1].split("|")[1:-1]
    assert (row[0].strip(), row[1].strip()) == ("40", "20")
    assert -1e-9 <= float(row[4]) <= float(row[5]) < 0.1


def test_the_benchmark_of_secure_aggregation_unmasks_what_it_masks() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")
    words = ["benchmarks/secure.py", "--sites", "3", "--words", "1000"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    row = [cell.strip() for cell in done.stdout.splitlines()[-1].split("|")[1:-1]]
    assert (row[0], row[1], row[-1]) == ("3", "1,000", "8,000")
    up, down = (int(cell.replace(",", "")) for cell in row[5:7])
    assert 1000 < up < down < 3000
