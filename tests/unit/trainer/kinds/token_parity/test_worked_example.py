"""The arithmetic by hand, and the effect of broken arithmetic in the code."""

from fractions import Fraction
from typing import Any

import pytest

from trainer.contract.normalisation import correct, mean_of_means
from trainer.kinds.token_parity import examples


def test_worked_example_comes_out() -> None:
    assert mean_of_means(examples.WORKED) == 2
    assert correct(examples.WORKED) == Fraction(5, 2)
    assert all(line.holds for line in examples.checked())


def test_exercise_moves_the_right_mean_alone() -> None:
    before, after = examples.EXERCISE_BEFORE, examples.EXERCISE_AFTER
    assert [mean_of_means(before), mean_of_means(after)] == [2, 2]
    assert [correct(before), correct(after)] == [2, Fraction(5, 2)]


def test_same_loss_hides_the_gradient() -> None:
    assert correct(examples.SIGNED_LOSSES) == mean_of_means(examples.SIGNED_LOSSES) == 1
    assert (correct(examples.SIGNED_GRADIENTS), mean_of_means(examples.SIGNED_GRADIENTS)) == (1, 0)


def test_broken_arithmetic_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(window: Any) -> Any:
        return mean_of_means(window)

    monkeypatch.setattr(examples, "correct", wrong)
    with pytest.raises(examples.WorkedExampleError, match="Mean over all tokens: 2 instead of 5/2"):
        examples.checked()
