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
# and measures how much such an update tells about the samples behind it.
#
# Half of fifty clients help the curious server: they are its own, say. The other half are victims.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.linear_model import Ridge

import pfedfda

settings = pfedfda.FederationConfig(source="digits", clients=50, alpha=0.3, train_fraction=0.5)
run = pfedfda.run("pfedfda", settings, rounds=10)
(shared,) = pfedfda.export_models(run.folder, shared=True)
body = pfedfda.load_model(shared.path).network.body.eval()
clients = [pfedfda.prepare(settings).client(number) for number in range(50)]


def features_of(images):
    """Return the features of images (n, height, width, 1) under the body that all share."""
    inputs = torch.tensor(images).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        return body(inputs)


# %% [markdown]
# ## A class with one sample sends that sample's features
#
# A client sends, for each class, how many samples it has and the mean of their features. (The body
# is that of the last round here, and does not move while a client computes its means, as with a
# frozen backbone. Where the body trains meanwhile, means are a little blurred.)

# %%
victims = range(25, 50)
sent = []  # client, class, samples, what the server receives, the images behind it
for number in victims:
    images, labels = clients[number].train_inputs, torch.tensor(clients[number].train_labels)
    moments = pfedfda.class_moments(features_of(images), labels, 10)
    for label in range(10):
        if count := int(moments.counts[label]):
            sent.append((number, label, count, moments.means[label], images[labels == label]))

single = [entry for entry in sent if entry[2] == 1]
same = [
    torch.allclose(mean, features_of(images)[0].double(), atol=1e-5)
    for _, _, _, mean, images in single
]
print(len(sent), "class means were sent,", len(single), "of a single sample")
print("those that are the sample's features:", sum(same), "of", len(same))

# %% [markdown]
# ## Who was it? Identification by the nearest neighbour
#
# The server has a list of suspects: every image that any client has, for training or testing, and
# the victims' among them. Is the image whose features are nearest to a mean one of those behind it?

# %%
NAMES = {1: "1 sample", **{n: f"{n} samples" for n in range(2, 6)}, 6: "6 or more samples"}
suspects = np.concatenate([np.concatenate([c.train_inputs, c.test_inputs]) for c in clients])
suspect_features = features_of(suspects).double()
found: dict[int, list[bool]] = {}
for _, _, count, mean, images in sent:
    nearest = suspects[int((suspect_features - mean).norm(dim=1).argmin())]
    hit = any(np.array_equal(nearest, image) for image in images)
    found.setdefault(min(count, 6), []).append(hit)
for count in sorted(found):
    print(f"{NAMES[count]:>17}: {sum(found[count])} of {len(found[count])} means identified")
print(f"a single sample, by chance: 1 in {len(suspects)}")

# %% [markdown]
# ## What did it look like? Inversion by ridge regression
#
# The server's own clients have images and features, so it learns a linear map from features back to
# pixels, and applies it to what the victims sent. The comparison is the average image of the class,
# which the server could draw without any update.

# %%
helpers = [clients[number] for number in range(25)]
known = np.concatenate([c.train_inputs for c in helpers] + [c.test_inputs for c in helpers])
known_labels = np.concatenate([c.train_labels for c in helpers] + [c.test_labels for c in helpers])
inverse = Ridge(alpha=1.0).fit(features_of(known).numpy(), known.reshape(len(known), -1) / 255)
averages = np.stack([known[known_labels == label].mean(axis=0) / 255 for label in range(10)])


def reconstruct(mean):
    """Return the image that the server draws from a mean of features."""
    return inverse.predict(mean.numpy()[None]).reshape(28, 28).clip(0, 1)


errors: dict[int, list[tuple[float, float]]] = {}
for _, label, count, mean, images in sent:
    truth = images.mean(axis=0)[..., 0] / 255
    drawn = ((reconstruct(mean) - truth) ** 2).mean()
    average = ((averages[label][..., 0] - truth) ** 2).mean()
    errors.setdefault(min(count, 6), []).append((drawn, average))
print("squared error per pixel of what is drawn, and of the class's average image")
for count in sorted(errors):
    drawn, average = np.mean(errors[count], axis=0)
    print(f"{NAMES[count]:>17}: {drawn:.3f} {average:.3f}")

# %%
figure, axes = plt.subplots(3, 9, figsize=(9, 3.3), layout="constrained")
names = ["the client's image", "drawn from the update", "average of the class"]
shown = {entry[1]: entry for entry in single}.values()
for column, (number, label, _, mean, images) in zip(axes.T, list(shown)[:9], strict=False):
    pictures = [images[0][..., 0] / 255, reconstruct(mean), averages[label][..., 0]]
    for cell, picture in zip(column, pictures, strict=True):
        cell.imshow(picture, cmap="gray_r", vmin=0, vmax=1)
    column[0].set_title(f"client {number}", fontsize=9)
for cell in axes.flat:
    cell.set(xticks=[], yticks=[])
for row, name in zip(axes, names, strict=True):
    row[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()

# %% [markdown]
# ## What follows
#
# - A class mean of one sample is that sample's features, and features tell much.
# - Averages of more samples blur single ones, but still say what the client's samples of a class
#   look like on average.
# - What helps: not to send classes with few samples, a secure sum that shows the server only the
#   total over clients, or noise. What a method sends, and whether the sum is enough, is in
#   `pfedfda methods`.
