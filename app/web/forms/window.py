"""The typed window of the worked example: token counts and loss sums."""

from fractions import Fraction
from typing import Any, Final

from trainer.contract.normalisation import Cell

START: Final = (((6, "6"), (6, "6")), ((18, "54"), (18, "54")))
"""[rank][micro-batch] (tokens, loss sum): counts 12 and 36, sums 12 and 108."""
MOST: Final = 1_000_000


class Unreadable(ValueError):
    """A typed number is not usable; the text names its field."""


def read_window(values: Any) -> list[list[tuple[str, str]]]:
    """Return the typed text of every field, or the example's value if nothing was typed."""
    return [
        [
            (values.get(f"n{rank}{batch}", str(tokens)), values.get(f"s{rank}{batch}", total))
            for batch, (tokens, total) in enumerate(row)
        ]
        for rank, row in enumerate(START)
    ]


def cells(typed: list[list[tuple[str, str]]]) -> list[list[Cell]]:
    """Return typed text as numbers. Raises Unreadable naming the field."""
    return [
        [_cell(f"rank {rank}, micro-batch {batch}", *pair) for batch, pair in enumerate(row)]
        for rank, row in enumerate(typed)
    ]


def _cell(place: str, tokens: str, total: str) -> Cell:
    if not (tokens.strip().isascii() and tokens.strip().isdigit() and len(tokens) < 10 and int(tokens) <= MOST):
        raise Unreadable(f"{place}: tokens must be a whole number from 0 to {MOST:,}, given {tokens[:20]!r}")
    try:
        value = Fraction(total.strip()) if len(total) < 30 and "e" not in total.lower() else None
    except (ValueError, ZeroDivisionError):
        value = None
    if value is None or abs(value) > MOST:
        raise Unreadable(f"{place}: the loss sum must be a number up to {MOST:,}, given {total[:20]!r}")
    if value and not int(tokens):
        raise Unreadable(f"{place}: 0 tokens cannot have a loss sum of {total}; it must be 0")
    return Cell(tokens=int(tokens), total=value)
