"""Engines: which processes run which client. A method never knows which engine runs it."""

from pfedfda.engine.base import Engine, Outcome, Roster, Step
from pfedfda.engine.local import EngineConfig, LocalEngine
from pfedfda.engine.machine import one_thread
from pfedfda.engine.states import ClientStates

__all__ = [
    "ClientStates",
    "Engine",
    "EngineConfig",
    "LocalEngine",
    "Outcome",
    "Roster",
    "Step",
    "one_thread",
]
