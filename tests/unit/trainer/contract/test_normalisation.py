"""Every normalisation hypothesis as exact fractions, on a fixture in which no two of them collide."""

from fractions import Fraction
from itertools import combinations

import pytest

from trainer.contract.normalisation import (
    HYPOTHESES,
    Cell,
    EmptyWindowError,
    Window,
    correct,
    count,
    mean_of_means,
    micro_means_times_world_size,
    micro_means_undivided,
    missing_world_size,
    padding_in_both,
    padding_in_count,
    rank_mean,
    token_weights,
    unsynchronised,
    weighted_means,
)


def cell(tokens: int, total: int, padding: int = 0, padding_total: int = 0) -> Cell:
    return Cell(tokens=tokens, total=Fraction(total), padding=padding, padding_total=Fraction(padding_total))


FIXTURE: Window = [
    [cell(5, 10, 1, 2), cell(1, 7, 4, 5), cell(3, 6, 2, 3)],
    [cell(2, -4, 3, 4), cell(8, 24, 0, 0), cell(1, 9, 7, 7)],
]
VALUES = {
    "correct": Fraction(13, 5),
    "mean_of_means": Fraction(7, 2),
    "rank_mean": Fraction(257, 99),
    "missing_world_size": Fraction(13, 10),
    "extra_world_size": Fraction(26, 5),
    "extra_accumulation_division": Fraction(13, 15),
    "missing_world_size_and_extra_division": Fraction(13, 30),
    "micro_means_undivided": Fraction(21, 2),
    "micro_means_undivided_times_world_size": Fraction(21),
    "micro_means_times_world_size": Fraction(7),
    "denominator_per_micro_step": Fraction(2029, 756),
    "rank_zero_count_everywhere": Fraction(26, 9),
    "last_micro_batch_lost": Fraction(37, 20),
    "padding_in_count": Fraction(52, 37),
    "padding_in_both": Fraction(73, 37),
}


def test_every_hypothesis_has_its_value() -> None:
    assert {name: function(FIXTURE) for name, function in HYPOTHESES.items()} == VALUES


def test_no_two_hypotheses_collide() -> None:
    for one, other in combinations(HYPOTHESES.values(), 2):
        assert one(FIXTURE) != other(FIXTURE), (one.__name__, other.__name__)


def test_equal_counts_hide_the_means() -> None:
    window = [[cell(3, item.total) for item in row] for row in FIXTURE]  # type: ignore[arg-type]
    assert correct(window) == mean_of_means(window) == rank_mean(window)


def test_unsynchronised_ranks_differ() -> None:
    assert unsynchronised(FIXTURE) == [Fraction(23, 10), Fraction(29, 10)]
    assert sum(unsynchronised(FIXTURE), Fraction(0)) / 2 == correct(FIXTURE)


def test_one_rank_accumulates_by_tokens() -> None:
    window = [[cell(5, 10), cell(1, 7), cell(3, 6)]]
    assert correct(window) == Fraction(23, 9)
    assert mean_of_means(window) == Fraction(11, 3)


def test_local_token_mean_is_wrong() -> None:
    window = [[cell(1, 10)], [cell(9, 9)]]
    assert correct(window) == Fraction(19, 10)
    assert rank_mean(window) == Fraction(11, 2)


@pytest.mark.parametrize(("ranks", "wrong"), [(2, Fraction(13, 10)), (4, Fraction(13, 20))])
def test_missing_factor_depends_on_ranks(ranks: int, wrong: Fraction) -> None:
    cells = [item for row in FIXTURE for item in row] + [cell(0, 0), cell(0, 0)]
    window = [cells[rank::ranks] for rank in range(ranks)]
    assert correct(window) == Fraction(13, 5)
    assert missing_world_size(window) == wrong


def test_world_factor_on_a_local_mean_doubles() -> None:
    window = [[cell(4, 8)], [cell(4, 12)]]
    assert micro_means_times_world_size(window) == 2 * correct(window)


def test_undivided_means_grow_with_accumulation() -> None:
    assert micro_means_undivided(FIXTURE) / mean_of_means(FIXTURE) == 3


def test_weighted_means_are_right_too() -> None:
    assert weighted_means(FIXTURE) == correct(FIXTURE)
    equal_shares = sum((Fraction(item.total) / item.tokens for row in FIXTURE for item in row), Fraction(0)) / 6
    assert equal_shares == Fraction(7, 2) != correct(FIXTURE)


@pytest.mark.parametrize("width", [8, 16])
def test_padding_never_counts(width: int) -> None:
    padded = [
        [
            Cell(tokens=item.tokens, total=item.total, padding=width - item.tokens, padding_total=Fraction(1))
            for item in row
        ]
        for row in FIXTURE
    ]
    assert correct(padded) == Fraction(13, 5)
    assert padding_in_count(padded) != Fraction(13, 5)
    assert padding_in_both(padded) != Fraction(13, 5)


def test_cuts_never_change_the_gradient() -> None:
    tokens = [Fraction(place % 7) for place in range(20)]
    cuts = [[20], [10, 10], [5, 8, 1, 6]]
    windows = []
    for sizes in cuts:
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        pieces = [tokens[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        windows.append([[Cell(tokens=len(piece), total=sum(piece, Fraction(0))) for piece in pieces]])
    assert len({correct(window) for window in windows}) == 1
    assert len({mean_of_means(window) for window in windows}) > 1


def test_locally_empty_cell_still_right() -> None:
    window = [[cell(5, 10), cell(0, 0), cell(3, 6)], list(FIXTURE[1])]
    assert correct(window) == Fraction(45, 19)


def test_empty_window_is_an_error() -> None:
    with pytest.raises(EmptyWindowError, match="global token count 0: the window has no supervised token on any rank"):
        count([[cell(0, 0)], [cell(0, 0)]])


def test_token_weights_add_up_to_one() -> None:
    for rule in range(3):
        total = sum(
            weights[rule] * item.tokens
            for cells, row in zip(FIXTURE, token_weights(FIXTURE), strict=True)
            for item, weights in zip(cells, row, strict=True)
        )
        assert total == 1
