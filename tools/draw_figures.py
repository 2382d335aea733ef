"""Draw the figures of the documentation: ``python tools/draw_figures.py``.

Everything is computed with `pfedfda.gaussian` or read from a table in results; seeds are fixed, so
the figures can be made again.
"""

import csv
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse

from pfedfda.gaussian import (
    GaussianStatistics,
    Strengths,
    adapt,
    adapt_levels,
    bayes_classifier,
    estimate_statistics,
    interpolate,
    interpolation_error_bound,
)

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
PRIVACY = ROOT / "results" / "privacy.csv"
TITLES = {"pfedfda": "pFedFDA", "fedcgs": "FedCGS"}
# Colours that colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"


def draw_samples(
    count: int, means: np.ndarray, covariance: np.ndarray, random: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    labels = np.arange(count) % 2
    noise = random.multivariate_normal([0, 0], covariance, size=count)
    return torch.from_numpy(means[labels] + noise), torch.from_numpy(labels)


def draw_gaussians(axes: Axes, statistics: GaussianStatistics) -> None:
    """Draw an ellipse of two standard deviations for each class, and the decision boundary."""
    values, vectors = np.linalg.eigh(statistics.covariance.numpy())
    angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
    for mean, colour in zip(statistics.means.numpy(), (BLUE, ORANGE), strict=True):
        size = 4 * np.sqrt(values)
        ellipse = Ellipse(
            mean, size[1], size[0], angle=angle, fill=False, edgecolor=colour, linewidth=1.8
        )
        axes.add_patch(ellipse)
        axes.plot(*mean, marker="X", color=colour, markersize=9, markeredgecolor="white")
    classifier = bayes_classifier(statistics, torch.ones(2))
    weight = (classifier.weight[0] - classifier.weight[1]).numpy()
    offset = float(classifier.bias[0] - classifier.bias[1])
    x = np.linspace(-8, 8, 2)
    axes.plot(x, -(offset + weight[0] * x) / weight[1], color=GREY, linestyle="--")


def draw_interpolation() -> None:
    """What β does for a client with few samples and a shift, beside thousands of others."""
    random = np.random.default_rng(0)
    means = np.array([[-1.0, 0.0], [1.0, 0.0]])
    covariance = np.array([[1.0, 0.6], [0.6, 1.0]])
    own_means = means + np.array([0.5, -0.5])
    shared = estimate_statistics(*draw_samples(4000, means, covariance, random), 2)
    test_features, test_labels = draw_samples(4000, own_means, covariance, random)

    def accuracy(statistics: GaussianStatistics) -> float:
        logits = bayes_classifier(statistics, torch.ones(2)).logits(test_features)
        return 100 * (logits.argmax(1) == test_labels).double().mean().item()

    betas = np.linspace(0, 1, 21)
    figure, panels = plt.subplots(1, 4, figsize=(13, 3.7), layout="constrained")
    for size, colour in ((8, BLUE), (20, ORANGE), (60, GREEN)):
        curves, found = [], []
        for _ in range(300):
            features, labels = draw_samples(size, own_means, covariance, random)
            fitted = adapt(features, labels, shared, n_folds=4, ridge=0.01)
            local = fitted.local_statistics
            curves.append([accuracy(interpolate(local, shared, float(beta))) for beta in betas])
            found.append(accuracy(fitted.statistics))
        mean = np.mean(curves, axis=0)
        panels[3].plot(betas, mean, color=colour, label=f"{size} samples")
        panels[3].axhline(np.mean(found), color=colour, linestyle=":")
        print(
            f"{size} samples: β = 0 {mean[0]:.2f} %, best β = {betas[mean.argmax()]:.2f} "
            f"{mean.max():.2f} %, β = 1 {mean[-1]:.2f} %, cross-validated {np.mean(found):.2f} %"
        )
        if size == 8:
            example = features, labels, local
    panels[3].set(xlabel="β, the same for all", ylabel="correct, %")
    panels[3].set_title("mean over 300 clients (dotted: own β)", fontsize=10)
    panels[3].legend(fontsize=8)
    features, labels, local = example
    for axes, beta in zip(panels, (0.0, 0.6, 1.0), strict=False):
        mixed = interpolate(local, shared, beta)
        for c, colour in enumerate((BLUE, ORANGE)):
            some = test_features[test_labels == c][:250]
            axes.scatter(*some.T, s=5, color=colour, alpha=0.25, zorder=0)
            own = features[labels == c]
            axes.scatter(*own.T, s=34, color=colour, edgecolor="black", linewidth=0.6, zorder=3)
        draw_gaussians(axes, mixed)
        name = {0.0: "global", 1.0: "local"}.get(beta, "between")
        axes.set_title(f"β = {beta:.1f} ({name}): {accuracy(mixed):.1f} % correct", fontsize=10)
        axes.set(xlim=(-4.5, 4.5), ylim=(-5, 4), xlabel="feature 1", aspect="equal")
    panels[0].set_ylabel("feature 2")
    figure.savefig(FIGURES / "interpolation.png", dpi=150)
    plt.close(figure)


def draw_bound() -> None:
    """Theorem 1: measured error of the interpolated mean against β, and the bound on it."""
    random = np.random.default_rng(0)
    dimension, local_samples, others, delta, c = 16, 10, 990, 0.1, 1.0
    total = local_samples + others
    betas = torch.linspace(0, 1, 51, dtype=torch.float64)
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    for axes, squared_shift in zip(panels, (0.0, 0.5, 4.0), strict=True):
        shift = np.zeros(dimension)
        shift[0] = np.sqrt(squared_shift)
        # The theorem measures the shift to the mean of everybody, which this client is part of.
        own = shift * total / others
        errors = []
        for _ in range(2000):
            local = own + random.normal(size=(dimension,)) / np.sqrt(local_samples)
            rest = random.normal(size=(dimension,)) / np.sqrt(others)
            everybody = (local_samples * local + others * rest) / total
            b = betas.numpy()[:, None]
            errors.append((((b * local + (1 - b) * everybody) - own) ** 2).sum(1))
        errors = np.array(errors)
        # The trace of Σ_g in the theorem is that of the mean of all samples, times their number.
        bound = interpolation_error_bound(
            betas,
            squared_shift=squared_shift,
            local_trace=dimension,
            global_trace=dimension,
            local_samples=local_samples,
            total_samples=total,
            delta=delta,
            c=c,
        )
        low, middle, high = np.quantile(errors, [0.05, 0.5, 1 - delta], axis=0)
        axes.fill_between(betas, low, high, color=BLUE, alpha=0.2, label="measured, 5 to 90 %")
        axes.plot(betas, middle, color=BLUE, label="measured, median")
        axes.plot(betas, bound, color=ORANGE, linestyle="--", label="bound of Theorem 1, δ = 0.1")
        lowest = betas[int(np.argmin(errors.mean(0)))]
        axes.axvline(lowest, color=GREY, linewidth=1, linestyle=":")
        axes.annotate(f" least mean error\n at β = {lowest:.2f}", (lowest, 0.0092), fontsize=8)
        axes.set(
            xlabel="β", yscale="log", ylim=(0.008, 200), title=f"squared shift {squared_shift:g}"
        )
    panels[0].set_ylabel("squared error of the mean")
    panels[0].legend(fontsize=8, loc="lower right")
    figure.savefig(FIGURES / "bound.png", dpi=150)
    plt.close(figure)


def draw_levels() -> None:
    """The error of a client's class means, as more and more of its shift is common to all classes.

    The shift of a class has the variance of four samples: as much as the mean of the client's six
    samples of a class leaves open, and half as much again.
    """
    random = np.random.default_rng(0)
    dimension, classes, each, variance = 16, 10, 6, 0.25
    labels = torch.arange(classes).repeat(each)
    shared = GaussianStatistics(
        torch.zeros(classes, dimension, dtype=torch.float64),
        torch.eye(dimension, dtype=torch.float64),
    )
    shares = np.linspace(0, 1, 11)
    betas = np.linspace(0, 1, 41)
    curves: dict[str, list[float]] = {}
    for share in shares:
        # A strength is the number of samples whose mean is as uncertain as what it holds back.
        strengths = Strengths(
            *(1 / (variance * part) if part else np.inf for part in (share, 1 - share)), np.inf
        )
        errors: dict[str, list[float]] = {}
        by_beta = []
        for _ in range(400):
            offset = random.normal(size=dimension) * np.sqrt(variance * share)
            deviations = random.normal(size=(classes, dimension)) * np.sqrt(variance * (1 - share))
            truth = torch.from_numpy(offset + deviations)
            features = truth[labels] + torch.from_numpy(random.normal(size=(60, dimension)))
            own = torch.stack([features[labels == c].mean(0) for c in range(classes)])
            fit = adapt_levels(features, labels, shared, strengths)
            offset_only = adapt_levels(features, labels, shared, Strengths(0.0, np.inf, np.inf))
            by_beta.append([float((b * own - truth).square().sum(1).mean()) for b in betas])
            for name, means in (
                ("global means", shared.means),
                ("own means", own),
                ("offset alone", offset_only.means),
                ("three levels", fit.means),
            ):
                errors.setdefault(name, []).append(float((means - truth).square().sum(1).mean()))
        curves.setdefault("best β", []).append(float(np.mean(by_beta, axis=0).min()))
        for name, values in errors.items():
            curves.setdefault(name, []).append(float(np.mean(values)))
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    styles = {
        "global means": (GREY, ":"),
        "own means": (GREY, "--"),
        "offset alone": (GREEN, "-"),
        "best β": (ORANGE, "-"),
        "three levels": (BLUE, "-"),
    }
    for name, (colour, line) in styles.items():
        axes.plot(100 * shares, curves[name], color=colour, linestyle=line, label=name)
    axes.set(
        xlabel="part of the shift that all classes share, %",
        ylabel="squared error of a class mean",
        ylim=(0, None),
    )
    axes.legend(fontsize=8)
    figure.savefig(FIGURES / "levels.png", dpi=150)
    plt.close(figure)


def draw_privacy() -> None:
    """Accuracy against ε, from the table of experiments/privacy.py."""
    with PRIVACY.open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["judged_on"] == "test"]
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.6), sharey=True, layout="constrained")
    titles = {"frozen": "100 clients", "many": "500 clients"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for method, colour in (("pfedfda", BLUE), ("fedcgs", ORANGE)):
            found: dict[float, list[float]] = {}
            for line in lines:
                if (line["set"], line["method"]) == (name, method):
                    accuracy = float(line["mean_accuracy"])
                    found.setdefault(float(line["epsilon"]), []).append(accuracy)
            plain = np.mean(found.pop(np.inf))
            means = [np.mean(values) for values in found.values()]
            axes.plot(list(found), means, color=colour, marker="o", label=TITLES[method])
            low, high = ([f(values) for values in found.values()] for f in (min, max))
            axes.fill_between(list(found), low, high, color=colour, alpha=0.25, linewidth=0)
            axes.axhline(plain, color=colour, linestyle=":", linewidth=1.2)
        axes.set(title=title, xlabel="ε", xscale="log")
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.minorticks_off()
    panels[0].set_ylabel("mean accuracy over clients")
    panels[0].legend(title="dotted: no privacy", fontsize=8, title_fontsize=8, loc="lower right")
    figure.savefig(FIGURES / "privacy.png", dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    FIGURES.mkdir(exist_ok=True)
    draw_interpolation()
    draw_bound()
    draw_levels()
    draw_privacy()
    print(*sorted(FIGURES.glob("*.png")), sep="\n")
