"""Cells whose gradients cannot all be distinguished: which known mistakes give the gradient that was observed."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainer.forensics.cells import Cell, Window
from trainer.forensics.explain import Status, explain
from trainer.forensics.groups import Group
from trainer.forensics.hypotheses import Weights
from trainer.forensics.solve import QUIET
from trainer.forensics.system import System

Sets = Mapping[frozenset[str], Mapping[str, float]]
"""Names of mistakes -> their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What the loop may have done, besides a wrong divisor."""

    late: int | None = None
    """First micro-batch that is not reduced."""
    lost: frozenset[int] = frozenset()
    """Micro-batches without weight."""
    padded: bool = False
    """Padding in the loss."""
    stale: bool = False
    """A left-over gradient."""


def alike(system: System, names: Sequence[str], place: int) -> Literal["zero", "twin", ""]:
    """Return whether a column has no gradient, is parallel to another column, or neither."""
    columns, _ = system.matrix(names, range(len(system.columns)))
    norms = torch.linalg.vector_norm(columns, dim=0)
    mine = columns[:, place]
    if float(norms[place]) <= 1e-12 * float(norms.max()):
        return "zero"
    cosines = (columns.T @ mine).abs() / (norms * norms[place]).clamp(min=1e-300)
    cosines[place] = 0.0
    return "twin" if columns.shape[0] > 1 and float(cosines.max()) > 1 - 1e-12 else ""


def compatible(systems: Sequence[System], group: Group, tolerance: float, *, usual: int | None) -> tuple[Sets, bool]:
    """Return the smallest sets of known mistakes that give the gradients, and whether only equal cells are confused."""
    found: dict[frozenset[str], tuple[int, Mapping[str, float]]] = {}
    for option in _options(systems):
        names = _names(option)
        windows = [_window(system, option) for system in systems]
        tests = {
            id(window): _Test(system, group.names, option, tolerance)
            for window, system in zip(windows, systems, strict=True)
        }
        reading = explain(
            windows,
            tolerance=tolerance,
            usual_micro_batches=usual,
            agree=lambda window, item, tests=tests: tests[id(window)].agrees(window, item.weights),  # type: ignore[misc]
        )
        if reading.status is not Status.UNEXPLAINED:
            for more in reading.alternatives or (reading.names,):
                found.setdefault(names | set(more), (len(names) + reading.departures, reading.parameters))
    fewest = min((count for count, _ in found.values()), default=0)
    sets = {names: numbers for names, (count, numbers) in found.items() if count == fewest}
    return sets, _only_twins(systems, group)


def _only_twins(systems: Sequence[System], group: Group) -> bool:
    for system, fit in zip(systems, group.solved, strict=True):
        for line, place in enumerate(fit.places):
            unknown = not bool(fit.determined[line]) and system.columns[place].kind == "units"
            if unknown and not alike(system, group.names, place):
                return False
    return min(fit.rank for fit in group.solved) > 1


def _options(systems: Sequence[System]) -> Iterator[Option]:
    kinds = {column.kind for system in systems for column in system.columns}
    places = {column.micro_batch for system in systems for column in system.columns if column.kind == "units"}
    late: list[int | None] = [None, *sorted(places)] if systems[0].ranks > 1 else [None]
    lost = [frozenset[int](), *(frozenset(range(place)) for place in sorted(places) if place), frozenset({max(places)})]
    for where, gone, padded, stale in itertools.product(
        late,
        dict.fromkeys(lost) if len(places) > 1 else lost[:1],
        (False, True)[: 1 + ("padding" in kinds)],
        (False, True)[: 1 + ("stale" in kinds)],
    ):
        yield Option(late=where, lost=gone, padded=padded, stale=stale)


def _names(option: Option) -> frozenset[str]:
    names = set()
    if option.late is not None:
        names.add("unsynchronised_step" if option.late == 0 else "sync_on_wrong_microbatch")
    if option.stale:
        names.add("stale_gradients")
    return frozenset(names)


def _window(system: System, option: Option) -> Window:
    late = option.late
    padding = {(part.rank, part.micro_batch): part.padding for part in system.step.parts if part.kind == "units"}
    return Window.of(
        (
            Cell(
                rank=column.rank,
                micro_batch=column.micro_batch,
                units=column.units,
                weight=0.0 if column.micro_batch in option.lost else 1.0,
                padding=padding[column.rank, column.micro_batch],
                padding_weight=1.0 if option.padded else 0.0,
                local=late is not None and column.micro_batch >= late,
            )
            for column in system.columns
            if column.kind == "units"
        ),
        system.ranks,
    )


class _Test:
    """Compares the gradient that weights would give with the observed one, on every rank."""

    def __init__(self, system: System, names: Sequence[str], option: Option, tolerance: float) -> None:
        self._system, self._option, self._tolerance = system, option, tolerance
        self._columns, self._sides = system.matrix(names, range(len(system.columns)))
        self._sizes = torch.linalg.vector_norm(self._columns, dim=0)

    def agrees(self, window: Window, weights: Weights) -> bool:
        """Return whether `weights` of the counted cells of `window` give every rank's gradient."""
        by_place = {
            (cell.rank, cell.micro_batch): (weight, cell.local)
            for cell, weight in zip(window.counted, weights, strict=True)
        }
        full = self._full(by_place)
        rest = torch.linalg.vector_norm(self._columns @ full - self._sides, dim=0)
        size = torch.maximum(self._sizes @ full.abs(), torch.linalg.vector_norm(self._sides, dim=0))
        floor = max(QUIET * self._tolerance * self._system.norm, 1e-300)
        return bool((rest <= self._tolerance * size.clamp(min=floor)).all())

    def _full(self, by_place: Mapping[tuple[int, int], tuple[float, bool]]) -> Tensor:
        ranks = self._system.ranks
        full = torch.zeros(len(self._system.columns), ranks, dtype=torch.float64)
        for line, column in enumerate(self._system.columns):
            if column.kind == "units" or (column.kind == "padding" and self._option.padded):
                weight, local = by_place.get((column.rank, column.micro_batch), (0.0, False))
                if local:
                    full[line, column.rank] = ranks * weight
                else:
                    full[line] = weight
            elif column.kind == "extra":
                full[line] = self._system.expected[line]
            elif column.kind == "stale" and self._option.stale:
                if column.rank < 0:
                    full[line] = 1.0
                else:
                    full[line, column.rank] = 1.0
        return full
