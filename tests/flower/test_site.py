"""A site, asked by a server that it does not trust, and who may read its files."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedfda import InputError
from pfedfda.data import FederationConfig, Preprocessing
from pfedfda.flower.app_settings import SiteConfig, read_run_config

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from pfedfda.flower.client_app import app
from pfedfda.flower.messages import site_step_settings
from pfedfda.flower.roster import agree
from pfedfda.flower.site import Description, Site, SiteStep
from pfedfda.flower.wire import FAILURE, SETTINGS, pack
from tests.data import wine
from tests.flower.grids import over_the_wire

KINDS = [MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE]


def site_step() -> SiteStep:
    config = read_run_config(
        {"method": "fedrep", "clients": 2, "train-fraction": 0.05, "epochs": 1, "rounds": 1}
    ).config
    digits = tuple(str(digit) for digit in range(10))
    return SiteStep(
        "train", config, 0, 2, digits, (28, 28, 1), "uint8", 1, 0, "run", keep_model=True
    )


def settings() -> dict[str, Any]:
    return dict(site_step_settings(site_step()))


def ask(kind: str, sent: dict[str, Any], state_dir: Path, **node: Any) -> Message:
    """Let a site answer a message with these settings."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    node = {"name": "kaunas", "partition-id": 0, "state-dir": str(state_dir)} | node
    state = site_step().method.init(site_step().task)
    message = Message(pack(site_step().method.message(state, 0), settings=sent), 1, kind)
    message.metadata.__dict__["_message_id"] = "message"
    return app(over_the_wire(message), Context(1, 1, node, RecordDict(), {}))


def failure(reply: Message) -> str:
    records = reply.content.config_records
    return str(records[SETTINGS].get(FAILURE, "")) if SETTINGS in records else ""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A file that would register a method, and leaves a trace if it is run."""
    file = tmp_path / "planted.py"
    file.write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'trace')!r}).touch()\n"
        "from dataclasses import dataclass\n"
        "from pfedfda.methods import find_method, register\n"
        "@register\n@dataclass(frozen=True)\n"
        "class Planted(find_method('fedavg')):\n    name = 'planted'\n"
    )
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_runs_no_file_that_a_message_names(kind: str, program: Path, tmp_path: Path) -> None:
    reply = ask(kind, settings() | {"method": str(program)}, tmp_path / "sites")
    assert not (tmp_path / "trace").exists()
    assert "planted.py" in failure(reply)
    assert "a site runs no Python file that a message names" in failure(reply)


@pytest.mark.parametrize("name", sorted(settings()))
def test_no_setting_of_a_message_runs_a_file(name: str, program: Path, tmp_path: Path) -> None:
    for value in (str(program), f"{program}:Planted", program.stem, [str(program)]):
        for kind in KINDS:
            with pytest.MonkeyPatch.context() as patch:
                patch.syspath_prepend(str(tmp_path))
                patch.setenv("PFEDFDA_CACHE", str(tmp_path / "cache"))
                patch.chdir(tmp_path)
                ask(kind, settings() | {name: value}, tmp_path / "sites")
    assert not (tmp_path / "trace").exists()


def test_the_server_says_at_once_that_sites_run_no_file(program: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a module of the app"):
        read_run_config({"method": str(program)})
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(("asked", "own", "least"), [(1, 1, 1), (5, 1, 5), (2, 4, 4), (5, 3, 5)])
def test_a_site_may_keep_more_classes_to_itself_than_the_run_asks(
    asked: int, own: int, least: int, tmp_path: Path
) -> None:
    config = read_run_config(
        {"method": "fedncm", "clients": 20, "train-fraction": 0.2, "min-class-count": asked}
    ).config
    digits = tuple(str(digit) for digit in range(10))
    step = SiteStep("train", config, 0, 2, digits, (28, 28, 1), "uint8", 1, 0, "run")
    site = Site(
        SiteConfig(partition_id=3, state_dir=tmp_path, min_class_count=own), config.federation
    )
    update = site.run(step, step.method.message(step.method.init(step.task), 0)).update
    assert update is not None
    held = np.bincount(site.federation.client(3).train_labels, minlength=10)
    assert 0 < held[held > 0].min() < 4 < held.max()  # with more than one sort of class
    assert update.tensors["counts"].tolist() == np.where(held >= least, held, 0).tolist()
    assert update.weight == held.sum()


def test_a_bad_least_count_of_a_site_is_refused() -> None:
    with pytest.raises(InputError, match="min-class-count is 0; it must be at least 1"):
        SiteConfig(partition_id=0, min_class_count=0)


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Files that are made without care can be read and written by everybody."""
    before = os.umask(0)
    yield
    assert os.umask(before) == 0


