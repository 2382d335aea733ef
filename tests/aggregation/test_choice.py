from pathlib import Path

import torch

from pfedfda.aggregation import PlainSum, choose_aggregation
from pfedfda.methods import find_method
from pfedfda.methods.base import Update
from pfedfda.runs.config import make_config, read_config, write_config


def test_the_default_is_the_methods_own_sum() -> None:
    method = find_method("fedavg")()
    aggregation = choose_aggregation(make_config({"fedavg": method}), method)
    assert isinstance(aggregation, PlainSum)
    state = {"body.weight": torch.zeros(3)}
    updates = [Update({"body.weight": torch.full((3,), float(n))}, n) for n in (1, 2, 3)]
    after = aggregation.aggregate(method, state, iter(updates), 1)
    assert torch.allclose(after["body.weight"], torch.full((3,), 14 / 6))
    assert aggregation.summary(1) == {}


def test_settings_of_a_plain_sum_are_not_written(tmp_path: Path) -> None:
    config = make_config({"fedavg": find_method("fedavg")()})
    text = write_config(config)
    assert "[aggregation]" not in text
    (tmp_path / "config.toml").write_text(text)
    assert read_config(tmp_path / "config.toml").aggregation == config.aggregation
