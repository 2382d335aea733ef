# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A new client
#
# A federation has been trained. Now somebody comes who was not part of it, with a few labelled
# samples of three classes. With pFedFDA a model for them needs no training: one pass of their
# samples through the network, and linear algebra.

# %%
import numpy as np
from sklearn.datasets import load_digits

import pfedfda

digits = load_digits()
images = (digits.images * 255 / 16).astype(np.uint8)
classes = [3, 5, 8]
newcomer = np.zeros(len(images), dtype=bool)
newcomer[np.flatnonzero(np.isin(digits.target, classes))[:60]] = True

federation = pfedfda.federation_from_arrays(
    images[~newcomer], digits.target[~newcomer], clients=20, alpha=0.3, image_size=28
)
run = pfedfda.run("pfedfda", federation, rounds=10)

# %% [markdown]
# The newcomer's samples, in a file: labels count its own three classes, whose names are among those
# of the federation. Half of them are held out to measure what the model is worth.

# %%
np.savez(
    "newcomer.npz",
    images=images[newcomer],
    labels=np.searchsorted(classes, digits.target[newcomer]),
    class_names=np.array([str(name) for name in classes]),
)
personal = pfedfda.personalize(run.folder, "newcomer.npz", test_share=0.5)
print("personal model", personal.accuracy, "shared model", personal.shared_accuracy)
print("weight of the own statistics", personal.metrics["beta"])

# %% [markdown]
# The model is a folder that can be used later and elsewhere.

# %%
model = pfedfda.load_model(personal.folder)
print(model.predict(list(images[newcomer][:5])))
print(model.predict_proba(list(images[newcomer][:5])).round(2))
