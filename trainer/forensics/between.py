"""Gradients that were scaled between the backward passes of a window: the weights without it, and what it is called."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trainer.forensics.cells import Cell, Window
from trainer.forensics.clipping import CONSTANT, VARIES, Clip
from trainer.forensics.evidence import Change, StepEvidence
from trainer.forensics.words import number

SAME = 1e-6
"""Factors that differ from 1 by less than this share are none."""


def between(steps: Sequence[StepEvidence], windows: Sequence[Window]) -> Clip | None:
    """Return the weights as they would be if no gradient had been scaled inside a window, or None if none was."""
    if not all(_complete(step, window) for step, window in zip(steps, windows, strict=True)):
        return None
    inside = [change for step in steps for row in step.changes for change in row[:-1]]
    scaled = [change for change in inside if _scales(change)]
    if not scaled:
        return None
    limit = _limit(inside, [row[-1] for step in steps for row in step.changes])
    factors = [change.factor for change in scaled if change.factor is not None]
    numbers = {"times": float(len(scaled)), "smallest_factor": min(factors), "largest_factor": max(factors)}
    return Clip(
        name="clipped_inside_window" if limit else "scaled_inside_window",
        numbers={**numbers, **({"norm": limit} if limit else {})},
        windows=[_without(window, step, limit) for step, window in zip(steps, windows, strict=True)],
        hides_factors=False,
    )


def changes_seen(steps: Sequence[StepEvidence]) -> Iterator[str]:
    """Yield a sentence for the first change of every kind, between two backward passes and after the last one."""
    told = set()
    for step in steps:
        for rank, row in enumerate(step.changes):
            for place, change in enumerate(row):
                last = place == len(row) - 1
                kind = _kind(change, last=last)
                if kind and (kind, last) not in told:
                    told.add((kind, last))
                    where = f"After backward pass {place}, the last," if last else f"After backward pass {place}"
                    words = kind.format(factor=number(change.factor or 0.0), norm=number(change.norm))
                    yield f"{where} of step {step.step} (both counted from 0), rank {rank} {words}."


def changed_otherwise(steps: Sequence[StepEvidence]) -> bool:
    """Return whether gradients changed between two backward passes, and not by one factor."""
    return any(change.factor is None for step in steps for row in step.changes for change in row[:-1])


def _kind(change: Change, *, last: bool) -> str:
    if change.factor is None:
        # After the last backward pass that is usually the code's own reduction.
        return "" if last else "changed its gradients before the next one, and not by one factor"
    if change.factor == 0:
        return "cleared its gradients"
    return "multiplied its gradients by {factor}, to the norm {norm}" if _scales(change) else ""


def _complete(step: StepEvidence, window: Window) -> bool:
    """Return whether every micro-batch of every rank had one backward pass, and what came after it is known."""
    found = [len(row) for row in step.changes]
    known = all(change.factor is not None for row in step.changes for change in row[:-1])
    return known and found == [window.micro_batches(rank) for rank in range(window.world_size)]


def _scales(change: Change) -> bool:
    factor = change.factor
    return bool(factor) and not math.isclose(factor or 0.0, 1.0, rel_tol=SAME)


def _limit(inside: Sequence[Change], last: Sequence[Change]) -> float:
    """Return the norm to which all larger gradients were shrunk, or 0 if the factors do not come from clipping.

    `inside` are the changes between backward passes, `last` those after the last one, which may be something else.
    """
    scaled = [change for change in inside if _scales(change)]
    limit = max(change.norm for change in scaled)
    reached = [change for change in last if _scales(change) and math.isclose(change.norm, limit, rel_tol=CONSTANT)]
    factors = [change.factor or 0.0 for change in (*scaled, *reached)]
    constant = limit <= min(change.norm for change in scaled) * (1 + CONSTANT)
    varies = max(factors) >= min(factors) * (1 + VARIES)
    below = all(change.norm <= limit * (1 + CONSTANT) for change in inside)
    return limit if constant and varies and below and max(factors) < 1 else 0.0


def _without(window: Window, step: StepEvidence, limit: float) -> Window:
    rows = [_after_each(row, limit) for row in step.changes]

    def whole(cell: Cell) -> Cell:
        factor = rows[cell.rank][cell.micro_batch]
        return replace(
            cell,
            weight=cell.weight / factor,
            padding_weight=cell.padding_weight / factor,
            error=cell.error / factor,
        )

    return Window(tuple(map(whole, window.cells)), window.world_size)


def _after_each(row: Sequence[Change], limit: float) -> list[float]:
    """Return by what every micro-batch's gradient was multiplied after its backward pass, [micro_batches]."""
    factors = [change.factor or 1.0 for change in row]
    if row and not _belongs(row, limit):
        factors[-1] = 1.0  # a reduction, or a factor that is part of how this code divides
    return [math.prod(factors[place:]) for place in range(len(factors))]


def _belongs(row: Sequence[Change], limit: float) -> bool:
    """Return whether what followed the last backward pass is what followed the others, too."""
    last = row[-1]
    if not _scales(last):
        return False
    if limit:
        return (last.factor or 0.0) < 1 and math.isclose(last.norm, limit, rel_tol=CONSTANT)
    return any(math.isclose(last.factor or 0.0, change.factor or 0.0, rel_tol=SAME) for change in row[:-1])
