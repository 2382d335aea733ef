"""Other settings of pFedFDA that have a name: what the paper leaves open, decided otherwise."""

from pfedfda.methods.pfedfda import PFedFDA
from pfedfda.methods.registry import register_preset

register_preset(
    PFedFDA,
    "pfedfda-pooled",
    "pFedFDA (pooled)",
    "pFedFDA whose server pools plain estimates; β is fitted when a client personalises.",
    keep=0.2,
    ridge=0.1,
    features="all",
    initial_means="gaussian",
    initial_scale=0.3,
)
register_preset(
    PFedFDA,
    "pfedfda-paper",
    "pFedFDA (paper)",
    "Algorithm 1 of the paper as written; if it diverges, --pfedfda-paper.max-norm 10 helps.",
    statistics="interpolated",
    ridge=0.3,
    features="all",
    personal="stored",
    initial_means="gaussian",
    initial_scale=1.0,
    prior_smoothing=0.0,
    max_norm=0.0,
)
register_preset(
    PFedFDA,
    "pfedfda-released",
    "pFedFDA (released)",
    "pFedFDA as the authors' released program has it.",
    statistics="interpolated",
    ridge=1.0,
    betas="multiple",
    grouped_folds=False,
    solver="clipped",
    features="all",
    rare_class=2,
    initial_means="uniform",
    initial_scale=1.0,
    shrinkage=1e-4,
    drop_last=True,
    max_norm=0.0,
)
