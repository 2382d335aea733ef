"""Models in use: a classifier that takes samples as somebody has them, and its files."""

from pfedfda.inference.classifier import PersonalClassifier
from pfedfda.inference.folder import load_model, save_model
from pfedfda.inference.portable import Difference, export_onnx, export_program

__all__ = [
    "Difference",
    "PersonalClassifier",
    "export_onnx",
    "export_program",
    "load_model",
    "save_model",
]
