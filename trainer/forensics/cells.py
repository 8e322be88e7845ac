"""A window of micro-batches as cells: how many units each rank's micro-batch holds, and what one unit weighs.

A unit is what the objective counts: a token, a sequence, a sample, or a weight of the user's own. The weight of a unit
is the factor with which its gradient enters the averaged gradient. The right objective gives every unit the same
weight, 1 / N, where N is the number of units of all ranks and micro-batches of the window (docs/trace.md).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

ZERO = 1e-9
"""A weight below this share of the largest counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One micro-batch of one rank."""

    rank: int
    micro_batch: int
    """0, 1, 2 … within the window."""
    units: float
    """Supervised units in it; may be a weight instead of a count."""
    weight: float
    """Of one unit, in the gradient that the optimizer sees."""
    padding: float = 0.0
    """Units in it that are not part of the objective, such as padding tokens."""
    padding_weight: float = 0.0
    """Of one padding unit; 0 where padding is kept out of the loss."""
    error: float = 0.0
    """How far the weight may be off, by what it was solved from."""
    known: bool = True
    """Whether the weight could be measured; the units count either way."""
    local: bool = False
    """Whether it entered only its own rank's gradient: it was added after the window's last reduction."""


@dataclass(frozen=True, slots=True)
class Window:
    """All cells between two optimizer steps, on all ranks."""

    cells: tuple[Cell, ...]
    world_size: int

    @classmethod
    def of(cls, cells: Iterable[Cell], world_size: int | None = None) -> "Window":
        """Return the window of `cells`; without `world_size`, as many ranks as have cells."""
        found = tuple(sorted(cells, key=lambda cell: (cell.rank, cell.micro_batch)))
        return cls(found, world_size or len({cell.rank for cell in found}))

    @property
    def supervised(self) -> tuple[Cell, ...]:
        """Cells that hold units and whose weight is known; the weight of a unit is not defined for the others."""
        return tuple(cell for cell in self.cells if cell.units > 0 and cell.known)

    @property
    def counted(self) -> tuple[Cell, ...]:
        """Cells whose units have a weight at all."""
        largest = max((abs(cell.weight) for cell in self.supervised), default=0.0)
        return tuple(cell for cell in self.supervised if abs(cell.weight) > ZERO * largest)

    @property
    def dropped(self) -> tuple[Cell, ...]:
        """Cells whose units have no weight although they hold some."""
        counted = set(self.counted)
        return tuple(cell for cell in self.supervised if cell not in counted)

    @property
    def total_weight(self) -> float:
        """Sum of the weights of all units: 1 for any mean, whatever it averages over."""
        return math.fsum(cell.units * cell.weight for cell in self.supervised)

    def micro_batches(self, rank: int | None = None) -> int:
        """Return the micro-batches of one rank, or the most that any rank has."""
        ranks = [cell.rank for cell in self.cells if rank is None or cell.rank == rank]
        return max((ranks.count(number) for number in set(ranks)), default=0)


class Placed(Protocol):
    """A micro-batch of a rank, whatever is known of it."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def micro_batch(self) -> int:
        """0, 1, 2 … within the window."""


def overtaken(alone: Iterable[Placed], shared: Sequence[Placed]) -> bool:
    """Return whether a micro-batch of `alone` comes before one of `shared` of its rank.

    If `alone` are those that were not reduced, no reduction does that: a later one would have taken them along.
    """
    return any(mine.rank == other.rank and mine.micro_batch < other.micro_batch for mine in alone for other in shared)


def total(cells: Sequence[Cell], *, padding: bool = False) -> float:
    """Return the units of `cells`, including their padding on request."""
    return math.fsum(cell.units + (cell.padding if padding else 0.0) for cell in cells)


def ratio(window: Window) -> float:
    """Return the largest weight of a unit divided by the smallest, 1 for equal ones, infinity where one has none."""
    weights = [abs(cell.weight) for cell in window.supervised]
    if not weights or window.dropped:
        return math.inf if window.counted else 1.0
    return max(weights) / min(weights)
