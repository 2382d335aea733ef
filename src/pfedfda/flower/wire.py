"""What travels: tensors as ArrayRecord, numbers as MetricRecord, settings as ConfigRecord."""

import io
import math
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from pfedfda.errors import PfedfdaError

ARRAYS, METRICS, SETTINGS = "arrays", "metrics", "settings"
FAILURE = "failure"  # the setting with which a site says why it could not do its part
NAME = "name"  # of the site that says so
Scalar = bool | int | float | str
Setting = Scalar | bytes | list[int] | list[float] | list[str] | list[bytes] | list[bool]
NumberList = list[int] | list[float]
KINDS = "fiub"  # floating point, integers, booleans


class MalformedError(PfedfdaError):
    """A message is not what it should be; the text says what is wrong with it."""


def pack(
    tensors: Mapping[str, Tensor] | None = None,
    metrics: Mapping[str, float] | None = None,
    settings: Mapping[str, Setting] | None = None,
    lists: Mapping[str, NumberList] | None = None,
) -> RecordDict:
    """Return the content of a message; what is None is left out.

    Parameters
    ----------
    tensors
        Tensors by name, on any device.
    metrics
        Numbers by name.
    settings
        Settings by name.
    lists
        Lists of numbers by name, which travel with the metrics.
    """
    content = RecordDict()
    if tensors is not None:
        arrays = {name: Array(t.detach().cpu().contiguous().numpy()) for name, t in tensors.items()}
        content[ARRAYS] = ArrayRecord(arrays)
    if metrics is not None:
        numbers = {name: float(v) for name, v in metrics.items()}
        content[METRICS] = MetricRecord({**numbers, **(lists or {})})
    if settings is not None:
        content[SETTINGS] = ConfigRecord(dict(settings))
    return content


def tensors_of(content: RecordDict) -> dict[str, Tensor]:
    """Return the tensors of a message; what comes from elsewhere is not trusted."""
    record = content.get(ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise MalformedError("it holds no tensors")
    return {name: _tensor(name, array) for name, array in record.items()}


def metrics_of(content: RecordDict) -> dict[str, float]:
    """Return the numbers of a message; refuse those that are not finite, which JSON lacks."""
    record = content.get(METRICS)
    if not isinstance(record, MetricRecord):
        raise MalformedError("it holds no metrics")
    numbers = {name: v for name, v in record.items() if isinstance(v, int | float)}
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise MalformedError(f"its number {name[:80]!r} is not finite")
    return {name: float(value) for name, value in numbers.items()}


def lists_of(content: RecordDict) -> dict[str, NumberList]:
    """Return the lists of numbers of a message; refuse those that are not finite."""
    record = content.get(METRICS)
    if not isinstance(record, MetricRecord):
        raise MalformedError("it holds no metrics")
    lists = {name: values for name, values in record.items() if isinstance(values, list)}
    for name, values in lists.items():
        if not all(math.isfinite(value) for value in values):
            raise MalformedError(f"its list {name[:80]!r} has a number that is not finite")
    return lists


def settings_of(content: RecordDict) -> dict[str, Setting]:
    """Return the settings of a message."""
    record = content.get(SETTINGS)
    if not isinstance(record, ConfigRecord):
        raise MalformedError("it holds no settings")
    return dict(record.items())


def _tensor(name: str, array: Array) -> Tensor:
    """Read an array in numpy's format.

    `numpy.load` allocates what the header asks for before it reads; here the header must fit the
    bytes that are there.
    """
    try:
        stream = io.BytesIO(array.data)
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("it is of another version of numpy's format")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        if dtype.kind not in KINDS:
            raise ValueError(f"its type is {dtype}")
        flat = np.frombuffer(array.data, dtype, offset=stream.tell())
        values = flat.reshape(shape, order="F" if fortran else "C")
        return torch.from_numpy(np.array(values, order="C"))
    except (ValueError, TypeError, OverflowError, MemoryError, EOFError) as error:
        raise MalformedError(f"the tensor {name[:80]!r} cannot be read ({error})") from error
