# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # What an update reveals
#
# In a federation samples stay where they are, but what is computed from them does not. pFedFDA, and
# every method that sends class means, sends averages of features. This notebook plays the server,
# and measures how much such an update tells about the samples behind it; then it does the same with
# `--min-class-count 5`, which keeps rarer classes at home.
#
# Half of fifty clients help the curious server: they are its own, say. The other half are victims.

# %%
import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.linear_model import Ridge

import pfedfda

settings = pfedfda.FederationConfig(source="digits", clients=50, alpha=0.3, train_fraction=0.5)
clients = [pfedfda.prepare(settings).client(number) for number in range(50)]
victims, helpers = clients[25:], clients[:25]
received = []  # what the server has been sent, in all rounds


class Curious(pfedfda.find_method("pfedfda")):
    """A server that does all that is asked of it, and keeps what it gets."""

    def contribution(self, update, total=None):
        received.append(update)
        return super().contribution(update, total)


def observe(min_class_count):
    """Return the body that all share, and what each client sent in the last round.

    With `final_pass` all clients then send statistics of that very body, as they do in every round
    where a backbone is frozen. Where the body trains meanwhile, means are a little blurred.
    """
    received.clear()
    run = pfedfda.run(
        Curious(final_pass=True), settings, rounds=10, workers=0, min_class_count=min_class_count
    )
    (shared,) = pfedfda.export_models(run.folder, shared=True)
    body = pfedfda.load_model(shared.path).network.body.eval()
    return body, {update.client_id: update.tensors for update in received[-50:]}


def features_of(images, body):
    """Return the features of images (n, height, width, 1)."""
    inputs = torch.tensor(images).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        return body(inputs).double()


# %% [markdown]
# ## A class with one sample sends that sample's features
#
# A client sends, for each class, how many samples it has and the mean of their features.


# %%
def classes_of_victims(updates):
    """Return, for each class that a victim holds, what it sent and the images behind it."""
    held = []
    for number, victim in enumerate(victims, start=25):
        for label in np.unique(victim.train_labels):
            images = victim.train_inputs[victim.train_labels == label]
            told, mean = (updates[number][name][label].double() for name in ("counts", "means"))
            held.append((number, label, int(told), mean, images))
    return held


body, updates = observe(min_class_count=1)
held = classes_of_victims(updates)
single = [entry for entry in held if len(entry[4]) == 1]
same = [
    torch.allclose(mean, features_of(images, body)[0], atol=1e-5)
    for _, _, _, mean, images in single
]
print(len(held), "class means were sent,", len(single), "of a single sample")
print("those that are the sample's features:", sum(same), "of", len(same))

# %% [markdown]
# ## Who was it? Identification by the nearest neighbour
#
# The server has a list of suspects: every image that any client has, for training or testing, and
# the victims' among them. Is the image whose features are nearest to a mean one of those behind it?

# %%
NAMES = {1: "1 sample", **{n: f"{n} samples" for n in range(2, 5)}, 5: "5 or more samples"}
suspects = np.concatenate([np.concatenate([c.train_inputs, c.test_inputs]) for c in clients])


def identified(mean, images, candidates):
    """Tell whether the suspect with the nearest features is one of these images."""
    nearest = suspects[int((candidates - mean).norm(dim=1).argmin())]
    return any(np.array_equal(nearest, image) for image in images)


# %% [markdown]
# ## What did it look like? Inversion by ridge regression
#
# The server's own clients have images and features, so it learns a linear map from features back to
# pixels, and applies it to what the victims sent. What it draws is compared with the image, or the
# mean of the images, behind it. The average image of the class, which the server could draw without
# any update, is compared too.

# %%
known = np.concatenate([images for c in helpers for images in (c.train_inputs, c.test_inputs)])
known_labels = np.concatenate([y for c in helpers for y in (c.train_labels, c.test_labels)])
averages = np.stack([known[known_labels == label].mean(axis=0) for label in range(10)]) / 255


def inverter(body):
    """Return a function that draws an image from a mean of features."""
    features = features_of(known, body).numpy()
    inverse = Ridge(alpha=1.0).fit(features, known.reshape(len(known), -1) / 255)
    return lambda mean: inverse.predict(mean.numpy()[None]).reshape(28, 28).clip(0, 1)


def likeness(one, other):
    """Return the correlation of two images."""
    return np.corrcoef(one.ravel(), other.ravel())[0, 1]


def attack(body, held, min_class_count):
    """Return a row for each size of a class: what was sent, and what the server makes of it."""
    draw, candidates = inverter(body), features_of(suspects, body)
    rows = []
    for size, name in NAMES.items():
        of_size = [entry for entry in held if min(len(entry[4]), 5) == size]
        hits, drawn, average = [], [], []
        for _, label, _, mean, images in of_size:
            truth = images.mean(axis=0)[..., 0] / 255
            hits.append(identified(mean, images, candidates))
            drawn.append(likeness(draw(mean), truth))
            average.append(likeness(averages[label], truth))
        rows.append(
            {
                "min_class_count": min_class_count,
                "samples": name,
                "classes": len(of_size),
                "sent": sum(told > 0 for _, _, told, _, _ in of_size),
                "identified": sum(hits),
                "drawn": f"{np.mean(drawn):.2f}",
                "class_average": f"{np.mean(average):.2f}",
            }
        )
    return rows


rows = attack(body, held, 1)


def show(rows):
    """Print the rows of one federation."""
    print("samples of a class   classes   sent   identified   likeness drawn   average image")
    for row in rows:
        print(
            f"{row['samples']:>18} {row['classes']:9} {row['sent']:6} {row['identified']:12}"
            f" {row['drawn']:>16} {row['class_average']:>15}"
        )


show(rows)
print(f"identified by chance: 1 in {len(suspects)}")

# %%
figure, axes = plt.subplots(3, 9, figsize=(9, 3.3), layout="constrained")
names = ["the client's image", "drawn from the update", "average of the class"]
shown, draw = {entry[1]: entry for entry in single}.values(), inverter(body)
for column, (number, label, _, mean, images) in zip(axes.T, list(shown)[:9], strict=False):
    pictures = [images[0][..., 0] / 255, draw(mean), averages[label][..., 0]]
    for cell, picture in zip(column, pictures, strict=True):
        cell.imshow(picture, cmap="gray_r", vmin=0, vmax=1)
    column[0].set_title(f"client {number}", fontsize=9)
for cell in axes.flat:
    cell.set(xticks=[], yticks=[])
for row, name in zip(axes, names, strict=True):
    row[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()

# %% [markdown]
# ## Rarer classes stay at home
#
# With `--min-class-count 5` a client sends counts, means and covariance without the samples of
# classes of which it has fewer than five. In the place of their means stand the global means that
# it got from the server, so that the same attack learns nothing from them.

# %%
body, updates = observe(min_class_count=5)
guarded = attack(body, classes_of_victims(updates), 5)
show(guarded)

# %%
if "--csv" in sys.argv:  # for the table of docs/privacy.md
    with Path(sys.argv[-1]).open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows + guarded)

# %% [markdown]
# ## What follows
#
# - A class mean of one sample is that sample's features, and features tell much.
# - Averages of more samples blur single ones, but still say what the client's samples of a class
#   look like on average.
# - What helps: not to send classes with few samples (`--min-class-count`), a secure sum that shows
#   the server only the total over clients, or noise. What a method sends, and whether the sum is
#   enough, is in `pfedfda methods` and in `docs/privacy.md`.
