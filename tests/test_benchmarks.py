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
