"""What this machine computes with: devices, cores, threads and memory."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from pfedfda.errors import InputError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_device(name: str) -> torch.device:
    """Return the device of this name if this machine has it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"Unknown device {name!r}: choose from cpu, cuda, cuda:N, mps.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"The device {name!r} is not there: torch sees {torch.cuda.device_count()} CUDA "
            f"devices; use --device cpu."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("The device 'mps' is not available on this machine; use --device cpu.")
    if device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"Unknown device {name!r}: choose from cpu, cuda, cuda:N, mps.")
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: a worker has one core, and sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def keep_memory() -> None:
    """Let this process keep the memory that it frees, for the next step.

    By default the C library gives large blocks back to the system at once, and every step of a
    network asks for the same pages again: for a small network a fifth of its time, and more on a
    busy machine. Other C libraries than that of GNU are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
