"""The worked example for a window: both rules over its token counts and loss sums, in exact fractions."""

from dataclasses import dataclass
from fractions import Fraction

from trainer.contract.normalisation import (
    Number,
    Window,
    correct,
    extra_accumulation_division,
    rank_counts,
    rank_mean,
    rank_mean_weights,
    rank_totals,
    right_weight,
    unsynchronised,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Both rules on one window."""

    tokens: list[int]
    """N_r: supervised tokens per rank."""
    totals: list[Number]
    """S_r: loss sum per rank."""
    global_mean: Number
    """(sum of S_r) / N"""
    mean_of_means: Number | None
    """Mean over ranks of S_r / N_r; None if a rank has no token and so no mean."""
    scaled: list[Number]
    """W * S_r / N, what each rank back-propagates so that DDP's mean gives the global mean."""
    right_weight: Fraction
    """Weight of one token of any rank under the global mean: 1 / N."""
    wrong_weights: list[Fraction | None]
    """Weight of one token of each rank under the mean of means: 1 / (W N_r)."""
    twice: Number
    """The global mean divided once more by the number of micro-batches, as in the common mistake."""


def both_means(window: Window) -> Means:
    """Return both means and every weight of a window `[rank][micro-batch]`. Raises EmptyWindowError."""
    tokens = rank_counts(window)
    return Means(
        tokens=tokens,
        totals=rank_totals(window),
        global_mean=correct(window),
        mean_of_means=rank_mean(window) if all(tokens) else None,
        scaled=unsynchronised(window),
        right_weight=right_weight(window),
        wrong_weights=rank_mean_weights(window),
        twice=extra_accumulation_division(window),
    )
