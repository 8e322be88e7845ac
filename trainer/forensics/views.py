"""From solved weights to windows: what every rank's gradient holds of every micro-batch, and which were reduced."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainer.forensics.cells import Cell, Window, overtaken
from trainer.forensics.groups import Group
from trainer.forensics.solve import Fit
from trainer.forensics.system import System

NEGLIGIBLE = 1e-3
"""Weights of padding and of left-over gradients below this share of the largest weight may be noise in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One way to read the weights of a group of parameters: as one window per step, as if all of it were reduced."""

    names: frozenset[str]
    """What is wrong with the reductions: nothing, `unsynchronised_step` or `sync_on_wrong_microbatch`."""
    windows: Sequence[Window]
    stale: Sequence[float]
    """Per step, the largest coefficient of a left-over gradient."""


def views(systems: Sequence[System], group: Group, tolerance: float) -> Iterator[View]:
    """Yield the only way to read the weights, or one per rank where ranks differ beyond their own micro-batches."""
    read = [_window(system, fit, tolerance) for system, fit in zip(systems, group.solved, strict=True)]
    stale = [_stale(system, fit, tolerance) for system, fit in zip(systems, group.solved, strict=True)]
    if all(window is not None for window in read):
        windows = [window for window in read if window is not None]
        yield View(names=_reductions(windows), windows=windows, stale=stale)
        return
    for rank in range(systems[0].ranks):
        yield View(
            names=frozenset(),
            windows=[
                Window.of(_cells(system, fit, rank, tolerance), system.ranks)
                for system, fit in zip(systems, group.solved, strict=True)
            ],
            stale=stale,
        )


def own_weights(systems: Sequence[System], group: Group, step: int) -> list[list[float | None]]:
    """Return weights[rank][micro-batch] of units, as they are in the gradient of the rank that holds them."""
    system, fit = systems[step], group.solved[step]
    rows: list[list[float | None]] = [[] for _ in range(system.ranks)]
    known = dict(zip(fit.places, range(len(fit.places)), strict=True))
    for place, column in enumerate(system.columns):
        if column.kind == "units":
            line = known[place]
            fine = column.units > 0 and bool(fit.determined[line])
            rows[column.rank].append(float(fit.weights[line, column.rank]) if fine else None)
    return rows


def expected_weights(system: System) -> list[list[float | None]]:
    """Return weights[rank][micro-batch] of units in the objective; None for micro-batches without units."""
    rows: list[list[float | None]] = [[] for _ in range(system.ranks)]
    for column, weight in zip(system.columns, system.expected.tolist(), strict=True):
        if column.kind == "units":
            rows[column.rank].append(weight if column.units > 0 else None)
    return rows


def paddings(system: System) -> Mapping[tuple[int, int], float]:
    """Return the padding units of every micro-batch."""
    return {(part.rank, part.micro_batch): part.padding for part in system.step.parts if part.kind == "units"}


def _window(system: System, fit: Fit, tolerance: float) -> Window | None:
    """Return the window as if everything were reduced, or None if ranks differ in another way."""
    seen = [_cells(system, fit, rank, tolerance) for rank in range(system.ranks)]
    largest = max((abs(cell.weight) for cells in seen for cell in cells if cell.known), default=0.0)
    merged: list[Cell] = []
    for everywhere in zip(*seen, strict=True):
        own = everywhere[everywhere[0].rank]
        others = [cell for cell in everywhere if cell is not own]
        near = max(2 * tolerance * largest, *(2 * cell.error for cell in everywhere if cell.known), 0.0)
        if not own.known or all(abs(cell.weight - own.weight) <= near for cell in others):
            merged.append(own)
        elif all(abs(cell.weight) <= near for cell in others):
            merged.append(_as_reduced(own, system.ranks))
        else:
            return None
    window = Window.of(merged, system.ranks)
    cells = [cell for cell in window.supervised if cell.weight]
    odd = overtaken([cell for cell in cells if cell.local], [cell for cell in cells if not cell.local])
    return None if odd else window


def _as_reduced(own: Cell, ranks: int) -> Cell:
    # An average over ranks would have divided by their number.
    return replace(
        own,
        weight=own.weight / ranks,
        padding_weight=own.padding_weight / ranks,
        error=own.error / ranks,
        local=True,
    )


def _reductions(windows: Sequence[Window]) -> frozenset[str]:
    cells = [cell for window in windows for cell in window.supervised if cell.weight]
    late = [cell for cell in cells if cell.local]
    if not late:
        return frozenset()
    return frozenset({"unsynchronised_step" if len(late) == len(cells) else "sync_on_wrong_microbatch"})


def _cells(system: System, fit: Fit, rank: int, tolerance: float) -> list[Cell]:
    """Return the cells as they are in the gradient of `rank`."""
    padding = paddings(system)
    inside = _padding_weights(system, fit, rank, tolerance)
    found = []
    for line, place in enumerate(fit.places):
        column = system.columns[place]
        if column.kind == "units":
            where = (column.rank, column.micro_batch)
            known = column.units > 0 and bool(fit.determined[line])
            found.append(
                Cell(
                    rank=column.rank,
                    micro_batch=column.micro_batch,
                    units=column.units,
                    weight=_clean(fit, line, rank, tolerance) if known else 0.0,
                    padding=padding[where],
                    padding_weight=inside.get(where, 0.0),
                    error=float(fit.errors[line, rank]) if known else 0.0,
                    known=known,
                )
            )
    return found


def _clean(fit: Fit, line: int, rank: int, tolerance: float) -> float:
    """Return a weight, or 0 where it cannot be distinguished from 0."""
    weight = float(fit.weights[line, rank])
    largest = float(fit.weights[fit.determined].abs().max())
    return 0.0 if abs(weight) <= max(tolerance * largest, 3 * float(fit.errors[line, rank])) else weight


def _padding_weights(system: System, fit: Fit, rank: int, tolerance: float) -> Mapping[tuple[int, int], float]:
    found = {}
    for line, place in enumerate(fit.places):
        column = system.columns[place]
        if column.kind == "padding" and column.units > 0 and bool(fit.determined[line]):
            weight = _clean(fit, line, rank, max(tolerance, NEGLIGIBLE * _single(tolerance)))
            found[column.rank, column.micro_batch] = weight
    return found


def _stale(system: System, fit: Fit, tolerance: float) -> float:
    """Return the largest coefficient of a left-over gradient, or 0 if none is more than noise."""
    lines = [line for line, place in enumerate(fit.places) if system.columns[place].kind == "stale"]
    if not lines:
        return 0.0
    weights: Tensor = fit.weights[lines]
    errors = torch.nan_to_num(fit.errors[lines], posinf=0.0)
    real = weights.abs() > torch.clamp(3 * errors, min=max(tolerance, NEGLIGIBLE * _single(tolerance)))
    return float(torch.where(real, weights, torch.zeros_like(weights)).flatten()[weights.abs().argmax()])


def _single(tolerance: float) -> float:
    return 1.0 if tolerance > 1e-5 else 0.0
