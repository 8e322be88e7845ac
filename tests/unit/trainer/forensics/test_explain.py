"""Weights to names: fixture M exactly, random windows with planted mistakes, and weights that belong to no mistake."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainer.forensics.cells import Cell, Window, ratio
from trainer.forensics.explain import Status, explain

UNITS = ((5, 1, 3), (2, 8, 1))
PADDING = ((1, 4, 2), (3, 0, 7))
RANKS, COLUMNS, WHOLE = (9, 11), (7, 9, 4), 20
Rule = Callable[[int, int], float]
FIXTURE: dict[str, tuple[Rule, set[str]]] = {
    "correct": (lambda _r, _m: 1 / WHOLE, set()),
    "mean of means": (lambda r, m: 1 / (6 * UNITS[r][m]), {"mean_of_means"}),
    "token mean per rank": (lambda r, _m: 1 / (2 * RANKS[r]), {"rank_mean"}),
    "factor missing": (lambda _r, _m: 1 / 40, {"missing_world_size"}),
    "factor twice": (lambda _r, _m: 2 / 20, {"extra_world_size"}),
    "divided by k": (lambda _r, _m: 1 / 60, {"extra_accumulation_division"}),
    "factor missing, divided by k": (lambda _r, _m: 1 / 120, {"missing_world_size", "extra_accumulation_division"}),
    "k forgotten": (lambda r, m: 1 / (2 * UNITS[r][m]), {"mean_of_means", "missing_accumulation_division"}),
    "k forgotten, times W": (
        lambda r, m: 1 / UNITS[r][m],
        {"mean_of_means", "missing_accumulation_division", "extra_world_size"},
    ),
    "means times W": (lambda r, m: 1 / (3 * UNITS[r][m]), {"mean_of_means", "extra_world_size"}),
    "denominator per micro-step": (lambda _r, m: 1 / (3 * COLUMNS[m]), {"microbatch_denominator"}),
    "count of rank 0": (lambda _r, _m: 1 / 9, {"local_count_as_global"}),
    "count of rank 0, averaged again": (lambda _r, _m: 1 / 18, {"local_count_as_global"}),
    "last micro-batch lost": (lambda _r, m: 0.0 if m == 2 else 1 / 20, {"dropped_microbatch"}),
    "one cell lost everywhere": (lambda r, m: 0.0 if (r, m) == (1, 2) else 1 / 19, {"dropped_microbatch"}),
    "padding in the denominator": (lambda _r, _m: 1 / 37, {"padding_in_denominator"}),
    "rank mean over padding": (lambda r, _m: 1 / (2 * (16, 21)[r]), {"rank_mean", "padding_in_denominator"}),
}


def fixture(rule: Rule, padding_weight: float = 0.0) -> Window:
    return Window.of(
        Cell(
            rank=rank,
            micro_batch=place,
            units=UNITS[rank][place],
            padding=PADDING[rank][place],
            weight=rule(rank, place),
            padding_weight=padding_weight,
        )
        for rank in range(2)
        for place in range(3)
    )


@pytest.mark.parametrize("case", FIXTURE)
def test_fixture_is_named(case: str) -> None:
    rule, names = FIXTURE[case]
    reading = explain([fixture(rule)])
    assert set(reading.names) == names
    assert reading.status is (Status.IDENTIFIED if names else Status.CLEAN)


@pytest.mark.parametrize("case", FIXTURE)
def test_one_weight_off_is_no_longer_named(case: str) -> None:
    rule, _ = FIXTURE[case]
    off: Rule = lambda r, m: rule(r, m) * (1.001 if (r, m) == (0, 0) else 1.0)  # noqa: E731
    assert explain([fixture(off)]).status is Status.UNEXPLAINED


def test_padding_in_loss_is_told_from_padding_in_the_denominator() -> None:
    reading = explain([fixture(lambda _r, _m: 1 / 37, padding_weight=1 / 37)])
    assert set(reading.names) == {"padding_in_loss", "padding_in_denominator"}


def test_equal_counts_hide_the_mean_of_means() -> None:
    cells = [Cell(rank=rank, micro_batch=place, units=3, weight=1 / 18) for rank in range(2) for place in range(3)]
    assert explain([Window.of(cells)]).status is Status.CLEAN


def window(units: list[list[int]], rule: Callable[[Any, int, int], float]) -> Window:
    cells = [(rank, place) for rank in range(len(units)) for place in range(len(units[0]))]
    made = Window.of(Cell(rank=r, micro_batch=m, units=units[r][m], weight=rule(units, r, m)) for r, m in cells)
    return Window(made.cells, len(units))


def whole(units: list[list[int]]) -> int:
    return sum(map(sum, units))


SHAPES: dict[str, Callable[[Any, int, int], float]] = {
    "": lambda units, _r, _m: 1 / whole(units),
    "rank_mean": lambda units, r, _m: 1 / (len(units) * sum(units[r])),
    "mean_of_means": lambda units, r, m: 1 / (len(units) * len(units[0]) * units[r][m]),
    "microbatch_denominator": lambda units, _r, m: 1 / (len(units[0]) * sum(row[m] for row in units)),
}
SCALES: dict[str, Callable[[Any], float]] = {
    "": lambda _units: 1.0,
    "missing_world_size": lambda units: 1 / len(units),
    "extra_world_size": lambda units: float(len(units)),
    "extra_accumulation_division": lambda units: 1 / len(units[0]),
    "missing_accumulation_division": lambda units: float(len(units[0])),
}


def planting(units: list[list[int]], shape: str, scale: str) -> set[str]:
    """Return the names of what was planted; with one micro-batch, a mean of means is a rank's mean."""
    alone = {"mean_of_means": "rank_mean", "microbatch_denominator": ""}
    return {name for name in (alone.get(shape, shape) if len(units[0]) == 1 else shape, scale) if name}


