"""The worked example in exact fractions: two averaging rules over token counts and loss sums of a window."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


class EmptyWindow(ValueError):
    """No rank has a supervised token; there is no mean, and zero is never put in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One micro-batch of one rank."""

    tokens: int
    total: Fraction
    """Sum of the token losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Both rules on one window."""

    tokens: list[int]
    """N_r: supervised tokens per rank."""
    totals: list[Fraction]
    """S_r: loss sum per rank."""
    global_mean: Fraction
    """(sum of S_r) / N"""
    mean_of_means: Fraction | None
    """Mean over ranks of S_r / N_r; None when a rank has no token and so no mean."""
    scaled: list[Fraction]
    """W * S_r / N, what each rank back-propagates so that DDP's mean gives the global mean."""
    right_weights: list[Fraction]
    """Weight of one token of each rank under the global mean: 1 / N."""
    wrong_weights: list[Fraction | None]
    """Weight of one token of each rank under the mean of means: 1 / (W N_r)."""
    twice: Fraction
    """The global mean divided once more by the number of micro-batches, as the mistake does."""


def both_means(window: Sequence[Sequence[Cell]]) -> Means:
    """Return both means and every weight of a window `[rank][micro-batch]`. Raises EmptyWindow."""
    tokens = [sum(cell.tokens for cell in rank) for rank in window]
    totals = [sum((cell.total for cell in rank), Fraction(0)) for rank in window]
    ranks, n = len(window), sum(tokens)
    if n <= 0:
        raise EmptyWindow("global token count 0: the window has no supervised token on any rank")
    rank_means = [total / count if count else None for total, count in zip(totals, tokens, strict=True)]
    known = [mean for mean in rank_means if mean is not None]
    global_mean = sum(totals, Fraction(0)) / n
    return Means(
        tokens=tokens,
        totals=totals,
        global_mean=global_mean,
        mean_of_means=sum(known, Fraction(0)) / ranks if len(known) == ranks else None,
        scaled=[ranks * total / n for total in totals],
        right_weights=[Fraction(1, n)] * ranks,
        wrong_weights=[Fraction(1, ranks * count) if count else None for count in tokens],
        twice=global_mean / max(len(rank) for rank in window),
    )
