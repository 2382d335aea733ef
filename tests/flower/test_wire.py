"""Tensors travel without loss, and what is malformed is refused with a word."""

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from flwr.app import Array, ArrayRecord, RecordDict

from pfedfda.flower.wire import MalformedError, metrics_of, pack, settings_of, tensors_of


def test_tensors_come_back_to_the_bit() -> None:
    tensors = {
        "half": torch.randn(3, 4, dtype=torch.float16),
        "single": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "double": torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.float64),
        "integer": torch.tensor(-(2**62)),
        "truth": torch.tensor([True, False]),
        "empty": torch.zeros(0, 5),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }
    back = tensors_of(pack(tensors))
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert back[name].is_contiguous()
        assert back[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


def test_no_tensors_are_no_error() -> None:
    assert tensors_of(pack({})) == {}


def test_fortran_order_is_understood() -> None:
    values = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    content = RecordDict({"arrays": ArrayRecord({"x": Array(values)})})
    assert tensors_of(content)["x"].tolist() == values.tolist()


def header(text: str) -> bytes:
    body = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no array at all",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }") + b"\0" * 8,
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }") + b"\0" * 12,
        header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + b"\0" * 8,
        header("{'descr': '<U2', 'fortran_order': False, 'shape': (1,), }") + b"\0" * 8,
        header("__import__('os').getpid()"),
    ],
)
def test_malformed_arrays_are_refused(data: bytes) -> None:
    array = Array("float32", (1,), "numpy.ndarray", data)
    with pytest.raises(MalformedError, match="the tensor 'x' cannot be read"):
        tensors_of(RecordDict({"arrays": ArrayRecord({"x": array})}))


def test_missing_records_are_refused() -> None:
    for read in (tensors_of, metrics_of, settings_of):
        with pytest.raises(MalformedError, match="it holds no"):
            read(RecordDict())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    numbers = {"beta": 0.5, "weight": 3.0}
    assert metrics_of(pack(metrics=numbers)) == numbers
    with pytest.raises(MalformedError, match="'loss' is not finite"):
        metrics_of(pack(metrics=numbers | {"loss": value}))
