"""The measured weights in words: comparisons of ranks and micro-batches, and lists of places."""

import math
from collections.abc import Sequence

from trainer.forensics.cells import Cell, Window

MOST_DIVISORS = 8
EVEN = 1e-5
"""Weights that differ by less than this share are called equal."""


def number(value: float) -> str:
    """Return a number with the digits that a reader needs."""
    if value and abs(value - round(value)) < 1e-9 * abs(value) and abs(value) < 1e6:
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}"
    return f"{value:.4g}"


def compared(window: Window, unit: str) -> str:
    """Return how the weights of a window compare: ranks if each has one weight, else the extreme micro-batches."""
    cells = window.counted
    if not cells:
        return f"No {unit} weighs anything."
    largest = max(cells, key=lambda cell: abs(cell.weight))
    smallest = min(cells, key=lambda cell: abs(cell.weight))
    ratio = abs(largest.weight / smallest.weight)
    if ratio <= 1 + EVEN:
        return scaled(window, unit)
    if _by_rank(cells):
        return f"Rank {largest.rank}'s {unit}s weigh {number(ratio)} times those of rank {smallest.rank}."
    return (
        f"The {unit}s of {place(largest)} weigh {number(ratio)} times those of {place(smallest)} "
        f"({largest.units:.6g} and {smallest.units:.6g} {unit}s)."
    )


def scaled(window: Window, unit: str) -> str:
    """Return how far the sum of all weights is from 1."""
    total = window.total_weight
    if math.isclose(total, 1.0, rel_tol=EVEN):
        return "The weights of the window sum to 1, as they should."
    counted = {id(cell) for cell in window.counted}
    if len(counted) == len(window.supervised) and _even(window.counted):
        return f"Every {unit} weighs {number(total)} times what it should."
    return f"The weights of the window sum to {number(total)} instead of 1."


def divisors(window: Window, unit: str) -> str:
    """Return by what the units seem to be divided, one number or one per micro-batch, and the right one."""
    right = f"{math.fsum(cell.units for cell in window.cells):.6g}"
    if _even(window.counted):
        return f"as if the sum of all {unit}s was divided by {1 / window.counted[0].weight:.6g} instead of {right}."
    rows: dict[int, list[str]] = {}
    for cell in window.counted:
        rows.setdefault(cell.rank, []).append(f"{1 / cell.weight:.6g}")
    texts = [f"rank {rank}: {listed(row, MOST_DIVISORS)}" for rank, row in rows.items()]
    each = "; ".join(texts[:MOST_DIVISORS])
    return f"as if {unit}s were divided, micro-batch by micro-batch, by {each}; right is {right}."


def place(cell: Cell) -> str:
    """Return where a cell is."""
    return f"micro-batch {cell.micro_batch} of rank {cell.rank}"


def places(cells: Sequence[Cell], most: int = 3) -> str:
    """Return where cells are, the first few by name."""
    return listed([place(cell) for cell in cells], most)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def share(value: float) -> str:
    """Return a share of the gradient, as a percentage or in powers of ten."""
    return f"{100 * value:.2g} %" if value >= 1e-4 else f"{value:.1e}"


def _even(cells: Sequence[Cell]) -> bool:
    weights = [abs(cell.weight) for cell in cells]
    return not weights or max(weights) <= min(weights) * (1 + EVEN)


def _by_rank(cells: Sequence[Cell]) -> bool:
    ranks = {cell.rank for cell in cells}
    return len(ranks) > 1 and all(_even([cell for cell in cells if cell.rank == rank]) for rank in ranks)
