"""The settings of the paper's experiments, by the names that a configuration has for them.

A comment behind each says where in the paper it stands: "setup" is Section 5.1, "C.1" to "C.3" are
the parts of Appendix C (datasets, training, new clients), "D" is Appendix D. What the paper leaves
out is listed in `NOT_STATED`; where a run cannot do without it, the federations of this package
have a value of their own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pfedfda.data import FEDERATIONS
from pfedfda.errors import InputError, unknown
from pfedfda.paper.published import TABLES, published_table

COMMON: dict[str, Any] = {
    "rounds": 200,  # setup and C.2; the last round has all clients (C.2), as ours always has
    "participation": 0.3,  # setup and C.2; EMNIST and DIGIT-5 differ: `pfedfda.data.FEDERATIONS`
    "epochs": 5,  # setup and C.2
    "batch_size": 50,  # C.2; EMNIST differs
    "lr": 0.01,  # C.2, fixed
    "momentum": 0.5,  # C.2
    "weight_decay": 5e-4,  # C.2
    "train_share": 0.8,  # setup and C.2, inside every client
    "clients": 100,  # setup; EMNIST and DIGIT-5 differ
    "init": "torch",  # as in the code the paper builds on; Section 4.1 has "e.g." He's Gaussian
}
"""What holds for all experiments unless a federation says otherwise."""

FEDERATION_SETTINGS: dict[str, dict[str, Any]] = {
    # setup: writers as clients, 1000 of them, q = 0.03, the 4-layer CNN; C.2: batches of 16
    "emnist": {"model": "emnist-cnn", "clients": 1000},
    "cifar10": {"model": "cifar-cnn"},  # setup: the 5-layer CNN for CIFAR
    "cifar100": {"model": "cifar-cnn"},
    "tiny-imagenet": {"model": "resnet18"},  # setup
    # setup and C.1: ten corruptions at five severities, a pair for each of the first 50 clients
    "cifar10-s": {"model": "cifar-cnn"},
    "cifar100-s": {"model": "cifar-cnn"},
    # Section 5.2 and Table 3: one batch of 50 training samples per client, Dirichlet(0.5)
    "cifar10-scarce": {"model": "cifar-cnn"},
    "cifar100-scarce": {"model": "cifar-cnn"},
    # D: 20 clients, four for each domain, Dirichlet(0.5) inside, full participation
    "digit5": {"clients": None},
}
"""What is added to `COMMON` and to the settings of `pfedfda.data.FEDERATIONS`, by federation.

The number of clients of DIGIT-5 follows from its domains and `clients_per_group`.
"""

ALPHAS = (0.1, 0.5)  # setup and C.1
TRAIN_FRACTIONS = (1.0, 0.75, 0.5, 0.25)  # setup; the test samples stay
SHIFTED_CLIENTS = 50  # setup and C.1
STD_OVER = "clients"  # setup: mean and deviation of the clients' test accuracies

METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {},
    "fedavg-ft": {"fine_tune_epochs": 5},  # C.3, where it is said of new clients
    "apfl": {"alpha": 0.25},  # C.2
    "ditto": {"mu": 1.0, "personal_epochs": 5},  # C.2
    "fedbabu": {"fine_tune": "head", "fine_tune_epochs": 5},  # C.2
    "fedpac": {"lam": 1.0, "head_epochs": 1, "head_lr": 0.1},  # C.2
    "fedrep": {"head_epochs": 5},  # C.2
    "fedrod": {},
    "lg-fedavg": {},
    "pfedme": {"lam": 5.0},  # C.2
    "pfedfda": {"folds": 2, "betas": "single"},  # setup
}
"""The hyper-parameters that the paper states, by method, in the order of its tables."""

TUNED_OVER: dict[str, dict[str, tuple[float, ...]]] = {
    "apfl": {"alpha": (0.25, 0.5, 0.75, 1.0)},  # C.2
    "ditto": {"mu": (0.05, 0.1, 0.5, 1.0, 2.0)},  # C.2
    "fedpac": {"lam": (0.1, 0.5, 1.0, 5.0, 10.0)},  # C.2
    "pfedme": {"lam": (1.0, 5.0, 10.0, 15.0)},  # C.2
}
"""The values among which the paper chose a hyper-parameter."""

ABLATION: dict[str, dict[str, Any]] = {
    "none": {"betas": "none"},  # NB: β = 1
    "single": {"betas": "single"},  # SB
    "multiple": {"betas": "multiple"},  # MB
}
"""The rows of Table 5 as hyper-parameters of pFedFDA."""

BEST_OF_TWO = ("fedbabu", "fedpac")
"""Methods of which Table 4 has the better of two ways to fine-tune (C.3): the head, or everything.

