"""The lock files agree with constraints.txt and pyproject.toml, and leave torch to the user."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_docs import load_tool

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = {"requirements.lock": [], "requirements-flower.lock": ["flower"]}


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return the version and the hashes of every package in a lock."""
    text = (ROOT / name).read_text()
    found = {}
    for package in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]:
        line, *rest = package.split("\n", 1)
        requirement = Requirement(line.removesuffix("\\").strip())
        (version,) = requirement.specifier
        assert version.operator == "=="
        hashes = re.findall(r"--hash=(\S+)", "".join(rest))
        found[canonicalize_name(requirement.name)] = (version.version, hashes)
    return found


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    parts = [line.split("==") for line in lines if "==" in line]
    return {canonicalize_name(name): version for name, version in parts}


def wanted(extras: list[str]) -> set[str]:
    texts = [*PROJECT["dependencies"]]
    texts += [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    return {canonicalize_name(Requirement(text).name) for text in texts} - {"torch"}


@pytest.mark.parametrize("name", LOCKS)
def test_versions_are_those_of_the_constraints(name: str) -> None:
    pinned = pins()
    for package, (version, _) in locked(name).items():
        assert pinned[package] == version, package


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_hashes_and_none_names_a_host(name: str) -> None:
    for package, (_, hashes) in locked(name).items():
        assert hashes, package
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), package
    assert "://" not in (ROOT / name).read_text()


@pytest.mark.parametrize("name", LOCKS)
def test_torch_is_left_to_the_user(name: str) -> None:
    left_out = re.compile(r"torch|triton|nvidia-|cuda-")
    assert not [package for package in locked(name) if left_out.match(package)]


@pytest.mark.parametrize(("name", "extras"), LOCKS.items())
def test_nothing_is_missing(name: str, extras: list[str]) -> None:
    """Whatever a locked package needs here is locked too, and so is what torch needs anywhere."""
    packages = locked(name)
    assert wanted(extras) <= set(packages)
    of_cuda = load_tool("write_lock").OF_TORCH
    for package in [*packages, "torch"]:
        try:
            needs = requires(package) or []
        except PackageNotFoundError:  # of another system
            continue
        for text in needs:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                name_of_need = canonicalize_name(need.name)
                assert name_of_need in packages or of_cuda.match(f"{name_of_need}=="), text


def test_what_comes_with_cuda_is_taken_out() -> None:
    lock = (
        "numpy==2 \\\n    --hash=sha256:a\nnvidia-cublas==13 ; sys_platform == 'linux' \\\n"
        "    --hash=sha256:b\n    --hash=sha256:c\ntorch==2.13.0 \\\n    --hash=sha256:d\n"
        "tyro==1 \\\n    --hash=sha256:e\n"
    )
    kept = load_tool("write_lock").without_torch(lock)
    assert kept == "numpy==2 \\\n    --hash=sha256:a\ntyro==1 \\\n    --hash=sha256:e\n"
