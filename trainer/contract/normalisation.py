"""Exact result of each way to normalise a window of token losses: the correct one and common mistakes.

A window is cells[rank][micro-batch]; a cell has a count and a sum, of losses or of gradients (the arithmetic is the
same, since a gradient is linear in the loss). With Fraction sums every hypothesis is exact; floats work as well.
Audits and pages both use this module, so they cannot disagree.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

Number = Fraction | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One micro-batch of one rank."""

    tokens: int
    """Supervised tokens: positions that contribute to the loss."""
    total: Number
    """Sum of the loss, or of its gradient, over these tokens."""
    padding: int = 0
    """Positions that are not part of the loss."""
    padding_total: Number = 0
    """What they would add to the sum if they were not ignored."""


Window = Sequence[Sequence[Cell]]


class EmptyWindowError(ValueError):
    """No rank has a supervised token in the window; every rank raises this, and no zero is substituted."""


def rank_counts(window: Window) -> list[int]:
    """Return N_r, the supervised tokens of each rank."""
    return [sum(cell.tokens for cell in row) for row in window]


def rank_totals(window: Window) -> list[Number]:
    """Return S_r, the sum of each rank."""
    return [_total([row]) for row in window]


def count(window: Window) -> int:
    """Return N, the supervised tokens of all ranks and micro-batches. Raises EmptyWindowError if there are none."""
    tokens = sum(rank_counts(window))
    if tokens <= 0:
        raise EmptyWindowError(f"global token count {tokens}: the window has no supervised token on any rank")
    return tokens


def correct(window: Window) -> Number:
    """Sum over sum: DDP's mean over W ranks of W * S_r / N."""
    return _total(window) / count(window)


def mean_of_means(window: Window) -> Number:
    """Every micro-batch of every rank has the same weight, regardless of its number of tokens."""
    return _mean([_mean([_mean_of(cell) for cell in row]) for row in window])


def rank_mean(window: Window) -> Number:
    """Each rank divides its window's sum by its own count, then DDP's mean over ranks."""
    return _mean([total / tokens for total, tokens in zip(rank_totals(window), rank_counts(window), strict=True)])


def missing_world_size(window: Window) -> Number:
    """S_r / N on each rank: DDP's division by W is not compensated."""
    return correct(window) / len(window)


def extra_world_size(window: Window) -> Number:
    """W applied once too often, or a communication hook that sums without dividing."""
    return correct(window) * len(window)


def extra_accumulation_division(window: Window) -> Number:
    """The sum over the count of the whole window, divided by the number of micro-batches again."""
    return correct(window) / _steps(window)


def missing_world_size_and_extra_division(window: Window) -> Number:
    """Both: no factor W, and divided by the number of micro-batches."""
    return correct(window) / len(window) / _steps(window)


def micro_means_undivided(window: Window) -> Number:
    """Means of micro-batches summed, without dividing by their number."""
    return mean_of_means(window) * _steps(window)


def micro_means_undivided_times_world_size(window: Window) -> Number:
    """As before, with a factor W that nothing cancels."""
    return micro_means_undivided(window) * len(window)


def micro_means_times_world_size(window: Window) -> Number:
    """Means of micro-batches, divided by their number, times W although they are already means."""
    return mean_of_means(window) * len(window)


def denominator_per_micro_step(window: Window) -> Number:
    """The global count is taken per micro-batch, and the result divided by the number of micro-batches."""
    columns = list(zip(*window, strict=True))
    return _mean([_sum(cell.total for cell in column) / sum(cell.tokens for cell in column) for column in columns])


def rank_zero_count_everywhere(window: Window) -> Number:
    """Every rank divides its sum by rank 0's count, then DDP's mean over ranks."""
    return _total(window) / (len(window) * rank_counts(window)[0])


def last_micro_batch_lost(window: Window) -> Number:
    """The last micro-batch is included in the count but not in the sum."""
    return _total([row[:-1] for row in window]) / count(window)


def padding_in_count(window: Window) -> Number:
    """Positions outside the loss are counted."""
    return _total(window) / (count(window) + _padding(window))


def padding_in_both(window: Window) -> Number:
    """Positions outside the loss are counted and added to the loss."""
    extra = _sum(cell.padding_total for row in window for cell in row)
    return (_total(window) + extra) / (count(window) + _padding(window))


def weighted_means(window: Window) -> Number:
    """Another correct form: micro-batch means weighted by n / (N / W), then DDP's mean over ranks."""
    share = Fraction(count(window), len(window))
    return _mean([_sum(_mean_of(cell) * (cell.tokens / share) for cell in row if cell.tokens) for row in window])


HYPOTHESES: Final[Mapping[str, Callable[[Window], Number]]] = {
    function.__name__: function
    for function in (
        correct,
        mean_of_means,
        rank_mean,
        missing_world_size,
        extra_world_size,
        extra_accumulation_division,
        missing_world_size_and_extra_division,
        micro_means_undivided,
        micro_means_undivided_times_world_size,
        micro_means_times_world_size,
        denominator_per_micro_step,
        rank_zero_count_everywhere,
        last_micro_batch_lost,
        padding_in_count,
        padding_in_both,
    )
}
"""The correct rule and the mistakes, by name. `weighted_means` is also correct and therefore not listed."""


def unsynchronised(window: Window) -> list[Number]:
    """Return each rank's result if the correct local term W * S_r / N is never averaged over ranks."""
    return [len(window) * total / count(window) for total in rank_totals(window)]


def right_weight(window: Window) -> Fraction:
    """Return the weight of every token under the correct rule, 1 / N; the weights of all tokens sum to 1."""
    return Fraction(1, count(window))


def rank_mean_weights(window: Window) -> list[Fraction | None]:
    """Return per rank the weight of one of its tokens under `rank_mean`, 1 / (W N_r); None for a rank without any."""
    return [Fraction(1, len(window) * tokens) if tokens else None for tokens in rank_counts(window)]


def token_weights(window: Window) -> list[list[tuple[Number, Number, Number]]]:
    """Return per cell the weight of one token under (correct, rank_mean, mean_of_means); the sum over tokens is 1.

    Raises ZeroDivisionError for a cell without tokens.
    """
    right, cells = right_weight(window), len(window) * _steps(window)
    return [
        [(right, Fraction(1, len(window) * tokens), Fraction(1, cells * cell.tokens)) for cell in row]
        for row, tokens in zip(window, rank_counts(window), strict=True)
    ]


def _steps(window: Window) -> int:
    return len(window[0])


def _sum(values: Iterable[Number]) -> Number:
    return sum(values, Fraction(0))


def _total(window: Window) -> Number:
    return _sum(cell.total for row in window for cell in row)


def _padding(window: Window) -> int:
    return sum(cell.padding for row in window for cell in row)


def _mean(values: Sequence[Number]) -> Number:
    return _sum(values) / len(values)


def _mean_of(cell: Cell) -> Number:
    return Fraction(cell.total) / cell.tokens if isinstance(cell.total, int) else cell.total / cell.tokens
