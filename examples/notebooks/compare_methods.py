# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Compare methods
#
# Twenty clients hold handwritten digits, each with its own mix of classes. Which method gives them
# the best classifiers?

# %%
import matplotlib.pyplot as plt

import pfedfda

federation = pfedfda.FederationConfig(source="digits", clients=20, alpha=0.3, train_fraction=0.5)
methods = ["local", "fedavg", "fedavg-ft", "pfedfda"]
comparison = pfedfda.compare(methods, federation, rounds=10)

# %% [markdown]
# Besides the mean over clients, look at the worst tenth: a method may help many and harm a few.

# %%
print(comparison)

# %% [markdown]
# The clients one by one, by the number of their training samples.

# %%
figure, axes = plt.subplots()
for result in comparison.results:
    sizes = [client.train_samples for client in result.clients]
    accuracies = [client.accuracy for client in result.clients]
    axes.plot(sizes, accuracies, "o", label=result.method, alpha=0.7)
axes.set(xlabel="training samples of the client", ylabel="test accuracy")
axes.legend()
plt.show()

# %% [markdown]
# One seed is one draw. With several, the table has means with 95 % intervals, and says which
# differences are more than chance.

# %%
print(pfedfda.compare(["fedavg-ft", "pfedfda"], federation, rounds=10, seeds=(0, 1, 2)))
