"""Engines: which processes run which client. A method never knows which engine runs it."""

from pfedfda.engine.base import Engine, Step
from pfedfda.engine.local import LocalEngine

__all__ = ["Engine", "LocalEngine", "Step"]
