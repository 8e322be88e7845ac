"""The smallest change of a window under which several explanations of the same weights differ."""

import itertools
import math
from collections.abc import Iterator, Sequence

from trainer.forensics.cells import Cell, Window
from trainer.forensics.hypotheses import Weights, hypotheses

TELLING = 1e-3
"""Weights that differ by this share are distinguished in float32 as well."""


def separating_change(alternatives: Sequence[Sequence[str]], window: Window) -> str:
    """Return the smallest change of `window` that tells all `alternatives` apart, as an instruction."""
    for text, changed in _changes(window):
        if all(_differ(one, other, changed) for one, other in itertools.combinations(alternatives, 2)):
            return text
    return "Use another world size, another number of micro-batches and unequal counts, and run again."


def _changes(window: Window) -> Iterator[tuple[str, Window]]:
    units = _units(window)
    ranks, places = len(units), max(map(len, units))
    for count in (places + 1, places - 1, places + 2):
        if count > 0:
            yield f"Run with {count} micro-batch{'' if count == 1 else 'es'} per rank.", _made(units, ranks, count)
    for size in (ranks + 1, ranks - 1, ranks + 2):
        if size > 1:
            yield f"Run with {size} ranks.", _made(units, size, places)
    yield "Give the ranks and micro-batches different numbers of units.", _made(units, ranks, places, spread=True)
    yield (
        f"Run with {places + 1} micro-batches per rank, and with different numbers of units in them.",
        _made(units, ranks, places + 1, spread=True),
    )
    yield (
        f"Run with {ranks + 1} ranks, and with different numbers of units on them.",
        _made(units, ranks + 1, places, spread=True),
    )


def _units(window: Window) -> list[list[Cell]]:
    rows: dict[int, list[Cell]] = {}
    for cell in window.cells:
        rows.setdefault(cell.rank, []).append(cell)
    return [rows[rank] for rank in sorted(rows)]


def _made(units: list[list[Cell]], ranks: int, places: int, *, spread: bool = False) -> Window:
    """Return a window of this size; new cells repeat the known ones, with other counts if `spread`."""
    cells = []
    for rank, place in itertools.product(range(ranks), range(places)):
        row = units[rank % len(units)]
        cell = row[place % len(row)]
        more = 1 + 3 * rank + 7 * place + rank * place if spread else 0
        cells.append(
            Cell(rank=rank, micro_batch=place, units=cell.units + more, weight=1.0, padding=cell.padding + more)
        )
    return Window.of(cells, ranks)


def _differ(one: Sequence[str], other: Sequence[str], window: Window) -> bool:
    mine, theirs = _weights(one, window), _weights(other, window)
    return not any(_same(first, second) for first in mine for second in theirs)


def _weights(names: Sequence[str], window: Window) -> list[Weights]:
    wanted = frozenset(names) & KNOWN_HERE
    return [item.weights for item in hypotheses(window) if item.names == wanted]


KNOWN_HERE = frozenset(
    {
        "mean_of_means",
        "rank_mean",
        "microbatch_denominator",
        "padding_in_denominator",
        "local_count_as_global",
        "missing_world_size",
        "extra_world_size",
        "extra_accumulation_division",
        "missing_accumulation_division",
    }
)
"""Names that depend on the counts; others are the same in every alternative."""


def _same(mine: Weights, theirs: Weights) -> bool:
    return all(math.isclose(one, other, rel_tol=TELLING) for one, other in zip(mine, theirs, strict=True))