Ours have one: FedBABU the head, unless ``fine_tune`` says otherwise, and FedPAC its own training.
"""

NOT_STATED: tuple[str, ...] = (
    "the number of runs and their seeds: deviations are over clients, so one run is all they need",
    "the smallest number of samples a client may hold",
    "the network for DIGIT-5 (its images suit the 5-layer CNN)",
    "the Dirichlet α behind Tables 6 and 9 (0.5 is assumed)",
    "pFedMe's inner steps and their learning rate, FedRoD's and LG-FedAvg's hyper-parameters",
    "the initial weights, but for an example in the text of pFedFDA (here: torch's for all)",
    "pFedFDA's ridge ε, and the scale of its initial means",
    "after which rounds the clients were evaluated (the last is assumed)",
    "which 1000 writers of EMNIST (the first by name with 64 images or more)",
    "the number of test samples in the scarce federations, and how their class mix is drawn",
    "which corruption and severity each client has",
    "whether Local trains in every round or only when drawn (here: when drawn)",
    "FedRep's epochs for the body (as many as for the head), and the learning rate of fine-tuning",
    "q among the clients that train for Table 4",
    "the α behind Figures 2 and 4 (0.5 is assumed), and the share of the training samples",
)
"""What a run needs and the paper does not say."""


@dataclass(frozen=True)
class TableSettings:
    """What has to be run for a table.

    Parameters
    ----------
    federations
        The federations by the keys of `federation_settings`.
    methods
        The methods by name, in the order of the table.
    settings
        Further settings, the same for all runs.
    variants
        Hyper-parameters by row, where the rows are one method with different ones.
    """

    federations: tuple[str, ...]
    methods: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def federation_settings(key: str) -> dict[str, Any]:
    """Return all settings of a run on one of the paper's federations.

    Parameters
    ----------
    key
        The key of a column, ``FEDERATION[-dirALPHA][@PERCENT]``, such as ``cifar10-s@25``,
        ``cifar100-dir0.1@100`` or ``cifar10-scarce``.

    Returns
    -------
    dict
        Settings by their plain names, as `pfedfda.run` takes them.
    """
    match = re.fullmatch(r"(?P<name>.+?)(-dir(?P<alpha>\d+(\.\d+)?))?(@(?P<percent>\d+))?", key)
    name = match["name"] if match else key
    if match is None or name not in FEDERATION_SETTINGS:
        raise unknown("federation", name, FEDERATION_SETTINGS)
    settings = COMMON | FEDERATIONS[name][1] | FEDERATION_SETTINGS[name]
    if match["alpha"]:
        if "alpha" not in settings:
            raise InputError(f"{key} has a Dirichlet α, but {name} is not split by Dirichlet.")
        settings["alpha"] = float(match["alpha"])
    if match["percent"]:
        settings["train_fraction"] = int(match["percent"]) / 100
    return settings


def table_settings(key: str) -> TableSettings:
    """Return what has to be run for a table.

    Parameters
    ----------
    key
        ``table1`` to ``table7``, or ``table9``; the numbers of Table 8 are counted, not run.
    """
    published_table(key)  # refuses what is no table at all
    if key not in TABLE_SETTINGS:
        raise InputError(f"{key} needs no run: choose from {', '.join(TABLE_SETTINGS)}.")
    return TABLE_SETTINGS[key]


def _rows(key: str) -> tuple[str, ...]:
    return tuple(TABLES[key].rows)


TABLE_SETTINGS: dict[str, TableSettings] = {
    "table1": TableSettings(TABLES["table1"].columns, _rows("table1")),
    "table2": TableSettings(TABLES["table2"].columns, _rows("table2")),
    "table3": TableSettings(TABLES["table3"].columns, _rows("table3")),
    # Section 5.2: half of the clients train, the other half are new
    "table4": TableSettings(("cifar10@100",), _rows("table4"), {"new_clients": 0.5}),
    "table5": TableSettings(TABLES["table5"].columns[:6], ("pfedfda",), variants=ABLATION),
    "table6": TableSettings(("cifar10@100",), _rows("table6")),
    "table7": TableSettings(TABLES["table7"].columns[:4], _rows("table7")),
    "table9": TableSettings(
        ("cifar10@100", "cifar100@100", "tiny-imagenet@100"),  # in the order of its rows
        ("pfedfda",),
    ),
}
