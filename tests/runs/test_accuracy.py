import pytest

from pfedfda.experiment import Accuracy


def test_four_numbers_by_hand() -> None:
    # Accuracies 1, 0.5, 0.25; three clients, so the worst tenth is one client.
    accuracy = Accuracy.of([2, 2, 1], [2, 4, 4])
    assert accuracy.mean_accuracy == pytest.approx(1.75 / 3)
    mean = 1.75 / 3
    variance = ((1 - mean) ** 2 + (0.5 - mean) ** 2 + (0.25 - mean) ** 2) / 3
    assert accuracy.std_accuracy == pytest.approx(variance**0.5)
    assert accuracy.weighted_accuracy == 0.5
    assert accuracy.worst_tenth_accuracy == 0.25


def test_worst_tenth_rounds_up() -> None:
    accuracy = Accuracy.of(list(range(11)), [10] * 11)
    assert accuracy.worst_tenth_accuracy == pytest.approx((0 + 0.1) / 2)
