# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Your own data, and a frozen backbone
#
# Five hospitals hold measurements of tumours from scikit-learn. Every hospital measures a little
# differently, which a personal classifier can make up for.

# %%
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

import pfedfda

data = load_breast_cancer()
random = np.random.default_rng(0)
hospital = random.integers(5, size=len(data.target))
offsets = random.normal(scale=data.data.std(0), size=(5, data.data.shape[1]))

federation = pfedfda.federation_from_arrays(
    data.data + offsets[hospital],
    data.target,
    client=hospital,
    class_names=list(data.target_names),
)
print(pfedfda.compare(["local", "fedavg", "pfedfda"], federation, rounds=10))

# %% [markdown]
# ## A backbone
#
# A pretrained network turns every input into features once; then only a classifier is left, and
# pFedFDA needs one round. A function returns the network and what prepares images for it. Here it
# is a stand-in with random weights, so that nothing is downloaded; put your own in its place, or
# name `backbone="efficientnet-lite0"` (`pip install 'pfedfda[backbones]'`).


# %%
def make_backbone():
    """Return a frozen module, and what turns images (n, c, h, w), 0..255, into its input."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()
    )
    return network, lambda images: images / 255


digits = load_digits()
images = (digits.images * 255 / 16).astype(np.uint8)
federation = pfedfda.federation_from_arrays(images, digits.target, clients=20, alpha=0.3)
result = pfedfda.run("pfedfda", federation, backbone=make_backbone, rounds=1)
print(result.mean_accuracy)
