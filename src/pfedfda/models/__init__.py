"""Feature extractors with a named body and head."""

from pfedfda.models.build import ModelConfig, build_model, default_model, model_tensors
from pfedfda.models.networks import BODIES, Body, Model, gaussian_model

__all__ = [
    "BODIES",
    "Body",
    "Model",
    "ModelConfig",
    "build_model",
    "default_model",
    "gaussian_model",
    "model_tensors",
]