@st.composite
def counts(draw: Any) -> list[list[int]]:
    ranks, places = draw(st.integers(2, 4)), draw(st.integers(1, 5))
    row = st.lists(st.integers(1, 400), min_size=places, max_size=places)
    found: list[list[int]] = draw(st.lists(row, min_size=ranks, max_size=ranks))
    return found


@settings(max_examples=400, deadline=None)
@given(counts(), st.sampled_from(sorted(SHAPES)), st.sampled_from(sorted(SCALES)))
def test_planted_mistakes_are_named_or_called_ambiguous(units: list[list[int]], shape: str, scale: str) -> None:
    seen = window(units, lambda all_units, r, m: SHAPES[shape](all_units, r, m) * SCALES[scale](all_units))
    reading = explain([seen])
    planted = planting(units, shape, scale)
    alternatives = [set(names) for names in reading.alternatives] or [set(reading.names)]
    smallest = min(len(names) for names in alternatives)
    # Fewer mistakes may give the very same weights; more than were planted are never blamed.
    assert planted in alternatives or smallest < len(planted), (units, reading)
    assert smallest <= len(planted)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([(2, 3), (2, 5), (3, 2), (3, 4), (4, 3), (4, 2)]),
    st.integers(0, 2**32),
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(sorted(SCALES)),
)
def test_many_windows_settle_what_one_leaves_open(size: tuple[int, int], seed: int, shape: str, scale: str) -> None:
    random, (ranks, places) = Random(seed), size
    drawn = [[[random.randint(1, 400) for _ in range(places)] for _ in range(ranks)] for _ in range(8)]
    seen = [
        window(units, lambda all_units, r, m: SHAPES[shape](all_units, r, m) * SCALES[scale](all_units))
        for units in drawn
    ]
    assert set(explain(seen).names) == {name for name in (shape, scale) if name}


@settings(max_examples=300, deadline=None)
@given(counts(), st.integers(0, 2**32))
def test_weights_of_no_mistake_are_never_named(units: list[list[int]], seed: int) -> None:
    assume(len(units[0]) > 1)
    random = Random(seed)
    weights = {
        (r, m): random.uniform(1e-4, 1.0) / whole(units) for r in range(len(units)) for m in range(len(units[0]))
    }
    seen = window(units, lambda _units, r, m: weights[r, m])
    reading = explain([seen])
    assert reading.status is Status.UNEXPLAINED
    assert reading.names == ()
    assert not reading.even
    assert ratio(seen) == pytest.approx(max(weights.values()) / min(weights.values()))


def test_world_size_and_accumulation_alike_are_ambiguous() -> None:
    units = [[3, 5], [7, 2]]
    reading = explain([window(units, lambda _units, _r, _m: 1 / 34)])
    assert reading.status is Status.AMBIGUOUS
    assert {frozenset(names) for names in reading.alternatives} == {
        frozenset({"missing_world_size"}),
        frozenset({"extra_accumulation_division"}),
    }
    other = window([[3, 5, 4], [7, 2, 6]], lambda _units, _r, _m: 1 / 54)
    assert explain([other]).names == ("missing_world_size",)


def test_short_window_with_the_usual_divisor() -> None:
    units = [[4, 6, 2], [3, 3, 9]]
    seen = window(units, lambda all_units, r, m: SHAPES["mean_of_means"](all_units, r, m) * 3 / 4)
    assert set(explain([seen], usual_micro_batches=4).names) == {"mean_of_means", "short_last_window"}
    assert explain([seen], usual_micro_batches=3).status is Status.UNEXPLAINED
    even = window([[2, 2, 2], [2, 2, 2]], lambda _units, _r, _m: 1 / 16)
    assert explain([even], usual_micro_batches=4).names == ("short_last_window",)


def test_window_without_units_says_nothing() -> None:
    empty = Window.of([Cell(rank=rank, micro_batch=0, units=0, weight=0.0) for rank in range(2)])
    assert explain([empty]).status is Status.CLEAN
    assert explain([]).status is Status.CLEAN
