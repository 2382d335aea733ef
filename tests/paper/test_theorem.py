import math

import pytest

from pfedfda.errors import InputError
from pfedfda.paper import simulate_theorem
from pfedfda.paper.theorem import HANSON_WRIGHT_C

DELTA = 0.1


def test_the_constant_is_one_and_within_what_gaussian_noise_allows() -> None:
    assert HANSON_WRIGHT_C == 1.0 <= 2.0


@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_error_stays_under_the_bound(shift: float, seed: int) -> None:
    rows = simulate_theorem(shift=shift, delta=DELTA, seed=seed)
    assert len(rows) == 15
    for row in rows:
        assert row.failures <= DELTA
        assert row.mean_error < row.high_error <= row.bound
        assert row.mean_error >= row.bound / 100  # it is a bound, not a number out of reach


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_mean_error_has_its_closed_form(shift: float) -> None:
    """The proof's expectation, with the traces of Σ_i and Σ_g solved for from the bounds."""
    clients = 20
    ratio = math.log(1 / DELTA)
    confidence = 1 + 4 * (math.sqrt(ratio) + ratio)
    rows = {(r.samples, r.beta): r for r in simulate_theorem(shift=shift, delta=DELTA)}
    for (n, beta), row in rows.items():
        total = clients * n
        own_trace = rows[n, 1.0].bound / confidence * n / 2
        global_trace = (rows[n, 0.0].bound - shift**2) / confidence * total
        expected = (
            (1 - beta) ** 2 * shift**2
            + (beta**2 / n + 2 * beta * (1 - beta) / total) * own_trace
            + (1 - beta) ** 2 / total * global_trace
        )
        assert row.mean_error == pytest.approx(expected, rel=0.03)
        assert own_trace == pytest.approx(16, rel=0.1)  # about 1 in each dimension


def test_the_best_beta_rises_with_the_samples_and_the_shift() -> None:
    def best(shift: float, samples: int) -> float:
        betas = [b / 20 for b in range(21)]
        rows = simulate_theorem(shift=shift, samples=(samples,), betas=betas)
        return min(rows, key=lambda row: row.mean_error).beta

    assert best(0.0, 20) == 0.0
    assert best(0.5, 5) < best(0.5, 20) < best(0.5, 80) < 1.0
    assert best(0.5, 20) < best(1.0, 20) < best(2.0, 20)


def test_the_theorem_fails_for_a_shift_and_many_samples_but_twice_the_bound_holds() -> None:
    """The proof leaves out the deviation of the cross term, which falls like 1/√N, not 1/N."""
    (row,) = simulate_theorem(shift=2.0, samples=(1_000_000,), betas=(0.0,), delta=DELTA)
    assert row.failures == pytest.approx(0.5, abs=0.05)
    for row in simulate_theorem(shift=2.0, samples=(5, 80, 10_000, 1_000_000), delta=DELTA):
        assert row.high_error <= 2 * row.bound


def test_the_same_seed_gives_the_same_rows() -> None:
    few = {"samples": (5,), "draws": 10}
    assert simulate_theorem(**few) == simulate_theorem(**few)  # type: ignore[arg-type]
    assert simulate_theorem(**few) != simulate_theorem(**few, seed=1)  # type: ignore[arg-type]


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(InputError, match="number of clients is 1; it must be at least 2"):
        simulate_theorem(clients=1)
    with pytest.raises(InputError, match=r"shift is -1\.0; it must be 0 or more"):
        simulate_theorem(shift=-1.0)
    with pytest.raises(InputError, match="must all be at least 1"):
        simulate_theorem(samples=(0,))
    with pytest.raises(ValueError, match="delta is 0"):
        simulate_theorem(delta=0)
