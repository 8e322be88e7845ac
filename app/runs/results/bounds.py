"""Comparison of a check's number with its limit: in words, and as a distance."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from app.documents import Members
from app.formats import number, telling_apart, times
from trainer.contract.result import Relation, fits

Write = Callable[[Any], str]
WORDS: Final = {
    (Relation.AT_MOST, False): "at most",
    (Relation.AT_MOST, True): "below",
    (Relation.EQUAL, False): "expected",
    (Relation.AT_LEAST, False): "at least",
    (Relation.AT_LEAST, True): "must exceed",
}
"""(relation, strict) -> words before the limit."""
NAMES: Final = {Relation.AT_MOST: "limit", Relation.EQUAL: "expected", Relation.AT_LEAST: "minimum"}
"""Name of the limit."""


DISTANCES: Final = {
    Relation.AT_MOST: "share of limit",
    Relation.EQUAL: "deviation",
    Relation.AT_LEAST: "margin",
}
"""Meaning of `distance`, as a column heading."""


def relation_of(check: Members) -> Relation:
    """Return the relation of a check: at_most if it has none."""
    return Relation(check.get("relation") or Relation.AT_MOST)


def bound(check: Members, write: Write = number) -> str:
    """Return the limit with its requirement, such as `at most 1e-6`, `expected 18` or `must exceed 1e-6`.

    Only `limit 1e-6` if the check passed in contradiction to these words: an earlier version recorded it without a
    relation.
    """
    if check["limit"] is None:
        return write(None)
    words = "limit" if _contradicts(check) else WORDS[relation_of(check), bool(check.get("strict"))]
    return f"{words} {writer([check], write)(check['limit'])}"


def measured(check: Members, write: Write = number) -> str:
    """Return the measured value, never rounded to look equal to a different limit."""
    return writer([check], write)(check["measured"])


def demand(check: Members, write: Write = number) -> str:
    """Return `bound` phrased to follow a measured number, such as `must be at most 1e-6` or `expected 18`."""
    text = bound(check, write)
    return f"must be {text}" if text.startswith(("at most", "at least", "below")) else text


def writer(checks: Sequence[Members | None], write: Write = number) -> Write:
    """Return how to write the numbers of one check of several runs: different numbers must not look equal.

    None stands for a run without the check.
    """
    there = [check for check in checks if check is not None]
    return telling_apart([check[name] for check in there for name in ("measured", "limit")], write)


def share(check: Members) -> float | None:
    """Return measured / limit, the share of the limit that was used; None unless the relation is at_most.

    None also if either is not a finite number, the limit is 0, or the check passed above it (see `bound`).
    """
    measured, limit = _finite(check["measured"]), _finite(check["limit"])
    if relation_of(check) is not Relation.AT_MOST or measured is None or not limit or _contradicts(check):
        return None
    return measured / limit


def difference(check: Members) -> float | None:
    """Return measured - limit, None if either is not a finite number."""
    measured, limit = _finite(check["measured"]), _finite(check["limit"])
    return None if measured is None or limit is None else measured - limit


def distance(check: Members, relation: Relation) -> str | None:
    """Return the distance of a check from its limit, for a column headed by `DISTANCES[relation]`.

    None for a check with another relation, or without such a number.
    """
    if relation_of(check) is not relation:
        return None
    if relation is Relation.AT_MOST:
        used = share(check)
        return None if used is None else times(used)
    off = difference(check)
    return None if off is None else f"{'+' if off > 0 else ''}{number(off)}"


def _finite(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _contradicts(check: Members) -> bool:
    strict = bool(check.get("strict"))
    return bool(check["passed"]) and fits(check["measured"], check["limit"], relation_of(check), strict=strict) is False
