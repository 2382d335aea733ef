"""The settings of an engine: how many processes, and on which device."""

from dataclasses import dataclass

from pfedfda.errors import InputError
from pfedfda.machine import available_cores, resolve_device

MOST_WORKERS = 1024


@dataclass(frozen=True)
class EngineConfig:
    """What runs where.

    Parameters
    ----------
    workers
        Worker processes; by default one per core (one in all if the device is not the CPU). 0 runs
        everything in the calling process, for debugging. Results do not depend on it.
    device
        Where the networks run: cpu, cuda, cuda:1, mps.
    """

    workers: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.workers is not None and not 0 <= self.workers <= MOST_WORKERS:
            raise InputError(
                f"The number of workers is {self.workers}; it must lie between 0 and "
                f"{MOST_WORKERS}."
            )
        resolve_device(self.device)

    @property
    def num_workers(self) -> int:
        """The number of worker processes that this configuration means on this machine."""
        if self.workers is not None:
            return self.workers
        return available_cores() if self.device == "cpu" else 1
