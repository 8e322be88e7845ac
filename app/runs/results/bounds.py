"""How a check's number is held against its limit: in words, and by how much."""

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
"""(relation, strict) -> what comes before the limit."""
NAMES: Final = {Relation.AT_MOST: "limit", Relation.EQUAL: "expected", Relation.AT_LEAST: "minimum"}
"""What the limit is called on its own."""


DISTANCES: Final = {
    Relation.AT_MOST: "share of limit",
    Relation.EQUAL: "deviation",
    Relation.AT_LEAST: "margin",
}
"""What `distance` gives, as the heading of a column."""


def relation_of(check: Members) -> Relation:
    """Return how a check is read: at_most where it does not say."""
    return Relation(check.get("relation") or Relation.AT_MOST)


def bound(check: Members, write: Write = number) -> str:
    """Return the limit with what it demands, such as `at most 1e-6`, `expected 18` or `must exceed 1e-6`.

    Only `limit 1e-6` where the check passed against these words: an earlier version recorded it, without a relation.
    """
    if check["limit"] is None:
        return write(None)
    words = "limit" if _contradicts(check) else WORDS[relation_of(check), bool(check.get("strict"))]
    return f"{words} {writer([check], write)(check['limit'])}"


def measured(check: Members, write: Write = number) -> str:
    """Return what a check measured, never written like its limit where it is not that."""
    return writer([check], write)(check["measured"])


def demand(check: Members, write: Write = number) -> str:
    """Return `bound` as it reads after a measured number, such as `must be at most 1e-6` or `expected 18`."""
    text = bound(check, write)
    return f"must be {text}" if text.startswith(("at most", "at least", "below")) else text


def writer(checks: Sequence[Members | None], write: Write = number) -> Write:
    """Return how to write the numbers of one check of several runs: no two that differ may read alike.

    None stands for a run without the check.
    """
    there = [check for check in checks if check is not None]
    return telling_apart([check[name] for check in there for name in ("measured", "limit")], write)


def share(check: Members) -> float | None:
    """Return measured / limit, the share of the limit that was used; None unless the check is read as at_most.

    None also where either is no finite number, the limit is 0, or the check passed above it (see `bound`).
    """
    measured, limit = _finite(check["measured"]), _finite(check["limit"])
    if relation_of(check) is not Relation.AT_MOST or measured is None or not limit or _contradicts(check):
        return None
    return measured / limit


def difference(check: Members) -> float | None:
    """Return measured - limit, None where either is no finite number."""
    measured, limit = _finite(check["measured"]), _finite(check["limit"])
    return None if measured is None or limit is None else measured - limit


def distance(check: Members, relation: Relation) -> str | None:
    """Return how far the check is from its limit, as a column headed by `DISTANCES[relation]` shows it.

    None for a check that is read in another way, or has no such number.
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
