"""Who the clients of a run are, and when sites do not fit together."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pfedfda import InputError

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from pfedfda.flower.messages import description_settings, read_description
from pfedfda.flower.roster import agree, read_roster
from pfedfda.flower.site import Description
from pfedfda.flower.wire import MalformedError

KAUNAS = Description("kaunas", -1, 30, 8, 2, ("cat", "dog"), (32, 32, 3), {"ward": "west"})
VILNIUS = replace(KAUNAS, name="vilnius", train_size=50, attributes={})


def test_sites_are_numbered_by_name() -> None:
    roster = agree([VILNIUS, KAUNAS], (), "fedavg")
    assert roster.client_names == ["kaunas", "vilnius"]
    assert roster.train_sizes.tolist() == [30, 50]
    assert roster.attributes == {"ward": ["west", ""]}
    assert roster.classes_held(0) == 2
    assert roster.run != agree([VILNIUS, KAUNAS], (), "fedavg").run


def test_clients_of_a_trial_keep_their_numbers() -> None:
    sites = [replace(KAUNAS, name=str(n), number=n) for n in (10, 2, 0, 1)]
    assert agree(sites, (), "x").client_names == ["0", "1", "2", "10"]


def test_a_roster_comes_back_from_its_file(tmp_path: Path) -> None:
    roster = agree([VILNIUS, KAUNAS], (), "fedavg")
    roster.write(tmp_path)
    assert read_roster(tmp_path) == roster
    (tmp_path / "roster.json").write_text('{"sites": 3}')
    with pytest.raises(InputError, match="is not a run of a federation"):
        read_roster(tmp_path)


def test_sites_may_hold_some_of_the_given_classes() -> None:
    cats = replace(VILNIUS, class_names=("cat",))
    roster = agree([KAUNAS, cats], ("dog", "cat", "horse"), "x")
    assert roster.class_names == ("dog", "cat", "horse")


@pytest.mark.parametrize(
    ("other", "class_names", "said"),
    [
        (
            replace(VILNIUS, input_shape=(28, 28, 3)),
            (),
            "kaunas has 32×32 colour and vilnius has 28×28",
        ),
        (replace(VILNIUS, class_names=("cat", "cow")), (), "'cow' is one of the differences"),
        (replace(VILNIUS, class_names=("dog", "cat")), (), "do not agree"),
        (replace(VILNIUS, class_names=("cow",)), ("cat", "dog"), "has a class 'cow'"),
        (VILNIUS, ("cat", "dog", "cat"), "not all different"),
        (replace(VILNIUS, name="kaunas"), (), "Two sites are called 'kaunas'"),
    ],
)
def test_sites_that_do_not_fit_are_refused(
    other: Description, class_names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        agree([KAUNAS, other], class_names, "x")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../etc"[:0]},
        {"name": "two\nlines"},
        {"name": 7},
        {"train_size": 0},
        {"test_size": -1},
        {"train_size": 10**12},
        {"train_size": True},
        {"classes_held": 3},
        {"class_names": []},
        {"class_names": 5},
        {"input_shape": []},
        {"input_shape": [2**14, 2**14, 3]},
        {"input_type": "float16"},
        {"input_shape": [32, 32, "3"]},
        {"attributes": "[1]"},
        {"attributes": '{"a": [1]}'},
        {"attributes": "x" * 10_000},
        {"attributes": '{"ward": Infinity}'},
        {"attributes": '{"ward": NaN}'},
        {"attributes": '{"ward": 1e999}'},
        {"attributes": '{"ward": "two\\nlines"}'},
        {"attributes": '{"accuracy": 1.0}'},
        {"attributes": '{"client": 1}'},
        {"attributes": '{"a,b": 1}'},
        {"attributes": json.dumps({f"a{n}": 1 for n in range(21)})},
        {"number": "one"},
    ],
)
def test_descriptions_are_not_trusted(change: dict[str, object]) -> None:
    settings = description_settings(KAUNAS)
    assert read_description(settings) == KAUNAS
    with pytest.raises(MalformedError):
        read_description(settings | change)
    (name,) = change
    del settings[name]
    with pytest.raises(MalformedError, match="lacks"):
        read_description(settings)
