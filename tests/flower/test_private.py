"""Private runs over sites draw noise that nobody else can."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from tests.experiment.files import final_state
from tests.flower.test_parity import on_flower
from tests.methods.toy import same


def test_noise_over_sites_is_secret_and_counts_on_no_chance(tmp_path: Path) -> None:
    """Sites know the seed of the run, which decides who takes part."""
    runs = [
        on_flower(tmp_path / name, "fedavg", **{"dp-epsilon": 8, "model": "linear"})
        for name in ("a", "b")
    ]
    told = runs[0].summary["privacy"]
    assert told["randomness"] == "system"
    assert told["participation"] == 1
    assert 7.9 < told["epsilon"] <= 8
    assert not same(*(final_state(run.folder) for run in runs))
