"""Time what pFedFDA adds to local training: estimates, β search and classifier.

Network passes and the Gaussian parts alternate within one run on one thread, so that both meet the
same state of the machine. Times are those of the processor, which do not count the waiting for
other programs. Prints a table of medians; asserts nothing.

    python benchmarks/beta.py --repeats 7
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfedfda.gaussian import (
    GaussianStatistics,
    adapt,
    adaptation,
    bayes_classifier,
    estimate_statistics,
    interpolate,
    search_beta,
)

EPOCHS = 5
BATCH = 50
RIDGE = 0.03


@dataclass(frozen=True)
class Size:
    dimension: int
    classes: int
    images: int
    network: bool


SIZES = (
    Size(128, 10, 122, network=True),
    Size(128, 10, 488, network=True),
    Size(128, 100, 122, network=True),
    Size(128, 100, 488, network=True),
    Size(512, 200, 440, network=False),
)


class StandInNetwork(nn.Module):
    """The layers of the paper's CIFAR network, without its care for initial weights."""

    def __init__(self, classes: int):
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(3, 16, 5),
                nn.Conv2d(16, 32, 5, padding=1),
                nn.Conv2d(32, 64, 3, padding=1),
            ]
        )
        self.hidden = nn.Linear(576, 128)
        self.head = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for convolution in self.convolutions:
            x = F.leaky_relu(F.max_pool2d(convolution(x), 2))
        return self.head(F.leaky_relu(self.hidden(x.flatten(1))))


