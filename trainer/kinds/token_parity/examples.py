"""Hand-computed numbers: worked example, exercise, and the case of equal losses and different gradients."""

from dataclasses import dataclass
from fractions import Fraction

from trainer.contract.normalisation import (
    Cell,
    Number,
    Window,
    correct,
    count,
    extra_accumulation_division,
    mean_of_means,
    rank_mean,
    token_weights,
    unsynchronised,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One statement of the worked example."""

    title: str
    formula: str
    expected: Fraction
    actual: Number

    @property
    def holds(self) -> bool:
        """Whether the code gives exactly the hand-computed value."""
        return self.actual == self.expected


class WorkedExampleError(AssertionError):
    """The code does not reproduce the hand-computed numbers, so no comparison of gradients could be trusted."""


def window_of(*ranks: tuple[int, int]) -> Window:
    """Return a window of one micro-batch per rank from (tokens, loss sum) pairs."""
    return [[Cell(tokens=tokens, total=Fraction(total))] for tokens, total in ranks]


WORKED = window_of((12, 12), (36, 108))
EXERCISE_BEFORE, EXERCISE_AFTER = window_of((12, 12), (12, 36)), window_of((12, 12), (36, 108))
TARGETS = ((12, 1), (36, -1))
"""(count, target) of the two ranks of the one-parameter model; squared error, parameter at 0."""
SIGNED_LOSSES = window_of(*((count, count * target**2) for count, target in TARGETS))
SIGNED_GRADIENTS = window_of(*((count, -2 * count * target) for count, target in TARGETS))


def worked_example() -> list[Line]:
    """Return every statement with its hand-computed value and the value computed by the code."""
    halves = [[Cell(tokens=6, total=Fraction(6))] * 2, [Cell(tokens=18, total=Fraction(54))] * 2]
    scaled = unsynchronised(WORKED)
    short, long = (row[0][1] for row in token_weights(WORKED))
    share = Fraction(12, count(WORKED))
    return [
        _line("Mean of the two means", "(1 + 3) / 2", "2", mean_of_means(WORKED)),
        _line("Mean over all tokens", "(12 + 108) / (12 + 36)", "5/2", correct(WORKED)),
        _line("The same as shares", "25 % x 1 + 75 % x 3", "5/2", share * 1 + (1 - share) * 3),
        _line("Rank 0 back-propagates", "2 x 12 / 48 (a scaled term, not a loss)", "1/2", scaled[0]),
        _line("Rank 1 back-propagates", "2 x 108 / 48 (a scaled term, not a loss)", "9/2", scaled[1]),
        _line("DDP's mean of the two", "(1/2 + 9/2) / 2", "5/2", (scaled[0] + scaled[1]) / 2),
        _line("Weight of a rank-0 token in the mean of means", "1 / (2 x 12)", "1/24", short),
        _line("Weight of a rank-1 token in the mean of means", "1 / (2 x 36)", "1/72", long),
        _line("Weight ratio, rank-0 token to rank-1 token", "(1/24) / (1/72)", "3", short / long),
        _line("Divided by two micro-batches again", "5/2 / 2", "5/4", extra_accumulation_division(halves)),
        _line("Exercise before: mean of means", "12 and 12 tokens, 1 and 3 each", "2", rank_mean(EXERCISE_BEFORE)),
        _line("Exercise before: mean over tokens", "equal counts hide the fault", "2", correct(EXERCISE_BEFORE)),
        _line("Exercise after: mean of means", "12 and 36 tokens, 1 and 3 each", "2", rank_mean(EXERCISE_AFTER)),
        _line("Exercise after: mean over tokens", "only N has changed", "5/2", correct(EXERCISE_AFTER)),
        *signed_example(),
    ]


def signed_example() -> list[Line]:
    """Return the case in which both rules report the same loss but different gradients."""
    title = "12 targets +1 and 36 targets -1: "
    return [
        _line(title + "loss, mean of means", "(1 + 1) / 2", "1", mean_of_means(SIGNED_LOSSES)),
        _line(title + "loss, mean over tokens", "48 / 48", "1", correct(SIGNED_LOSSES)),
        _line(title + "gradient, mean of means", "(-2 + 2) / 2", "0", mean_of_means(SIGNED_GRADIENTS)),
        _line(title + "gradient, mean over tokens", "(-24 + 72) / 48", "1", correct(SIGNED_GRADIENTS)),
    ]


def checked() -> list[Line]:
    """Return the lines of the worked example. Raises WorkedExampleError naming every statement that is wrong."""
    found = worked_example()
    wrong = [f"{line.title}: {line.actual} instead of {line.expected}" for line in found if not line.holds]
    if wrong:
        raise WorkedExampleError("the worked example is not reproduced: " + "; ".join(wrong))
    return found


def _line(title: str, formula: str, expected: str, actual: Number) -> Line:
    return Line(title=title, formula=formula, expected=Fraction(expected), actual=actual)
