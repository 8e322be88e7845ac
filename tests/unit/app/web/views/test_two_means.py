"""The worked example in exact fractions."""

from fractions import Fraction

import pytest

from app.web.forms.window import START, Unreadable, cells, read_window
from app.web.views.arithmetic import both_means
from trainer.contract.normalisation import Cell, EmptyWindowError


def window(*ranks: list[tuple[int, int]]) -> list[list[Cell]]:
    return [[Cell(tokens=tokens, total=Fraction(total)) for tokens, total in rank] for rank in ranks]


def test_example_gives_known_figures() -> None:
    means = both_means(cells(read_window({})))
    assert (means.mean_of_means, means.global_mean, means.twice) == (Fraction(2), Fraction(5, 2), Fraction(5, 4))
    assert means.scaled == [Fraction(1, 2), Fraction(9, 2)]
    assert sum(means.scaled) / 2 == means.global_mean
    assert means.wrong_weights == [Fraction(1, 24), Fraction(1, 72)]
    assert means.right_weight == Fraction(1, 48)


def test_equal_counts_hide_the_fault() -> None:
    means = both_means(window([(12, 12)], [(12, 36)]))
    assert means.mean_of_means == means.global_mean == 2


def test_only_short_rank_has_no_mean() -> None:
    means = both_means(window([(0, 0)], [(36, 108)]))
    assert means.mean_of_means is None
    assert means.wrong_weights == [None, Fraction(1, 72)]
    assert means.global_mean == 3


def test_empty_window_is_refused() -> None:
    with pytest.raises(EmptyWindowError, match="global token count 0"):
        both_means(window([(0, 0)], [(0, 0)]))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("n00", "-1", "rank 0, micro-batch 0: tokens"),
        ("n11", "1.5", "rank 1, micro-batch 1: tokens"),
        ("s01", "much", "rank 0, micro-batch 1: the loss sum"),
        ("s01", "1e9", "the loss sum"),
        ("s01", "1/0", "the loss sum"),
        ("n00", "0", "0 tokens cannot have a loss sum"),
    ],
)
def test_unreadable_number_is_named(field: str, value: str, told: str) -> None:
    with pytest.raises(Unreadable, match=told):
        cells(read_window({field: value}))


def test_start_is_the_known_window() -> None:
    assert [sum(tokens for tokens, _ in row) for row in START] == [12, 36]
    assert [sum(int(total) for _, total in row) for row in START] == [12, 108]