def train(network: StandInNetwork, images: Tensor, labels: Tensor) -> None:
    """Train for all epochs, last incomplete batch included, as a client does."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.5, weight_decay=5e-4)
    for _ in range(EPOCHS):
        for indices in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(network(images[indices]), labels[indices]).backward()
            optimizer.step()


def synthetic_client(
    size: Size, seed: int, all_classes: bool
) -> tuple[Tensor, Tensor, Tensor, GaussianStatistics]:
    """Return float32 features of all epochs, labels, image ids and global statistics.

    The client holds a Dirichlet(0.5) mix of the classes. Its class means are shifted against the
    global ones by less than classes differ, and an epoch changes features a little.
    """
    generator = torch.Generator().manual_seed(seed)
    dimension, classes, images = size.dimension, size.classes, size.images

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    factor = normal(dimension, dimension) / dimension**0.5 + 0.2 * torch.eye(dimension)
    unit = factor.T / dimension**0.5  # a step of Mahalanobis length 1
    global_means = 3.0 * normal(classes, dimension) @ unit
    local_means = global_means + 1.5 * normal(classes, dimension) @ unit
    if all_classes:
        labels = torch.arange(images) % classes
    else:
        shares = normal(classes).square()  # Gamma(1/2), up to scale: a Dirichlet(1/2) when summed
        labels = torch.multinomial(shares, images, replacement=True, generator=generator)
    clean = local_means[labels] + normal(images, dimension) @ factor.T
    features = clean.repeat(EPOCHS, 1)
    features += 0.4 * normal(*features.shape) @ factor.T
    statistics = GaussianStatistics(global_means, factor @ factor.T + RIDGE * torch.eye(dimension))
    ids = torch.arange(images).repeat(EPOCHS)
    return features, labels.repeat(EPOCHS), ids, statistics


def milliseconds(task: Callable[[], object]) -> float:
    start = time.thread_time()
    task()
    return 1e3 * (time.thread_time() - start)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def measure(size: Size, repeats: int, all_classes: bool, reference: bool) -> list[str]:
    """Time all parts at one size and return a row of the table."""
    features, labels, ids, shared = synthetic_client(size, seed=1, all_classes=all_classes)
    counts = torch.bincount(labels, minlength=size.classes)
    arguments = {"sample_ids": ids, "ridge": RIDGE}
    found = adapt(features, labels, shared, **arguments)

    tasks: dict[str, Callable[[], object]] = {}
    if size.network:
        network = StandInNetwork(size.classes).to(memory_format=torch.channels_last)
        images = torch.randn(size.images, 3, 32, 32).to(memory_format=torch.channels_last)
        tasks["network"] = partial(train, network, images, labels[: size.images])
    # The search comes after the network, as at a client: it finds none of its data in the cache.
    tasks["all"] = partial(adapt, features, labels, shared, **arguments)
    tasks["estimates"] = partial(
        estimate_statistics, features, labels, size.classes, prior_means=shared.means, ridge=RIDGE
    )
    tasks["single"] = partial(search_beta, features, labels, shared, **arguments)
    tasks["two"] = partial(search_beta, features, labels, shared, betas="multiple", **arguments)
    tasks["classifier"] = lambda: bayes_classifier(
        interpolate(found.local_statistics, shared, found.betas.means), found.priors
    )
    one_epoch = features[: size.images], labels[: size.images], shared
    tasks["personal"] = partial(adapt, *one_epoch, ridge=RIDGE)

    times: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():  # warm up
        task()
    for _ in range(repeats):
        for name, task in tasks.items():
            times[name].append(milliseconds(task))
    middle = {name: median(values) for name, values in times.items()}
    row = [str(size.dimension), f"{int((counts > 0).sum())}/{size.classes}", str(size.images)]
    row.append(f"{middle['network']:.1f}" if size.network else "-")
    row += [f"{middle[name]:.2f}" for name in ("estimates", "single", "two")]
    row += [f"{middle[name]:.2f}" for name in ("classifier", "personal", "all")]
    row.append(f"{100 * middle['all'] / middle['network']:.1f} %" if size.network else "-")
    row.append(f"{found.betas.means:.5f}")
    if reference:
        by_reference = partial(
            search_beta, features, labels, shared, solver="reference", **arguments
        )
        row += [f"{by_reference().means:.5f}", f"{milliseconds(by_reference):.0f}"]
    return row


def measure_wide(dimension: int, clients: int) -> list[str]:
    """Time clients with few rows against many features, as with a frozen backbone."""
    generator = torch.Generator().manual_seed(1)
    size = Size(dimension, 10, 120, network=False)
    features, labels, _, shared = synthetic_client(size, seed=1, all_classes=False)
    features, labels = features[: size.images], labels[: size.images]
    given = []
    for _ in range(clients):
        order = torch.randperm(size.images, generator=generator)
        given.append((features[order], labels[order], shared))
    square = torch.randn(dimension, dimension, dtype=torch.float64, generator=generator)
    products = [milliseconds(lambda: square @ square) for _ in range(5)]
    with_matrices = partial(adapt, *given[0], ridge=RIDGE)
    rule, adaptation.is_low_rank = adaptation.is_low_rank, lambda *sizes: False
    dense = median([milliseconds(with_matrices) for _ in range(3)])
    adaptation.is_low_rank = rule
    first = milliseconds(partial(adapt, *given[0], ridge=RIDGE))
    others = median([milliseconds(partial(adapt, *one, ridge=RIDGE)) for one in given[1:]])
    row = [str(dimension), str(size.images), f"{median(products):.1f}", f"{dense:.0f}"]
    row += [f"{first:.0f}", f"{others:.1f}", f"{others / median(products):.2f}"]
    return [*row, f"{(first + (clients - 1) * others) / 1e3:.1f}"]


def print_wide(clients: int) -> None:
    """Print the table of clients with few rows against many features."""
    print(f"\nThe same without a network, {clients} clients one after the other: milliseconds of a")
    print("product of two (d, d) matrices, of a client with matrices of its own, of the first")
    print("client (the global covariance is decomposed), of others; seconds for all.")
    header = ["d", "rows", "product", "matrices", "first", "others", "products", "all (s)"]
    print("  ".join(f"{title:>10}" for title in header))
    for dimension in (256, 512, 1280):
        row = measure_wide(dimension, clients)
        print("  ".join(f"{cell:>10}" for cell in row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=11, help="runs of each part (median)")
    parser.add_argument(
        "--all-classes", action="store_true", help="give every client all classes in equal shares"
    )
    parser.add_argument(
        "--no-reference", action="store_true", help="leave out the slow reference solver"
    )
    parser.add_argument(
        "--only-wide", action="store_true", help="only few rows against many features"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.only_wide:
        print_wide(clients=100)
        return
    header = ["d", "classes", "images", "network", "estimates", "single β", "two β"]
    header += ["classifier", "personal", "all", "share", "β"]
    if not options.no_reference:
        header += ["β (ref.)", "reference"]
    print(
        "Milliseconds (medians) on one thread. «network»: the passes of 5 epochs; «all»: estimates,"
    )
    print(
        "single β, interpolation and classifier in one call, on the features of these epochs, and"
    )
    print("its «share» of the network's time; «personal»: the same on the features of one pass.")
    print("  ".join(f"{title:>10}" for title in header))
    for size in SIZES:
        row = measure(size, options.repeats, options.all_classes, not options.no_reference)
        print("  ".join(f"{cell:>10}" for cell in row), flush=True)
    print_wide(clients=100)


if __name__ == "__main__":
    main()
