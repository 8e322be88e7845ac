"""Checks in words: the requirement of a limit, the share used, and the distance from it."""

from typing import Any

import pytest

from app.cli.output import cell
from app.runs.results.bounds import bound, demand, difference, distance, share
from trainer.contract.result import Relation


def check(
    measured: Any, limit: Any, relation: str | None = None, *, strict: bool = False, **more: Any
) -> dict[str, Any]:
    read = {} if relation is None else {"relation": relation, "strict": strict}
    return {"passed": True, "measured": measured, "limit": limit, **read, **more}


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (check(3e-8, 1e-6, "at_most"), "at most 1e-6"),
        (check(3e-8, 1e-6, "at_most", strict=True), "below 1e-6"),
        (check(18, 18, "equal"), "expected 18"),
        (check(282_628, 282_628, "equal"), "expected 282,628"),
        (check(2, 2, "at_least"), "at least 2"),
        (check(0.0235, 1e-6, "at_least", strict=True), "must exceed 1e-6"),
        (check(0.5, 0, "at_least", strict=True), "must exceed 0"),
        (check(3e-8, 1e-6), "at most 1e-6"),
        (check(2e-6, 1e-6, "at_most", passed=False), "at most 1e-6"),
        # Passed far above its limit, as negative controls of earlier versions did: no misleading words.
        (check(0.0235, 1e-6), "limit 1e-6"),
        (check(0.0235, 1e-6, "at_most"), "limit 1e-6"),
        (check("NaN", 1e-6, "at_most", passed=None), "at most 1e-6"),
        (check(None, None, "equal"), "–"),
    ],
)
def test_limit_in_words(judged: dict[str, Any], words: str) -> None:
    assert bound(judged) == words


def test_words_keep_the_numbers_of_their_place() -> None:
    assert bound(check(1, 282_628.0, "at_most"), cell) == "at most 282628"
    assert bound(check(1e-7, 1e-6, "at_most"), str) == "at most 1e-06"
    assert bound(check(1, None, "at_most"), cell) == "-"


def test_limit_in_a_sentence() -> None:
    read = [check(1, 2, "at_most"), check(1, 1, "equal"), check(2, 1, "at_least"), check(2, 1)]
    assert [demand(judged) for judged in read] == ["must be at most 2", "expected 1", "must be at least 1", "limit 1"]
    assert demand(check(1, 2, "at_most", strict=True)) == "must be below 2"
    assert demand(check(2, 1, "at_least", strict=True)) == "must exceed 1"


@pytest.mark.parametrize(
    ("judged", "used"),
    [
        (check(5e-7, 1e-6, "at_most"), 0.5),
        (check(5e-7, 1e-6), 0.5),
        (check(3e-6, 1e-6, "at_most", passed=False), 3.0),
        (check(0.0235, 1e-6), None),  # passed: no check uses 23,500 times its limit and passes
        (check(18, 18, "equal"), None),
        (check(0.0235, 1e-6, "at_least", strict=True), None),
        (check(0, 0, "at_most"), None),
        (check("Infinity", 1e-6, "at_most", passed=False), None),
        (check(True, 1, "at_most"), None),
        (check(None, 1, "at_most"), None),
        (check(1, None, "at_most"), None),
    ],
)
def test_share_is_only_of_a_limit(judged: dict[str, Any], used: float | None) -> None:
    assert share(judged) == (used if used is None else pytest.approx(used))


def test_difference_has_a_sign() -> None:
    assert difference(check(21, 18, "equal", passed=False)) == 3
    assert difference(check(15, 18, "equal", passed=False)) == -3
    assert difference(check("NaN", 18, "equal", passed=False)) is None


def test_column_shows_one_way_of_reading() -> None:
    assert distance(check(5e-7, 1e-6, "at_most"), Relation.AT_MOST) == "50.0 %"
    assert distance(check(21, 18, "equal", passed=False), Relation.EQUAL) == "+3"
    assert distance(check(18, 18, "equal"), Relation.EQUAL) == "0"
    assert distance(check(0.0235, 0, "at_least", strict=True), Relation.AT_LEAST) == "+0.0235"
    assert distance(check(1, 18), Relation.EQUAL) is None, "an old row is not read like the newest"
    assert distance(check(None, 18, "equal", passed=None), Relation.EQUAL) is None
