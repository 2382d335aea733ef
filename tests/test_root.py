"""The names at the root of the package: complete, typed, and quick to import."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import pfedfda

INIT = Path(pfedfda.__file__)


def imports_for_type_checkers() -> dict[str, str]:
    """Return what a type checker sees at the root: names and the modules they come from."""
    (block,) = [
        node
        for node in ast.parse(INIT.read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.asname or alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_name_is_listed_documented_and_there() -> None:
    assert len(set(pfedfda.__all__)) == len(pfedfda.__all__)
    assert set(pfedfda.__all__) <= set(dir(pfedfda))
    for name in pfedfda.__all__:
        assert getattr(pfedfda, name) is not None
        if name != "__version__":
            assert f"`{name}`" in (pfedfda.__doc__ or ""), name


def test_a_type_checker_sees_the_same_names() -> None:
    seen = imports_for_type_checkers()
    assert set(seen) | {"__version__"} == set(pfedfda.__all__)
    for name, module in seen.items():
        assert getattr(pfedfda, name) is getattr(importlib.import_module(module), name)
    assert (INIT.parent / "py.typed").exists()


def test_practitioners_find_the_gaussian_classifier_at_the_root() -> None:
    for name in ("AdaptiveGaussianClassifier", "estimate_statistics", "adapt", "bayes_classifier"):
        assert name in pfedfda.__all__


def test_the_packages_are_reached_from_the_root() -> None:
    folders = {path.parent.name for path in INIT.parent.glob("*/__init__.py")}
    packages = sorted(folders - {"cli"})  # which is a program, not an interface
    program = (
        "import sys, pfedfda\nprint(*(getattr(pfedfda, name).__name__ for name in sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, *packages]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout.split() == [f"pfedfda.{name}" for name in packages], done.stderr
    for name in packages:
        assert f"`pfedfda.{name}`" in (pfedfda.__doc__ or "")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pfedfda.nonsense  # type: ignore[attr-defined]
    assert not hasattr(pfedfda, "__wrapped__")


def test_importing_the_package_imports_no_library() -> None:
    """Names are loaded when they are first used, so a script that needs one does not wait."""
    program = (
        "import sys; before = set(sys.modules); import pfedfda\n"
        "print({name.split('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = ast.literal_eval(done.stdout)
    assert not loaded & {"torch", "numpy", "scipy", "sklearn", "rich", "tyro", "PIL"}, loaded


def test_from_pfedfda_import_star() -> None:
    names: dict[str, object] = {}
    exec("from pfedfda import *", names)
    assert set(pfedfda.__all__) <= set(names)
