import copy
import pickle
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pfedfda import FederationConfig, run
from pfedfda.errors import InputError
from pfedfda.methods import all_methods, expand_names, find_method, register_preset, registry
from pfedfda.runs.config import from_mapping


def test_known_methods_in_order_of_their_papers() -> None:
    names = list(all_methods())
    assert names[:3] == ["local", "fedavg", "fedavg-ft"]
    years = [method.year for method in all_methods().values()]
    assert years == sorted(years)


def test_all_expands_once_and_without_presets() -> None:
    others = [n for n, m in all_methods().items() if n != "fedavg" and not m.is_preset]
    assert expand_names(["fedavg", "all"]) == ["fedavg", *others]
    assert not any(all_methods()[name].is_preset for name in others)


def test_unknown_method_comes_with_a_hint() -> None:
    with pytest.raises(InputError, match="Did you mean 'fedavg-ft'"):
        find_method("fedavgft")


def test_a_file_can_bring_a_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from pfedfda.methods import register\n"
        "from pfedfda.methods.fedavg import FedAvg\n"
        "@register\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    '''Mine.'''\n"
        "    name: ClassVar[str] = 'mine'\n"
    )
    assert find_method(str(path)).name == "mine"
    assert find_method("mine").__name__ == "Mine"
    with pytest.raises(InputError, match="There is no file"):
        find_method(str(tmp_path / "absent.py"))
    path.write_text("")
    with pytest.raises(InputError, match="registers 0 methods"):
        find_method(str(path))
    path.write_text("import os\nclass Mine(:\n")
    with pytest.raises(InputError, match="SyntaxError in line 2"):
        find_method(str(path))
    path.write_text("import os\n\nraise KeyError('nothing')\n")
    with pytest.raises(InputError, match="KeyError in line 3 .'nothing'"):
        find_method(str(path))


PRESETS = """
from __future__ import annotations  # types are strings then

from dataclasses import dataclass
from typing import ClassVar, Literal

from pfedfda.methods import register, register_preset
from pfedfda.methods.fedavg import FedAvg


@register
@dataclass(frozen=True)
class Mine(FedAvg):
    '''Mine.

    Parameters
    ----------
    strength
        How much.
    way
        Where to.
    '''

    name: ClassVar[str] = "mine"
    strength: float = 1.0
    way: Literal["up", "down"] = "up"


register_preset(Mine, "mine-down", "Mine (down)", "Mine, the other way.", way="down")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "_registry", all_methods())  # what is added is forgotten
    path = tmp_path / "mine.py"
    path.write_text(PRESETS)
    return path


def test_a_preset_is_the_method_with_other_defaults(mine: Path) -> None:
    method, preset = find_method(str(mine)), find_method("mine-down")
    assert (method.name, preset.name, preset.title) == ("mine", "mine-down", "Mine (down)")
    assert asdict(preset()) == asdict(method()) | {"way": "down"}
    assert preset.__doc__ == "Mine, the other way."
    assert "mine" in expand_names(["all"])
    assert "mine-down" not in expand_names(["all"])
    find_method(str(mine))  # once more, e.g. in another command
    with pytest.raises(InputError, match="methods.mine-down.way is 'left'; it must be 'up'"):
        from_mapping(find_method("mine-down"), {"way": "left"}, "methods.mine-down")
    changed = replace(find_method("mine-down")(), strength=2.0)
    for other in (pickle.loads(pickle.dumps(changed)), copy.deepcopy(changed)):
        assert type(other) is type(changed)
        assert other == changed


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_presets_reach_the_workers(
    platform: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfedfda.engine.local.sys.platform", platform)  # forks, or starts anew
    find_method(str(mine))
    federation = FederationConfig(partition="client-dirichlet", clients=3, samples=8)
    result = run("mine-down", federation, rounds=1, workers=1, output=tmp_path, quiet=True)
    assert result.folder.name == "digits-mine-down"
    assert 'way = "down"' in (result.folder / "config.toml").read_text()


def test_a_preset_has_only_what_its_method_has_and_allows(mine: Path) -> None:
    with pytest.raises(InputError, match="Unknown hyper-parameter of pfedfda: 'rigde'.*'ridge'"):
        register_preset(find_method("pfedfda"), "odd", "Odd", "Odd.", rigde=1.0)
    with pytest.raises(InputError, match="ridge is -1.0; it must be 0 or more"):
        register_preset(find_method("pfedfda"), "odd", "Odd", "Odd.", ridge=-1.0)
    assert "odd" not in all_methods()


def test_a_file_cannot_take_the_name_of_another_method(tmp_path: Path) -> None:
    """Not even with a class of the same name."""
    path = tmp_path / "fedprox.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from pfedfda.methods import register\n"
        "from pfedfda.methods.fedavg import FedAvg\n"
        "@register\n"
        "@dataclass(frozen=True)\n"
        "class FedProx(FedAvg):\n"
        "    '''Another.'''\n"
        "    name: ClassVar[str] = 'fedprox'\n"
    )
    with pytest.raises(InputError, match="Two methods are called 'fedprox'"):
        find_method(str(path))
    assert find_method("fedprox").__module__ == "pfedfda.methods.fedprox"
