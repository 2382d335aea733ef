from pathlib import Path

import pytest

from pfedfda.errors import InputError
from pfedfda.methods import all_methods, expand_names, find_method
from pfedfda.methods.registry import _registry


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
    try:
        assert find_method(str(path)).name == "mine"
        assert find_method("mine").__name__ == "Mine"
    finally:
        _registry.pop("mine", None)
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
