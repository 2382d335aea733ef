"""Imports between packages point one way only."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "pfedfda"
ORDER = (
    {"errors", "files", "inputs", "machine", "seeding", "version"},
    {"gaussian", "data", "models"},
    {"methods"},
    {"inference"},  # models in use; it knows no runs
    {"runs"},  # what a run is on disk; it knows no engine
    {"aggregation", "engine"},
    {"experiment"},
    {"report", "flower"},
    {"paper"},
    {"cli"},
)
RANK = {package: rank for rank, packages in enumerate(ORDER) for package in packages}
ENTRIES = {"__init__", "__main__"}  # the root, which hands out names of every package
ALLOWED: set[tuple[str, str]] = set()  # upward edges that are still to be removed
Edges = dict[tuple[str, str], list[str]]


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported_modules(node: ast.AST, package: list[str]) -> list[str]:
    """Return the modules that a piece of code imports, at any depth, but for types only."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found += [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            above = package[: len(package) + 1 - child.level] if child.level else []
            module = ".".join([*above, *([child.module] if child.module else [])])
            found += [f"{module}.{alias.name}" for alias in child.names]
        elif is_for_types_only(child):
            found += [m for other in child.orelse for m in imported_modules(other, package)]
        else:
            found += imported_modules(child, package)
    return found


def edges_between_packages(source: Path) -> Edges:
    """Return who imports whom, with the files that do; the root package stands for itself."""
    edges: Edges = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        if parts[0] in ENTRIES or "template" in parts:  # a template is a project of its user
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for module in imported_modules(tree, ["pfedfda", *parts[:-1]]):
            name, _, rest = module.partition(".")
            if name != "pfedfda":
                continue
            other = rest.split(".")[0]
            other = other if other in RANK else "__init__"
            if other != parts[0]:
                edges.setdefault((parts[0], other), []).append("/".join(parts))
    return edges


def upward(edges: Edges) -> set[tuple[str, str]]:
    return {
        (one, other)
        for one, other in edges
        if other not in RANK or (one in RANK and RANK[other] > RANK[one])
    }


def test_every_package_has_its_place() -> None:
    names = {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert names - ENTRIES == set(RANK)


def test_no_package_imports_one_above_it() -> None:
    edges = edges_between_packages(SOURCE)
    assert {edge: edges[edge] for edge in upward(edges) - ALLOWED} == {}
    assert upward(edges) >= ALLOWED, "an edge was removed: take it from the list"


def test_no_packages_import_one_another() -> None:
    graph: dict[str, set[str]] = {}
    for one, other in edges_between_packages(SOURCE):
        if (one, other) not in ALLOWED:
            graph.setdefault(one, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"packages import one another: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from pfedfda.report import page", {("data", "report")}),
        ("import pfedfda.cli", {("data", "cli")}),
        ("import pfedfda", {("data", "__init__")}),
        ("from pfedfda import run", {("data", "__init__")}),
        ("from pfedfda import report", {("data", "report")}),
        ("from ..report import page", {("data", "report")}),
        ("def f():\n    from pfedfda.paper import suites", {("data", "paper")}),
        ("if TYPE_CHECKING:\n    from pfedfda.report import page", set()),
        ("from pfedfda.errors import InputError", set()),
        ("from pfedfda.data import x\nimport json", set()),
    ],
)
def test_upward_imports_are_found(tmp_path: Path, code: str, found: set[tuple[str, str]]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "module.py").write_text(code)
    assert upward(edges_between_packages(tmp_path)) == found
