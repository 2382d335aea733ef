"""Whole numbers in place of contributions: exact sums, and nothing clipped."""

import itertools
import random
from fractions import Fraction

import pytest
import torch

from pfedfda.aggregation import FixedPoint, OutOfRangeError
from pfedfda.aggregation.fixed_point import contribution_bounds
from pfedfda.methods import Tensors

LAYOUT = {"weights": torch.zeros(3, 4), "count": torch.zeros(())}


def fixed_point(clients: int, weights: float = 100.0, count: float = 8.0) -> FixedPoint:
    return FixedPoint.of(LAYOUT, {"weights": weights, "count": count}, clients)


def contribution(seed: int, size: float = 100.0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    return {"weights": (2 * draw - 1) * size, "count": torch.tensor(3.0, dtype=torch.float64)}


def rounded(value: Fraction) -> int:
    """Round a fraction to the nearest whole number, halves to even ones."""
    low = value.numerator // value.denominator
    rest = value - low
    return low + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1))


def test_numbers_are_those_of_exact_arithmetic() -> None:
    fixed = fixed_point(5)
    numbers = fixed.encode(contribution(0))
    values = contribution(0)
    expected = [
        rounded(Fraction(value) / Fraction(2) ** fixed.exponents[name])
        for name in fixed.shapes
        for value in values[name].reshape(-1).tolist()
    ]
    assert numbers.tolist() == expected


@pytest.mark.parametrize("clients", [3, 4, 5, 64, 1000])
def test_a_sum_is_exact_and_as_near_as_its_units(clients: int) -> None:
    fixed = fixed_point(clients)
    parts = [fixed.encode(contribution(seed)) for seed in range(clients)]
    total = torch.stack(parts).sum(0)
    whole = [sum(column) for column in zip(*(p.tolist() for p in parts), strict=True)]
    assert total.tolist() == whole  # of Python's numbers, which have no end
    found = fixed.decode(total)
    exact = torch.stack([contribution(seed)["weights"] for seed in range(clients)]).sum(0)
    unit = 2.0 ** fixed.exponents["weights"]
    assert float((found["weights"] - exact).abs().max()) <= clients * (unit / 2 + 1e-13)
    assert unit < 1e-10  # of numbers up to 100
    assert float(found["count"]) == 3 * clients  # whole numbers have no rounding at all


def test_the_order_of_a_sum_does_not_matter() -> None:
    fixed = fixed_point(4)
    parts = [fixed.encode(contribution(seed)) for seed in range(4)]
    sums = {tuple((a + b + c + d).tolist()) for a, b, c, d in itertools.permutations(parts)}
    assert len(sums) == 1


@pytest.mark.parametrize("clients", [3, 4, 5, 8, 9, 1023])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sum_does_not_wrap_around(clients: int, sign: int) -> None:
    fixed = fixed_point(clients, weights=128.0)
    most = {
        "weights": torch.full((3, 4), sign * 128.0, dtype=torch.float64),
        "count": torch.tensor(8.0, dtype=torch.float64),
    }
    total = sum(fixed.encode(most) for _ in range(clients))
    assert isinstance(total, torch.Tensor)
    assert fixed.decode(total)["weights"].eq(sign * 128.0 * clients).all()


@pytest.mark.parametrize("value", [256.0 * (1 + 1e-9), -1e30, float("inf"), float("nan")])
def test_what_is_beyond_the_range_is_refused_and_named(value: float) -> None:
    """A range ends at a power of two beyond its bound."""
    fixed = fixed_point(3, weights=128.0)
    spoiled = contribution(0)
    spoiled["weights"][1, 2] = value
    with pytest.raises(OutOfRangeError, match="its contribution to weights reaches .* range of"):
        fixed.encode(spoiled)


def test_other_names_and_shapes_are_refused() -> None:
    fixed = fixed_point(3)
    more = contribution(0) | {"secret": torch.zeros(2)}
    with pytest.raises(OutOfRangeError, match="secret"):
        fixed.encode(more)
    with pytest.raises(OutOfRangeError, match="weights"):
        fixed.encode(contribution(0) | {"weights": torch.zeros(4, 3)})


def test_ranges_follow_the_tensors_of_the_state() -> None:
    layout = {name: torch.zeros(2) for name in ("large", "small", "tiny", "zero", "new")}
    state = {
        "large": torch.tensor([30.0, -50.0]),
        "small": torch.tensor([0.01, -0.001]),
        "tiny": torch.full((2,), 1e-30),
        "zero": torch.zeros(2),
    }
    bounds = contribution_bounds(layout, state, largest_weight=50.0, max_norm=1e6)
    assert bounds["large"] == bounds["zero"] == bounds["new"] == 50e6  # all that may be sent
    assert bounds["small"] == pytest.approx(0.01 * 50e6)
    assert bounds["tiny"] == pytest.approx(50e6 * 2**-20)  # it may still become about 1


def test_any_contribution_within_its_bounds_is_accepted() -> None:
    random.seed(0)
    for _ in range(50):
        bound = 10 ** random.uniform(-6, 12)
        fixed = fixed_point(random.randint(3, 500), weights=bound)
        values = contribution(random.randint(0, 99), bound)
        values["weights"][0, 0] = bound
        found = fixed.decode(fixed.encode(values))["weights"]
        torch.testing.assert_close(found, values["weights"], rtol=0, atol=bound * 2.0**-50)