def modes(folder: Path) -> dict[str, int]:
    paths = [folder, *folder.rglob("*")]
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in paths}


@pytest.mark.skipif(os.name != "posix", reason="files have no owner, group and others there")
@pytest.mark.usefixtures("open_umask")
def test_nobody_else_reads_what_a_site_keeps(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    labels = np.repeat(np.arange(10), 6)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    for kind in KINDS:  # the first makes the cache, the second tensors, the third a model
        reply = ask(kind, settings(), tmp_path / "sites", data=str(tmp_path / "images.npz"))
        assert failure(reply) == ""
    found = modes(tmp_path / "sites")
    for part in ("cache", "run/states", "run/model"):
        assert str(tmp_path / "sites" / "kaunas" / part) in found
    assert {path: mode for path, mode in found.items() if mode & 0o077} == {}
    assert found[str(tmp_path / "sites" / "kaunas")] == 0o700


@pytest.mark.skipif(os.name != "posix", reason="files have no owner, group and others there")
def test_the_folder_of_an_earlier_version_becomes_private(tmp_path: Path) -> None:
    folder = tmp_path / "sites" / "kaunas"
    folder.mkdir(parents=True, mode=0o755)
    ask(MessageType.TRAIN, settings(), tmp_path / "sites")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) != 0o700  # that one is its owner's business


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "sites").write_text("not a folder")
    reply = ask(MessageType.TRAIN, settings(), tmp_path / "sites")
    assert f"{tmp_path / 'sites' / 'kaunas'}" in failure(reply)


def describe(tmp_path: Path, name: str, table: dict[str, Any]) -> Description:
    """Return what a site with a table of its own tells of itself."""
    path = wine.write_csv(tmp_path / f"{name}.csv", table)
    site = Site(SiteConfig(name=name, data=path, state_dir=tmp_path), FederationConfig())
    return site.describe()


def test_tables_of_sites_must_have_the_same_columns(tmp_path: Path) -> None:
    """The same number of columns in another order would be mixed up without a word."""
    kaunas, vilnius = (describe(tmp_path, name, wine.columns()) for name in ("kaunas", "vilnius"))
    assert agree([kaunas, vilnius], (), "x").input_shape == (13,)
    backwards = dict(reversed(wine.columns().items()))
    memel = describe(tmp_path, "memel", backwards)
    assert memel.input_shape == (13,)
    assert not any(name in str(memel) for name in wine.NAMES)  # a hash tells enough
    with pytest.raises(InputError, match="kaunas and memel do not have the same columns"):
        agree([kaunas, memel], (), "x")
    np.savez(tmp_path / "arrays.npz", X=wine.X, y=wine.Y)
    site = SiteConfig(name="riga", data=tmp_path / "arrays.npz", state_dir=tmp_path)
    riga = Site(site, FederationConfig()).describe()
    assert len(agree([kaunas, riga], (), "x")) == 2  # arrays have no names of columns


def test_a_site_does_not_standardise_alone(tmp_path: Path) -> None:
    path = wine.write_csv(tmp_path / "t.csv", wine.columns())
    site = Site(SiteConfig(name="kaunas", data=path, state_dir=tmp_path), FederationConfig())
    found = np.sort(site.federation.inputs, axis=0)
    np.testing.assert_array_equal(found, np.sort(wine.X.astype(np.float32), axis=0))
    assert site.federation.preprocessing == Preprocessing("float32", (13,), wine.NAMES)
