"""What known ways of normalising a window would make every unit weigh: the right one, the mistakes, and their products.

A hypothesis is a shape (what the weights of the cells are to one another) times a scale (what they sum to). Shapes with
equal weights for all units are right; a scale of 1 is right. Each departure has one name, so several at once are named
together. Every formula is from docs/trace-files.md, section "What a unit weighs".
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from trainer.forensics.cells import Cell, Window, total

Weights = tuple[float, ...]
"""One weight per counted cell, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One way of normalising, with the mistakes it consists of."""

    names: frozenset[str]
    """Empty for the right way."""
    shape: Weights
    """Weights up to the scale."""
    scale: float = 1.0
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def weights(self) -> Weights:
        """One weight per counted cell."""
        return tuple(self.scale * weight for weight in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Something by which all weights are multiplied."""

    names: frozenset[str]
    value: float
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Basis:
    """The cells that a divisor is made of, and sums over them."""

    cells: Sequence[Cell]
    sums: Mapping[int, float]
    """Rank -> its units, with padding where the divisor has it."""
    columns: Mapping[int, float]
    """Micro-batch -> its units on all ranks, with padding likewise."""
    own: Mapping[int, int]
    """Rank -> how many micro-batches it has."""
    padding: bool

    @classmethod
    def of(cls, cells: Sequence[Cell], *, padding: bool) -> "Basis":
        """Add up `cells`."""
        units: dict[int, list[Cell]] = {}
        columns: dict[int, list[Cell]] = {}
        for cell in cells:
            units.setdefault(cell.rank, []).append(cell)
            columns.setdefault(cell.micro_batch, []).append(cell)
        return cls(
            cells=cells,
            sums={rank: total(own, padding=padding) for rank, own in units.items()},
            columns={place: total(own, padding=padding) for place, own in columns.items()},
            own=Counter(cell.rank for cell in cells),
            padding=padding,
        )


Key = tuple[frozenset[str], tuple[tuple[str, float], ...]]
"""What several windows made by the same code have in common: names, and the rank that a mistake is about."""
AVERAGED: Final = "averaged_again"
"""A parameter of `local_count_as_global`: the factor world_size is missing as well, which the same mend restores."""
RIGHT = Factor(names=frozenset(), value=1.0)


def hypotheses(window: Window, *, usual_micro_batches: int | None = None) -> Iterator[Hypothesis]:
    """Yield every hypothesis about a window, the right one first.

    `usual_micro_batches` is how many micro-batches most windows have: a shorter window may still be divided by that.
    """
    counted = window.counted
    if not counted:
        return
    dropped = frozenset({"dropped_microbatch"}) if len(counted) < len(window.supervised) else frozenset[str]()
    bases: list[Sequence[Cell]] = [window.cells]
    if dropped:
        lost = set(window.dropped)
        bases.append([cell for cell in window.cells if cell not in lost])
    for cells, padding in itertools.product(bases, _paddings(window)):
        basis = Basis.of(cells, padding=padding)
        for name, shape in _shapes(window.world_size, counted, basis):
            names = {*dropped, *({name} if name else ()), *({"padding_in_denominator"} if padding else ())}
            for factor in _factors(window.world_size, basis, name, usual_micro_batches):
                yield Hypothesis(
                    names=frozenset(names) | factor.names,
                    shape=shape,
                    scale=factor.value,
                    parameters=factor.parameters,
                )


def _paddings(window: Window) -> Sequence[bool]:
    return (False, True) if any(cell.padding > 0 for cell in window.cells) else (False,)


def _shapes(world_size: int, counted: Sequence[Cell], basis: Basis) -> Iterator[tuple[str, Weights]]:
    """Yield (name, weights): of the right shape, and of the wrong ones that differ from it by construction."""
    micro_batches = len(basis.columns)
    whole = total(basis.cells, padding=basis.padding)
    yield "", tuple(1 / whole for _ in counted)
    if world_size > 1:
        yield "rank_mean", tuple(1 / (world_size * basis.sums[cell.rank]) for cell in counted)
    if micro_batches > 1:
        yield (
            "mean_of_means",
            tuple(1 / (world_size * basis.own[cell.rank] * total([cell], padding=basis.padding)) for cell in counted),
        )
    if world_size > 1 and micro_batches > 1:
        yield (
            "microbatch_denominator",
            tuple(1 / (micro_batches * basis.columns[cell.micro_batch]) for cell in counted),
        )


def _factors(world_size: int, basis: Basis, shape: str, usual: int | None) -> Iterator[Factor]:
    own = [RIGHT, *_shape_factors(world_size, basis, shape, usual)]
    for first, world, accumulation in itertools.product(own, _world_factors(world_size), _accumulation_factors(basis)):
        if "local_count_as_global" in first.names and "missing_world_size" in world.names:
            continue  # a divisor has one mend: with or without the factor, it is not the count of all ranks
        yield Factor(
            names=first.names | world.names | accumulation.names,
            value=first.value * world.value * accumulation.value,
            parameters={**first.parameters, **world.parameters, **accumulation.parameters},
        )


def _shape_factors(world_size: int, basis: Basis, shape: str, usual: int | None) -> Iterator[Factor]:
    if not shape and world_size > 1:
        whole = total(basis.cells, padding=basis.padding)
        for number, units in sorted(basis.sums.items()):
            if 0 < units < whole:
                names = frozenset({"local_count_as_global"})
                yield Factor(names=names, value=whole / units, parameters={"count_of_rank": number})
                again = {"count_of_rank": number, AVERAGED: world_size}
                yield Factor(names=names, value=whole / units / world_size, parameters=again)
    now = len(basis.columns)
    if usual is not None and now != usual:
        # A window of means divided by the usual number of micro-batches although it has another.
        names = frozenset({"short_last_window"})
        yield Factor(names=names, value=now / usual, parameters={"micro_batches": now, "divided_by": usual})


def _world_factors(size: int) -> Sequence[Factor]:
    if size == 1:
        return (RIGHT,)
    return (
        RIGHT,
        Factor(names=frozenset({"missing_world_size"}), value=1 / size),
        Factor(names=frozenset({"extra_world_size"}), value=float(size)),
    )


def _accumulation_factors(basis: Basis) -> Sequence[Factor]:
    count = len(basis.columns)
    if count == 1:
        return (RIGHT,)
    return (
        RIGHT,
        Factor(names=frozenset({"extra_accumulation_division"}), value=1 / count),
        Factor(names=frozenset({"missing_accumulation_division"}), value=float(count)),
    )


def key_of(item: Hypothesis) -> Key:
    """Return what the mistakes of a hypothesis are, without the numbers of its window."""
    told = {name: value for name, value in item.parameters.items() if name in ("count_of_rank", AVERAGED)}
    return item.names, tuple(sorted(told.items()))


def of_any_rank(key: Key) -> Key:
    """Return a key without the rank that it is about."""
    names, told = key
    return names, tuple(item for item in told if item[0] != "count_of_rank")


def departures(key: Key) -> int:
    """Return how many departures from the right divisor a key is made of: one per name, and a missing factor."""
    names, told = key
    return len(names) + (AVERAGED in dict(told))
