"""Mistakes that the weights do not show: extra reductions, repeated samples, buffers that moved twice."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trainer.forensics.evidence import BufferChange, Evidence, StepEvidence
from trainer.forensics.words import listed

NEAR = 1e-5
"""Running statistics are float32 in most models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One mistake with its numbers."""

    name: str
    words: str
    """What was measured, as a sentence."""
    numbers: dict[str, Any] = field(default_factory=dict)


def side_effects(evidence: Evidence) -> Iterator[Finding]:
    """Yield what is wrong besides the weights."""
    yield from _extra_syncs(evidence.steps)
    yield from _repeated(evidence.steps)
    yield from _buffers(evidence.buffers)


def _extra_syncs(steps: Sequence[StepEvidence]) -> Iterator[Finding]:
    worst: Sequence[int] = ()
    seen = []
    for step in steps:
        for places in step.reductions:
            if len(places) > 1:
                seen.append(step.step)
                worst = max(worst, places, key=len)
    if seen:
        after = ", ".join(str(place) for place in worst)
        yield Finding(
            name="extra_syncs",
            words=f"{len(worst)} reductions in a window, after backward passes {after} (counted from 0), instead of 1.",
            numbers={"reductions": len(worst), "after_backwards": list(worst), "steps": sorted(set(seen))},
        )


def _repeated(steps: Sequence[StepEvidence]) -> Iterator[Finding]:
    for step in steps:
        places: dict[str, list[tuple[int, int]]] = {}
        for part in step.parts:
            if part.kind == "units" and part.units > 0 and part.digest:
                places.setdefault(part.digest, []).append((part.rank, part.micro_batch))
        twice = [found for found in places.values() if len(found) > 1]
        if twice:
            where = " and ".join(f"micro-batch {place} of rank {rank}" for rank, place in twice[0])
            yield Finding(
                name="repeated_samples",
                words=f"Step {step.step}: {where} hold the same samples.",
                numbers={"step": step.step, "cells": [list(map(list, found)) for found in twice]},
            )
            return


def _buffers(changes: Sequence[BufferChange]) -> Iterator[Finding]:
    # Engines copy buffers between ranks, so only those of rank 0 are sure to be the result of its own forwards.
    twice = [change for change in changes if change.rank == 0 and _moved_twice(change)]
    if twice:
        names = list(dict.fromkeys(change.name for change in twice))
        yield Finding(
            name="buffers_moved_twice",
            words=f"{listed(names)}: the values are those after two forward passes per micro-batch.",
            numbers={"buffers": names},
        )


def _moved_twice(change: BufferChange) -> bool:
    return not _near(change.once, change.twice) and _near(change.observed, change.twice)


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    difference = torch.linalg.vector_norm(one.double() - other.double())
    return bool(difference <= NEAR * torch.linalg.vector_norm(other.double()).clamp(min=1e-12))
